//! The kernels of attention: files of `shaders/attention`, with the functions of their memories and
//! constants.

use unisono_shaders::{AttentionParams, Params, attention, module, snippets};

use super::super::marks::chosen;
use super::super::shares::extensions;
use super::text::{Memory, base};
use super::unit;
use crate::ops::AttentionSizes;
use crate::plan::target::MatrixUnit;
use crate::plan::{Access, Kernel};
use crate::trace::AttentionResult;

/// How a machine computes attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Family {
    /// An invocation has a tile of its own in registers, for GPUs whose workgroups have no room for tiles.
    Alone,
    /// An invocation computes 32 places, four after four, by a function that the CPU has native code for.
    Native,
    /// A workgroup has a tile in workgroup memory.
    Tiles,
}

impl Family {
    /// Returns the number of queries, or keys, that a workgroup computes the results of.
    pub(super) fn own_places(self) -> usize {
        match self {
            Self::Alone => 4,
            Self::Native => 32,
            Self::Tiles => 64,
        }
    }

    /// Returns whether each of a kernel's invocations has a tile in registers.
    fn is_alone(self) -> bool {
        self != Self::Tiles
    }
}

/// The longest rows of which a workgroup of a GPU has the gradients by both keys and values in registers.
pub(super) const MOST_OF_BOTH: usize = 32;

/// The end of what the main functions of tiles begin with.
const BEGIN: &str = "    let own = group.x * OWN;\n";

/// The end of what the main functions of invocations alone begin with.
const BEGIN_ALONE: &str = "    enter(params.first_z + group.z);\n";

/// Everything that the text of a kernel depends on.
pub(super) struct AttentionKernel {
    pub family: Family,
    pub sizes: AttentionSizes,
    pub causal: bool,
    pub scale: f32,
    /// The results of the kernel, in order.
    pub results: Vec<AttentionResult>,
    /// What the kernel binds, in order.
    pub memories: Vec<Memory>,
    /// The matrix unit that multiplies, which the family [`Family::Tiles`] has.
    pub unit: Option<MatrixUnit>,
}

impl AttentionKernel {
    pub(super) fn build(&self) -> Kernel {
        let mut shared = vec![snippets::SUM_QUADS, snippets::KEPT, snippets::QUOTIENT, snippets::ELEMENTARY];
        let rounds =
            self.unit.is_some() || self.memories.iter().any(|memory| memory.is_written && memory.is_half);
        shared.extend(rounds.then_some(snippets::ROUND_HALF));
        let declaration = AttentionParams::declaration(self.memories.len());
        let half = self.memories.iter().any(|memory| memory.is_half);
        let enable = match self.unit {
            Some(unit) => extensions(unit),
            None if half => "enable f16;\n",
            None => "",
        };
        let (name, main) = self.main();
        let parts = self.constants() + &self.functions() + &self.steps();
        let mut wgsl = format!("{enable}{}", module(&declaration, &shared, &parts, &main));
        if let Some(unit) = self.unit {
            wgsl = unit::with_subgroup(&wgsl, unit);
        }
        let access = |memory: &Memory| if memory.is_written { Access::ReadWrite } else { Access::Read };
        let bound = self.memories.iter().filter(|memory| memory.shares.is_none());
        let by_unit = if self.unit.is_some() { "_unit" } else { "" };
        Kernel { name: format!("{name}{by_unit}"), wgsl, bindings: bound.map(access).collect() }
    }

    /// Returns the results that a workgroup computes, for each kind of workgroups. There are several kinds
    /// where one launch computes all gradients.
    pub(super) fn parts(&self) -> Vec<Vec<AttentionResult>> {
        use AttentionResult::{Key, Query, Value};
        let AttentionSizes { d, e, .. } = self.sizes;
        let mut parts = match self.is_by_key() && self.wants(Query) {
            false => vec![self.results.clone()],
            true if d.max(e) > MOST_OF_BOTH => vec![vec![Key], vec![Value], vec![Query]],
            true => vec![vec![Key, Value], vec![Query]],
        };
        // Where the keys or the values need no gradient, nobody computes it.
        parts.iter_mut().for_each(|part| part.retain(|result| self.wants(*result)));
        parts.retain(|part| !part.is_empty());
        parts
    }

