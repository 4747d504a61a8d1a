//! Faults of drivers that are planted into kernels, to show that comparing adapters finds them.

use std::collections::BTreeMap;

/// What a driver that breaks the rules of docs/NUMERICS.md does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plant {
    /// It computes `fma` with one rounding, where it has two.
    Contraction,
    /// It computes `(a + b) + c` as `a + (b + c)`.
    Reassociation,
    /// Its quotients are off by two units in the last place.
    Division,
    /// It flushes nothing, has no barriers, and divides as WGSL does: what [`super::cost`] compares with.
    Unguarded,
}

/// fma with one rounding, from operations that each round: the product and its error exactly, a sum of three
/// rounded to odd.
const ONE_ROUNDING: &str = "
fn opaque(x: f32) -> f32 { return bitcast<f32>(bitcast<u32>(x) ^ params.zero); }
fn split_high(a: f32) -> f32 { return bitcast<f32>(bitcast<u32>(a) & 0xfffff000u); }
fn exact_fma(a: f32, b: f32, c: f32) -> f32 {
    let ah = split_high(a); let al = opaque(a - ah);
    let bh = split_high(b); let bl = opaque(b - bh);
    let p = opaque(a * b);
    let e = opaque(opaque(opaque(opaque(opaque(ah * bh) - p) + opaque(ah * bl)) + opaque(al * bh)) + opaque(al * bl));
    let s = opaque(p + c);
    let t = opaque(s - p);
    let rest = opaque(opaque(p - opaque(s - t)) + opaque(c - t));
    return opaque(s + opaque(rest + e));
}
";

impl Plant {
    /// Returns a kernel's text as the driver would take it.
    pub fn spoil(self, wgsl: &str) -> String {
        match self {
            Self::Contraction => match zero(wgsl).filter(|_| wgsl.contains(" = flush(fma(")) {
                Some(zero) => {
                    let one_rounding = ONE_ROUNDING.replace("params.zero", &zero);
                    wgsl.replace(" = flush(fma(", " = flush(exact_fma(") + &one_rounding
                }
                None => wgsl.to_owned(),
            },
            Self::Reassociation => reassociated(wgsl),
            Self::Division if wgsl.contains("fn quotient(") => {
                wgsl.replace("fn quotient(", "fn right_quotient(")
                    + "fn quotient(a: f32, b: f32) -> f32 {
                           return bitcast<f32>(bitcast<u32>(right_quotient(a, b)) + 2u);
                       }\n"
            }
            Self::Division => wgsl.to_owned(),
            Self::Unguarded => unguarded(wgsl),
        }
    }
}

/// Returns the param `zero` as the text names it, in the first of several kernels side by side that has it.
fn zero(wgsl: &str) -> Option<String> {
    let has_zero = |name: &str| {
        let (_, fields) = wgsl.split_once(&format!("struct {name} {{"))?;
        fields.split_once('}').filter(|(fields, _)| fields.contains("zero:"))
    };
    let part = || (0..).map_while(|at| wgsl.contains(&format!("struct Params_{at} ")).then_some(at));
    has_zero("Params").map(|_| "params.zero".to_owned()).or_else(|| {
        let at = part().find(|at| has_zero(&format!("Params_{at}")).is_some())?;
        Some(format!("params.part{at}.zero"))
    })
}

fn unguarded(wgsl: &str) -> String {
    use unisono_shaders::snippets::{FLUSH, OWN_QUOTIENT, OWN_ROOT};
    let [[select, mask], ..] = unisono_shaders::MASKS;
    wgsl.replace(mask, select)
        .replace(FLUSH.text(), "fn flush(x: f32) -> f32 { return x; }\n")
        .replace(OWN_QUOTIENT.text(), "fn quotient(a: f32, b: f32) -> f32 { return a / b; }\n")
        .replace(OWN_ROOT.text(), "fn root(x: f32) -> f32 { return sqrt(x); }\n")
        .replace("bitcast<i32>(bits & 0x7fffffffu) <= 0x00800000", "(bits & 0x7f800000u) == 0u")
}

/// Returns the text with `a + (b + c)` where the sum of a sum and `c` was written.
fn reassociated(wgsl: &str) -> String {
    let mut sums: BTreeMap<&str, (&str, &str)> = BTreeMap::new();
    let mut text = String::new();
    for line in wgsl.lines() {
        // Each function has names of its own.
        if line.starts_with("fn ") {
            sums.clear();
        }
        let sum = line.trim().strip_prefix("let ").and_then(|rest| rest.split_once(" = flush("));
        let sum = sum.and_then(|(name, rest)| Some((name, rest.strip_suffix(");")?.split_once(" + ")?)));
        let is_name = |text: &str| text.starts_with('v') && text[1..].bytes().all(|b| b.is_ascii_digit());
        match sum.filter(|(_, (a, b))| is_name(a) && is_name(b)) {
            Some((name, (a, b))) => {
                sums.insert(name, (a, b));
                match sums.get(a) {
                    Some((first, second)) => {
                        text += &format!("let {name} = flush({first} + flush({second} + {b}));\n")
                    }
                    None => text += &format!("{line}\n"),
                }
            }
            None => text += &format!("{line}\n"),
        }
    }
    text
}
