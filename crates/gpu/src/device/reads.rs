//! How kernels read their storage buffers: the text of a kernel is changed so that what it only reads comes
//! through textures over the same memory ([`super::texels`]). The kernels themselves know nothing of it.
//!
//! A binding is changed if its elements are 32-bit numbers, vectors of two or four of them, or vectors of
//! four pairs of them (`u64`), and it is used in no way but `name[index]`. A binding that is also written is
//! changed in kernels without a loop, if all of its loads stand in `main` before its first store: then no
//! load can come after a store.

use unisono_graph::plan::{Access, Kernel};

use crate::device::texels::WIDTH;

/// Which loads go through textures.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Textures {
    /// Loads of vectors of four numbers.
    pub vectors: bool,
    /// Loads of single numbers, and of two.
    pub words: bool,
}

impl Textures {
    /// All loads that can.
    pub const ALL: Self = Self { vectors: true, words: true };

    fn takes(self, element: &str) -> bool {
        if element.starts_with("vec4") { self.vectors } else { self.words }
    }
}

/// A kernel whose loads go through textures.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Reads {
    /// The text of the whole module.
    pub wgsl: String,
    /// The indices in [`Kernel::bindings`] of the bindings that are read through textures. The textures'
    /// numbers follow those of the buffers, in this order and without a gap.
    pub textures: Vec<usize>,
}

/// Returns a kernel's text with these loads through at most `most` textures.
pub(crate) fn through_textures(kernel: &Kernel, textures: Textures, most: usize) -> Reads {
    let mut reads = Reads { wgsl: kernel.wgsl.clone(), textures: Vec::new() };
    for (index, access) in kernel.bindings.iter().enumerate() {
        if reads.textures.len() == most {
            break;
        }
        let texture = 1 + kernel.bindings.len() + reads.textures.len();
        if let Some(wgsl) = read_through(&reads.wgsl, index + 1, *access, textures, texture) {
            reads.wgsl = wgsl;
            reads.textures.push(index);
        }
    }
    reads
}

/// Returns the text with the loads of a binding changed, or `None` if it cannot be.
fn read_through(
    wgsl: &str,
    binding: usize,
    access: Access,
    textures: Textures,
    texture: usize,
) -> Option<String> {
    let (declared, name, element) = declaration(wgsl, binding)?;
    if !textures.takes(&element) {
        return None;
    }
    let load = load(&element)?;
    let uses = uses(wgsl, declared, &name)?;
    let stores = uses.iter().filter(|used| used.writes).map(|used| used.at).min();
    if access == Access::ReadWrite {
        let main = wgsl.find("fn main(")?;
        let before =
            |used: &Use| used.writes || (used.at > main && stores.is_none_or(|store| used.at < store));
        let loops = ["for", "while", "loop"].iter().any(|word| words(wgsl, word).next().is_some());
        if loops || !uses.iter().all(before) {
            return None;
        }
    }
    let mut brackets: Vec<(usize, &str)> = Vec::new();
    for used in uses.iter().filter(|used| !used.writes) {
        brackets.extend([(used.at, "read_"), (used.open, "("), (used.close, ")")]);
    }
    if brackets.is_empty() {
        return None;
    }
    brackets.sort_unstable();
    let mut changed = String::with_capacity(wgsl.len() + 512);
    let mut done = 0;
    for (at, put) in brackets {
        changed.push_str(&wgsl[done..at]);
        changed.push_str(put);
        done = if put == "read_" { at } else { at + 1 };
    }
    changed.push_str(&wgsl[done..]);
    changed += &format!(
        "\n@group(0) @binding({texture}) var texels_{name}: texture_2d<u32>;\n\
         fn texel_{name}(at: u32) -> vec4<u32> {{\n    \
         return textureLoad(texels_{name}, vec2<u32>(at % {WIDTH}u, at / {WIDTH}u), 0);\n}}\n\
         fn read_{name}(at: u32) -> {element} {{ return {}; }}\n",
        load.replace("texel(", &format!("texel_{name}("))
    );
    Some(changed)
}

/// Returns the load of element `at` of a buffer of these elements, or `None` if they are none that lie whole
/// in one texel or two.
fn load(element: &str) -> Option<&'static str> {
    Some(match element {
        "vec4<f32>" => "bitcast<vec4<f32>>(texel(at))",
        "vec4<u32>" => "texel(at)",
        "vec4<i32>" => "bitcast<vec4<i32>>(texel(at))",
        "vec4<u64>" => {
            "vec4<u64>(vec4<u32>(texel(at * 2u).xz, texel(at * 2u + 1u).xz)) \
             | (vec4<u64>(vec4<u32>(texel(at * 2u).yw, texel(at * 2u + 1u).yw)) << vec4<u32>(32u))"
        }
        "vec2<u32>" => "select(texel(at / 2u).xy, texel(at / 2u).zw, vec2<bool>(at % 2u == 1u))",
        "f32" => "bitcast<f32>(texel(at / 4u)[at % 4u])",
        "u32" => "texel(at / 4u)[at % 4u]",
        "i32" => "bitcast<i32>(texel(at / 4u)[at % 4u])",
        _ => return None,
    })
}

