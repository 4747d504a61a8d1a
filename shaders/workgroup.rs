//! What a workgroup of a module takes: its invocations, and its memory.

/// The bytes of which the place of each variable of workgroup memory is a multiple, as WebGPU counts them.
const ALIGNMENT: u64 = 16;

/// What the declaration of a variable of workgroup memory begins with.
pub(crate) const VARIABLE: &str = "var<workgroup>";

/// The most constants that are named by one another.
const DEPTH: usize = 32;

/// What a workgroup of a kernel takes of a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Workgroup {
    /// The number of invocations.
    pub invocations: u64,
    /// The bytes of workgroup memory.
    pub bytes: u64,
}

impl Workgroup {
    /// Reads a module. Returns `None` if a size is written in a way that the modules of this workspace do not
    /// use: then the device itself has to say whether it can run the kernel.
    ///
    /// Memory is counted as WebGPU does: each variable takes a multiple of 16 bytes, whether the kernel uses
    /// it or not.
    pub fn of(module: &str) -> Option<Self> {
        let (_, sizes) = module.split_once("@workgroup_size(")?;
        let mut depth = 0;
        let end = sizes.find(|c: char| {
            depth += i32::from(c == '(') - i32::from(c == ')');
            depth < 0
        });
        let mut sizes = split(&sizes[..end?]);
        let invocations =
            sizes.try_fold(1, |all: u64, size| all.checked_mul(number(module, size, DEPTH)?))?;
        let mut bytes = 0u64;
        for (at, _) in module.match_indices(VARIABLE) {
            bytes = bytes.checked_add(variable_bytes(module, &module[at..])?)?;
        }
        Some(Self { invocations, bytes })
    }
}

/// Returns the bytes of a variable of a module's workgroup memory, whose declaration this text begins with.
pub(crate) fn variable_bytes(module: &str, declaration: &str) -> Option<u64> {
    let (declared, _) = declaration.split_once(';')?;
    let (_, ty) = declared.split_once(':')?;
    layout(module, ty.trim(), DEPTH)?.bytes.checked_next_multiple_of(ALIGNMENT)
}

/// How a type lies in memory.
#[derive(Clone, Copy)]
struct Layout {
    bytes: u64,
    alignment: u64,
}

/// Returns how a type lies in memory, if it is one of those that modules have in workgroup memory.
fn layout(module: &str, ty: &str, depth: usize) -> Option<Layout> {
    let plain = |bytes| Some(Layout { bytes, alignment: bytes });
    match ty.split_once('<') {
        None => match ty {
            "f32" | "u32" | "i32" => plain(4),
            "f16" => plain(2),
            _ => layout(module, declared(module, "alias ", ty, " = ")?, depth.checked_sub(1)?),
        },
        Some((name, inner)) => {
            let mut inner = split(inner.strip_suffix('>')?);
            let element = layout(module, inner.next()?, depth.checked_sub(1)?)?;
            match name {
                "atomic" => Some(element),
                "vec2" => plain(2 * element.bytes),
                "vec3" => Some(Layout { bytes: 3 * element.bytes, alignment: 4 * element.bytes }),
                "vec4" => plain(4 * element.bytes),
                "array" => {
                    let stride = element.bytes.next_multiple_of(element.alignment);
                    let bytes = number(module, inner.next()?, depth)?.checked_mul(stride)?;
                    Some(Layout { bytes, alignment: element.alignment })
                }
                _ => None,
            }
        }
    }
}

/// Returns what a module says of a name behind a word: the value of a constant, or the type of an alias.
fn declared<'a>(module: &'a str, word: &str, name: &str, behind: &str) -> Option<&'a str> {
    let is_name = |at: usize| {
        module[..at].chars().next_back().is_none_or(|before| before.is_whitespace() || before == ';')
    };
    module.match_indices(word).filter(|(at, _)| is_name(*at)).find_map(|(at, _)| {
        let rest = module[at + word.len()..].strip_prefix(name)?.strip_prefix(behind)?;
        rest.split(';').next().map(str::trim)
    })
}

/// Splits a list at the commas that are in no bracket.
fn split(list: &str) -> impl Iterator<Item = &str> {
    let mut depth = 0;
    list.split(move |c: char| {
        match c {
            '<' | '(' => depth += 1,
            '>' | ')' => depth -= 1,
            _ => {}
        }
        c == ',' && depth == 0
    })
    .map(str::trim)
    .filter(|part| !part.is_empty())
}

