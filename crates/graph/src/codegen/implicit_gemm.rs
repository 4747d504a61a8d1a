//! Implicit GEMM: what a product's kernel reads in place of a matrix that is only a view. It reads each
//! element from where it is stored, so that the windows of a convolution's image are never in memory.

use std::fmt::Write as _;

use super::Binding;
use super::index::literal;
use crate::fuse::{Digit, Form, Fusion, Spot, Stores, Variable, in_order};
use crate::trace::{Graph, Lowering, NodeId};
use crate::values::Lead;

/// The size from which on digits are too large for the fast product.
const MANY: usize = 1 << 24;

/// An operand of a product as functions of its kernel: `a_rows` and `a_load`, or `b_columns` and `b_load`.
#[derive(Clone, Debug)]
pub struct ImplicitOperand {
    /// The text of the functions and of the binding that they load from.
    pub wgsl: String,
    /// The same text for GPUs. It says how large digits are that are multiplied: a GPU multiplies numbers
    /// below 2^24 by one instruction, and its compiler does not know of digits that they are small.
    pub bounded: String,
    /// What `matmul_panels.wgsl` needs in their place: `put_lines`, `put_steps` and `view`, each with the
    /// operand's letter. It is there if the binding is f32.
    pub panels: Option<String>,
    /// The binding that the functions load from.
    pub store: Binding,
    /// Whether the binding is f16.
    pub halves: bool,
}

/// Returns operand `side` of a product as functions, if it is not in memory.
pub fn operand(
    graph: &Graph,
    fusion: &Fusion,
    stores: &Stores,
    product: NodeId,
    side: usize,
) -> Option<ImplicitOperand> {
    let value = in_order(graph, fusion, graph.nodes[product].inputs[side]);
    if fusion.stored.contains(&value) || fusion.lowering[value].is_given() {
        return None;
    }
    let spot = Spot::find(graph, fusion, product, side, None)?;
    // Chunks begin at multiples of four steps, and shards do where a sample has a multiple of four rows.
    let operand = &graph.nodes[graph.nodes[product].inputs[0]].ty;
    let rows = operand.count() / operand.dims.last().map_or(1, |&last| last.max(1));
    let aligned = !matches!(fusion.lowering[product], Lowering::Contract) || rows.is_multiple_of(4);
    Some(operand_at(graph, stores, (side, &spot), aligned))
}

/// Returns operand `side` of a product as functions that find its elements there. `aligned` says whether all
/// inner ranges begin at multiples of four.
pub fn operand_at(
    graph: &Graph,
    stores: &Stores,
    (side, spot): (usize, &Spot),
    aligned: bool,
) -> ImplicitOperand {
    let ty = &graph.nodes[spot.source].ty;
    let place = stores.place(spot.source);
    let halves = stores.is_half(place.store);
    let address = spot.address(ty, place);
    let text = Text { side, spot, address, halves, aligned, bounds: false };
    let store = Binding { store: place.store, row: (ty.lead == Lead::Sample).then(|| place.row(ty.count())) };
    let panels = (!halves).then(|| text.panels());
    let (wgsl, bounded) = (text.wgsl(), Text { bounds: true, ..text }.wgsl());
    ImplicitOperand { wgsl, bounded, panels, store, halves }
}

/// The parts of the functions' text.
struct Text<'a> {
    side: usize,
    spot: &'a Spot,
    address: Form,
    halves: bool,
    /// Whether the steps of a block begin at a multiple of four.
    aligned: bool,
    /// Whether the text says how large digits are.
    bounds: bool,
}

