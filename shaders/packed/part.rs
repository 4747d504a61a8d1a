//! Reads a kernel's module as a list of declarations.

use std::collections::{BTreeMap, BTreeSet};

use crate::workgroup::{VARIABLE, variable_bytes};

/// A kernel's module, read so that it can share a module with others.
#[derive(Clone, Debug)]
pub struct Part {
    /// The number of invocations of a workgroup.
    pub workgroup: u32,
    /// The number of words of the params.
    pub words: usize,
    /// How each storage buffer is declared behind `var`, in the order of the binding numbers, which count
    /// from 1. Two declarations that are equal mean the same.
    pub buffers: Vec<String>,
    /// The variables of workgroup memory, by their declarations with all that these depend on, and their
    /// bytes. Two that are equal are one variable of kernels side by side.
    pub memory: BTreeMap<String, u64>,
    pub(super) items: Vec<Item>,
}

/// A declaration of a module.
#[derive(Clone, Debug)]
pub(super) struct Item {
    pub name: String,
    /// The text without comments.
    pub text: String,
    pub is: Is,
}

/// What a declaration is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Is {
    /// It is the main function.
    Main,
    /// It is the struct `Params`.
    Fields,
    /// It is the uniform `params`.
    Params,
    /// It is storage buffer `.0`, counted from 0.
    Buffer(usize),
    /// It depends on nothing but other declarations of its kind, whose texts and its own are these. Where two
    /// modules have it, it is one.
    Pure(String),
    /// It is something else.
    Other,
}

/// The begin of a main function that needs nothing but the number of the invocation.
const MAIN: &str = "fn main(@builtin(global_invocation_id) id: vec3<u32>)";

impl Part {
    /// Reads a module. Returns `None` if it cannot share a module: its main function needs more than the
    /// number of the invocation, or it has something else at its top that this module does not know.
    pub fn read(module: &str) -> Option<Self> {
        let mut items = declarations(module)?;
        let main = items.iter_mut().find(|item| item.is == Is::Main)?;
        let at = main.text.find(MAIN)?;
        let size = main.text[..at].split_once("@workgroup_size(")?.1.split_once(')')?.0;
        let workgroup = size.parse().ok()?;
        main.text = format!("fn main(id: vec3<u32>){}", &main.text[at + MAIN.len()..]);
        let fields = items.iter().find(|item| item.is == Is::Fields)?;
        let words = fields.text.matches(": u32").count();
        let mut buffers: Vec<(usize, String)> = Vec::new();
        for item in &items {
            if let Is::Buffer(number) = item.is {
                buffers.push((number, declared(&items, &item.text)?));
            }
        }
        buffers.sort_unstable();
        let is_dense = buffers.iter().enumerate().all(|(at, (number, _))| at == *number);
        find_pure(&mut items);
        let buffers = buffers.into_iter().map(|(_, declared)| declared).collect();
        let mut memory = BTreeMap::new();
        for item in items.iter().filter(|item| item.text.starts_with(VARIABLE)) {
            let Is::Pure(closure) = &item.is else { return None };
            memory.insert(format!("{}: {closure}", item.name), variable_bytes(module, &item.text)?);
        }
        is_dense.then_some(Self { workgroup, words, buffers, memory, items })
    }
}

/// Returns the declarations of a module, or `None` if one of them is of an unknown kind.
fn declarations(module: &str) -> Option<Vec<Item>> {
    let without = |line: &str| line.split("//").next().unwrap_or_default().trim_end().to_owned();
    let text: Vec<String> = module.lines().map(without).filter(|line| !line.is_empty()).collect();
    let text = text.join("\n");
    let (mut items, mut depth, mut start) = (Vec::new(), 0usize, 0);
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            b'{' | b'(' | b'[' => depth += 1,
            b'}' | b')' | b']' => depth = depth.checked_sub(1)?,
            _ => {}
        }
        if depth == 0 && (byte == b';' || byte == b'}') {
            let own = text[start..=at].trim();
            start = at + 1;
            if own != ";" {
                items.push(item(own)?);
            }
        }
    }
    text[start..].trim().is_empty().then_some(items)
}

