//! Runs machine code of AMD's RDNA3 GPUs (gfx11), as RADV compiled it, on a machine that has none: the text
//! of a kernel's code is read instruction by instruction, and each does what AMD's "RDNA3 Instruction Set
//! Architecture" (2023) says. So what a GPU would compute is compared with what the CPU computes, bit by bit:
//! the driver's compiler is real; only the chip is emulated. (tinygrad's `remu` does the same.)
//!
//! Where the manual leaves a choice, [`Mode`] makes it: whether subnormal numbers are flushed, and what the
//! last bit of an approximate reciprocal or root is. Workgroups run one after another, the waves of one take
//! turns at barriers, and memory is always coherent: races are what `unisono_testkit::emulator` finds.

mod access;
mod memory;
mod scalar;
#[cfg(test)]
mod tests;
mod text;
mod vector;
mod wave;

use memory::Memory;
use text::Instruction;
use wave::{Pause, Wave};

/// The most invocations of a workgroup.
const MOST_INVOCATIONS: u32 = 1024;

/// The lanes of a wave.
pub const LANES: usize = 64;

/// The scalar register that points to a kernel's descriptors, behind which are the numbers of the workgroup.
const DESCRIPTORS: usize = 2;

/// How a chip computes where there is a choice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mode {
    /// Whether subnormal f32, as operands and as results, are zeros. RADV asks for it. A result is rounded
    /// first, as on x86-64. Whether a chip does that too is not known.
    pub flushes: bool,
    /// Chooses which results of approximate instructions are off by a unit in the last place, and which way.
    /// With 0 they are the nearest float.
    pub seed: u32,
}

/// What a kernel says of its workgroups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Group {
    /// The invocations of a workgroup in x, y and z.
    pub invocations: [u32; 3],
    /// Which of x, y and z of the workgroup's number the kernel reads. Only these are passed in registers.
    pub reads: [bool; 3],
}

/// What a launch has: workgroups, params, and the buffers that are bound.
#[derive(Clone, Copy, Debug)]
pub struct Launch<'a> {
    /// The workgroups in x, y and z.
    pub grid: [u32; 3],
    /// The words of the uniform buffer, which is bound to number 0.
    pub params: &'a [u32],
    /// What is bound from number 1 on.
    pub bindings: &'a [Bound],
}

/// A part of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bound {
    /// The place of the buffer among all.
    pub buffer: usize,
    /// Where the part begins, in bytes.
    pub offset: usize,
    /// The bytes of the part.
    pub bytes: u32,
}

/// The machine code of a kernel.
#[derive(Clone, Debug)]
pub struct Code {
    instructions: Vec<Instruction>,
    group: Group,
}

impl Code {
    /// Reads machine code as LLVM's disassembler prints it, and RADV shows it.
    ///
    /// # Errors
    /// The first instruction that is not known.
    pub fn read(assembly: &str, group: Group) -> Result<Self, String> {
        Ok(Self { instructions: text::read(assembly)?, group })
    }

    /// Runs a launch on buffers. Returns the number of instructions that its waves took.
    ///
    /// # Errors
    /// What an instruction cannot do, with the instruction.
    pub fn run(&self, launch: Launch<'_>, buffers: &mut [Vec<u8>], mode: Mode) -> Result<u64, String> {
        let mut taken = 0;
        let [width, height, depth] = launch.grid;
        for z in 0..depth {
            for y in 0..height {
                for x in 0..width {
                    taken += self.workgroup([x, y, z], &mut Memory::new(launch, buffers), mode)?;
                }
            }
        }
        Ok(taken)
    }

    /// Runs a workgroup.
    fn workgroup(&self, at: [u32; 3], memory: &mut Memory<'_>, mode: Mode) -> Result<u64, String> {
        let count = self.group.invocations.iter().try_fold(1, |all: u32, &own| all.checked_mul(own));
        let Some(count @ 1..=MOST_INVOCATIONS) = count else {
            return Err(format!("workgroups of {:?} invocations", self.group.invocations));
        };
        let count = count as usize;
        let start = |first: usize| {
            let mut wave = Wave::new(mode, (count - first).min(LANES));
            let given =
                at.iter().zip(self.group.reads).filter_map(|(number, is_given)| is_given.then_some(number));
            wave.scalars[DESCRIPTORS] = 0;
            for (register, number) in (DESCRIPTORS + 1..).zip(given) {
                wave.scalars[register] = *number;
            }
            let [width, height, _] = self.group.invocations;
            for lane in 0..LANES {
                let number = (first + lane) as u32;
                let (x, y, z) = (number % width, number / width % height, number / width / height);
                wave.vectors[0][lane] = x | y << 10 | z << 20;
            }
            wave
        };
        let mut waves: Vec<Wave> = (0..count).step_by(LANES).map(start).collect();
        loop {
            let mut pauses = Vec::new();
            for wave in &mut waves {
                pauses.push(wave.run(&self.instructions, memory)?);
            }
            if pauses.iter().all(|&pause| pause == Pause::End) {
                return Ok(waves.iter().map(|wave| wave.taken).sum());
            }
            if pauses.contains(&Pause::End) {
                return Err("a barrier to which not all waves come".to_owned());
            }
        }
    }
}
