//! The table of a plan's kernels on a GPU: what their machine code executes, and what their driver counts.

use unisono_graph::plan::Kernel;

use super::arithmetic::{self, Arithmetic};
use super::assembly::Maker;
use super::driver::Machine;
use super::{index, slab};

/// The heads of the columns.
pub const HEAD: [&str; 10] = [
    "",
    "kernel",
    "steps",
    "FMA",
    "shared B/FMA",
    "global B/FMA",
    "registers",
    "spilled",
    "scratch",
    "waves",
];

/// Where each driver tells a number: RADV, NVK, Turnip, and Honeykrisp.
const REGISTERS: [&str; 4] = ["VGPRs", "Number_of_GPRs", "Registers_used", "GPRs"];
const SCRATCH: [&str; 4] = ["Scratch_size", "SLM_size", "", "Scratch"];
const WAVES: [&str; 4] = ["Subgroups_per_SIMD", "Max_warps/SM", "Max_Waves_Per_Core", "Threads"];

/// Returns the line of a kernel.
pub fn line(number: usize, kernel: &Kernel, machine: &Machine) -> Vec<String> {
    let told = |names: [&str; 4]| {
        let name = names.into_iter().find(|name| machine.tells(name));
        name.map_or_else(|| "-".to_owned(), |name| machine.stat(name).to_string())
    };
    let mut line = vec![number.to_string(), shortened(&index::one_word(&kernel.name))];
    if Maker::of(&machine.assembly).is_some() {
        let mix = slab::turn(slab::Tile::of(kernel), &machine.assembly);
        let ratio = |bytes: u32| match mix.fmas {
            0 => format!("({bytes})"),
            _ => format!("{:.3}", mix.per_fma(bytes)),
        };
        line.extend([
            mix.instructions.to_string(),
            match mix.matrices {
                0 => format!("{:.0} %", 100.0 * mix.fma_part()),
                count => format!("{count} m, {:.0} %", 100.0 * mix.matrix_part()),
            },
            ratio(mix.workgroup_bytes),
            ratio(mix.global_bytes),
        ]);
    } else {
        line.extend(["-"; 4].map(str::to_owned));
    }
    let spilled = machine.spilled().to_string();
    line.extend([told(REGISTERS), spilled, told(SCRATCH), told(WAVES)]);
    line
}

/// Returns what stands above the table of a GPU.
pub fn heading(gpu: &str, lines: &[Vec<String>]) -> String {
    let compiler = match gpu {
        _ if gpu.contains("RADV") => ", compiled by Mesa's RADV",
        _ if gpu.contains("NVK") || gpu.contains("NV1") => {
            ", compiled by Mesa's NVK. This is not NVIDIA's own compiler: its driver may do better or worse"
        }
        _ if gpu.contains("Turnip") => ", compiled by Mesa's Turnip",
        _ => "",
    };
    let is_read = lines.iter().skip(1).any(|line| line[2] != "-");
    let columns = match is_read {
        true => {
            "steps: the instructions of one turn of the main loop. FMA: the part that are multiply-adds of f32.\n\
             B/FMA: the bytes that a lane loads for each of these (without any: a turn). m: products of a matrix\n\
             unit, and the part that are these or loads of 16 bytes. The rest is what the driver counts."
        }
        false => "The driver shows no text of its code, only these counts.",
    };
    format!("Machine code for {gpu}{compiler}.\n{columns}\n")
}

/// Compares the float operations of the kernel `shapes` with those of its machine code. The kernel has shapes
/// that compilers like to contract or factor. Returns an empty text if there is no machine code.
pub fn shapes(text: Arithmetic, machine: &Machine) -> String {
    if Maker::of(&machine.assembly).is_none() {
        return String::new();
    }
    let found = arithmetic::of_machine(&machine.assembly);
    format!(
        "The kernel `shapes` has {} fused and {} separate operations of f32, and its machine code has {} and {}.",
        text.fused, text.separate, found.fused, found.separate
    )
}

fn shortened(name: &str) -> String {
    const LONGEST: usize = 44;
    if name.chars().count() <= LONGEST {
        name.to_owned()
    } else {
        name.chars().take(LONGEST - 2).chain("..".chars()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_what_its_driver_tells() {
        let kernel = Kernel { name: "sum, rows".into(), wgsl: String::new(), bindings: vec![] };
        let stats =
            |all: &[(&str, u64)]| all.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect();
        let code = "block.u 0 L0 [0] -> {\n r0 = ld.global.a64.b128 [r1] // delay=1\n r0 = ffma r0 r1 r2 // delay=1\n} -> [0]\n";
        let nvidia = Machine {
            stats: stats(&[("Number_of_GPRs", 40), ("Spills_to_memory", 2), ("SLM_size", 16)]),
            assembly: code.to_owned(),
        };
        let expected = ["3", "sum,rows", "2", "50 %", "0.000", "16.000", "40", "2", "16", "-"];
        assert_eq!(line(3, &kernel, &nvidia), expected);
        let apple = Machine { stats: stats(&[("GPRs", 24), ("Spills", 0)]), assembly: String::new() };
        assert_eq!(line(0, &kernel, &apple)[2..8], ["-", "-", "-", "-", "24", "0"]);
        assert!(heading("NVIDIA GA102 (NVK)", &[]).contains("not NVIDIA's own compiler"));
    }
}
