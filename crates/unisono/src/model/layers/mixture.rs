use serde::{Deserialize, Serialize};
use unisono_graph::{Lead, Var};

use super::Dense;
use super::settings::{not_negative, valid};
use crate::model::description::Describe;
use crate::model::{Context, Description, Forward, Layer};

/// A mixture of experts (Shazeer et al. 2017): a router chooses `k` of the layers inside for each place of
/// the input, and the result is the sum of theirs, each times its share.
///
/// The shares are the softmax of the router's logits for the chosen experts (as in Mixtral). With
/// [`keep_probabilities`](Self::keep_probabilities) they are the softmax over all experts (as in the switch
/// transformer). Among equal logits the first expert is chosen.
///
/// All experts compute all places, and what a place did not choose counts 0 times. So the time is that of
/// all experts, whatever k is.
///
/// Shapes: `[B, ..., n]` to what the experts give, `[B, ..., out]`. Parameters: `router.weight` `[experts,
/// n]` (Default: Glorot uniform); those of the i-th expert are `experts.i.*`.
///
/// Errors: there are no experts, k is not in 1..=experts, the experts' results differ in shape, or have other
/// places than the input.
///
/// ```
/// use unisono::{Dense, MixtureOfExperts, Relu, Residual, Sequential};
///
/// let expert = || Sequential::new().add(Dense::new(64)).add(Relu).add(Dense::new(16));
/// let mixture = MixtureOfExperts::new(2).add(expert()).add(expert()).add(expert()).balance(0.01);
/// let model = Sequential::new().add(Dense::new(16)).add(Residual::new(mixture)).add(Dense::new(3));
/// ```
#[doc(alias("MoE", "switch"))]
pub struct MixtureOfExperts {
    experts: Vec<Box<dyn Layer>>,
    k: usize,
    all: bool,
    balance: f32,
}

/// The description of a [`MixtureOfExperts`].
#[derive(Clone, Debug, Serialize, Deserialize)]
#[non_exhaustive]
#[serde(deny_unknown_fields)]
pub struct MixtureOfExpertsDescription {
    /// The experts, first to last.
    pub experts: Vec<Description>,
    /// How many experts a place has.
    pub k: usize,
    /// Whether the shares are the softmax over all experts.
    pub all: bool,
    /// The weight of the loss of balance.
    pub balance: f32,
}

impl MixtureOfExperts {
    /// Creates a mixture that sends each place to `k` experts. It has no experts yet.
    pub fn new(k: usize) -> Self {
        Self { experts: vec![], k, all: false, balance: 0.0 }
    }

    /// Adds an expert.
    #[expect(clippy::should_implement_trait, reason = "the same name as that of Sequential")]
    pub fn add(mut self, expert: impl Layer + 'static) -> Self {
        self.experts.push(Box::new(expert));
        self
    }

    /// Takes the softmax over all experts as shares. The shares of the chosen experts then add up to less
    /// than 1, unless all are chosen. Use it with k = 1, where the share is otherwise always 1, so that the
    /// router cannot learn from it. Default: the softmax over the chosen experts.
    pub fn keep_probabilities(self) -> Self {
        Self { all: true, ..self }
    }

    /// Adds the loss `balance` with this weight (Fedus et al. 2021): the sum of `f p` over all experts, times
    /// the number of experts. Here f is the expert's share of all choices, and p is its mean probability.
    /// Each place makes k choices. The loss is smallest if all experts are used equally. Default: 0, no such
    /// loss.
    #[doc(alias = "load_balance")]
    pub fn balance(self, weight: f32) -> Self {
        Self { balance: weight, ..self }
    }

    /// Adds the loss of balance from the probabilities and the choice of each place, `[B, ..., experts]`.
    fn add_balance(&self, cx: &mut Context, probabilities: &Var, chosen: &Var) {
        let places = probabilities.ty().count() / self.experts.len().max(1);
        let ones = cx.tape().constant(1.0).expand(Lead::Sample, &[]).sum_shards();
        let mean = |x: &Var| {
            let axes: Vec<isize> = (2..=x.dims().len() as isize).map(|axis| -axis).collect();
            let each = if axes.is_empty() { x.clone() } else { x.sum(&axes) };
            each.sum_shards() / (&ones * places as f32)
        };
        let used = mean(&chosen.detach()) * (1.0 / self.k as f32);
        let loss = (used * mean(probabilities)).sum_all() * self.experts.len() as f32;
        cx.loss("balance", &loss, self.balance);
    }
}

impl Forward for MixtureOfExperts {
    fn forward(&self, cx: &mut Context, x: &Var) -> Var {
        let experts = self.experts.len();
        let none = (experts == 0).then(|| "there are no experts: add them (add)".to_owned());
        let chosen = (!(1..=experts).contains(&self.k))
            .then(|| format!("k is {}, and must be from 1 to {experts}, the number of experts", self.k));
        if !valid(self.name(), cx, [none, chosen, not_negative("balance", self.balance)]) {
            return x.clone();
        }
        let logits = cx.apply("router", &Dense::new(experts).no_bias(), x);
        let probabilities = logits.softmax();
        let (_, numbers) = logits.top_k(self.k);
        let chosen = numbers.to_i32().one_hot(experts).sum(&[-2]);
        let shares = &probabilities * &chosen;
        let shares = if self.all { shares } else { &shares / shares.sum_keep(&[-1]) };
        if self.balance > 0.0 {
            self.add_balance(cx, &probabilities, &chosen);
        }
        let mut sum: Option<Var> = None;
        for (at, expert) in self.experts.iter().enumerate() {
            let y = cx.apply(&format!("experts.{at}"), expert, x);
            let share = shares.slice(-1, at..at + 1);
            let fits =
                y.dims().split_last().map(|(_, places)| places) == share.dims().split_last().map(|s| s.1);
            if !fits || sum.as_ref().is_some_and(|sum| sum.ty() != y.ty()) {
                let problem = format!("expert {at} gives {} for {}, which cannot be added", y.ty(), x.ty());
                cx.fail(self.name(), problem);
                return x.clone();
            }
            let part = y * share;
            sum = Some(sum.map_or_else(|| part.clone(), |sum| sum + &part));
        }
        sum.unwrap_or_else(|| x.clone())
    }
}

impl Describe<MixtureOfExpertsDescription> for MixtureOfExperts {
    fn settings(&self) -> Option<MixtureOfExpertsDescription> {
        let experts = self.experts.iter().map(|layer| layer.description()).collect::<Option<_>>()?;
        Some(MixtureOfExpertsDescription { experts, k: self.k, all: self.all, balance: self.balance })
    }
}

impl From<MixtureOfExpertsDescription> for MixtureOfExperts {
    fn from(settings: MixtureOfExpertsDescription) -> Self {
        let experts = settings.experts.into_iter().map(Description::layer).collect();
        Self { experts, k: settings.k, all: settings.all, balance: settings.balance }
    }
}
