//! Keras's arrays as the tensors of our layers.

use std::collections::BTreeMap;

use crate::model::keras::{Keras, View};
use crate::tensors::tensor::{Tensor, Tensors};

use super::classes::without_number;
use super::file::Layers;

type Arrays = BTreeMap<String, Tensor>;

/// Turns all layers.
pub(super) fn tensors(mut layers: Layers, keras: &Keras) -> Result<Tensors, String> {
    let mut found = Found { tensors: Tensors::new() };
    check(&layers, keras)?;
    recurrent(&mut layers, &mut found)?;
    attention(&mut layers, &mut found)?;
    for (path, arrays) in layers {
        let is_separable = arrays.contains_key("pointwise_kernel");
        for (role, tensor) in arrays {
            let name = [path.clone(), vec![role.clone()]].concat().join("/");
            let tensor = match keras.view(&name, tensor.shape()) {
                Some(view) => viewed(&tensor, &view)?,
                None => tensor,
            };
            found.add(&path, ours(&role, is_separable), tensor)?;
        }
    }
    Ok(found.tensors)
}

/// Checks that the rules of `keras` have kernels.
fn check(layers: &Layers, keras: &Keras) -> Result<(), String> {
    let names = layers.iter().flat_map(|(path, arrays)| {
        arrays.iter().map(move |(role, tensor)| (format!("{}/{role}", path.join("/")), tensor.shape()))
    });
    let names: Vec<(String, &[usize])> = names.collect();
    keras.check(names.iter().map(|(name, shape)| (name.as_str(), *shape)))
}

/// Returns our name for an array.
fn ours(role: &str, is_separable: bool) -> &str {
    match role {
        "depthwise_kernel" if is_separable => "depthwise.weight",
        "pointwise_kernel" => "pointwise.weight",
        "bias" if is_separable => "pointwise.bias",
        "kernel" | "depthwise_kernel" | "gamma" | "embeddings" => "weight",
        "beta" => "bias",
        "moving_mean" => "running_mean",
        "moving_variance" => "running_var",
        other => other,
    }
}

struct Found {
    tensors: Tensors,
}

impl Found {
    fn add(&mut self, path: &[String], name: &str, tensor: Tensor) -> Result<(), String> {
        let name = [path, &[name.to_owned()]].concat().join(".");
        match self.tensors.insert(name.clone(), tensor) {
            Some(_) => Err(format!("{name} is there twice")),
            None => Ok(()),
        }
    }
}

/// Takes the recurrent layers out.
fn recurrent(layers: &mut Layers, found: &mut Found) -> Result<(), String> {
    let is_recurrent = |arrays: &Arrays| arrays.contains_key("recurrent_kernel");
    let paths: Vec<Vec<String>> =
        layers.iter().filter(|(_, arrays)| is_recurrent(arrays)).map(|(path, _)| path.clone()).collect();
    let own: Vec<&[String]> = paths.iter().map(|path| without_cell(path)).collect();
    let has = |way: &str, parent: &[String]| {
        own.iter()
            .any(|path| path.split_last().is_some_and(|(last, up)| up == parent && last.starts_with(way)))
    };
    for (path, own) in paths.iter().zip(&own) {
        let (layer, suffix) = match own.split_last() {
            Some((last, parent)) if has("forward", parent) && has("backward", parent) => {
                (parent, if last.starts_with("backward") { "_reverse" } else { "" })
            }
            _ => (*own, ""),
        };
        let arrays = layers.remove(path).unwrap_or_default();
        for (name, tensor) in gates(arrays).map_err(|problem| format!("{}: {problem}", path.join("/")))? {
            found.add(layer, &format!("{name}_l0{suffix}"), tensor)?;
        }
    }
    Ok(())
}

/// Removes the cell of a recurrent layer from its path.
fn without_cell(path: &[String]) -> &[String] {
    match path.split_last() {
        Some((last, layer))
            if !layer.is_empty() && (last == "cell" || without_number(last).ends_with("_cell")) =>
        {
            layer
        }
        _ => path,
    }
}

/// Turns the arrays of a recurrent layer: their gates are columns, and here rows.
fn gates(mut arrays: Arrays) -> Result<Vec<(&'static str, Tensor)>, String> {
    let mut take = |role: &str| arrays.remove(role);
    let (Some(kernel), Some(own)) = (take("kernel"), take("recurrent_kernel")) else {
        return Err("it has no kernel".into());
    };
    let (&[_, columns], &[units, others]) = (kernel.shape(), own.shape()) else {
        return Err(format!("kernels of {:?} and {:?}", kernel.shape(), own.shape()));
    };
    let (is_gru, is_known) = (units.checked_mul(3) == Some(columns), [1, 3, 4].map(|n| units.checked_mul(n)));
    if columns != others || units == 0 || !is_known.contains(&Some(columns)) {
        return Err(format!("kernels of {:?} and {:?}", kernel.shape(), own.shape()));
    }
    // Keras's GRU has its gates in the order z, r, n.
    let order = |tensor: Tensor| if is_gru { swapped(&tensor) } else { Ok(tensor) };
    let mut all = vec![("weight_ih", order(turned(&kernel)?)?), ("weight_hh", order(turned(&own)?)?)];
    let Some(bias) = take("bias") else { return Ok(all) };
    match (bias.shape(), is_gru) {
        (&[2, n], true) if n == columns => {
            for (at, name) in ["bias_ih", "bias_hh"].into_iter().enumerate() {
                all.push((name, order(rows(&bias, at..at + 1, &[n])?)?));
            }
        }
        (&[n], true) if n == columns => {
            return Err(
                "it is a GRU with reset_after=False, which has another formula than this library's".into()
            );
        }
        (&[n], false) if n == columns => {
            let zeros = Tensor::new(bias.dtype(), vec![n], vec![0; bias.bytes().len()]);
            all.extend([("bias_ih", bias), ("bias_hh", zeros.map_err(|error| error.to_string())?)]);
        }
        (shape, _) => return Err(format!("a bias of {shape:?} for {columns} gates")),
    }
    Ok(all)
}

