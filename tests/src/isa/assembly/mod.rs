//! Machine code as text: its loops, and what each of them executes. The driver of each maker writes the text
//! in a form of its own.

mod adreno;
mod amd;
mod nvidia;

use std::collections::BTreeSet;

/// What the instructions of a stretch of machine code are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mix {
    /// All instructions but hints to the scheduler and those that do nothing.
    pub instructions: u32,
    /// Multiply-adds of f32 that a lane executes. One instruction may have two.
    pub fmas: u32,
    /// The instructions that hold these multiply-adds.
    pub fma_instructions: u32,
    /// The bytes that a lane loads from workgroup memory.
    pub workgroup_bytes: u32,
    /// The bytes that a lane loads from global memory.
    pub global_bytes: u32,
    /// The barriers of a workgroup.
    pub barriers: u32,
    /// The products that a matrix unit computes: each is of a whole subgroup.
    pub matrices: u32,
    /// The loads of 16 bytes.
    pub wide_loads: u32,
}

impl Mix {
    /// Returns the part of the instructions that are multiply-adds.
    pub fn fma_part(&self) -> f64 {
        f64::from(self.fma_instructions) / f64::from(self.instructions.max(1))
    }

    /// Returns the part of the instructions that are a matrix unit's products or loads of 16 bytes.
    pub fn matrix_part(&self) -> f64 {
        f64::from(self.matrices + self.wide_loads) / f64::from(self.instructions.max(1))
    }

    /// Returns a number of bytes for each multiply-add.
    pub fn per_fma(&self, bytes: u32) -> f64 {
        f64::from(bytes) / f64::from(self.fmas.max(1))
    }

    /// Adds the instructions of `turns` more turns of an inner loop.
    pub fn with_more(self, inner: Self, turns: u32) -> Self {
        Self {
            instructions: self.instructions + turns * inner.instructions,
            fmas: self.fmas + turns * inner.fmas,
            fma_instructions: self.fma_instructions + turns * inner.fma_instructions,
            workgroup_bytes: self.workgroup_bytes + turns * inner.workgroup_bytes,
            global_bytes: self.global_bytes + turns * inner.global_bytes,
            barriers: self.barriers + turns * inner.barriers,
            matrices: self.matrices + turns * inner.matrices,
            wide_loads: self.wide_loads + turns * inner.wide_loads,
        }
    }

    fn plus(self, other: Self) -> Self {
        self.with_more(other, 1)
    }
}

/// The maker of a GPU whose machine code can be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Maker {
    /// AMD, as Mesa's RADV writes it.
    Amd,
    /// NVIDIA, as Mesa's NVK writes it, which is not NVIDIA's own compiler.
    Nvidia,
    /// Qualcomm's Adreno, as Mesa's Turnip writes it.
    Adreno,
}

impl Maker {
    /// Returns whose machine code a text is, or `None` if there is no text.
    pub fn of(assembly: &str) -> Option<Self> {
        let start = assembly.trim_start();
        match start.is_empty() {
            true => None,
            false if start.starts_with("block") => Some(Self::Nvidia),
            false if start.starts_with("Native code for") => Some(Self::Adreno),
            false => Some(Self::Amd),
        }
    }
}

/// A stretch of machine code without a jump in between.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Block {
    /// The label that jumps name.
    name: String,
    /// What it executes.
    mix: Mix,
    /// The labels that it may jump to.
    to: Vec<String>,
    /// Whether the next block may follow it.
    falls: bool,
}

fn blocks(assembly: &str) -> Vec<Block> {
    match Maker::of(assembly) {
        Some(Maker::Nvidia) => nvidia::blocks(assembly),
        Some(Maker::Adreno) => adreno::blocks(assembly),
        Some(Maker::Amd) | None => amd::blocks(assembly),
    }
}

/// A loop of machine code.
#[derive(Clone, Debug)]
pub struct Loop {
    /// What one turn executes, if it executes every instruction of the loop and enters each inner loop once.
    pub mix: Mix,
    /// The numbers of its first and its last basic block.
    pub range: (usize, usize),
    /// Whether there is no loop inside.
    pub is_innermost: bool,
}

