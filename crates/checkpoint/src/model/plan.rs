//! Taking a file's tensors for a model, whatever they are called there.

use std::collections::BTreeMap;
use std::path::Path;

use crate::model::keras::{Keras, View};
use crate::model::pattern::Pattern;
use crate::tensors::error::{Error, Result, broken};
use crate::tensors::file::TensorFile;
use crate::tensors::float::to_f32;
use crate::tensors::info::{Info, TensorDType};
use crate::tensors::report::{LoadReport, Mismatch};
use crate::tensors::tensor::{Tensor, Tensors};

/// A plan by which the tensors of a file become those of a model.
///
/// Rules for names apply to the file's names in the order in which they were given, each to what the one
/// before made. In patterns a `*` stands for anything.
///
/// ```
/// # use std::collections::BTreeMap;
/// # use unisono_checkpoint::{Info, Plan, Tensor, Tensors};
/// let file = Tensors::from([("module.fc.weight".to_owned(), Tensor::f32(&[1, 2], &[1.0, 2.0])?)]);
/// let model = BTreeMap::from([("head.weight".to_owned(), Info::f32(&[1, 2]))]);
/// let plan = Plan::new().strip_prefix("module.").rename("fc.*", "head.*").ignore("*.num_batches_tracked");
/// let (tensors, report) = plan.take(&file, &model)?;
/// assert_eq!(tensors["head.weight"].to_f32(), Some(vec![1.0, 2.0]));
/// assert!(report.is_exact());
/// # Ok::<(), unisono_checkpoint::Error>(())
/// ```
#[derive(Debug, Clone, Default)]
pub struct Plan {
    rules: Vec<Rule>,
    only: Vec<Pattern>,
    ignore: Vec<Pattern>,
    keras: Option<Keras>,
    partial: bool,
}

#[derive(Debug, Clone)]
enum Rule {
    Rename(Pattern, Pattern),
    Replace(String, String),
}

impl Plan {
    /// Takes all tensors, under their own names. Anything missing or unexpected is an error.
    pub fn new() -> Self {
        Self::default()
    }

    /// Renames: names that match `from` become `to`, whose stars stand for what those of `from` did, in
    /// order.
    pub fn rename(mut self, from: &str, to: &str) -> Self {
        self.rules.push(Rule::Rename(Pattern::new(from), Pattern::new(to)));
        self
    }

    /// Removes a prefix where there is one, such as the `module.` of PyTorch's data parallelism.
    pub fn strip_prefix(self, prefix: &str) -> Self {
        self.rename(&format!("{prefix}*"), "*")
    }

    /// Replaces a text wherever it occurs in a name, such as `/` by `.`.
    pub fn replace(mut self, from: &str, to: &str) -> Self {
        self.rules.push(Rule::Replace(from.into(), to.into()));
        self
    }

    /// Loads only the tensors of the model that match this pattern, or another pattern given so. Default:
    /// all. It is an error if no tensor of the model matches.
    pub fn only(mut self, pattern: &str) -> Self {
        self.only.push(Pattern::new(pattern));
        self
    }

    /// Passes over tensors of the file that match, under the names that they have there.
    pub fn ignore(mut self, pattern: &str) -> Self {
        self.ignore.push(Pattern::new(pattern));
        self
    }

    /// Reports missing and unexpected tensors, but does not treat them as an error, as PyTorch's
    /// `strict=False`. Shapes must fit. Unlike in PyTorch, a plan that loads no tensor at all is an error:
    /// usually a prefix is wrong.
    pub fn partial(mut self) -> Self {
        self.partial = true;
        self
    }

    /// Says that the file has Keras's layout.
    pub fn keras(mut self, keras: Keras) -> Self {
        self.keras = Some(keras);
        self
    }

    /// Renames what Keras calls otherwise: `/` to `.`, `kernel`, `gamma` and `embeddings` to `weight`, `beta`
    /// to `bias`, `moving_mean` to `running_mean`, `moving_variance` to `running_var`.
    pub fn keras_names(self) -> Self {
        let names = [
            ("kernel", "weight"),
            ("gamma", "weight"),
            ("embeddings", "weight"),
            ("beta", "bias"),
            ("moving_mean", "running_mean"),
            ("moving_variance", "running_var"),
        ];
        let plan = self.rename("*:0", "*").replace("/", ".");
        names.iter().fold(plan, |plan, (from, to)| plan.rename(&format!("*.{from}"), &format!("*.{to}")))
    }

    /// Takes the tensors of a file for a model that wants these. What is not wanted is not read.
    ///
    /// # Errors
    /// [`Error::Unfit`] with the report if a tensor of the model is missing, a wanted one of the file is not
    /// in the model, several have one name after renaming, or a shape or type does not fit, of which a
    /// [partial](Self::partial) plan allows the first two; [`Error::Only`] if no tensor of the model matches
    /// what is to be loaded; [`Error::Nothing`] if a partial plan finds none of the model's tensors;
    /// [`Error::Rule`] if a rule has more `*` in its new name than in its old one; a
    /// rule of [`Keras`] that fits no tensor.
    pub fn read(&self, file: &TensorFile, model: &BTreeMap<String, Info>) -> Result<(Tensors, LoadReport)> {
        let found = file.infos().filter_map(|(name, info)| Some((name, (info, file.bytes(name)?))));
        self.apply(file.path(), found.collect(), model)
    }