/// Returns where the declaration of a binding ends, the binding's name, and the type of its elements.
fn declaration(wgsl: &str, binding: usize) -> Option<(usize, String, String)> {
    let start = wgsl.find(&format!("@binding({binding}) var<storage"))?;
    let end = start + wgsl[start..].find(';')?;
    let (name, ty) = wgsl[start..end].split_once('>')?.1.split_once(':')?;
    let element = ty.trim().strip_prefix("array<")?.strip_suffix('>')?.trim();
    let alias = format!("alias {element} = ");
    let meant = wgsl.find(&alias).and_then(|at| wgsl[at + alias.len()..].split(';').next());
    Some((end, name.trim().to_owned(), meant.unwrap_or(element).trim().to_owned()))
}

/// One `name[index]` of a text.
#[derive(Debug)]
struct Use {
    /// The place of the name.
    at: usize,
    /// The places of the brackets.
    open: usize,
    close: usize,
    /// Whether it is stored to.
    writes: bool,
}

/// Returns all uses of a binding, or `None` if there is one of another kind.
fn uses(wgsl: &str, declared: usize, name: &str) -> Option<Vec<Use>> {
    let bytes = wgsl.as_bytes();
    let line = wgsl[..declared].rfind('\n').map_or(0, |at| at + 1);
    let mut found = Vec::new();
    for at in words(wgsl, name).filter(|at| !(line..declared).contains(at)) {
        // A member, or the declaration of one or of a parameter.
        let is_member = at.checked_sub(1).is_some_and(|before| bytes[before] == b'.');
        if is_member || wgsl[at + name.len()..].trim_start().starts_with(':') {
            continue;
        }
        match local(wgsl, at, name) {
            Local::No => {}
            Local::Parameter => continue,
            Local::Variable if bytes.get(at + name.len()) == Some(&b'[') => return None,
            Local::Variable => continue,
        }
        let open = at + name.len();
        if bytes.get(open) != Some(&b'[') || at.checked_sub(1).is_some_and(|before| bytes[before] == b'&') {
            return None;
        }
        let close = closing(bytes, open)?;
        found.push(Use { at, open, close, writes: is_stored(&wgsl[close + 1..]) });
    }
    Some(found)
}

/// What a name stands for inside of a function.
#[derive(PartialEq, Eq)]
enum Local {
    /// It stands for the module's.
    No,
    /// It stands for a parameter of the function.
    Parameter,
    /// It stands for a variable of the function, in a part of it.
    Variable,
}

/// Returns what a name stands for at a place.
fn local(wgsl: &str, at: usize, name: &str) -> Local {
    let Some(start) = words(&wgsl[..at], "fn").last() else { return Local::No };
    let end = words(&wgsl[at..], "fn").next().map_or(wgsl.len(), |next| at + next);
    let function = &wgsl[start..end];
    let body = function.find('{').unwrap_or(function.len());
    let mut is = Local::No;
    for place in words(function, name) {
        let behind = function[place + name.len()..].trim_start();
        let before = function[..place].trim_end();
        if place < body {
            if behind.starts_with(':') {
                return Local::Parameter;
            }
        } else if ["let", "var", "const"].iter().any(|word| before.ends_with(word)) {
            is = Local::Variable;
        }
    }
    is
}

/// Returns the place of the bracket that closes the one at `open`.
fn closing(bytes: &[u8], open: usize) -> Option<usize> {
    let mut depth = 0usize;
    for (at, byte) in bytes.iter().enumerate().skip(open) {
        match byte {
            b'[' => depth += 1,
            b']' if depth == 1 => return Some(at),
            b']' => depth -= 1,
            _ => {}
        }
    }
    None
}

/// Returns whether an element is stored to, by the text behind it: a component and an assignment.
fn is_stored(behind: &str) -> bool {
    let mut rest = behind.trim_start();
    loop {
        if let Some(member) = rest.strip_prefix('.') {
            rest = member.trim_start_matches(|c: char| c.is_ascii_alphanumeric()).trim_start();
        } else if rest.starts_with('[') {
            let Some(close) = closing(rest.as_bytes(), 0) else { return true };
            rest = rest[close + 1..].trim_start();
        } else {
            break;
        }
    }
    let operator: String = rest.chars().take(3).collect();
    let assigns = |text: &str| text.starts_with('=') && !text.starts_with("==");
    assigns(&operator)
        || ["+=", "-=", "*=", "/=", "%=", "&=", "|=", "^=", "<<=", ">>=", "++", "--"]
            .iter()
            .any(|assignment| operator.starts_with(assignment))
}