    /// Returns the number of workgroups of a layer that compute some results.
    pub(super) fn workgroups(&self, results: &[AttentionResult]) -> usize {
        use AttentionResult::{Key, Value};
        let by_key = results.contains(&Key) || results.contains(&Value);
        let own = if by_key { self.sizes.keys } else { self.sizes.queries };
        own.div_ceil(self.family.own_places())
    }

    fn wants(&self, result: AttentionResult) -> bool {
        self.results.contains(&result)
    }

    fn is_by_key(&self) -> bool {
        self.wants(AttentionResult::Key) || self.wants(AttentionResult::Value)
    }

    fn constants(&self) -> String {
        let AttentionSizes { queries, keys, d, e, .. } = self.sizes;
        format!(
            "const T: u32 = {queries}u;\nconst S: u32 = {keys}u;\nconst D: u32 = {d}u;\nconst E: u32 = {e}u;\n\
             const CAUSAL: bool = {};\nconst SCALE: f32 = {:?};\n\
             // The score of a key that a query does not see.\nconst LOWEST: f32 = -3.4028235e38;\n",
            self.causal, self.scale,
        )
    }

    /// Returns the functions of the memories, and those that say what a query sees.
    fn functions(&self) -> String {
        let mut text: String =
            self.memories.iter().map(|memory| memory.functions(self.unit.is_none())).collect();
        let q = self.memories.iter().find(|memory| memory.name == "q");
        let outer = q.map_or(&[][..], |q| &q.dims[..q.dims.len() - 2]);
        let bases: String =
            self.memories.iter().enumerate().map(|(number, memory)| memory.enter(number, outer)).collect();
        text += &format!("fn enter(layer: u32) {{\n{bases}}}\n");
        let shows =
            if self.memories.iter().any(|m| m.name == "mask") { " && mask_shows(query, key)" } else { "" };
        text += &format!(
            "fn seen(query: u32, key: u32) -> bool {{\n    \
             return query < T && key < S && (!CAUSAL || key <= query){shows};\n}}\n"
        );
        let fours = |name: &str, pair: &dyn Fn(usize) -> String| {
            let pairs = [0, 1, 2, 3].map(pair).join(", ");
            format!("fn {name}(own: u32, row: u32) -> vec4<bool> {{\n    return vec4<bool>({pairs});\n}}\n")
        };
        if self.is_by_key() {
            text += &fours("sees4", &|i| format!("seen(row, own + {i}u)"));
        }
        if !self.is_by_key() || self.wants(AttentionResult::Query) {
            text += &fours("seen4", &|i| format!("seen(own + {i}u, row)"));
        }
        text
    }