/// Returns a number that is a literal, a constant, or a sum, a product or a quotient of such.
fn number(module: &str, text: &str, depth: usize) -> Option<u64> {
    let mut rest = Rest { module, text: text.trim(), depth: depth.checked_sub(1)? };
    let value = rest.sum()?;
    rest.text.is_empty().then_some(value)
}

/// What is left to read of a number.
struct Rest<'a> {
    module: &'a str,
    text: &'a str,
    depth: usize,
}

impl Rest<'_> {
    /// Goes over one of these characters, if it is next.
    fn take(&mut self, any: &[char]) -> Option<char> {
        let next = self.text.chars().next().filter(|c| any.contains(c))?;
        self.text = self.text[next.len_utf8()..].trim_start();
        Some(next)
    }

    fn sum(&mut self) -> Option<u64> {
        let mut all = self.product()?;
        while let Some(sign) = self.take(&['+', '-']) {
            let other = self.product()?;
            all = if sign == '+' { all.checked_add(other)? } else { all.checked_sub(other)? };
        }
        Some(all)
    }

    fn product(&mut self) -> Option<u64> {
        let mut all = self.operand()?;
        while let Some(sign) = self.take(&['*', '/', '%']) {
            let other = self.operand()?;
            all = match sign {
                '*' => all.checked_mul(other)?,
                '/' => all.checked_div(other)?,
                _ => all.checked_rem(other)?,
            };
        }
        Some(all)
    }

    fn operand(&mut self) -> Option<u64> {
        if self.take(&['(']).is_some() {
            let inner = self.sum()?;
            return self.take(&[')']).map(|_| inner);
        }
        let end = self.text.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(self.text.len());
        let (word, rest) = self.text.split_at(end);
        self.text = rest.trim_start();
        if word.starts_with(|c: char| c.is_ascii_digit()) {
            return word.trim_end_matches(['u', 'i']).parse().ok();
        }
        number(self.module, declared(self.module, "const ", word, ": u32 = ")?, self.depth)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Option<(u64, u64)> {
        Workgroup::of(text).map(|found| (found.invocations, found.bytes))
    }

    #[test]
    fn sizes_are_read_with_the_constants_that_they_name() {
        assert_eq!(of("@compute @workgroup_size(64)\nfn main() {}"), Some((64, 0)));
        assert_eq!(of("@compute @workgroup_size(8, 4u, 2) fn main() {}"), Some((64, 0)));
        let tiles = "const TILE: u32 = 128u;\nconst SIDE: u32 = 8u;\nconst SLAB: u32 = 16u;
const LANES: u32 = TILE / SIDE;\nconst INVOCATIONS: u32 = LANES * LANES;\nconst FOURS: u32 = TILE / 4u;
var<workgroup> slab: array<vec4<f32>, 2u * FOURS * SLAB>;
var<workgroup> found: atomic<u32>;
var<workgroup> four: array<Number, 3u * (FOURS - 31u) + 1u>;
var<workgroup> three: array<vec3<f32>, 2>;
alias Number = f16;
@compute @workgroup_size(INVOCATIONS)
fn main() {}";
        assert_eq!(of(tiles), Some((256, 16_384 + 16 + 16 + 32)));
    }

    #[test]
    fn what_is_written_in_another_way_is_not_guessed() {
        let with = |text: &str| of(&format!("{text}\n@compute @workgroup_size(64)\nfn main() {{}}"));
        assert_eq!(with("var<workgroup> a: array<f32, 4u>;"), Some((64, 16)));
        for unknown in [
            "var<workgroup> a: array<f32, N>;",
            "var<workgroup> a: array<f32, 4u << 2u>;",
            "var<workgroup> a: array<f32, 1u - 2u>;",
            "var<workgroup> a: Own;",
            "const N: u32 = N;\nvar<workgroup> a: array<f32, N>;",
            "alias Own = Own;\nvar<workgroup> a: Own;",
        ] {
            assert_eq!(with(unknown), None, "{unknown}");
        }
        assert_eq!(of("fn main() {}"), None);
    }
}