/// Returns the places of a whole word, outside of comments.
fn words<'a>(wgsl: &'a str, word: &'a str) -> impl Iterator<Item = usize> + 'a {
    let is_part = |byte: Option<&u8>| byte.is_some_and(|b| b.is_ascii_alphanumeric() || *b == b'_');
    wgsl.match_indices(word).map(|(at, _)| at).filter(move |&at| {
        let bytes = wgsl.as_bytes();
        let line = wgsl[..at].rfind('\n').map_or(0, |end| end + 1);
        let is_whole = !is_part(at.checked_sub(1).and_then(|before| bytes.get(before)))
            && !is_part(bytes.get(at + word.len()));
        is_whole && !wgsl[line..at].contains("//")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = "struct Part { a: u32, b: u32 }
alias Number = vec4<f32>;
// a[i] in a comment stays.
@group(0) @binding(0) var<uniform> params: vec4<u32>;
@group(0) @binding(1) var<storage, read> a: array<Number>;
@group(0) @binding(2) var<storage, read_write> b: array<f32>;
";

    fn read(body: &str, textures: Textures) -> Reads {
        let bindings = vec![Access::Read, Access::ReadWrite];
        let kernel = Kernel { name: "test".to_owned(), wgsl: format!("{HEAD}{body}"), bindings };
        let reads = through_textures(&kernel, textures, 8);
        naga::front::wgsl::parse_str(&reads.wgsl).unwrap_or_else(|error| {
            panic!("{}", error.emit_to_string(&reads.wgsl));
        });
        reads
    }

    #[test]
    fn loads_of_the_bindings_go_through_textures_and_nothing_else_does() {
        let reads = read(
            "fn taken(own: Part, a: array<f32, 4>) -> f32 { return a[own.a]; }
fn count() -> u32 { var n = 0u; for (var b = 0u; b < 2u; b++) { n += b; } return n; }
@compute @workgroup_size(1) fn main() {
    let own = Part(1u, 2u);
    let x = a[own.b + count()].x + a[u32(a[0].y)][own.a];
    b[own.a] = x + taken(own, array<f32, 4>());
}",
            Textures::ALL,
        );
        assert_eq!(reads.textures, [0]);
        assert_eq!(reads.wgsl.matches("read_a(").count(), 4, "three loads and the function: {}", reads.wgsl);
        assert!(reads.wgsl.contains("read_a(u32(read_a(0).y))[own.a]"), "{}", reads.wgsl);
        assert!(reads.wgsl.contains("// a[i] in a comment stays."));
        assert!(reads.wgsl.contains("@binding(3) var texels_a"), "textures follow the buffers without a gap");
    }

    #[test]
    fn what_is_also_written_is_read_so_only_before_it_is_written() {
        let main = |body: &str| format!("@compute @workgroup_size(1) fn main() {{ {body} }}");
        let textures = |body: &str| read(&main(body), Textures::ALL).textures;
        assert_eq!(textures("let x = b[3] + a[0].x; b[3] = x;"), [0, 1]);
        // A load behind a store, a load that a loop repeats behind one, and a sum in place.
        assert_eq!(textures("b[3] = a[0].x; b[4] = b[3];"), [0]);
        assert_eq!(textures("for (var i = 0u; i < 4u; i++) { let x = b[i]; b[i + 1u] = x; }"), []);
        assert_eq!(textures("b[3] += a[0].x;"), [0]);
        // A load of which nobody knows when it takes place.
        let called = "fn load() -> f32 { return b[1]; }
@compute @workgroup_size(1) fn main() { b[1] = 2.0; b[2] = load(); }";
        assert_eq!(read(called, Textures::ALL).textures, []);
    }

    #[test]
    fn a_binding_of_which_the_address_is_taken_is_left() {
        let body = "fn taken(all: ptr<storage, array<Number>, read>) -> f32 { return (*all)[1].x; }
@compute @workgroup_size(1) fn main() { b[0] = taken(&a) + a[2].x; }";
        assert_eq!(read(body, Textures::ALL).textures, []);
    }

    #[test]
    fn vectors_and_single_numbers_are_chosen_apart() {
        let body = "@compute @workgroup_size(1) fn main() { let x = b[1] + a[0].x; b[1] = x; }";
        let chosen = |vectors, words| read(body, Textures { vectors, words }).textures;
        assert_eq!(
            [chosen(true, false), chosen(false, true), chosen(false, false)],
            [vec![0], vec![1], vec![]]
        );
    }
}
