//! The slab of an operand in workgroup memory, for a matrix unit: how invocations read it, how it is laid
//! out, and where a block of the unit's size begins in it.
//!
//! All slabs are K-major: the steps of a row lie side by side, as matrix units and the drivers' loads of
//! their operands like it best. An operand whose memory is MN-major is transposed on the way.

use crate::plan::target::{MatrixUnit, UnitWay};
use crate::program::emit::shares::kind;

use super::tile::side;

/// How the numbers of a slab are read. CUTLASS has the same names for layouts of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SlabLayout {
    /// Invocations read blocks of four rows and four steps, as they do without a unit.
    Blocks,
    /// The operand is stored as f16 with the steps of a row side by side (K-major), and is copied as it is.
    KMajor,
    /// The operand is stored as f16 with the rows of a step side by side (MN-major), and is transposed.
    MnMajor,
}

/// A slab of the left operand, or of the right one, whose columns are the slab's rows.
#[derive(Clone, Copy, Debug)]
pub(super) struct Slab {
    pub is_left: bool,
    pub layout: SlabLayout,
    pub unit: MatrixUnit,
    /// The rows of the slab.
    pub tile: usize,
    /// Whether every inner range is a number of whole slabs, so that nothing past its end is put into one.
    pub is_whole: bool,
}

/// The unused numbers between two rows of a slab. They put what is read at the same time into different
/// banks.
const GAP: usize = 8;

/// Returns the steps of a slab. Each slab takes two barriers, whatever its length is. With 64 steps, the next
/// slab in registers would halve the workgroups that AMD's GPUs compute at a time, and NVK would copy sums.
pub(super) fn steps(way: UnitWay) -> usize {
    match way {
        UnitWay::Cooperative => 32,
        UnitWay::Plain(_) => 16,
    }
}

impl Slab {
    fn steps(self) -> usize {
        steps(self.unit.way)
    }

    /// Returns the numbers of workgroup memory from one row to the next.
    pub fn stride(self) -> usize {
        GAP + self.steps()
    }

    /// Returns the bytes of workgroup memory.
    pub fn bytes(self) -> usize {
        2 * self.tile * self.stride()
    }

