//! The functions by which kernels of attention read and write their memories.

use std::fmt::Write as _;

use crate::fuse::Digit;
use crate::values::strides;

/// A memory of a kernel.
pub(super) struct Memory {
    /// The name of what it holds: q, k, v, dy, lse, delta, mask, out, lse_out, dq, dk or dv, or one of
    /// [`HALVES`].
    pub name: &'static str,
    /// The number of the binding, from 0.
    pub binding: usize,
    /// The name of the memory in the same buffer that declares the binding for both.
    pub shares: Option<&'static str>,
    /// The axes of a sample, or of all of it.
    pub dims: Vec<usize>,
    pub has_samples: bool,
    pub is_half: bool,
    /// Whether the first element is at a multiple of four.
    pub is_aligned: bool,
    pub is_written: bool,
    /// The name of the memory that has the same values as f16, if there is one.
    pub half: Option<&'static str>,
    /// Where rows and layers lie, if not one behind the other.
    pub lies: Option<Lies>,
}

/// The results that may be stored as f16 too, each with the name of that memory.
const HALVES: [[&str; 2]; 4] = [["out", "out_half"], ["dq", "dq_half"], ["dk", "dk_half"], ["dv", "dv_half"]];

/// Returns the name of the memory that has a result as f16.
pub(super) fn half_of(name: &str) -> Option<&'static str> {
    HALVES.iter().find(|[own, _]| *own == name).map(|[_, half]| *half)
}

/// Returns the name of the result that a memory has, as f32 or as f16.
pub(super) fn base(name: &str) -> &str {
    name.strip_suffix("_half").unwrap_or(name)
}

/// Where the rows and layers of a memory lie.
pub(super) struct Lies {
    /// The elements from one row to the next.
    pub step: usize,
    /// The terms of a layer's first element.
    pub layer: Vec<(Digit, usize)>,
    /// The first element of all.
    pub first: usize,
}

impl Lies {
    /// Returns whether rows begin at multiples of four after the first element.
    pub fn is_aligned(&self) -> bool {
        self.step.is_multiple_of(4) && self.layer.iter().all(|(_, factor)| factor.is_multiple_of(4))
    }

    /// Returns the first element of a layer after the first of all.
    fn layer(&self) -> String {
        let term = |(digit, factor): &(Digit, usize)| {
            let mut text = if digit.step == 1 { "layer".into() } else { format!("layer / {}u", digit.step) };
            if let Some(size) = digit.size.filter(|_| !digit.leads) {
                text += &format!(" % {size}u");
            }
            format!("{text} * {factor}u")
        };
        if self.layer.is_empty() {
            "0u".into()
        } else {
            self.layer.iter().map(term).collect::<Vec<_>>().join(" + ")
        }
    }
}

impl Memory {
    /// Returns whether a memory in the same buffer may have the same binding.
    pub fn may_share(&self, other: &Self) -> bool {
        let kind = |memory: &Self| (memory.comes_in_fours(), memory.is_half, memory.is_written);
        kind(self) == kind(other)
    }

    /// Returns whether four elements of a row are read and written at once.
    fn comes_in_fours(&self) -> bool {
        !self.is_column() && self.name != "mask" && self.is_aligned && self.width().is_multiple_of(4)
    }

    /// Returns whether there is one element for each query.
    fn is_column(&self) -> bool {
        ["lse", "delta", "lse_out"].contains(&self.name)
    }

    fn width(&self) -> usize {
        self.dims.last().copied().unwrap_or(1)
    }