    /// Takes tensors in memory as [`Plan::read`] takes those of a file.
    ///
    /// # Errors
    /// Those of [`Plan::read`].
    pub fn take(&self, tensors: &Tensors, model: &BTreeMap<String, Info>) -> Result<(Tensors, LoadReport)> {
        let found = tensors.iter().map(|(name, tensor)| (name.as_str(), (tensor.info(), tensor.bytes())));
        self.apply(Path::new("tensors"), found.collect(), model)
    }

    fn apply(
        &self,
        path: &Path,
        found: BTreeMap<&str, (&Info, &[u8])>,
        model: &BTreeMap<String, Info>,
    ) -> Result<(Tensors, LoadReport)> {
        if let Some(keras) = &self.keras {
            let shapes = found.iter().map(|(name, (info, _))| (*name, &*info.shape));
            keras.check(shapes).map_err(|problem| broken(path, problem))?;
        }
        if !self.only.is_empty() && !model.keys().any(|name| self.wants(name)) {
            let patterns = self.only.iter().map(ToString::to_string).collect();
            return Err(Error::Only { path: path.to_owned(), patterns });
        }
        let sources = self.sources(found.keys().copied())?;
        let missing = model.keys().filter(|name| self.wants(name) && !sources.contains_key(*name));
        let mut report = LoadReport { missing: missing.cloned().collect(), ..LoadReport::default() };
        let mut tensors = Tensors::new();
        for (name, from) in sources {
            let Some(model) = model.get(&name) else {
                report.unexpected.extend(from.into_iter().map(str::to_owned));
                continue;
            };
            let &[source] = from.as_slice() else {
                report.ambiguous.push((name, from.into_iter().map(str::to_owned).collect()));
                continue;
            };
            let Some(&(info, bytes)) = found.get(source) else { continue };
            let view = self.keras.as_ref().and_then(|keras| keras.view(source, &info.shape));
            match fit(info, bytes, view.as_ref(), model)? {
                Some(tensor) => {
                    if info.dtype != model.dtype {
                        report.converted.push(name.clone());
                    }
                    report.loaded.push(name.clone());
                    tensors.insert(name, tensor);
                }
                None => {
                    let shape = view.map_or_else(|| info.shape.clone(), |view| view.shape);
                    let file = Info { dtype: info.dtype, shape };
                    report.mismatched.push(Mismatch { name, file, model: model.clone() });
                }
            }
        }
        if self.partial && report.fits() && report.loaded.is_empty() && !report.missing.is_empty() {
            return Err(Error::Nothing { path: path.to_owned(), report: Box::new(report) });
        }
        if report.is_exact() || self.partial && report.fits() {
            Ok((tensors, report))
        } else {
            Err(Error::Unfit { path: path.to_owned(), report: Box::new(report) })
        }
    }

    /// Returns the names that are wanted, each with the file's tensors that renaming gives this name.
    fn sources<'n>(&self, file: impl Iterator<Item = &'n str>) -> Result<BTreeMap<String, Vec<&'n str>>> {
        let mut sources: BTreeMap<String, Vec<&str>> = BTreeMap::new();
        for name in file.filter(|name| !self.ignore.iter().any(|pattern| pattern.matches(name))) {
            let renamed = self.renamed(name)?;
            if self.wants(&renamed) {
                sources.entry(renamed).or_default().push(name);
            }
        }
        Ok(sources)
    }

    /// Whether the plan loads the model's tensor of this name.
    fn wants(&self, name: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|pattern| pattern.matches(name))
    }

    /// Applies the rules for names.
    fn renamed(&self, name: &str) -> Result<String> {
        self.rules.iter().try_fold(name.to_owned(), |name, rule| match rule {
            Rule::Replace(from, to) => Ok(name.replace(from, to)),
            Rule::Rename(from, to) if to.stars() > from.stars() => {
                Err(Error::Rule { from: from.to_string(), to: to.to_string() })
            }
            Rule::Rename(from, to) => {
                let filled = from.captures(&name).map(|captures| to.fill(&captures));
                Ok(filled.unwrap_or(name))
            }
        })
    }
}

/// Returns the tensor as the model wants it, or `None` if it cannot be that.
fn fit(info: &Info, bytes: &[u8], view: Option<&View>, model: &Info) -> Result<Option<Tensor>> {
    let shape = view.map_or(&info.shape, |view| &view.shape);
    if *shape != model.shape {
        return Ok(None);
    }
    let moved = view.map(|view| view.apply(info, bytes));
    let bytes = moved.as_deref().unwrap_or(bytes);
    if info.dtype == model.dtype {
        return Tensor::new(info.dtype, shape.clone(), bytes.to_vec()).map(Some);
    }
    match to_f32(info.dtype, bytes).filter(|_| model.dtype == TensorDType::F32) {
        Some(values) => Tensor::f32(shape, &values).map(Some),
        None => Ok(None),
    }
}
