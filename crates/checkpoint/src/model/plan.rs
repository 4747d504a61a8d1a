//! Taking a file's tensors for a model, whatever they are called there.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use crate::model::arranged::Arranged;
use crate::model::keras::Keras;
use crate::model::pattern::Pattern;
use crate::model::quantized::{dequantize, scale_name};
use crate::model::rules::{Item, Rule};
use crate::tensors::error::{Error, Result, broken};
use crate::tensors::file::TensorFile;
use crate::tensors::float::to_f32;
use crate::tensors::info::{Info, TensorDType};
use crate::tensors::report::{LoadReport, Mismatch};
use crate::tensors::tensor::{Tensor, Tensors};

/// A plan by which the tensors of a file become those of a model.
///
/// Rules apply in the order in which they were given, each to what the one before made: to names that are
/// already changed, and to tensors that are already split or transposed. In patterns a `*` stands for
/// anything.
///
/// The same plan leads back: [`Plan::revert`] makes the file's tensors of the model's, for saving a model in
/// the form in which it came.
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
    except: Vec<Pattern>,
    ignore: Vec<Pattern>,
    keras: Option<Keras>,
    partial: bool,
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

    /// Leaves the tensors of the model that match as they are, such as a new head, and passes over what the
    /// file has for them. It is an error if no tensor of the model matches.
    pub fn except(mut self, pattern: &str) -> Self {
        self.except.push(Pattern::new(pattern));
        self
    }

    /// Swaps the last two axes of the tensors that match, such as the weights `[in, out]` of GPT-2's
    /// `Conv1D`.
    pub fn transpose(mut self, pattern: &str) -> Self {
        self.rules.push(Rule::Transpose(Pattern::new(pattern)));
        self
    }

    /// Reorders the axes of the tensors that match: axis i becomes what axis `order[i]` was (PyTorch's
    /// `permute`).
    pub fn permute(mut self, pattern: &str, order: &[usize]) -> Self {
        self.rules.push(Rule::Permute(Pattern::new(pattern), order.to_vec()));
        self
    }

    /// Gives the tensors that match another shape with as many elements.
    pub fn reshape(mut self, pattern: &str, shape: &[usize]) -> Self {
        self.rules.push(Rule::Reshape(Pattern::new(pattern), shape.to_vec()));
        self
    }

    /// Cuts the tensors that match into equal parts along an axis, such as one `qkv` into query, key and
    /// value (PyTorch's `chunk`). The stars of each name in `into` stand for what those of the pattern did.
    ///
    /// ```
    /// # use unisono_checkpoint::{Plan, Tensor, Tensors};
    /// let plan = Plan::new().split("*.qkv.weight", 0, &["*.q.weight", "*.k.weight", "*.v.weight"]);
    /// let file = Tensors::from([("0.qkv.weight".to_owned(), Tensor::f32(&[3, 1], &[1.0, 2.0, 3.0])?)]);
    /// assert_eq!(plan.arrange(&file)?["0.k.weight"], Tensor::f32(&[1, 1], &[2.0])?);
    /// # Ok::<(), unisono_checkpoint::Error>(())
    /// ```
    pub fn split(mut self, pattern: &str, axis: usize, into: &[&str]) -> Self {
        let into = into.iter().map(|name| (Pattern::new(name), None)).collect();
        self.rules.push(Rule::Split { from: Pattern::new(pattern), axis, into });
        self
    }

    /// Cuts tensors as [`Plan::split`] does, into parts of these lengths.
    pub fn split_lengths(mut self, pattern: &str, axis: usize, into: &[(&str, usize)]) -> Self {
        let into = into.iter().map(|&(name, length)| (Pattern::new(name), Some(length))).collect();
        self.rules.push(Rule::Split { from: Pattern::new(pattern), axis, into });
        self
    }

    /// Joins tensors along an axis, in this order (PyTorch's `cat`). The stars of the other names, and of
    /// `into`, stand for what those of the first did. Tensors stay as they are where one of them is missing.
    pub fn merge(mut self, from: &[&str], axis: usize, into: &str) -> Self {
        let from = from.iter().map(|name| Pattern::new(name)).collect();
        self.rules.push(Rule::Merge { from, axis, into: Pattern::new(into) });
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
    pub fn partial(self) -> Self {
        Self { partial: true, ..self }
    }

    /// Says that the file has Keras's layout.
    pub fn keras(self, keras: Keras) -> Self {
        Self { keras: Some(keras), ..self }
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
    /// A tensor `NAME` of i8 with a tensor `NAME_scale` next to it is quantized
    /// ([`WeightPrecision::I8`](crate::WeightPrecision::I8)). Before any rule applies, the two become one
    /// tensor `NAME` of f32, their product. All such tensors are read. [`Plan::ignore`] of either leaves both
    /// as they are.
    ///
    /// # Errors
    /// [`Error::Unfit`] with the report if a tensor of the model is missing, a wanted one of the file is not
    /// in the model, several have one name after renaming, a shape or type does not fit, or a value is NaN or
    /// infinite; a [partial](Self::partial) plan allows the first two; [`Error::Only`] if no tensor of the
    /// model matches what is to be loaded; [`Error::Nothing`] if a partial plan finds none of the model's
    /// tensors; [`Error::Rule`] if a rule has more `*` in its new name than in its old one;
    /// [`Error::Broken`] if a rule cannot split, merge, transpose or reshape a tensor that matches, or one of
    /// [`Keras`] or [`Plan::except`] fits no tensor, or scales do not fit their tensor.
    pub fn read(&self, file: &TensorFile, model: &BTreeMap<String, Info>) -> Result<(Tensors, LoadReport)> {
        let found = file.infos().filter_map(|(name, info)| Some((name, (info, file.bytes(name)?))));
        self.apply(file.path(), found.collect(), &Tensors::new(), model)
    }

    /// Takes tensors in memory as [`Plan::read`] takes those of a file. Tensors that stay as they are share
    /// their bytes with the given ones.
    ///
    /// # Errors
    /// Those of [`Plan::read`].
    pub fn take(&self, tensors: &Tensors, model: &BTreeMap<String, Info>) -> Result<(Tensors, LoadReport)> {
        let found = tensors.iter().map(|(name, tensor)| (name.as_str(), (tensor.info(), tensor.bytes())));
        self.apply(Path::new("tensors"), found.collect(), tensors, model)
    }

    /// Takes what was found. `memory` has those of the tensors that are in memory.
    fn apply(
        &self,
        path: &Path,
        found: Found<'_>,
        memory: &Tensors,
        model: &BTreeMap<String, Info>,
    ) -> Result<(Tensors, LoadReport)> {
        self.check(path, model)?;
        let dequantized = dequantize(path, &found, |name, scale| self.leaves_quantized(name, scale))?;
        let mut found: Found<'_> = found;
        for (name, tensor) in &dequantized {
            found.remove(&*scale_name(name));
            found.insert(name, (tensor.info(), tensor.bytes()));
        }
        let mut sources: BTreeMap<String, Vec<Arranged>> = BTreeMap::new();
        let (items, unused) = self.items(path, found.iter().map(|(name, (info, _))| (*name, *info)))?;
        for Item { name, tensor } in items {
            if self.wants(&name) {
                sources.entry(name).or_default().push(tensor);
            }
        }
        let missing = model.keys().filter(|name| self.wants(name) && !sources.contains_key(*name));
        let mut report = LoadReport { missing: missing.cloned().collect(), unused, ..LoadReport::default() };
        let mut tensors = Tensors::new();
        for (name, from) in sources {
            let names = from.iter().flat_map(Arranged::names).map(str::to_owned);
            let Some(model) = model.get(&name) else {
                report.unexpected.extend(names);
                continue;
            };
            let [source] = from.as_slice() else {
                report.ambiguous.push((name, names.collect()));
                continue;
            };
            match fit(source, &found, memory, model)? {
                Some(tensor) => {
                    let is_quantized =
                        || source.names().into_iter().any(|name| dequantized.contains_key(name));
                    if source.dtype != model.dtype || is_quantized() {
                        report.converted.push(name.clone());
                    }
                    report.loaded.push(name.clone());
                    match tensor.not_finite() {
                        0 => drop(tensors.insert(name, tensor)),
                        count => report.not_finite.push((name, count)),
                    }
                }
                None => {
                    let file = Info { dtype: source.dtype, shape: source.shape.clone() };
                    report.mismatched.push(Mismatch { name, file, model: model.clone() });
                }
            }
        }
        // A tensor of the file may have been split into several that the model lacks.
        let mut told = BTreeSet::new();
        report.unexpected.retain(|name| told.insert(name.clone()));
        if self.partial && report.fits() && report.loaded.is_empty() && !report.missing.is_empty() {
            return Err(Error::Nothing { path: path.to_owned(), report: Box::new(report) });
        }
        if report.is_exact() || self.partial && report.fits() {
            Ok((tensors, report))
        } else {
            Err(Error::Unfit { path: path.to_owned(), report: Box::new(report) })
        }
    }

    /// Refuses patterns that no tensor of the model matches.
    fn check(&self, path: &Path, model: &BTreeMap<String, Info>) -> Result<()> {
        let is_of = |pattern: &&Pattern| !model.keys().any(|name| pattern.matches(name));
        if let Some(pattern) = self.except.iter().find(is_of) {
            let problem = format!("the plan excepts {pattern}, but no tensor of the model has such a name");
            return Err(broken(path, problem));
        }
        if !self.only.is_empty() && !model.keys().any(|name| self.wants(name)) {
            let patterns = self.only.iter().map(ToString::to_string).collect();
            return Err(Error::Only { path: path.to_owned(), patterns });
        }
        Ok(())
    }

    /// Returns what the rules make of a file's tensors, without those that are ignored, and the rules that
    /// found none of theirs.
    pub(super) fn items<'a>(
        &self,
        path: &Path,
        file: impl Iterator<Item = (&'a str, &'a Info)> + Clone,
    ) -> Result<(Vec<Item>, Vec<String>)> {
        if let Some(keras) = &self.keras {
            let shapes = file.clone().map(|(name, info)| (name, &*info.shape));
            keras.check(shapes).map_err(|problem| broken(path, problem))?;
        }
        let item = |(name, info): (&str, &Info)| {
            let view = self.keras.as_ref().and_then(|keras| keras.view(name, &info.shape));
            Item { name: name.to_owned(), tensor: Arranged::stored(name, info, view) }
        };
        let wanted = file.filter(|(name, _)| !self.ignores(name));
        let mut items: Vec<Item> = wanted.map(item).collect();
        let mut unused = Vec::new();
        for rule in &self.rules {
            unused.extend(rule.unused(&items));
            items = rule.apply(path, items)?;
        }
        Ok((items, unused))
    }

    /// Whether the plan passes over the file's tensor of this name.
    pub(super) fn ignores(&self, name: &str) -> bool {
        self.ignore.iter().any(|pattern| pattern.matches(name))
    }

    /// Whether integers and their scales stay as they are, since the plan ignores one of them.
    pub(super) fn leaves_quantized(&self, name: &str, scale: &str) -> bool {
        self.ignores(name) || self.ignores(scale)
    }

    /// Whether the plan loads the model's tensor of this name.
    pub(super) fn wants(&self, name: &str) -> bool {
        let is_in = |patterns: &[Pattern]| patterns.iter().any(|pattern| pattern.matches(name));
        (self.only.is_empty() || is_in(&self.only)) && !is_in(&self.except)
    }
}