    /// Returns the constant that is the memory's number of rows.
    fn rows(&self) -> &'static str {
        if ["k", "v", "dk", "dv"].contains(&base(self.name)) { "S" } else { "T" }
    }

    /// Returns the elements of a row as a constant.
    pub fn columns(&self) -> &'static str {
        if ["q", "k", "dq", "dk"].contains(&base(self.name)) { "D" } else { "E" }
    }

    /// Returns the binding, unless another memory declares it, and the functions of a memory. `scales` says
    /// whether q is scaled where it is read.
    pub fn functions(&self, scales: bool) -> String {
        let Self { name, is_half, .. } = self;
        let number_type = if *is_half { "f16" } else { "f32" };
        let held = if self.comes_in_fours() { format!("vec4<{number_type}>") } else { number_type.into() };
        let access = if self.is_written { "read_write" } else { "read" };
        let binding = self.binding + 1;
        let mut text = format!("var<private> {name}_base: u32;\n");
        if self.shares.is_none() {
            let _ = writeln!(
                text,
                "@group(0) @binding({binding}) var<storage, {access}> {name}_data: array<{held}>;"
            );
        }
        match *name {
            "mask" => text += &self.mask(),
            "lse_out" => {
                text += "fn lse_put(row: u32, x: f32) {\n    \
                         if row < T { lse_out_data[lse_out_base + row] = x; }\n}\n";
            }
            _ if self.is_column() => {
                let _ = writeln!(
                    text,
                    "fn {name}_at(row: u32) -> f32 {{ return {name}_data[{name}_base + min(row, T - 1u)]; }}"
                );
            }
            _ => text += &self.rows_of_four(scales && *name == "q"),
        }
        text
    }

    /// Returns the functions that read, and write, four elements of a row. What is beyond the row's end is 0.
    fn rows_of_four(&self, is_scaled: bool) -> String {
        let Self { name, shares, .. } = self;
        let data = shares.unwrap_or(name);
        let (rows, columns) = (self.rows(), self.columns());
        let scale = if is_scaled { " * SCALE" } else { "" };
        let step = format!("{}_STEP", name.to_uppercase());
        let at = format!("let at = {name}_base + min(row, {rows} - 1u) * {step} + column;");
        let mut text = match &self.lies {
            Some(lies) => format!("const {step}: u32 = {}u;\n", lies.step),
            None => format!("const {step}: u32 = {}u;\n", self.width()),
        };
        let _ = writeln!(text, "fn {name}_four(row: u32, column: u32) -> vec4<f32> {{\n    {at}");
        if self.comes_in_fours() {
            let _ = writeln!(text, "    return vec4<f32>({data}_data[at / 4u]){scale};\n}}");
        } else {
            let element = |i: usize| format!("f32({data}_data[at + min(last, {i}u)])");
            let four = [0, 1, 2, 3].map(element).join(", ");
            let _ = writeln!(
                text,
                "    let last = {columns} - 1u - column;\n    \
                 return select(vec4<f32>(), vec4<f32>({four}), vec4<u32>(0u, 1u, 2u, 3u) <= vec4<u32>(last)){scale};\n}}"
            );
        }
        if self.is_written {
            let _ = writeln!(text, "fn {name}_put(row: u32, column: u32, x: vec4<f32>) {{");
            let _ = writeln!(text, "    if row >= {rows} {{ return; }}");
            if let Some(half) = self.half {
                let _ = writeln!(text, "    {half}_put(row, column, x);");
            }
            let _ = writeln!(text, "    let at = {name}_base + row * {step} + column;");
            // What rounds to -0 is 0, as behind every op.
            let half = "vec4<f16>(canonical(vec4<f32>(round_half(x.x), round_half(x.y), round_half(x.z), round_half(x.w))))";
            let _ = writeln!(text, "    let y = {};", if self.is_half { half } else { "x" });
            if self.comes_in_fours() {
                let _ = writeln!(text, "    {data}_data[at / 4u] = y;\n}}");
            } else {
                let _ = writeln!(text, "    let last = {columns} - 1u - column;");
                for (i, part) in ["x", "y", "z", "w"].into_iter().enumerate() {
                    let _ = writeln!(text, "    if last >= {i}u {{ {data}_data[at + {i}u] = y.{part}; }}");
                }
                text += "}\n";
            }
        }
        text
    }

    /// Returns whether the mask shows a key to a query.
    fn mask(&self) -> String {
        let steps = strides(&self.dims);
        let n = self.dims.len();
        let step = |axis: usize| if self.dims[axis] == 1 { 0 } else { steps[axis] };
        format!(
            "const MASK_QUERY: u32 = {}u;\nconst MASK_KEY: u32 = {}u;\n\
             fn mask_shows(query: u32, key: u32) -> bool {{\n    \
             let at = mask_base + min(query, T - 1u) * MASK_QUERY + min(key, S - 1u) * MASK_KEY;\n    \
             return f32(mask_data[at]) != 0.0;\n}}\n",
            step(n - 2),
            step(n - 1),
        )
    }

    /// Returns the statement that finds a layer of the memory: a pair of sample and head. The heads of a
    /// sample are `outer`.
    pub fn enter(&self, number: usize, outer: &[usize]) -> String {
        let heads: usize = outer.iter().product();
        let count: usize = self.dims.iter().product();
        let layer = if self.name == "mask" {
            let steps = strides(&self.dims);
            let mut terms: Vec<String> = Vec::new();
            let mut below = heads;
            for (axis, &length) in outer.iter().enumerate() {
                below /= length;
                if self.dims[axis] > 1 {
                    terms.push(format!("layer / {below}u % {length}u * {}u", steps[axis]));
                }
            }
            if self.has_samples {
                terms.push(format!("layer / {heads}u * {count}u"));
            }
            if terms.is_empty() { "0u".into() } else { terms.join(" + ") }
        } else if let Some(lies) = &self.lies {
            lies.layer()
        } else {
            format!("layer * {}u", count / heads)
        };
        let name = self.name;
        format!("    {name}_base = params.s{number} + {layer};\n")
    }
}