impl Text<'_> {
    /// Returns the variable along which four elements come at once.
    fn fours(&self) -> Option<Variable> {
        let along = |variable: &Variable| self.address.comes_in_fours(*variable);
        [Variable::Inner, Variable::Outer].into_iter().find(along).filter(|_| self.spot.inside.is_empty())
    }

    fn wgsl(&self) -> String {
        let [x, outer, lines, size] =
            [["a", "rows", "ARows", "m"], ["b", "columns", "BColumns", "n"]][self.side];
        let fours = self.fours();
        let vector = "vec4<u32>";
        let forms = self.forms();
        let fields: Vec<String> = forms.iter().map(|(name, _)| format!("{name}: {vector}")).collect();
        let outers: Vec<String> = forms.iter().map(|(_, form)| self.outer_text(form)).collect();
        let inners = self.inner_texts();
        // Four side by side begin at a multiple of four, the last of them too.
        let last = if fours == Some(Variable::Outer) {
            format!("(params.{size} - 1u) / 4u * 4u")
        } else {
            format!("params.{size} - 1u")
        };
        let (arguments, body) = match self.side {
            0 => (format!("own: Part, {outer}: {lines}, p: u32"), self.block(outer)),
            _ => (format!("own: Part, p: u32, {outer}: {lines}"), self.block(outer)),
        };
        format!(
            "{binding}struct {lines} {{ {fields} }}\n\
             fn {x}_{outer}(own: Part, i: u32) -> {lines} {{\n    \
             let o = min(vec4<u32>(i, i + 1u, i + 2u, i + 3u), vec4<u32>({last}));\n    \
             return {lines}({outers});\n}}\n\
             fn {x}_load({arguments}) -> mat4x4<f32> {{\n    \
             let steps = vec4<u32>(p, p + 1u, p + 2u, p + 3u);\n    \
             let q = select(steps, min(steps, vec4<u32>(own.end - 1u)), RAGGED);\n\
             {inners}    var block: mat4x4<f32>;\n{body}}}\n",
            binding = self.binding(),
            fields = fields.join(", "),
            outers = outers.join(", "),
        )
    }

    /// Returns the declaration of the memory that the functions load from.
    fn binding(&self) -> String {
        let x = ["a", "b"][self.side];
        let held = if self.halves { "f16" } else { "f32" };
        let held = if self.fours().is_some() { format!("vec4<{held}>") } else { held.into() };
        format!("@group(0) @binding({}) var<storage, read> {x}: array<{held}>;\n", self.side + 1)
    }

    /// Returns the address, and each coordinate that has a border, with their names.
    fn forms(&self) -> Vec<(String, &Form)> {
        let borders = self.spot.inside.iter().enumerate().map(|(i, (form, _))| (format!("c{i}"), form));
        std::iter::once(("at".to_string(), &self.address)).chain(borders).collect()
    }

    /// Returns what a form has of the layer and of the outer variable `o`.
    fn outer_text(&self, form: &Form) -> String {
        let name = |variable| match (variable, self.side) {
            (Variable::Layer, 0) => "own.a",
            (Variable::Layer, _) => "own.b",
            (Variable::Outer, _) => "o",
            (Variable::Inner, _) => "q",
        };
        let own = Form { plus: form.plus, ..form.of(&[Variable::Layer, Variable::Outer]) };
        form_text(&own, "vec4<u32>", |digit, _| digit_text(digit, name(digit.variable)))
    }

    /// Returns statements that compute what each form has of four steps `q` from `p` on.
    fn inner_texts(&self) -> String {
        let one = |(field, form): (String, &Form)| {
            let digit = |digit: &Digit, factor| self.bounded_text(digit, factor);
            let own = form_text(&form.of(&[Variable::Inner]), "vec4<u32>", digit);
            format!("    let {field} = {own};\n")
        };
        self.forms().into_iter().map(one).collect()
    }

    /// Returns the functions for `matmul_panels.wgsl`. The address of an element is the sum of an offset of
    /// its row or column and an offset of its step. `put_lines` and `put_steps` compute both kinds of
    /// offsets, and the copy adds them. unisono-cpu has native code for the copy.
    fn panels(&self) -> String {
        let [x, upper, size, name, copy, quads] = [
            ["a", "A", "m", "unisono_view_stripe", "stripe", "2"],
            ["b", "B", "n", "unisono_view_panel", "panel", "8"],
        ][self.side];
        let forms = self.forms();
        let count = forms.len();
        let fill = literal(self.spot.fill.unwrap_or_default());
        let mut constants =
            format!("const {upper}_BORDERS: u32 = {}u;\nconst {upper}_FILL: f32 = {fill};\n", count - 1);
        let (mut lines, mut steps, mut inside) = (String::new(), String::new(), String::new());
        for (f, (field, form)) in forms.iter().enumerate() {
            let _ = writeln!(lines, "        {x}_lines[{f}u * {quads}u + h] = {};", self.outer_text(form));
            let _ = write!(steps, " {x}_steps[{f}u * STEPS + first + d] = {field}[d];");
        }
        for (i, (_, limit)) in self.spot.inside.iter().enumerate() {
            let _ = writeln!(constants, "const {upper}_LIMIT_{i}: u32 = {limit}u;");
            let f = i + 1;
            let and = if i > 0 { " & " } else { "" };
            let _ = write!(
                inside,
                "{and}({x}_lines[{f}u * {quads}u + h] + {x}_steps[{f}u * STEPS + p] < vec4<u32>({limit}u))"
            );
        }
        let element = if self.fours().is_some() { "[i / 4u][i % 4u]" } else { "[i]" };
        let number = |i: &str| format!("{x}_number(at.{i})");
        let all = ["x", "y", "z", "w"].map(number).join(", ");
        let (at, loaded) = (format!("{x}_lines[h] + {x}_steps[p]"), format!("vec4<f32>({all})"));
        let body = if inside.is_empty() {
            format!("            let at = {at};\n            {copy}[{quads}u * (to + p) + h] = {loaded};\n")
        } else {
            format!(
                "            let inside = {inside};\n            \
                 let at = select(vec4<u32>(), {at}, inside);\n            \
                 {copy}[{quads}u * (to + p) + h] = select(vec4<f32>({fill}), {loaded}, inside);\n"
            )
        };
        format!(
            "{binding}{constants}\
             fn {x}_number(i: u32) -> f32 {{ return {x}{element}; }}\n\
             // The first elements of four lines each, and then their coordinates; and the same of steps.\n\
             var<workgroup> {x}_lines: array<vec4<u32>, {count}u * {quads}u>;\n\
             var<workgroup> {x}_steps: array<u32, {count}u * STEPS>;\n\
             fn {x}_put_lines(own: Part, i: u32) {{\n    \
             for (var h = 0u; h < {quads}u; h++) {{\n        let line = i + 4u * h;\n        \
             let o = min(vec4<u32>(line, line + 1u, line + 2u, line + 3u), vec4<u32>(params.{size} - 1u));\n\
             {lines}    }}\n}}\n\
             fn {x}_put_steps(own: Part, count: u32) {{\n    \
             for (var first = 0u; first < count; first += 4u) {{\n    let p = own.start + first;\n    \
             let steps = vec4<u32>(p, p + 1u, p + 2u, p + 3u);\n    \
             let q = select(steps, min(steps, vec4<u32>(own.end - 1u)), RAGGED);\n\
             {inners}    for (var d = 0u; d < 4u; d++) {{{steps} }}\n    }}\n}}\n\
             fn {name}(count: u32, to: u32) {{\n    for (var p = 0u; p < count; p++) {{\n        \
             for (var h = 0u; h < {quads}u; h++) {{\n{body}        }}\n    }}\n}}\n",
            binding = self.binding(),
            inners = self.inner_texts(),
        )
    }

    /// Returns a digit of four steps, and its bound where that makes a product with `factor` cheaper.
    fn bounded_text(&self, digit: &Digit, factor: usize) -> String {
        let text = self.inner_text(digit);
        match digit.size {
            Some(size @ 2..MANY) if self.bounds && !factor.is_power_of_two() => {
                format!("min({text}, vec4<u32>({}u))", size - 1)
            }
            _ => text,
        }
    }

    /// Returns a digit of four steps `q` from `p` on. Where `p` is a multiple of four, a digit above the
    /// fours is the same for all four, and one of fours goes up with them: then there is one division, not
    /// four.
    fn inner_text(&self, digit: &Digit) -> String {
        let is_one = |size: &usize| size.is_multiple_of(4);
        match digit {
            _ if !self.aligned => digit_text(digit, "q"),
            Digit { step, .. } if step.is_multiple_of(4) => format!("vec4<u32>({})", digit_text(digit, "p")),
            Digit { step: 1, size: Some(size), leads: false, .. } if is_one(size) => {
                format!("(vec4<u32>({}) + (q - p))", digit_text(digit, "p"))
            }
            _ => digit_text(&Digit { step: 1, ..digit.clone() }, &self.divided(digit.step)),
        }
    }

    /// Returns `q / step`, as the quotient of a smaller step's quotient where there is one. A compiler does
    /// not know that they are equal, and computes a quotient that it has already only once.
    fn divided(&self, step: usize) -> String {
        let all = std::iter::once(&self.address).chain(self.spot.inside.iter().map(|(form, _)| form));
        let digits = all.flat_map(|form| form.terms.iter().map(|(digit, _)| digit));
        let smaller = digits.filter(|other| other.variable == Variable::Inner && other.step < step);
        let divides = smaller.map(|other| other.step).filter(|other| step.is_multiple_of(*other));
        match divides.max() {
            Some(other) => format!("{} / {}u", self.divided(other), step / other),
            None if step > 1 => format!("q / {step}u"),
            None => "q".to_owned(),
        }
    }

    /// Returns the loads of a block: line by line of the outer variable for a, of the inner one for b.
    fn block(&self, outer: &str) -> String {
        let x = ["a", "b"][self.side];
        let by_outer = self.side == 0;
        if let Some(along) = self.fours() {
            let at = match along {
                Variable::Inner => format!("{outer}.at[e] + at.x"),
                _ => format!("{outer}.at.x + at[e]"),
            };
            let block = if (along == Variable::Inner) == by_outer { "block" } else { "transpose(block)" };
            return format!(
                "    for (var e = 0u; e < 4u; e++) {{ block[e] = vec4<f32>({x}[({at}) / 4u]); }}\n    \
                 return {block};\n"
            );
        }
        let sum = |field: &str| {
            if by_outer {
                format!("{outer}.{field}[e] + {field}")
            } else {
                format!("{outer}.{field} + {field}[e]")
            }
        };
        let below = |(i, (_, length)): (usize, &(Form, usize))| {
            format!("(({}) < vec4<u32>({length}u))", sum(&format!("c{i}")))
        };
        let inside: Vec<String> = self.spot.inside.iter().enumerate().map(below).collect();
        let loaded = format!("vec4<f32>(vec4({x}[at_e.x], {x}[at_e.y], {x}[at_e.z], {x}[at_e.w]))");
        let (at, loaded, is_inside) = if inside.is_empty() {
            (sum("at"), loaded, String::new())
        } else {
            let fill = literal(self.spot.fill.unwrap_or_default());
            (
                format!("select(vec4<u32>(), {}, inside)", sum("at")),
                format!("select(vec4<f32>({fill}), {loaded}, inside)"),
                format!("        let inside = {};\n", inside.join(" & ")),
            )
        };
        format!(
            "    for (var e = 0u; e < 4u; e++) {{\n{is_inside}        let at_e = {at};\n        block[e] = {loaded};\n    }}\n    \
             return block;\n"
        )
    }
}

