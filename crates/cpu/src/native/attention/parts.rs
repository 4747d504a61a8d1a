//! The parts of attention: its results, and its gradients.

#![allow(clippy::needless_range_loop, reason = "loops over the lanes of several vectors become vectors")]

use super::block::Code;
use super::{Attention, BLOCK};
use crate::native::elementary::{exp, log};
use crate::native::panels::canonical;

/// The score of a key that a query does not see.
const LOWEST: f32 = f32::MIN;

#[expect(unsafe_code, reason = "memory of kernels")]
impl<F: Fn(f32, f32, f32) -> f32, const WIDTH: usize> Code<'_, F, WIDTH> {
    /// Computes the results of own queries.
    ///
    /// # Safety
    /// As for [`super::run`]; so for all parts.
    #[inline(always)]
    pub unsafe fn forward(&self) {
        let Attention { q, k, v, out, queries, keys, d, e, scale, .. } = *self.task;
        // SAFETY: as above.
        unsafe {
            let own = self.own(0, q, queries, d, Some(scale));
            let sums = self.sums(0, e);
            let (mut top, mut total) = ([LOWEST; BLOCK], [0.0; BLOCK]);
            for first in (0..self.end()).step_by(BLOCK) {
                let mut tile = self.scores(self.rows(0, k, first, (keys, d), None), own, d);
                let mut highest = top;
                for (r, scores) in tile.iter_mut().enumerate() {
                    *scores = self.where_seen(*scores, LOWEST, first + r, false);
                    for (highest, score) in highest.iter_mut().zip(*scores) {
                        *highest = if score > *highest { score } else { *highest };
                    }
                }
                let mut fade = [0.0; BLOCK];
                for lane in 0..BLOCK {
                    fade[lane] = exp(top[lane] - highest[lane], &self.fma);
                }
                let mut sum = [0.0; BLOCK];
                for four in tile.chunks_exact_mut(4) {
                    let mut four_sum = [0.0; BLOCK];
                    for scores in four {
                        for lane in 0..BLOCK {
                            let score = scores[lane];
                            let found = exp(score - highest[lane], &self.fma);
                            let found = if score == LOWEST { 0.0 } else { found };
                            scores[lane] = found;
                            four_sum[lane] += found;
                        }
                    }
                    for (sum, four_sum) in sum.iter_mut().zip(four_sum) {
                        *sum += four_sum;
                    }
                }
                for lane in 0..BLOCK {
                    total[lane] = (self.fma)(total[lane], fade[lane], sum[lane]);
                }
                top = highest;
                if first > 0 {
                    self.each(sums, e, |sum, lane| canonical(sum * fade[lane]));
                }
                self.spread(&tile, self.rows(1, v, first, (keys, e), None), e, sums);
            }
            let share = total.map(|total| {
                let share = if total.is_nan() { f32::from_bits(0x7fc0_0000) } else { 1.0 / total };
                if total == 0.0 { 0.0 } else { share }
            });
            self.each(sums, e, |sum, lane| canonical(sum * share[lane]));
            self.keep(sums, out, queries, e);
            if !self.task.lse_out.is_null() {
                let count = BLOCK.min(queries.saturating_sub(self.task.first) as usize);
                for lane in 0..count {
                    let place = self.task.lse_out.add(self.task.first as usize + lane);
                    *place = top[lane] + log(total[lane], &self.fma);
                }
            }
        }
    }

    /// Computes the gradient by own queries.
    #[inline(always)]
    pub unsafe fn query(&self) {
        let Attention { q, k, v, dy, dq, lse, delta, queries, keys, d, e, scale, .. } = *self.task;
        // SAFETY: as above.
        unsafe {
            let own = self.own(0, q, queries, d, Some(scale));
            let own_dy = self.own(1, dy, queries, e, None);
            let (lse, delta) = (self.of_queries(lse), self.of_queries(delta));
            let sums = self.sums(0, d);
            for first in (0..self.end()).step_by(BLOCK) {
                let rows = self.rows(0, k, first, (keys, d), None);
                let mut tile = self.scores(rows, own, d);
                let slopes = self.scores(self.rows(1, v, first, (keys, e), None), own_dy, e);
                for (r, (scores, slopes)) in tile.iter_mut().zip(slopes).enumerate() {
                    let mut found = [0.0; BLOCK];
                    for lane in 0..BLOCK {
                        found[lane] = exp(scores[lane] - lse[lane], &self.fma);
                    }
                    let found = self.where_seen(found, 0.0, first + r, false);
                    for lane in 0..BLOCK {
                        scores[lane] = found[lane] * (slopes[lane] - delta[lane]);
                    }
                }
                self.spread(&tile, rows, d, sums);
            }
            self.each(sums, d, |sum, _| canonical(sum * scale));
            self.keep(sums, dq, queries, d);
        }
    }

    /// Computes the gradients by own keys and their values.
    #[inline(always)]
    pub unsafe fn key(&self) {
        let Attention { q, k, v, dy, dk, dv, lse, delta, queries, keys, d, e, scale, .. } = *self.task;
        // SAFETY: as above.
        unsafe {
            let own = self.own(0, k, keys, d, None);
            let is_by_key = !dk.start.is_null();
            let own_v = if is_by_key { self.own(1, v, keys, e, None) } else { std::ptr::null() };
            let (dk_sums, dv_sums) = (self.sums(0, d), self.sums(1, e));
            let from = (self.task.first as usize).min(queries as usize - 1) / BLOCK * BLOCK;
            for first in (if self.task.causal != 0 { from } else { 0 }..queries as usize).step_by(BLOCK) {
                let rows = self.rows(0, q, first, (queries, d), Some(scale));
                let dy_rows = self.rows(1, dy, first, (queries, e), None);
                let mut tile = self.scores(rows, own, d);
                for (r, scores) in tile.iter_mut().enumerate() {
                    let lse = *lse.add((first + r).min(queries as usize - 1));
                    let mut found = [0.0; BLOCK];
                    for lane in 0..BLOCK {
                        found[lane] = exp(scores[lane] - lse, &self.fma);
                    }
                    *scores = self.where_seen(found, 0.0, first + r, true);
                }
                if !dv.start.is_null() {
                    self.spread(&tile, dy_rows, e, dv_sums);
                }
                if is_by_key {
                    let slopes = self.scores(dy_rows, own_v, e);
                    for (r, (scores, slopes)) in tile.iter_mut().zip(slopes).enumerate() {
                        let delta = *delta.add((first + r).min(queries as usize - 1));
                        for (score, slope) in scores.iter_mut().zip(slopes) {
                            *score *= slope - delta;
                        }
                    }
                    self.spread(&tile, rows, d, dk_sums);
                }
            }
            for (sums, to, width) in [(dk_sums, dk, d), (dv_sums, dv, e)] {
                if !to.start.is_null() {
                    self.each(sums, width, |sum, _| canonical(sum));
                    self.keep(sums, to, keys, width);
                }
            }
        }
    }
}