    /// Returns the operand's letter.
    fn letter(self) -> &'static str {
        if self.is_left { "a" } else { "b" }
    }

    /// Returns how many numbers an element of the memory holds, and its type. Operands that are stored as f16
    /// lie there in eights, as `vec4<u32>`: drivers then load and store 16 bytes at a time. naga takes the
    /// matrices that are loaded from there for matrices of u32, and `unisono_gpu::spirv` makes them matrices
    /// of f16 again.
    fn element(self) -> (usize, &'static str) {
        if self.layout == SlabLayout::Blocks { (4, "vec4<f16>") } else { (8, "vec4<u32>") }
    }

    /// Returns the memory and the functions by which it is filled, in terms of the operand's letter.
    pub fn text(self) -> String {
        let functions = match self.layout {
            SlabLayout::Blocks => self.blocks(),
            SlabLayout::KMajor => self.copies(),
            SlabLayout::MnMajor => self.transposes(),
        };
        let (width, element) = self.element();
        let elements = self.bytes() / 2 / width;
        let text = format!("var<workgroup> X_slab: array<{element}, {elements}u>;\n{functions}");
        let x = self.letter();
        let [first, next] = ["First", "Next"].map(|name| x.to_uppercase() + name);
        text.replace("X_", &format!("{x}_")).replace("XFirst", &first).replace("XNext", &next)
    }

    /// Returns the invocations of the workgroup.
    fn invocations(self) -> usize {
        (self.tile / side(self.tile)).pow(2)
    }

    /// Returns the functions for blocks of four by four.
    fn blocks(self) -> String {
        let invocations = self.invocations();
        let parts = (self.tile * self.steps() / 16).div_ceil(invocations);
        let number = |part: usize| format!("(t + {}u)", part * invocations);
        let fours = self.steps() / 4;
        // Where there are more invocations than blocks, the last ones do what the first ones do.
        let row = |part| format!("{} / {fours}u * 4u % {}u", number(part), self.tile);
        let each = |text: &dyn Fn(usize) -> String| (0..parts).map(text).collect::<String>();
        let [rows, first] = if self.is_left { ["ARows", "a_rows"] } else { ["BColumns", "b_columns"] };
        let read = |part| match self.is_left {
            true => format!("        next.x{part} = a_block(own, first.x{part}, step);\n"),
            false => format!("        next.x{part} = transpose(b_block(own, step, first.x{part}));\n"),
        };
        let put = |part| {
            format!(
                "    for (var r = 0u; r < 4u; r++) {{\n        \
                 X_slab[({} + r) * {}u + step / 4u] = vec4<f16>(next.x{part}[r]);\n    }}\n",
                row(part),
                self.stride() / 4
            )
        };
        format!(
            "struct XFirst {{ {} }}\nstruct XNext {{ {} }}\n\
             fn X_first(own: Part, i0: u32) -> XFirst {{\n    return XFirst({});\n}}\n\
             fn X_next(own: Part, first: XFirst, p: u32) -> XNext {{\n    var next: XNext;\n    \
             let step = p + t % {fours}u * 4u;\n    if step < own.end {{\n{}    }}\n    return next;\n}}\n\
             fn X_put(own: Part, p: u32, next: XNext) {{\n    let step = t % {fours}u * 4u;\n{}}}\n",
            each(&|part| format!("x{part}: {rows}, ")),
            each(&|part| format!("x{part}: mat4x4<f32>, ")),
            each(&|part| format!("{first}(own, i0 + {}), ", row(part))),
            each(&read),
            each(&put),
        )
    }

    /// Returns the functions that copy eight steps of a row at a time. Past the end of the inner range the
    /// last numbers of the range are read, and zeros are put in their place: with no condition around a
    /// load, other work goes on while it is under way.
    fn copies(self) -> String {
        let eights = self.steps() / 8;
        let rows = self.invocations() / eights;
        let each = |text: &dyn Fn(usize) -> String| (0..self.tile / rows).map(text).collect::<String>();
        let extent = if self.is_left { "params.m" } else { "params.n" };
        let (x, stride) = (self.letter(), self.stride() / 8);
        let row = |part: usize| format!("t / {eights}u + {}u", part * rows);
        let first =
            |part| format!("(own.{x} + min(i0 + {}, {extent} - 1u) * params.X_step) / 8u, ", row(part));
        let put = |part| {
            let kept = match self.is_whole {
                true => format!("next.x{part}"),
                false => format!("select(vec4<u32>(), next.x{part}, is_there)"),
            };
            format!("    X_slab[({}) * {stride}u + t % {eights}u] = {kept};\n", row(part))
        };
        let is_there = format!("    let is_there = p + t % {eights}u * 8u < own.end;\n");
        format!(
            "struct XFirst {{ {} }}\nstruct XNext {{ {} }}\n\
             fn X_first(own: Part, i0: u32) -> XFirst {{\n    return XFirst({});\n}}\n\
             fn X_next(own: Part, first: XFirst, p: u32) -> XNext {{\n    \
             let eight = min(p + t % {eights}u * 8u, max(own.end, 8u) - 8u) / 8u;\n    \
             return XNext({});\n}}\n\
             fn X_put(own: Part, p: u32, next: XNext) {{\n{}{}}}\n",
            each(&|part| format!("x{part}: u32, ")),
            each(&|part| format!("x{part}: vec4<u32>, ")),
            each(&first),
            each(&|part| format!("{x}[first.x{part} + eight], ")),
            if self.is_whole { "" } else { &is_there },
            each(&put),
        )
    }

    /// Returns the functions that read eight rows of a few steps and put the steps of each row side by side.
    /// Neighbours read neighbouring steps, so that what they write at the same time is in different banks.
    fn transposes(self) -> String {
        let numbers = self.tile * self.steps() / self.invocations();
        // The steps of a block, and the blocks of an invocation.
        let deep = (numbers / 8).min(4);
        let parts = numbers / 8 / deep;
        let across = self.steps() / deep;
        let rows = 8 * (self.invocations() / across);
        let each = |text: &dyn Fn(usize) -> String| (0..parts).map(text).collect::<String>();
        let extent = if self.is_left { "params.m" } else { "params.n" };
        let (x, stride) = (self.letter(), self.stride() / 8);
        let row = |part: usize| format!("t / {across}u * 8u + {}u", part * rows);
        let at_first = if self.is_whole { " + step * (params.X_step / 8u)" } else { "" };
        let first =
            |part| format!("(own.{x} + min(i0 + {}, ({extent} - 1u) / 8u * 8u)) / 8u{at_first}, ", row(part));
        let of_steps = |text: &dyn Fn(usize) -> String| (0..deep).map(text).collect::<String>();
        let read = |part| {
            of_steps(&|s| {
                let step = match self.is_whole {
                    true => format!("(start + {s}u)"),
                    false => format!("min(p + step + {s}u, max(own.end, 1u) - 1u)"),
                };
                format!("{x}[first.x{part} + {step} * (params.X_step / 8u)], ")
            })
        };
        // Where a whole slab is read, its first step is the same for all invocations.
        let start = match self.is_whole {
            true => "    let start = min(p, max(own.end, SLAB) - SLAB);\n",
            false => "",
        };
        let put = |part| {
            let mut text = of_steps(&|s| match self.is_whole {
                true => format!("    let x{part}_{s} = next.x{part}_{s};\n"),
                false => format!(
                    "    let x{part}_{s} = select(vec4<u32>(), next.x{part}_{s}, p + step + {s}u < own.end);\n"
                ),
            });
            text += &format!("    let to{part} = ({}) * {stride}u + step / 8u;\n", row(part));
            text.extend((0..8).map(|r| self.put_row(part, r, deep)));
            text
        };
        let step = format!("let step = t % {across}u * {deep}u;\n");
        format!(
            "struct XFirst {{ {} }}\nstruct XNext {{ {} }}\n\
             fn X_first(own: Part, i0: u32) -> XFirst {{\n    {step}    return XFirst({});\n}}\n\
             fn X_next(own: Part, first: XFirst, p: u32) -> XNext {{\n    {step}{start}    \
             return XNext({});\n}}\n\
             fn X_put(own: Part, p: u32, next: XNext) {{\n    {step}{}}}\n",
            each(&|part| format!("x{part}: u32, ")),
            each(&|part| of_steps(&|s| format!("x{part}_{s}: vec4<u32>, "))),
            each(&first),
            each(&read),
            each(&put),
        )
    }

    /// Returns the lines that put the steps of row `r` of a block into the slab. A block has two or four.
    fn put_row(self, part: usize, r: usize, deep: usize) -> String {
        let to = format!("X_slab[to{part} + {}u]", r * self.stride() / 8);
        let pair = |s: usize| {
            let [a, b] = [s, s + 1].map(|s| format!("x{part}_{s}[{}]", r / 2));
            let both = match r % 2 {
                0 => format!("({a} & 0xffffu) | ({b} << 16u)"),
                _ => format!("({a} >> 16u) | ({b} & 0xffff0000u)"),
            };
            format!("    {to}[step % 8u / 2u + {}u] = {both};\n", s / 2)
        };
        (0..deep).step_by(2).map(pair).collect()
    }

    /// Returns the load of the block whose rows begin at block `row`, and whose steps begin at step `q`.
    pub fn load(self, row: &str, q: usize) -> String {
        let (x, (width, _), size) = (self.letter(), self.element(), self.unit.size as usize);
        let stride = self.stride() / width;
        let how = if self.is_left { "coopLoadT" } else { "coopLoad" };
        let matrix = kind(self.unit, "f16", &x.to_uppercase());
        format!("{how}<{matrix}>(&{x}_slab[({row}) * {}u + {}u], {stride}u)", size * stride, q / width)
    }
}