/// Returns the loops of a kernel in the order of their ends.
pub fn loops(assembly: &str) -> Vec<Loop> {
    let blocks = blocks(assembly);
    let position = |name: &String| blocks.iter().position(|own| own.name == *name);
    let mut jumps: Vec<(usize, usize)> = Vec::new();
    for (at, block) in blocks.iter().enumerate() {
        jumps.extend(block.to.iter().filter_map(position).map(|to| (at, to)));
    }
    let mut members = match Maker::of(assembly) {
        Some(Maker::Amd) | None => amd::loops(&jumps),
        // These compilers put what is behind a loop between its blocks.
        Some(Maker::Nvidia | Maker::Adreno) => natural_loops(&blocks, &jumps),
    };
    members.sort_by_key(|own| (own.first().copied(), own.last().copied()));
    members.dedup();
    let one = |own: &BTreeSet<usize>| {
        let is_innermost = !members.iter().any(|other| other != own && other.is_subset(own));
        let mix = own.iter().fold(Mix::default(), |mix, &at| mix.plus(blocks[at].mix));
        let range = (own.first().copied().unwrap_or_default(), own.last().copied().unwrap_or_default());
        Loop { mix, range, is_innermost }
    };
    members.iter().map(one).collect()
}

/// Returns the natural loops of the control flow graph. A loop begins at a block that dominates the source of
/// a jump to it (every path to the source passes that block). The loop is that block, and all blocks that
/// reach the jump without passing it.
fn natural_loops(blocks: &[Block], jumps: &[(usize, usize)]) -> Vec<BTreeSet<usize>> {
    let falls = blocks.iter().enumerate().filter(|(_, block)| block.falls).map(|(at, _)| (at, at + 1));
    let edges: Vec<(usize, usize)> = jumps.iter().copied().chain(falls).collect();
    let reversed: Vec<(usize, usize)> = edges.iter().map(|&(from, to)| (to, from)).collect();
    let mut loops: Vec<BTreeSet<usize>> = Vec::new();
    for first in jumps.iter().map(|(_, to)| *to).collect::<BTreeSet<_>>() {
        let passed_by = if first == 0 { BTreeSet::new() } else { reached(&edges, &[0], first) };
        let leads_back = |&&(from, to): &&(usize, usize)| to == first && !passed_by.contains(&from);
        let ends: Vec<usize> = jumps.iter().filter(leads_back).map(|(from, _)| *from).collect();
        if !ends.is_empty() {
            loops.push(reached(&reversed, &ends, first));
        }
    }
    loops
}

/// Returns the blocks that can be reached from `from` along edges. The search does not go on behind `end`.
fn reached(edges: &[(usize, usize)], from: &[usize], end: usize) -> BTreeSet<usize> {
    let mut found = BTreeSet::new();
    let mut open = from.to_vec();
    while let Some(at) = open.pop() {
        if found.insert(at) && at != end {
            open.extend(edges.iter().filter(|(from, _)| *from == at).map(|(_, to)| *to));
        }
    }
    found
}

/// Returns the mix of one turn of a kernel's main loop: of the smallest loop with barriers, or else of the
/// innermost loop with the most multiply-adds, or else loads. Without any loop it is that of the kernel.
pub fn main_loop(assembly: &str) -> Mix {
    let loops = loops(assembly);
    let with_barrier = loops.iter().filter(|l| l.mix.barriers > 0).min_by_key(|l| l.mix.instructions);
    let weight = |l: &&Loop| (l.mix.fmas, l.mix.global_bytes, l.mix.instructions);
    let innermost = || loops.iter().filter(|l| l.is_innermost).max_by_key(weight);
    with_barrier.or_else(innermost).map_or_else(|| whole(assembly), |found| found.mix)
}

/// Returns the mix of a whole kernel.
pub fn whole(assembly: &str) -> Mix {
    blocks(assembly).iter().fold(Mix::default(), |mix, block| mix.plus(block.mix))
}
