//! The slab of an operand in workgroup memory, for a matrix unit: how invocations read it, how it is laid
//! out, and where a block of the unit's size begins in it.

use crate::plan::target::{MatrixUnit, UnitWay};
use crate::program::emit::shares::kind;

use super::tile::side;

/// How the numbers of a slab are read, and their layout in workgroup memory. CUTLASS has the same names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SlabLayout {
    /// Invocations read blocks of four rows and four steps, as they do without a unit. The layout is K-major.
    Blocks,
    /// The operand is stored as f16 with the steps of a row side by side (K-major), and is copied as it is.
    KMajor,
    /// The operand is stored as f16 with the rows of a step side by side (MN-major), and is copied as it is.
    MnMajor,
}

/// A slab of the left operand, or of the right one, whose columns are the slab's rows.
#[derive(Clone, Copy, Debug)]
pub(super) struct Slab {
    pub is_left: bool,
    pub layout: SlabLayout,
    pub way: UnitWay,
    /// The rows of the slab.
    pub tile: usize,
    /// Whether every inner range is a number of whole slabs, so that nothing past its end is put into one.
    pub is_whole: bool,
}

/// The unused numbers between two lines of a slab. They put what is read at the same time into different
/// banks.
const GAP: usize = 8;

/// Returns the steps of a slab. Each slab takes two barriers, whatever its length is.
pub(super) fn steps(way: UnitWay) -> usize {
    match way {
        UnitWay::Cooperative => 32,
        UnitWay::Plain(_) => 16,
    }
}

impl Slab {
    /// Returns the numbers of workgroup memory from one line, a row or a step, to the next.
    pub fn stride(self) -> usize {
        GAP + if self.layout == SlabLayout::MnMajor { self.tile } else { steps(self.way) }
    }

    /// Returns the bytes of workgroup memory.
    pub fn bytes(self) -> usize {
        let lines = if self.layout == SlabLayout::MnMajor { steps(self.way) } else { self.tile };
        2 * lines * self.stride()
    }

    /// Returns the operand's letter.
    fn letter(self) -> &'static str {
        if self.is_left { "a" } else { "b" }
    }

    /// Returns the memory and the functions by which it is filled, in terms of the operand's letter.
    pub fn text(self) -> String {
        let functions = if self.layout == SlabLayout::Blocks { self.blocks() } else { self.copies() };
        let text = format!("var<workgroup> X_slab: array<vec4<f16>, {}u>;\n{functions}", self.bytes() / 8);
        let x = self.letter();
        let [first, next] = ["First", "Next"].map(|name| x.to_uppercase() + name);
        text.replace("X_", &format!("{x}_")).replace("XFirst", &first).replace("XNext", &next)
    }

    /// Returns the number of an invocation's part of a slab, and how many parts each invocation has.
    fn parts(self, numbers: usize) -> (impl Fn(usize) -> String, usize) {
        let invocations = (self.tile / side(self.tile)).pow(2);
        let count = (self.tile * steps(self.way) / numbers).div_ceil(invocations);
        (move |part| format!("(t + {}u)", part * invocations), count)
    }

    /// Returns the functions for blocks of four by four.
    fn blocks(self) -> String {
        let (number, parts) = self.parts(16);
        let fours = steps(self.way) / 4;
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

    /// Returns the functions that copy eight numbers at a time. Past the end of the inner range the last
    /// numbers of the range are read, and zeros are put in their place: with no condition around a load,
    /// other work goes on while it is under way.
    fn copies(self) -> String {
        let (number, parts) = self.parts(8);
        let is_mn_major = self.layout == SlabLayout::MnMajor;
        let eights = if is_mn_major { self.tile } else { steps(self.way) } / 8;
        let line = |part| format!("{} / {eights}u", number(part));
        let eight = |part| format!("{} % {eights}u", number(part));
        let each = |text: &dyn Fn(usize) -> String| (0..parts).map(text).collect::<String>();
        let extent = if self.is_left { "params.m" } else { "params.n" };
        let x = self.letter();
        let first = |part| match is_mn_major {
            true => format!("own.{x} + min(i0 + {} * 8u, ({extent} - 1u) / 8u * 8u), ", eight(part)),
            false => format!("own.{x} + min(i0 + {}, {extent} - 1u) * params.X_step, ", line(part)),
        };
        let read = |part| {
            let step = match is_mn_major {
                true => format!("min(p + {}, max(own.end, 1u) - 1u) * params.X_step", line(part)),
                false => format!("min(p + {} * 8u, max(own.end, 8u) - 8u)", eight(part)),
            };
            let at = format!("(first.x{part} + {step}) / 4u");
            format!("{x}[{at}], {x}[{at} + 1u], ")
        };
        let put = |part| {
            let step = if is_mn_major { line(part) } else { format!("{} * 8u", eight(part)) };
            let to = format!("{} * {}u + {} * 2u", line(part), self.stride() / 4, eight(part));
            let kept = |name: &str| match self.is_whole {
                true => format!("next.{name}{part}"),
                false => format!("select(vec4<f16>(), next.{name}{part}, p + {step} < own.end)"),
            };
            let [x, y] = ["x", "y"].map(kept);
            format!("    X_slab[{to}] = {x};\n    X_slab[{to} + 1u] = {y};\n")
        };
        format!(
            "struct XFirst {{ {} }}\nstruct XNext {{ {} }}\n\
             fn X_first(own: Part, i0: u32) -> XFirst {{\n    return XFirst({});\n}}\n\
             fn X_next(own: Part, first: XFirst, p: u32) -> XNext {{\n    return XNext({});\n}}\n\
             fn X_put(own: Part, p: u32, next: XNext) {{\n{}}}\n",
            each(&|part| format!("x{part}: u32, ")),
            each(&|part| format!("x{part}: vec4<f16>, y{part}: vec4<f16>, ")),
            each(&first),
            each(&read),
            each(&put),
        )
    }

    /// Returns the load of the block whose rows begin at block `row`, and whose steps begin at step `q`.
    pub fn load(self, unit: MatrixUnit, row: &str, q: usize) -> String {
        let x = self.letter();
        let (size, stride) = (unit.size as usize, self.stride() / 4);
        let is_mn_major = self.layout == SlabLayout::MnMajor;
        let at = match is_mn_major {
            true => format!("({row}) * {}u + {}u", size / 4, q * stride),
            false => format!("({row}) * {}u + {}u", size * stride, q / 4),
        };
        let how = if self.is_left == is_mn_major { "coopLoad" } else { "coopLoadT" };
        format!("{how}<{}>(&{x}_slab[{at}], {stride}u)", kind(unit, "f16", &x.to_uppercase()))
    }
}
