//! The HDF5 file: which layers it has, and their arrays.

use std::collections::BTreeMap;

use hdf5_reader::group::Group;
use hdf5_reader::{ByteOrder, Dataset, Datatype, Hdf5File, OpenOptions};

use crate::tensors::info::TensorDType;
use crate::tensors::tensor::Tensor;

use super::classes::Classes;

/// The arrays of each layer by their roles, by the names on the way to the layer.
pub(super) type Layers = BTreeMap<Vec<String>, BTreeMap<String, Tensor>>;

/// The groups within groups that are followed: links may form a circle.
const DEEPEST: usize = 32;
/// The most groups that are looked into.
const MOST_GROUPS: usize = 1 << 17;

pub(super) fn is_hdf5(file: &[u8]) -> bool {
    file.starts_with(b"\x89HDF\r\n\x1a\n")
}

/// Reads the layers of a file, whose arrays may have `most` bytes.
pub(super) fn layers(file: Vec<u8>, classes: Option<Classes>, most: u64) -> Result<Layers, String> {
    let limit = usize::try_from(most).unwrap_or(usize::MAX);
    let options = OpenOptions::default()
        .with_chunk_cache_bytes(0)
        .with_max_chunk_bytes(limit)
        .with_max_read_bytes(limit)
        .with_max_object_header_bytes(file.len());
    let file = Hdf5File::from_vec_with_options(file, options).map_err(text)?;
    let root = file.root_group().map_err(text)?;
    let mut reader =
        Reader { layers: Layers::new(), classes: classes.unwrap_or_default(), left: most, groups: 0 };
    let whole = root.groups().map_err(text)?.into_iter().find(|group| group.name() == "model_weights");
    let of_model = whole.unwrap_or_else(|| root.clone());
    match strings(&of_model, "layer_names")? {
        Some(names) => {
            if let Some(config) = strings(&root, "model_config")?.and_then(|texts| texts.into_iter().next()) {
                reader.classes = Classes::of_json(config.as_bytes())
                    .map_err(|problem| format!("the attribute model_config: {problem}"))?;
            }
            reader.named(&of_model, &names)?;
        }
        None => reader.group(&root, &mut Vec::new(), "")?,
    }
    Ok(reader.layers)
}

struct Reader {
    layers: Layers,
    classes: Classes,
    /// The bytes that arrays may still have. Several names may stand for one array.
    left: u64,
    groups: usize,
}

impl Reader {
    /// Reads the layers of an older file, whose attributes list their names and those of their arrays.
    fn named(&mut self, root: &Group, layers: &[String]) -> Result<(), String> {
        for layer in layers {
            let group = root.group(layer).map_err(|error| format!("the layer {layer}: {error}"))?;
            for name in strings(&group, "weight_names")?.unwrap_or_default() {
                self.count()?;
                let dataset =
                    dataset(&group, &name).map_err(|error| format!("the layer {layer}: {error}"))?;
                let Some(tensor) = self.tensor(&name, &dataset)? else { continue };
                let mut parts: Vec<&str> = name.split('/').collect();
                let role = parts.pop().unwrap_or_default();
                let role = role.split_once(':').map_or(role, |(role, _)| role);
                // `model/dense/kernel`, `dense/kernel`, or `dense/kernel` of a model within the model.
                let own = parts.iter().rposition(|part| part == layer).map_or(0, |at| at + 1);
                let mut path = vec![layer.clone()];
                path.extend(parts[own..].iter().map(|&part| part.to_owned()));
                let role = self.role_of_kernel(&path, role);
                self.add(path, role, tensor)?;
            }
        }
        Ok(())
    }