/// Returns a digit of the variable with this name as WGSL.
fn digit_text(Digit { step, size, leads, .. }: &Digit, name: &str) -> String {
    let mut digit = name.to_string();
    if *step > 1 {
        digit = format!("{digit} / {step}u");
    }
    if let (Some(size), false) = (size, leads) {
        digit = format!("{digit} % {size}u");
    }
    digit
}

/// Returns a form as WGSL, given the text of its digits. Its number wraps around.
fn form_text(form: &Form, ty: &str, digit: impl Fn(&Digit, usize) -> String) -> String {
    let mut text = format!("{ty}({}u)", form.plus as u32);
    for (own, factor) in &form.terms {
        let digit = digit(own, *factor);
        let _ = match factor {
            1 => write!(text, " + {digit}"),
            factor if digit.contains(' ') => write!(text, " + ({digit}) * {factor}u"),
            factor => write!(text, " + {digit} * {factor}u"),
        };
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_form_is_a_sum_of_digits() {
        let digit = |step, size, leads| Digit { variable: Variable::Outer, step, size, leads };
        let terms = vec![(digit(1, Some(32), false), 1), (digit(32, None, true), 96)];
        let text = form_text(&Form { terms, plus: 0 }, "u32", |digit, _| digit_text(digit, "o"));
        assert_eq!(text, "u32(0u) + o % 32u + (o / 32u) * 96u");
    }
}
