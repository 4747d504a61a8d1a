//! Kernels side by side: one module that has the workgroups of several kernels, one kernel after the other.
//! Each workgroup runs the kernel that it is of.

use std::collections::{BTreeMap, BTreeSet};

/// A kernel's module, read so that it can be put beside others.
#[derive(Clone, Debug)]
pub struct Part {
    /// The number of invocations of a workgroup.
    pub workgroup: u32,
    /// The number of words of the params.
    pub words: usize,
    /// How each storage buffer is declared behind `var`, in the order of the binding numbers, which count
    /// from 1. Two declarations that are equal mean the same.
    pub buffers: Vec<String>,
    items: Vec<Item>,
}

/// A declaration of a module.
#[derive(Clone, Debug)]
struct Item {
    name: String,
    /// The text without comments.
    text: String,
    is: Is,
}

/// What a declaration is.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Is {
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
    /// Reads a module. Returns `None` if it cannot stand beside others: its main function needs more than the
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
        is_dense.then_some(Self { workgroup, words, buffers, items })
    }
}

/// Returns the words of the params of kernels side by side, given their own and how many workgroups each has.
pub fn words(parts: &[(&[u32], u32)]) -> Vec<u32> {
    let ends = parts.iter().scan(0, |end, (_, groups)| {
        *end += groups;
        Some(*end)
    });
    let mut words: Vec<u32> = ends.collect();
    for (own, _) in parts {
        words.resize(words.len().next_multiple_of(4), 0);
        words.extend_from_slice(own);
    }
    words.resize(words.len().next_multiple_of(4), 0);
    words
}

/// Returns the module of kernels side by side, which have workgroups of one size, and launches with one
/// dimension. `numbers` are, for each of them, the numbers that its bindings have here: two that are equal
/// mean one buffer, and are declared alike.
pub fn side_by_side(parts: &[&Part], numbers: &[Vec<usize>]) -> String {
    let mut text = String::new();
    let mut names: BTreeMap<String, String> = BTreeMap::new();
    let mut done: BTreeSet<String> = BTreeSet::new();
    for (at, part) in parts.iter().enumerate() {
        let mut renamed: BTreeMap<&str, String> = BTreeMap::new();
        for Item { name, is, .. } in &part.items {
            let new = match is {
                Is::Params => format!("params.part{at}"),
                Is::Buffer(number) => format!("buffer{}", numbers[at][*number]),
                Is::Pure(closure) if names.get(name).is_none_or(|known| known == closure) => {
                    names.insert(name.clone(), closure.clone());
                    name.clone()
                }
                _ => format!("{name}_{at}"),
            };
            renamed.insert(name, new);
        }
        for item in &part.items {
            let is_new = done.insert(renamed[&*item.name].clone());
            if is_new && item.is != Is::Params {
                let own = with_names(&item.text, &renamed);
                match item.is {
                    Is::Buffer(number) => {
                        let (_, declared) = own.split_once("var").unwrap_or_default();
                        text += &format!("@group(0) @binding({}) var{declared}\n", numbers[at][number]);
                    }
                    _ => text += &format!("{own}\n"),
                }
            }
        }
    }
    let workgroup = parts.first().map_or(1, |part| part.workgroup);
    text += &main_of(parts.len(), workgroup);
    text
}

/// Returns the params and the main function of so many kernels side by side.
fn main_of(parts: usize, workgroup: u32) -> String {
    let ends: String = (0..parts).map(|at| format!("end{at}: u32, ")).collect();
    let fields: Vec<String> = (0..parts).map(|at| format!("@align(16) part{at}: Params_{at}")).collect();
    let mut body = String::new();
    for at in 0..parts {
        let first = if at == 0 { "0u".to_owned() } else { format!("params.end{}", at - 1) };
        let call = format!("main_{at}(vec3<u32>((group.x - {first}) * {workgroup}u + lane, 0u, 0u));");
        body += &format!("    if group.x >= {first} && group.x < params.end{at} {{ {call} }}\n");
    }
    format!(
        "struct Params {{ {ends}{} }}\n@group(0) @binding(0) var<uniform> params: Params;\n\
         @compute @workgroup_size({workgroup})\n\
         fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {{\n\
         {body}}}\n",
        fields.join(", ")
    )
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
fn arguments(text: &str) -> BTreeSet<&str> {
    let head = match text.split_once("fn ") {
        Some((_, function)) => function.split('{').next().unwrap_or_default(),
        None if text.starts_with("struct") => text,
        None => "",
    };
    let is_argument = |(at, name): &(usize, &str)| head[at + name.len()..].trim_start().starts_with(':');
    identifiers(head).filter(is_argument).map(|(_, name)| name).collect()
}

/// Returns a text with other names. Members keep theirs, and so do a function's arguments and the fields of a
/// struct that is declared.
fn with_names(text: &str, names: &BTreeMap<&str, String>) -> String {
    let arguments = arguments(text);
    let mut changed = String::with_capacity(text.len());
    let mut from = 0;
    for (at, name) in identifiers(text) {
        if let Some(new) = names.get(name).filter(|_| !arguments.contains(name)) {
            changed += &text[from..at];
            changed += new;
            from = at + name.len();
        }
    }
    changed + &text[from..]
}

/// Returns the identifiers of a text that are not members, each with its place.
fn identifiers(text: &str) -> impl Iterator<Item = (usize, &str)> {
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

    const SUM: &str = "// two: not one.\nfn two(x: f32) -> f32 { return one(x) + 1.0; }
fn one(x: f32) -> f32 { return x; }
struct Params { n: u32, y: u32 }
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> x: array<f32>;
@group(0) @binding(2) var<storage, read_write> y: array<Number>;
alias Number = f32;
@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) { y[id.x + params.y] = two(x[id.y]); }
";

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

    #[test]
    fn what_modules_share_is_there_once_and_the_rest_has_other_names() {
        let one = Part::read(SUM).unwrap();
        let other = Part::read(&SUM.replace("return x;", "return 2.0 * x;")).unwrap();
        let same = side_by_side(&[&one, &one], &[vec![1, 2], vec![3, 2]]);
        assert_eq!(same.matches("fn two(").count(), 1);
        assert_eq!(same.matches("@binding(").count(), 4, "{same}");
        assert!(same.contains("buffer2[id.x + params.part1.y] = two(buffer3[id.y]);"), "{same}");
        let apart = side_by_side(&[&one, &other], &[vec![1, 2], vec![3, 2]]);
        // A function that calls another one is another function.
        assert!(apart.contains("two_1(buffer3[id.y])") && apart.contains("return one_1(x)"), "{apart}");
        assert!(apart.contains("struct Params_1 { n: u32, y: u32 }"), "{apart}");
    }

    #[test]
    fn params_begin_where_a_uniform_may_have_structs() {
        assert_eq!(words(&[(&[7, 8], 3), (&[9], 2)]), [3, 5, 0, 0, 7, 8, 0, 0, 9, 0, 0, 0]);
    }
}