    /// Keras 3 calls the kernels of depthwise convolutions as others. Their layer tells.
    fn role_of_kernel<'r>(&self, path: &[String], role: &'r str) -> &'r str {
        let name = path.last().map(String::as_str).unwrap_or_default();
        let roles = self.classes.roles(name, &[name], &[&[], &[]]);
        let is_depthwise = roles.is_ok_and(|roles| roles.is_some_and(|roles| roles[0] == "depthwise_kernel"));
        if role == "kernel" && is_depthwise { "depthwise_kernel" } else { role }
    }

    /// Reads a group of a file of Keras 3 and those in it: the arrays of a layer are in its group `vars`, and
    /// its parts are beside it.
    fn group(&mut self, group: &Group, path: &mut Vec<String>, class: &str) -> Result<(), String> {
        self.count()?;
        if path.len() > DEEPEST {
            return Err("its groups are nested too deeply".into());
        }
        for child in group.groups().map_err(text)? {
            match child.name() {
                "vars" => self.vars(&child, path, class)?,
                // What training needs, and what random numbers need.
                "optimizer" | "metrics" | "loss" if path.is_empty() => {}
                "seed_generator" => {}
                "layers" => {
                    for layer in child.groups().map_err(text)? {
                        // Their keys are made of their classes. The user knows them by their names.
                        self.count()?;
                        path.push(name(&layer)?.unwrap_or_else(|| layer.name().to_owned()));
                        self.group(&layer, path, layer.name())?;
                        path.pop();
                    }
                }
                key => {
                    path.push(key.to_owned());
                    let class = name(&child)?.unwrap_or_else(|| key.to_owned());
                    self.group(&child, path, &class)?;
                    path.pop();
                }
            }
        }
        Ok(())
    }

    /// Reads the arrays of a layer, which are numbered.
    fn vars(&mut self, group: &Group, path: &[String], class: &str) -> Result<(), String> {
        let mut found = Vec::new();
        for dataset in group.datasets().map_err(text)? {
            let number = dataset.name().parse::<u32>();
            found
                .push((number.map_err(|_| format!("{} is no number of an array", dataset.name()))?, dataset));
        }
        found.sort_by_key(|(number, _)| *number);
        let layer = path.last().map(String::as_str).unwrap_or_default();
        let mut tensors = Vec::new();
        for (number, dataset) in &found {
            // Counters and seeds are no weights.
            tensors.extend(self.tensor(&format!("{layer}/vars/{number}"), dataset)?);
        }
        let shapes: Vec<&[usize]> = tensors.iter().map(Tensor::shape).collect();
        // The parts of an attention are called `query_dense` and so on.
        let suffix = layer.rsplit_once('_').map_or(layer, |(_, last)| last);
        let roles = if tensors.is_empty() {
            None
        } else {
            self.classes.roles(layer, &[class, layer, suffix], &shapes)?
        };
        for (at, tensor) in tensors.into_iter().enumerate() {
            let number = at.to_string();
            let role = roles.as_ref().and_then(|roles| roles.get(at).copied()).unwrap_or(&number);
            self.add(path.to_vec(), role, tensor)?;
        }
        Ok(())
    }

    fn count(&mut self) -> Result<(), String> {
        self.groups += 1;
        if self.groups > MOST_GROUPS { Err("it has too many groups".into()) } else { Ok(()) }
    }

    fn add(&mut self, path: Vec<String>, role: &str, tensor: Tensor) -> Result<(), String> {
        let name = format!("{}/{role}", path.join("/"));
        match self.layers.entry(path).or_default().insert(role.to_owned(), tensor) {
            Some(_) => Err(format!("{name} is there twice")),
            None => Ok(()),
        }
    }

    /// Reads an array of floats. `None`: it has other numbers.
    fn tensor(&mut self, name: &str, dataset: &Dataset) -> Result<Option<Tensor>, String> {
        let wrong = |problem: String| format!("{name}: {problem}");
        let &Datatype::FloatingPoint { size, byte_order } = dataset.dtype() else { return Ok(None) };
        let dtype = match size {
            2 => TensorDType::F16,
            4 => TensorDType::F32,
            8 => TensorDType::F64,
            _ => return Err(wrong(format!("floats of {size} bytes"))),
        };
        let shape = dataset.shape().iter().map(|&extent| usize::try_from(extent));
        let shape: Vec<usize> = shape.collect::<Result<_, _>>().map_err(|error| wrong(error.to_string()))?;
        let count = shape.iter().try_fold(1_u64, |count, &extent| count.checked_mul(extent as u64));
        let bytes = count.and_then(|count| count.checked_mul(dtype.size() as u64));
        let left = bytes.and_then(|bytes| self.left.checked_sub(bytes));
        self.left = left.ok_or_else(|| wrong(format!("an array of {shape:?} is more than the file has")))?;
        let mut bytes = dataset.read_raw_bytes().map_err(|error| wrong(error.to_string()))?;
        if byte_order == ByteOrder::BigEndian {
            bytes.chunks_mut(dtype.size()).for_each(<[u8]>::reverse);
        }
        Tensor::new(dtype, shape, bytes).map(Some).map_err(|error| wrong(error.to_string()))
    }
}

/// Finds an array by its path.
fn dataset(group: &Group, path: &str) -> Result<Dataset, String> {
    let mut group = group.clone();
    let mut parts: Vec<&str> = path.split('/').collect();
    let last = parts.pop().unwrap_or_default();
    for part in parts {
        group = group.group(part).map_err(|error| format!("{path}: {error}"))?;
    }
    group.dataset(last).map_err(|error| format!("{path}: {error}"))
}

/// Returns the name that a layer's group gives it.
fn name(layer: &Group) -> Result<Option<String>, String> {
    let Ok(vars) = layer.group("vars") else { return Ok(None) };
    Ok(strings(&vars, "name")?.and_then(|names| names.into_iter().next()))
}

/// Returns the texts of an attribute, which may be in several parts: `layer_names0`, `layer_names1`, ...
fn strings(group: &Group, name: &str) -> Result<Option<Vec<String>>, String> {
    let attributes = group.attributes().map_err(text)?;
    let of = |name: &str| {
        let found = attributes.iter().find(|attribute| attribute.name == name)?;
        // Without elements, NumPy's arrays are of floats.
        let is_empty = found.num_elements().is_ok_and(|count| count == 0);
        let one = || found.read_string().map(|text| vec![text]);
        let texts = if is_empty { Ok(Vec::new()) } else { found.read_strings().or_else(|_| one()) };
        Some(texts.map_err(|error| format!("the attribute {name}: {error}")))
    };
    if let Some(texts) = of(name) {
        return texts.map(Some);
    }
    let mut all = Vec::new();
    for part in 0_usize.. {
        match of(&format!("{name}{part}")) {
            Some(texts) => all.extend(texts?),
            None => return Ok((part > 0).then_some(all)),
        }
    }
    Ok(None)
}

fn text(error: hdf5_reader::error::Error) -> String {
    error.to_string()
}
