//! A block: 32 rows of one side, and the own places of the other.

use super::{Attention, BLOCK, MOST_WIDTH, Rows};

/// A number for each own place.
pub(super) type Lanes = [f32; BLOCK];

/// A number for each pair of a row of a block and an own place.
pub(super) type Tile = [Lanes; BLOCK];

/// Memory for copies of rows and for sums: [`BLOCK`] numbers for each column.
type Columns = [Lanes; MOST_WIDTH as usize];

/// The memory that a block takes beside its tile.
pub(super) struct Scratch {
    /// The own places of two operands, in columns: all of the first, then all of the second.
    own: [Columns; 2],
    /// The rows of two operands in a block: all of the first, then all of the second.
    rows: [Columns; 2],
    /// The sums of two results, in columns of own places.
    sums: [Columns; 2],
}

/// A task with the functions that depend on the vectors: how a product is added to a sum, with `WIDTH` lanes
/// of four rows in registers.
pub(super) struct Code<'t, F, const WIDTH: usize> {
    pub task: &'t Attention,
    pub fma: F,
    pub scratch: *mut Scratch,
}

#[expect(unsafe_code, reason = "memory of kernels")]
impl<F: Fn(f32, f32, f32) -> f32, const WIDTH: usize> Code<'_, F, WIDTH> {
    /// Copies the own places of an operand, times `scale` if there is one, and returns where they are.
    ///
    /// # Safety
    /// As for [`super::run`]; so for all functions here.
    #[inline(always)]
    pub unsafe fn own(
        &self,
        to: usize,
        from: Rows,
        count: u32,
        width: u32,
        scale: Option<f32>,
    ) -> *const f32 {
        // SAFETY: what the caller promises: rows from 0 to `count` - 1 have `width` numbers, and there is
        // room for `MOST_WIDTH`.
        unsafe {
            let columns = (&raw mut (*self.scratch).own[to]).cast::<f32>();
            let row = |lane: usize| {
                let row = (self.task.first as usize + lane).min(count as usize - 1);
                from.start.add(row * from.step as usize)
            };
            for lane in (0..BLOCK).step_by(8) {
                for c in (0..width as usize).step_by(4) {
                    let fours: [[f32; 4]; 8] =
                        std::array::from_fn(|r| row(lane + r).add(c).cast::<[f32; 4]>().read_unaligned());
                    for at in 0..4 {
                        let column = fours.map(|four| scale.map_or(four[at], |scale| four[at] * scale));
                        columns.add(BLOCK * (c + at) + lane).cast::<[f32; 8]>().write_unaligned(column);
                    }
                }
            }
            columns
        }
    }

    /// Copies the rows of a block, times `scale` if there is one, and returns where they are.
    #[inline(always)]
    pub unsafe fn rows(
        &self,
        to: usize,
        from: Rows,
        first: usize,
        (count, width): (u32, u32),
        scale: Option<f32>,
    ) -> *const f32 {
        // SAFETY: as above.
        unsafe {
            let rows = (&raw mut (*self.scratch).rows[to]).cast::<f32>();
            for r in 0..BLOCK {
                let row = from.start.add((first + r).min(count as usize - 1) * from.step as usize);
                let copy = rows.add(r * width as usize);
                for c in (0..width as usize).step_by(4) {
                    let four = row.add(c).cast::<[f32; 4]>().read_unaligned();
                    let four = four.map(|x| scale.map_or(x, |scale| x * scale));
                    copy.add(c).cast::<[f32; 4]>().write_unaligned(four);
                }
            }
            rows
        }
    }

    /// Returns the sums of a result, of as many columns, as zeros.
    #[inline(always)]
    pub unsafe fn sums(&self, at: usize, width: u32) -> *mut f32 {
        // SAFETY: there is room for `MOST_WIDTH` columns.
        unsafe {
            let sums = (&raw mut (*self.scratch).sums[at]).cast::<f32>();
            sums.write_bytes(0, BLOCK * width as usize);
            sums
        }
    }

    /// Adds to `rows` rows of [`BLOCK`] numbers the products of `steps` steps of `left`, whose rows and steps
    /// lie so far apart, with as many rows of `right`, step by step.
    #[inline(always)]
    pub unsafe fn multiply(
        &self,
        (left, row, step): (*const f32, usize, usize),
        right: *const f32,
        (rows, steps): (usize, usize),
        to: *mut f32,
    ) {
        // SAFETY: what the caller promises; `rows` is a multiple of four and `WIDTH` divides `BLOCK`.
        unsafe {
            for first in (0..rows).step_by(4) {
                for column in (0..BLOCK).step_by(WIDTH) {
                    let place = |r: usize| to.add(BLOCK * (first + r) + column).cast::<[f32; WIDTH]>();
                    let mut sums: [[f32; WIDTH]; 4] = std::array::from_fn(|r| place(r).read_unaligned());
                    for p in 0..steps {
                        let numbers = right.add(BLOCK * p + column).cast::<[f32; WIDTH]>().read_unaligned();
                        for (r, sums) in sums.iter_mut().enumerate() {
                            let x = *left.add((first + r) * row + p * step);
                            for (sum, y) in sums.iter_mut().zip(numbers) {
                                *sum = (self.fma)(x, y, *sum);
                            }
                        }
                    }
                    for (r, sums) in sums.into_iter().enumerate() {
                        place(r).write_unaligned(sums);
                    }
                }
            }
        }
    }

    /// Returns the products of the rows of a block with own places.
    #[inline(always)]
    pub unsafe fn scores(&self, rows: *const f32, own: *const f32, width: u32) -> Tile {
        let mut tile = [[0.0; BLOCK]; BLOCK];
        let width = width as usize;
        // SAFETY: as above.
        unsafe { self.multiply((rows, width, 1), own, (BLOCK, width), tile.as_mut_ptr().cast()) };
        tile
    }

    /// Adds the products of a tile with the rows of its block.
    #[inline(always)]
    pub unsafe fn spread(&self, tile: &Tile, rows: *const f32, width: u32, sums: *mut f32) {
        let width = width as usize;
        // SAFETY: as above.
        unsafe { self.multiply((rows, 1, width), tile.as_ptr().cast(), (width, BLOCK), sums) };
    }

    /// Replaces each sum.
    #[inline(always)]
    pub unsafe fn each(&self, sums: *mut f32, width: u32, change: impl Fn(f32, usize) -> f32) {
        // SAFETY: the sums have as many columns.
        unsafe {
            for column in std::slice::from_raw_parts_mut(sums.cast::<Lanes>(), width as usize) {
                for (lane, sum) in column.iter_mut().enumerate() {
                    *sum = change(*sum, lane);
                }
            }
        }
    }

    /// Stores the sums of the own places that there are.
    #[inline(always)]
    pub unsafe fn keep(&self, sums: *const f32, to: Rows, count: u32, width: u32) {
        // SAFETY: as above.
        unsafe {
            for lane in 0..BLOCK.min(count.saturating_sub(self.task.first) as usize) {
                let row = to.start.add((self.task.first as usize + lane) * to.step as usize);
                for c in (0..width as usize).step_by(4) {
                    let four: [f32; 4] = std::array::from_fn(|at| *sums.add(BLOCK * (c + at) + lane));
                    row.add(c).cast::<[f32; 4]>().write_unaligned(four);
                }
            }
        }
    }

    /// Returns a number of each query that is an own place.
    #[inline(always)]
    pub unsafe fn of_queries(&self, from: *const f32) -> Lanes {
        let Attention { first, queries, .. } = *self.task;
        // SAFETY: there is one for each query.
        std::array::from_fn(|lane| unsafe { *from.add((first as usize + lane).min(queries as usize - 1)) })
    }

    /// Returns `found`, or `other` where the query does not see the key, for a row of a tile.
    #[inline(always)]
    pub unsafe fn where_seen(&self, found: Lanes, other: f32, row: usize, own_are_keys: bool) -> Lanes {
        let Attention { first, queries, keys, causal, .. } = *self.task;
        let (rows, own) = if own_are_keys { (queries, keys) } else { (keys, queries) };
        // The own places that see the row, or are seen from it.
        let mut from = 0;
        let mut to = own.saturating_sub(first) as i32;
        let distance = row as i32 - first as i32;
        if row >= rows as usize {
            to = 0;
        } else if causal != 0 && own_are_keys {
            to = to.min(distance + 1);
        } else if causal != 0 {
            from = distance;
        }
        let mut all = found;
        for (lane, x) in all.iter_mut().enumerate() {
            let lane = lane as i32;
            *x = if (lane >= from) & (lane < to) { *x } else { other };
        }
        if !self.task.mask.is_null() {
            for (lane, x) in all.iter_mut().enumerate() {
                let own = first as usize + lane;
                let (query, key) = if own_are_keys { (row, own) } else { (own, row) };
                let query = query.min(queries as usize - 1) * self.task.mask_query as usize;
                let key = key.min(keys as usize - 1) * self.task.mask_key as usize;
                // SAFETY: the mask has a number for each query and key, or for some that stand for all.
                if unsafe { *self.task.mask.add(query + key) } == 0.0 {
                    *x = other;
                }
            }
        }
        all
    }

    /// Returns the end of the keys that the own queries see.
    #[inline(always)]
    pub fn end(&self) -> usize {
        let Attention { first, keys, causal, .. } = *self.task;
        keys.min(if causal != 0 { first.saturating_add(BLOCK as u32) } else { keys }) as usize
    }
}