    /// Returns the steps that the main function takes, written for the memories that they read.
    fn steps(&self) -> String {
        let (shared, [scores, spread], result) = match self.unit {
            _ if self.family.is_alone() => (
                attention::ALONE.to_owned(),
                [attention::ALONE_SCORES, attention::ALONE_SPREAD].map(str::to_owned),
                attention::ALONE_RESULT,
            ),
            None => (
                chosen(attention::TILES, "SLABS", true),
                [attention::TILES_SCORES, attention::TILES_SPREAD].map(str::to_owned),
                attention::TILES_RESULT,
            ),
            Some(unit) => (
                chosen(attention::TILES, "SLABS", false) + &unit::shared(unit),
                unit::steps(unit),
                attention::TILES_RESULT,
            ),
        };
        let of = |text: &str, rows: &str, own: &str, width: &str| {
            text.replace("ROWS", rows)
                .replace("OWN_four", &format!("{own}_four"))
                .replace("_OWN", &format!("_{own}"))
                .replace("WIDTH", width)
                .replace("OUT", rows)
        };
        let (mut products, mut spreads): (Vec<[&str; 3]>, Vec<[&str; 2]>) = (vec![], vec![]);
        if self.is_by_key() {
            products.push(["q", "k", "D"]);
            if self.wants(AttentionResult::Value) {
                spreads.push(["dy", "E"]);
            }
            if self.wants(AttentionResult::Key) {
                products.push(["dy", "v", "E"]);
                spreads.push(["q", "D"]);
            }
        }
        if self.wants(AttentionResult::Query) {
            products.extend([["k", "q", "D"], ["v", "dy", "E"]]);
            spreads.push(["k", "D"]);
        } else if !self.is_by_key() {
            products.push(["k", "q", "D"]);
            spreads.push(["v", "E"]);
        }
        let mut text = shared;
        text.extend(products.iter().map(|[rows, own, width]| {
            let factor = if *width == "D" { " * SCALE" } else { "" };
            of(&scores, rows, own, width).replace("FACTOR", factor)
        }));
        text.extend(spreads.iter().map(|[rows, width]| of(&spread, rows, "", width)));
        let written = self.memories.iter().filter(|memory| memory.is_written && memory.name != "lse_out");
        let written = written.filter(|memory| base(memory.name) == memory.name);
        text.extend(written.map(|memory| of(result, memory.name, "", memory.columns())));
        text
    }

    /// Returns the kernel's name and its main function. Where there are several kinds of workgroups, each has
    /// a function of its own.
    fn main(&self) -> (&'static str, String) {
        let parts = self.parts();
        if let [_] = parts[..] {
            return self.main_of();
        }
        let (mut functions, mut calls, mut first) = (String::new(), String::new(), 0);
        for (number, results) in parts.into_iter().enumerate() {
            let end = first + self.workgroups(&results);
            let part = Self { results, memories: vec![], ..*self };
            let (_, main) = part.main_of();
            let (_, body) = main.split_once(BEGIN).unwrap_or_default();
            functions += &format!("fn part{number}(own: u32) {{\n{body}\n");
            calls += &format!(
                "    if group.x >= {first}u && group.x < {end}u {{ part{number}((group.x - {first}u) * OWN); }}\n"
            );
            first = end;
        }
        ("attention_gradients", format!("{functions}{}{calls}}}\n", attention::TILES_PARTS))
    }

    /// Returns the name and the main function of a kernel whose workgroups are all alike.
    fn main_of(&self) -> (&'static str, String) {
        use attention::*;
        let AttentionSizes { d, e, .. } = self.sizes;
        let (name, [alone, by_tiles], width) = if self.is_by_key() {
            ("attention_key", [ALONE_KEY, TILES_KEY], d)
        } else if self.wants(AttentionResult::Query) {
            ("attention_query", [ALONE_QUERY, TILES_QUERY], d)
        } else {
            ("attention", [ALONE_FORWARD, TILES_FORWARD], e)
        };
        if self.family.is_alone() {
            let text = self.without_unwanted(alone);
            return (name, if self.family == Family::Native { self.native(name, &text) } else { text });
        }
        // By a unit q is not scaled where it is read, since f16 need not hold what it becomes.
        let by_tiles = match self.unit {
            Some(_) => {
                by_tiles.replace("canonical_results(dkN)", "scaled(dkN, vec4<f32>(SCALE), vec4<f32>(SCALE))")
            }
            None => by_tiles.to_owned(),
        };
        let mut text = String::new();
        for line in by_tiles.lines() {
            let indent = &line[..line.len() - line.trim_start().len()];
            if let Some(result) = line.trim_start().strip_prefix("//RESULTS ") {
                let width = if result == "dv" { e } else { width };
                for part in 0..width.div_ceil(64) {
                    text += &format!("{indent}var {result}{part} = Results();\n");
                }
            } else if let Some(step) = line.trim_start().strip_prefix("//EACH ") {
                let (width, step) = match (step.strip_prefix("dv "), step.strip_prefix("dk ")) {
                    (Some(step), _) => (if self.wants(AttentionResult::Value) { e } else { 0 }, step),
                    (_, Some(step)) => (if self.wants(AttentionResult::Key) { d } else { 0 }, step),
                    _ => (width, step),
                };
                for part in 0..width.div_ceil(64) {
                    let step = step.replace("FIRST", &format!("{}u", 64 * part));
                    let names = ["out", "dq", "dk", "dv"];
                    let step = names
                        .iter()
                        .fold(step, |step, name| step.replace(&format!("{name}N"), &format!("{name}{part}")));
                    text += &format!("{indent}{step}\n");
                }
            } else {
                text += line;
                text.push('\n');
            }
        }
        (name, self.without_unwanted(&text))
    }

