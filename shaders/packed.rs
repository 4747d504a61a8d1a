//! Kernels side by side: one module that has the workgroups of several kernels, one kernel after the other.
//! Each workgroup runs the kernel that it is of.

mod part;

use std::collections::{BTreeMap, BTreeSet};

use self::part::{Is, Item, arguments, identifiers};

pub use self::part::Part;

/// Returns the words of the params of kernels side by side, given their own and how many workgroups each has.
pub fn params_side_by_side(parts: &[(&[u32], u32)]) -> Vec<u32> {
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

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) const SUM: &str = "// two: not one.\nfn two(x: f32) -> f32 { return one(x) + 1.0; }
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
        assert_eq!(params_side_by_side(&[(&[7, 8], 3), (&[9], 2)]), [3, 5, 0, 0, 7, 8, 0, 0, 9, 0, 0, 0]);
    }
}