/// Returns a declaration, if it is of a known kind.
fn item(text: &str) -> Option<Item> {
    let mut rest = text;
    while let Some(attribute) = rest.strip_prefix('@') {
        let end = attribute.find(|c: char| c == '(' || c.is_whitespace())?;
        let behind = &attribute[end..];
        rest = if behind.starts_with('(') { behind.split_once(')')?.1 } else { behind }.trim_start();
    }
    let (word, behind) = rest.split_at(rest.find(|c: char| !c.is_alphanumeric())?);
    let behind = match behind.strip_prefix('<') {
        Some(space) if word == "var" => space.split_once('>')?.1,
        _ => behind,
    };
    let name = identifiers(behind).next()?.1;
    let binding = text.split_once("@binding(").and_then(|(_, number)| number.split_once(')'));
    let is = match (word, name, binding) {
        ("var", "params", Some(("0", _))) => Is::Params,
        ("var", _, Some((number, _))) => Is::Buffer(number.parse::<usize>().ok()?.checked_sub(1)?),
        ("struct", "Params", _) => Is::Fields,
        ("fn", "main", _) => Is::Main,
        ("fn" | "const" | "alias" | "struct" | "var", ..) => Is::Other,
        _ => return None,
    };
    Some(Item { name: name.to_owned(), text: text.to_owned(), is })
}

/// Returns how a buffer is declared behind `var`, without its name and with what an alias of its elements
/// means.
fn declared(items: &[Item], text: &str) -> Option<String> {
    let (_, declared) = text.split_once("var")?;
    let (space, ty) = declared.split_once('>')?;
    let ty = ty.split_once(':')?.1.trim_end_matches(';').trim();
    let meant = |name: &str| {
        let alias = items.iter().find(|item| item.name == name && item.text.starts_with("alias"))?;
        Some(alias.text.split_once('=')?.1.trim_end_matches(';').trim().to_owned())
    };
    let mut full = String::new();
    let mut from = 0;
    for (at, name) in identifiers(ty) {
        full += &ty[from..at];
        full += &meant(name).unwrap_or_else(|| name.to_owned());
        from = at + name.len();
    }
    Some(format!("{space}> {full}{}", &ty[from..]))
}

/// Finds the declarations that depend on nothing but each other.
fn find_pure(items: &mut [Item]) {
    let own: BTreeMap<String, usize> =
        items.iter().enumerate().map(|(at, item)| (item.name.clone(), at)).collect();
    let used = |item: &Item| -> BTreeSet<usize> {
        let arguments = arguments(&item.text);
        let names = identifiers(&item.text).filter(|(_, name)| !arguments.contains(name));
        names.filter_map(|(_, name)| own.get(name)).copied().collect()
    };
    let uses: Vec<BTreeSet<usize>> = items.iter().map(used).collect();
    for at in 0..items.len() {
        let (mut closure, mut pending) = (BTreeSet::from([at]), vec![at]);
        while let Some(next) = pending.pop() {
            pending.extend(uses[next].iter().copied().filter(|&used| closure.insert(used)));
        }
        if closure.iter().all(|&used| matches!(items[used].is, Is::Other | Is::Pure(_))) {
            let text: Vec<&str> = closure.iter().map(|&used| &*items[used].text).collect();
            items[at].is = Is::Pure(text.join("\n"));
        }
    }
}

/// Returns the names of a function's arguments, or of a struct's fields.
pub(super) fn arguments(text: &str) -> BTreeSet<&str> {
    let head = match text.split_once("fn ") {
        Some((_, function)) => function.split('{').next().unwrap_or_default(),
        None if text.starts_with("struct") => text,
        None => "",
    };
    let is_argument = |(at, name): &(usize, &str)| head[at + name.len()..].trim_start().starts_with(':');
    identifiers(head).filter(is_argument).map(|(_, name)| name).collect()
}

/// Returns the identifiers of a text that are not members, each with its place.
pub(super) fn identifiers(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let bytes = text.as_bytes();
    let is_part = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    let mut at = 0;
    std::iter::from_fn(move || {
        while at < bytes.len() {
            if !is_part(bytes[at]) {
                at += 1;
                continue;
            }
            let start = at;
            while at < bytes.len() && is_part(bytes[at]) {
                at += 1;
            }
            let is_member = start > 0 && bytes[start - 1] == b'.';
            if !bytes[start].is_ascii_digit() && !is_member {
                return Some((start, &text[start..at]));
            }
        }
        None
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packed::tests::SUM;

    #[test]
    fn a_module_is_read_with_its_buffers_and_params() {
        let part = Part::read(SUM).unwrap();
        assert_eq!((part.workgroup, part.words), (64, 2));
        assert_eq!(part.buffers, ["<storage, read> array<f32>", "<storage, read_write> array<f32>"]);
        for unknown in ["enable f16;", "override size = 1u;", "fn broken() {"] {
            assert!(Part::read(&format!("{unknown}\n{SUM}")).is_none(), "{unknown}");
        }
        assert!(Part::read(&SUM.replace("global_invocation_id", "local_invocation_id")).is_none());
    }
}