    /// Returns a main function whose body is a function of its own, called for four places after four by a
    /// function that the CPU knows by its name and by the constants and memories of this module.
    fn native(&self, name: &str, main: &str) -> String {
        let (functions, main) = main.split_once("@compute").unwrap_or_default();
        let (_, body) = main.split_once(BEGIN_ALONE).unwrap_or_default();
        let count = if self.is_by_key() { "S" } else { "T" };
        format!(
            "{functions}fn four_places(group: vec3<u32>) {{\n{body}\n\
             fn unisono_{name}(first: u32) {{\n    \
             for (var own = first; own < min(first + 32u, {count}); own += 4u) {{\n        \
             four_places(vec3<u32>(own / 4u, 0u, 0u));\n    }}\n}}\n\n\
             @compute @workgroup_size(1)\nfn main(@builtin(workgroup_id) group: vec3<u32>) {{\n    \
             enter(params.first_z + group.z);\n    unisono_{name}(group.x * 32u);\n}}\n"
        )
    }

    /// Returns a main function without marks, and without the steps between those of results that it does not
    /// compute.
    fn without_unwanted(&self, main: &str) -> String {
        use AttentionResult::{Key, LogSums, Value};
        let marks = [("LSE", LogSums), ("K", Key), ("V", Value)];
        marks.iter().fold(main.to_owned(), |text, (name, result)| chosen(&text, name, self.wants(*result)))
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::marks::tests::{has_mark, of_windows};
    use super::*;

    /// A kernel with steps of a result that it does not compute would name memories that it lacks.
    #[test]
    fn main_functions_have_the_steps_of_their_results_and_no_mark() {
        use AttentionResult::{Key, LogSums, Query, Value, Values};
        let all: [&[AttentionResult]; 7] =
            [&[Values], &[Values, LogSums], &[Query], &[Key], &[Value], &[Key, Value], &[Query, Key, Value]];
        let sizes = AttentionSizes { layers: 1, queries: 8, keys: 8, d: 8, e: 8 };
        for (family, results) in all.iter().flat_map(|r| [(Family::Alone, r), (Family::Tiles, r)]) {
            if family != Family::Tiles && results.len() == 3 {
                continue;
            }
            let results = results.to_vec();
            let kernel = AttentionKernel {
                family,
                sizes,
                causal: false,
                scale: 1.0,
                results,
                memories: vec![],
                unit: None,
            };
            let (name, main) = kernel.main();
            assert!(!has_mark(&main), "{name}: {main}");
            for (result, step) in [(LogSums, "lse_put"), (Key, "dk_keep"), (Value, "dv_keep")] {
                assert_eq!(main.contains(step), kernel.wants(result), "{name}, {step}: {main}");
            }
        }
        let text = of_windows(attention::ALONE_FORWARD);
        assert!(!has_mark(&chosen(&text, "LSE", false)) && !chosen(&text, "LSE", false).contains("lse_put"));
    }
}
