//! A plan backwards: a model's tensors in the form of a file.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use crate::model::arranged::Arranged;
use crate::model::plan::{Plan, gather, unchanged};
use crate::model::quantized::{dequantized, scale_name};
use crate::model::rules::Item;
use crate::tensors::error::{Error, Result, broken};
use crate::tensors::info::{Info, TensorDType};
use crate::tensors::report::{LoadReport, Mismatch};
use crate::tensors::tensor::{Tensor, Tensors};

/// A tensor of the file while it is put together.
struct Whole<'a> {
    info: &'a Info,
    dtype: Option<TensorDType>,
    bytes: Vec<u8>,
    /// The number of elements that are there.
    filled: usize,
}

impl Plan {
    /// Returns all tensors of a file as the rules arrange them, for whatever model. Tensors that the plan
    /// ignores are left out, and quantized ones are f32.
    ///
    /// # Errors
    /// Those of [`Plan::read`] that concern the rules; several tensors get one name.
    pub fn arrange(&self, tensors: &Tensors) -> Result<Tensors> {
        let path = Path::new("tensors");
        let tensors = &*dequantized(tensors, |name, scale| self.leaves_quantized(name, scale))?;
        let infos = tensors.iter().map(|(name, tensor)| (name.as_str(), tensor.info()));
        let found = tensors.iter().map(|(name, tensor)| (name.as_str(), (tensor.info(), tensor.bytes())));
        let found = found.collect();
        let mut all = Tensors::new();
        let mut ambiguous: BTreeSet<String> = BTreeSet::new();
        for Item { name, tensor } in self.items(path, infos)?.0 {
            let tensor = match unchanged(&tensor, tensors) {
                Some(unchanged) => unchanged.clone(),
                None => {
                    let bytes = gather(&tensor, &found).into_owned();
                    Tensor::new(tensor.dtype, tensor.shape, bytes)?
                }
            };
            if all.insert(name.clone(), tensor).is_some() {
                ambiguous.insert(name);
            }
        }
        match ambiguous.first() {
            Some(name) => Err(broken(path, format!("several tensors are {name} by the plan"))),
            None => Ok(all),
        }
    }

    /// Makes the tensors of a file from those of the model that the plan would take from it: what
    /// [`Plan::read`] does, backwards. `file` has the types and shapes of the file's tensors
    /// ([`TensorFile::infos`](crate::TensorFile::infos)). Tensors that the plan ignores are left out. The
    /// result has the model's element types, so a file that was quantized has no scales in it.
    ///
    /// ```
    /// # use std::collections::BTreeMap;
    /// # use unisono_checkpoint::{Info, Plan, Tensor, Tensors};
    /// let plan = Plan::new().strip_prefix("module.").transpose("fc");
    /// let file = BTreeMap::from([("module.fc".to_owned(), Info::f32(&[1, 2]))]);
    /// let model = Tensors::from([("fc".to_owned(), Tensor::f32(&[2, 1], &[1.0, 2.0])?)]);
    /// assert_eq!(plan.revert(&model, &file)?["module.fc"], Tensor::f32(&[1, 2], &[1.0, 2.0])?);
    /// # Ok::<(), unisono_checkpoint::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Unfit`] with the report if the model lacks a tensor or has one that the file has no place
    /// for, or a shape does not fit; [`Error::Broken`] if a tensor of the file would have only a part of its
    /// elements, or parts of different types; errors of the rules as for [`Plan::read`].
    pub fn revert(&self, model: &Tensors, file: &BTreeMap<String, Info>) -> Result<Tensors> {
        let path = Path::new("tensors");
        if let Some((name, info)) = file.iter().find(|(_, info)| info.bytes().is_none()) {
            return Err(broken(path, format!("{name} has the shape {:?}, which no file holds", info.shape)));
        }
        let is_quantized = |(name, info): &(&String, &Info)| {
            let scale = scale_name(name);
            info.dtype == TensorDType::I8 && file.contains_key(&scale) && !self.leaves_quantized(name, &scale)
        };
        let scales: BTreeSet<String> =
            file.iter().filter(is_quantized).map(|(name, _)| scale_name(name)).collect();
        let own = file.iter().filter(|(name, _)| !scales.contains(*name));
        let (items, _) = self.items(path, own.map(|(name, info)| (name.as_str(), info)))?;
        let mut report = LoadReport::default();
        let mut wholes: BTreeMap<&str, Whole<'_>> = BTreeMap::new();
        let known: BTreeSet<&str> = items.iter().map(|item| item.name.as_str()).collect();
        let unexpected = model.keys().filter(|name| self.wants(name) && !known.contains(name.as_str()));
        report.unexpected.extend(unexpected.cloned());
        for Item { name, tensor: arranged } in items.iter().filter(|item| self.wants(&item.name)) {
            match model.get(name) {
                None => report.missing.push(name.clone()),
                Some(tensor) if tensor.shape() != arranged.shape => {
                    let file = Info { dtype: arranged.dtype, shape: arranged.shape.clone() };
                    let model = tensor.info().clone();
                    report.mismatched.push(Mismatch { name: name.clone(), file, model });
                }
                Some(tensor) => scatter(path, tensor, arranged, file, &mut wholes)?,
            }
        }
        if !report.is_exact() {
            return Err(Error::Unfit { path: path.to_owned(), report: Box::new(report) });
        }
        let whole = |(name, whole): (&str, Whole<'_>)| {
            let dtype = whole.dtype.unwrap_or(whole.info.dtype);
            if whole.filled * dtype.size() < whole.bytes.len() {
                return Err(broken(path, format!("the model has only a part of {name}")));
            }
            Ok((name.to_owned(), Tensor::new(dtype, whole.info.shape.clone(), whole.bytes)?))
        };
        wholes.into_iter().map(whole).collect()
    }
}

/// Puts the elements of a model's tensor where the file has them.
fn scatter<'f>(
    path: &Path,
    tensor: &Tensor,
    arranged: &Arranged,
    file: &'f BTreeMap<String, Info>,
    wholes: &mut BTreeMap<&'f str, Whole<'f>>,
) -> Result<()> {
    let size = tensor.dtype().size();
    let names = arranged.names();
    let mut own = Vec::new();
    for name in &names {
        let Some((name, info)) = file.get_key_value(*name) else { continue };
        let elements = info.bytes().unwrap_or(0) / info.dtype.size();
        let fresh = || Whole { info, dtype: None, bytes: vec![0; elements * size], filled: 0 };
        let mut whole = wholes.remove(name.as_str()).unwrap_or_else(fresh);
        if *whole.dtype.get_or_insert(tensor.dtype()) != tensor.dtype() {
            return Err(broken(path, format!("the parts of {name} have different types")));
        }
        if arranged.plain().is_some() {
            whole.bytes.copy_from_slice(tensor.bytes());
            whole.filled = elements;
        }
        own.push((name.as_str(), whole));
    }
    if arranged.plain().is_none() {
        let numbers = names.into_iter().zip(0..).collect();
        for (place, element) in arranged.places(&numbers).iter().zip(tensor.bytes().chunks_exact(size)) {
            let whole = &mut own[place.tensor].1;
            whole.bytes[place.at * size..][..size].copy_from_slice(element);
            whole.filled += 1;
        }
    }
    wholes.extend(own);
    Ok(())
}
