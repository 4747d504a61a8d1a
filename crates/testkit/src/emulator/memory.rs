//! Memory that knows who touched it: the invocation that wrote each cell last, and those that read it since.

/// Who touches a cell, and when. Two touches of a launch have an order if one invocation makes both, or if
/// both are of one workgroup and a barrier is between them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Touch {
    /// The number of the launch, from 1 on. 0: nobody.
    pub launch: u32,
    pub group: u32,
    /// The number of barriers that the workgroup has passed.
    pub epoch: u32,
    /// The invocation, or [`MANY`].
    pub lane: u32,
    pub is_atomic: bool,
}

/// Several invocations, or several workgroups.
pub(super) const MANY: u32 = u32::MAX;

impl Touch {
    /// Returns whether an earlier touch and this one have no order, and are not both atomic.
    fn races(self, earlier: Touch) -> bool {
        let is_ordered = earlier.group == self.group
            && (earlier.epoch != self.epoch || (earlier.lane == self.lane && self.lane != MANY));
        earlier.launch == self.launch && !is_ordered && !(earlier.is_atomic && self.is_atomic)
    }
}

/// What is known of a cell: the smallest part of memory that a kernel touches.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Cell {
    write: Touch,
    read: Touch,
}

impl Cell {
    /// Records a read, and returns whether it races with a write.
    pub fn read(&mut self, by: Touch) -> bool {
        let before = &mut self.read;
        if before.launch != by.launch || before.group == by.group && before.epoch != by.epoch {
            *before = by;
        } else if before.group != by.group {
            (before.group, before.lane) = (MANY, MANY);
        } else if before.lane != by.lane {
            before.lane = MANY;
        }
        before.is_atomic &= by.is_atomic;
        by.races(self.write)
    }

    /// Records a write, and returns whether it races with another write or with a read.
    pub fn write(&mut self, by: Touch) -> bool {
        let races = by.races(self.write) || by.races(self.read);
        self.write = by;
        races
    }
}

/// A buffer of a plan.
#[derive(Debug)]
pub(super) struct Buffer {
    pub bytes: Vec<u8>,
    cells: Vec<Cell>,
    /// The bytes of a cell: as many as the smallest scalar of the plan's kernels has.
    grain: usize,
}

impl Buffer {
    pub fn new(bytes: u64, grain: usize, unwritten: u32) -> Self {
        let words = usize::try_from(bytes.div_ceil(4)).unwrap_or(usize::MAX);
        let bytes = unwritten.to_le_bytes().repeat(words);
        Self { cells: vec![Cell::default(); bytes.len() / grain], bytes, grain }
    }

    /// Returns a scalar of so many bytes, and whether the read races.
    pub fn read(&mut self, at: usize, width: usize, by: Touch) -> (u64, bool) {
        let mut bits = [0; 8];
        bits[..width].copy_from_slice(&self.bytes[at..at + width]);
        let cells = &mut self.cells[at / self.grain..(at + width).div_ceil(self.grain)];
        let races = cells.iter_mut().fold(false, |races, cell| cell.read(by) | races);
        (u64::from_le_bytes(bits), races)
    }

    /// Writes a scalar of so many bytes, and returns whether that races.
    pub fn write(&mut self, at: usize, width: usize, bits: u64, by: Touch) -> bool {
        self.bytes[at..at + width].copy_from_slice(&bits.to_le_bytes()[..width]);
        let cells = &mut self.cells[at / self.grain..(at + width).div_ceil(self.grain)];
        cells.iter_mut().fold(false, |races, cell| cell.write(by) | races)
    }
}
