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

/// Records who touched each cell of a buffer.
#[derive(Debug)]
pub(super) struct Cells {
    cells: Vec<Cell>,
    /// The bytes of a cell: as many as the smallest scalar of the plan's kernels has.
    grain: usize,
}

impl Cells {
    /// Returns the record of a buffer of `bytes` bytes that nobody has touched yet.
    pub fn new(bytes: usize, grain: usize) -> Self {
        Self { cells: vec![Cell::default(); bytes / grain], grain }
    }

    /// Records a read of some bytes, and returns whether it races.
    pub fn read(&mut self, at: usize, width: usize, by: Touch) -> bool {
        self.of(at, width).iter_mut().fold(false, |races, cell| cell.read(by) | races)
    }

    /// Records a write of some bytes, and returns whether it races.
    pub fn write(&mut self, at: usize, width: usize, by: Touch) -> bool {
        self.of(at, width).iter_mut().fold(false, |races, cell| cell.write(by) | races)
    }

    fn of(&mut self, at: usize, width: usize) -> &mut [Cell] {
        &mut self.cells[at / self.grain..(at + width).div_ceil(self.grain)]
    }
}