/// Takes the attentions out: their parts are layers of their own in Keras.
fn attention(layers: &mut Layers, found: &mut Found) -> Result<(), String> {
    const PARTS: [[&str; 4]; 2] = [
        ["query_dense", "key_dense", "value_dense", "output_dense"],
        ["query", "key", "value", "attention_output"],
    ];
    let parents: Vec<Vec<String>> =
        layers.keys().filter_map(|path| path.split_last().map(|(_, up)| up.to_vec())).collect();
    for parent in parents {
        for parts in PARTS {
            let paths = parts.map(|part| [&*parent, &[part.to_owned()]].concat());
            let is_part = |path: &Vec<String>| {
                layers
                    .get(path)
                    .is_some_and(|arrays| arrays.get("kernel").is_some_and(|k| k.shape().len() == 3))
            };
            if parent.is_empty() || !paths.iter().all(is_part) {
                continue;
            }
            let arrays = paths.map(|path| layers.remove(&path).unwrap_or_default());
            for (name, tensor) in
                projections(&arrays).map_err(|problem| format!("{}: {problem}", parent.join("/")))?
            {
                found.add(&parent, name, tensor)?;
            }
        }
    }
    Ok(())
}

/// Joins the projections of an attention: `[E, heads, d]` for queries, keys and values, `[heads, d, E]`
/// behind it.
fn projections([q, k, v, out]: &[Arrays; 4]) -> Result<Vec<(&'static str, Tensor)>, String> {
    let kernel = |arrays: &Arrays| arrays.get("kernel").cloned().ok_or("it has no kernel");
    let flat = |tensor: Tensor| -> Result<Tensor, String> {
        let &[width, heads, d] = tensor.shape() else { return Err("kernels have 3 axes".into()) };
        turned(&reshaped(tensor, &[width, heads.saturating_mul(d)])?)
    };
    let own = kernel(out)?;
    let &[heads, d, width] = own.shape() else { return Err("kernels have 3 axes".into()) };
    let own = turned(&reshaped(own, &[heads.saturating_mul(d), width])?)?;
    let kernels = [flat(kernel(q)?)?, flat(kernel(k)?)?, flat(kernel(v)?)?];
    let mut all = vec![("in_proj_weight", joined(&kernels)?), ("out_proj.weight", own)];
    let biases = [q, k, v].map(|arrays| arrays.get("bias").cloned());
    if let [Some(q), Some(k), Some(v)] = biases {
        let flat = |tensor: Tensor| {
            let count = tensor.shape().iter().product::<usize>();
            reshaped(tensor, &[count])
        };
        all.push(("in_proj_bias", joined(&[flat(q)?, flat(k)?, flat(v)?])?));
    }
    all.extend(out.get("bias").map(|bias| ("out_proj.bias", bias.clone())));
    Ok(all)
}

fn reshaped(tensor: Tensor, shape: &[usize]) -> Result<Tensor, String> {
    Tensor::new(tensor.dtype(), shape.to_vec(), tensor.bytes().to_vec()).map_err(|error| error.to_string())
}

/// Puts matrices or vectors below each other.
fn joined(parts: &[Tensor; 3]) -> Result<Tensor, String> {
    let mut shape = parts[0].shape().to_vec();
    if parts.iter().any(|part| part.shape().get(1..) != shape.get(1..) || part.dtype() != parts[0].dtype()) {
        let shapes = parts.each_ref().map(Tensor::shape);
        return Err(format!("projections of {shapes:?} cannot be one matrix"));
    }
    shape[0] = parts.iter().map(|part| part.shape()[0]).sum();
    let bytes = parts.iter().flat_map(Tensor::bytes).copied().collect();
    Tensor::new(parts[0].dtype(), shape, bytes).map_err(|error| error.to_string())
}

/// Returns rows of a tensor, with this shape.
fn rows(tensor: &Tensor, range: std::ops::Range<usize>, shape: &[usize]) -> Result<Tensor, String> {
    let row = tensor.bytes().len() / tensor.shape().first().copied().unwrap_or(1).max(1);
    let bytes = tensor.bytes().get(range.start * row..range.end * row).unwrap_or_default();
    Tensor::new(tensor.dtype(), shape.to_vec(), bytes.to_vec()).map_err(|error| error.to_string())
}

/// Swaps the first and the second third of the rows.
fn swapped(tensor: &Tensor) -> Result<Tensor, String> {
    let third = tensor.bytes().len() / 3;
    let part = |at: usize| &tensor.bytes()[at * third..(at + 1) * third];
    let bytes = [part(1), part(0), part(2)].concat();
    Tensor::new(tensor.dtype(), tensor.shape().to_vec(), bytes).map_err(|error| error.to_string())
}

/// Transposes a matrix.
fn turned(tensor: &Tensor) -> Result<Tensor, String> {
    match View::transpose(tensor.shape()) {
        Some(view) => viewed(tensor, &view),
        None => Err(format!("{:?} is no matrix", tensor.shape())),
    }
}

fn viewed(tensor: &Tensor, view: &View) -> Result<Tensor, String> {
    let bytes = view.apply(tensor.info(), tensor.bytes());
    Tensor::new(tensor.dtype(), view.shape.clone(), bytes).map_err(|error| error.to_string())
}
