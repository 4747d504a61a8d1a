//! Emulates AMD's RDNA3 GPUs (gfx11): it runs the machine code that Mesa's RADV compiles, instruction by
//! instruction, as AMD's "RDNA3 Instruction Set Architecture" (2023) defines it. A test can then compare what
//! a GPU would compute with what the CPU computes, bit by bit. The driver's compiler is real; only the chip
//! is emulated. (tinygrad's `remu` does the same.)
//!
//! [`Mode`] sets what the manual leaves open: whether subnormal numbers are flushed, and the last bit of an
//! approximate reciprocal or root. Workgroups run one after another. The waves of a workgroup take turns at
//! barriers. All memory is coherent, so races do not show here; `unisono_testkit::emulator` finds them.

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

/// The scalar register that points to the descriptors. The next ones contain the number of the workgroup.
const DESCRIPTORS: usize = 2;

/// How a chip computes where there is a choice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mode {
    /// Whether subnormal f32 operands and results become zeros, as RADV asks the chip to do. A result is
    /// rounded before it is flushed, as on x86-64. We do not know whether the chip does that too.
    pub flushes: bool,
    /// Chooses which results of approximate instructions are not the nearest float but the next one. With 0,
    /// all are the nearest.
    pub seed: u32,
}

/// A kernel's workgroups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Group {
    /// The invocations of a workgroup in x, y and z.
    pub invocations: [u32; 3],
    /// Which of x, y and z of the workgroup's number the kernel reads. Only these are passed in registers.
    pub reads: [bool; 3],
}

/// A launch: its workgroups, its params and its buffers.
#[derive(Clone, Copy, Debug)]
pub struct Launch<'a> {
    /// The workgroups in x, y and z.
    pub grid: [u32; 3],
    /// The words of the uniform buffer at binding 0.
    pub params: &'a [u32],
    /// The buffers at bindings 1, 2, ...
    pub bindings: &'a [Bound],
}

/// A part of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bound {
    /// The index of the buffer.
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
    /// Reads machine code in the syntax of LLVM's disassembler, which RADV prints.
    ///
    /// # Errors
    /// The first instruction that is not known.
    pub fn read(assembly: &str, group: Group) -> Result<Self, String> {
        Ok(Self { instructions: text::read(assembly)?, group })
    }

    /// Runs a launch on buffers. Returns the number of instructions that its waves took.
    ///
    /// # Errors
    /// The first instruction that cannot be run.
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