/// The tensors of a file by name.
pub(super) type Found<'a> = BTreeMap<&'a str, (&'a Info, &'a [u8])>;

/// Returns the tensor as the model wants it, or `None` if it cannot be that.
fn fit(source: &Arranged, found: &Found<'_>, memory: &Tensors, model: &Info) -> Result<Option<Tensor>> {
    if source.shape != model.shape {
        return Ok(None);
    }
    if let Some(tensor) = unchanged(source, memory).filter(|tensor| tensor.dtype() == model.dtype) {
        return Ok(Some(tensor.clone()));
    }
    let bytes = gather(source, found);
    if source.dtype == model.dtype {
        return Tensor::new(source.dtype, source.shape.clone(), bytes.into_owned()).map(Some);
    }
    match to_f32(source.dtype, &bytes).filter(|_| model.dtype == TensorDType::F32) {
        Some(values) => Tensor::f32(&source.shape, &values).map(Some),
        None => Ok(None),
    }
}

/// Returns the tensor in memory that this is, if it is one without any change.
pub(super) fn unchanged<'a>(source: &Arranged, memory: &'a Tensors) -> Option<&'a Tensor> {
    source.plain().and_then(|name| memory.get(name))
}

/// Returns the elements of a tensor that is made of a file's.
pub(super) fn gather<'a>(source: &Arranged, found: &Found<'a>) -> Cow<'a, [u8]> {
    if let Some((_, bytes)) = source.plain().and_then(|name| found.get(name)) {
        return Cow::Borrowed(bytes);
    }
    let names = source.names();
    let bytes: Vec<&[u8]> = names.iter().filter_map(|name| Some(found.get(name)?.1)).collect();
    let numbers = names.into_iter().zip(0..).collect();
    let size = source.dtype.size();
    let places = source.places(&numbers);
    let mut all = Vec::with_capacity(places.len() * size);
    places.iter().for_each(|place| all.extend_from_slice(&bytes[place.tensor][place.at * size..][..size]));
    Cow::Owned(all)
}
