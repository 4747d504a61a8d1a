//! The line search: a step length that satisfies the strong Wolfe conditions (Nocedal and Wright 2006,
//! algorithms 3.5 and 3.6), with PyTorch's cubic interpolation and safeguards.

use super::curvature::{dot, largest};

/// The share of the decrease that the slope promises which a step must bring (c1).
const DECREASE: f64 = 1e-4;
/// The share of the slope that may be left at the end of a step (c2).
const FLATNESS: f64 = 0.9;

/// A point on the line, at the multiple `t` of the direction from the start.
#[derive(Clone, Debug)]
pub(super) struct Point {
    pub t: f64,
    pub loss: f64,
    pub gradient: Vec<f64>,
    /// The derivative of the loss along the direction.
    pub slope: f64,
}

/// Returns the loss and the gradient at given parameters.
pub(crate) type Evaluate<'a, E> = dyn FnMut(&[f64]) -> Result<(f64, Vec<f64>), E> + 'a;

/// A line through the parameters `from` along `direction`, on which `evaluate` returns loss and gradient of
/// parameters.
pub(super) struct Line<'a, E> {
    pub from: &'a [f64],
    pub direction: &'a [f64],
    pub evaluate: &'a mut Evaluate<'a, E>,
    pub evaluations: u32,
}

impl<E> Line<'_, E> {
    /// Returns the parameters at a multiple of the direction.
    pub fn at(&self, t: f64) -> Vec<f64> {
        self.from.iter().zip(self.direction).map(|(x, d)| x + t * d).collect()
    }

    fn point(&mut self, t: f64) -> Result<Point, E> {
        let at = self.at(t);
        let (loss, gradient) = (self.evaluate)(&at)?;
        self.evaluations += 1;
        let slope = dot(&gradient, self.direction);
        Ok(Point { t, loss, gradient, slope })
    }

    /// Returns the best point that `most` evaluations after the first one find, from `start` on, where `t` is
    /// tried first. It satisfies the strong Wolfe conditions unless the evaluations are used up, or the
    /// interval is so small that no parameter changes by `tolerance` in it.
    ///
    /// # Errors
    /// Those of an evaluation.
    pub fn search(&mut self, start: &Point, t: f64, tolerance: f64, most: u32) -> Result<Point, E> {
        let mut tries = 0;
        let bracket = match self.bracket(start, t, most, &mut tries)? {
            Bracket::Found(point) => return Ok(point),
            Bracket::Between(ends) => ends,
        };
        self.zoom(start, bracket, tolerance, most, &mut tries)
    }

    /// Goes on along the line until an interval has a good point in it.
    fn bracket(&mut self, start: &Point, t: f64, most: u32, tries: &mut u32) -> Result<Bracket, E> {
        let mut before = start.clone();
        let mut now = self.point(t)?;
        while *tries < most {
            if is_too_high(start, &now) || (*tries > 1 && now.loss >= before.loss) {
                return Ok(Bracket::Between([before, now]));
            }
            if is_flat(start, &now) {
                return Ok(Bracket::Found(now));
            }
            if now.slope >= 0.0 {
                return Ok(Bracket::Between([before, now]));
            }
            let bounds = (now.t + 0.01 * (now.t - before.t), now.t * 10.0);
            let t = lowest_of_cubic(&before, &now, bounds);
            before = std::mem::replace(&mut now, self.point(t)?);
            *tries += 1;
        }
        Ok(Bracket::Between([start.clone(), now]))
    }

    /// Makes the interval smaller until an end of it is a good point.
    fn zoom(
        &mut self,
        start: &Point,
        mut ends: [Point; 2],
        tolerance: f64,
        most: u32,
        tries: &mut u32,
    ) -> Result<Point, E> {
        let reach = largest(self.direction);
        let mut low = lower(&ends);
        let mut was_close = false;
        while *tries < most && (ends[1].t - ends[0].t).abs() * reach >= tolerance {
            let [left, right] = if ends[0].t <= ends[1].t { [0, 1] } else { [1, 0] }.map(|at| &ends[at]);
            let (min, max) = (left.t, right.t);
            let mut t = lowest_of_cubic(left, right, (min, max));
            // Twice in a row close to an end, or at one: the interval would hardly become smaller.
            let margin = 0.1 * (max - min);
            let is_close = (max - t).min(t - min) < margin;
            let is_moved = is_close && (was_close || t >= max || t <= min);
            if is_moved {
                t = if (t - max).abs() < (t - min).abs() { max - margin } else { min + margin };
            }
            was_close = is_close && !is_moved;
            let now = self.point(t)?;
            *tries += 1;
            let high = 1 - low;
            if is_too_high(start, &now) || now.loss >= ends[low].loss {
                ends[high] = now;
                low = lower(&ends);
            } else if is_flat(start, &now) {
                return Ok(now);
            } else {
                if now.slope * (ends[high].t - ends[low].t) >= 0.0 {
                    ends.swap(low, high);
                }
                ends[low] = now;
            }
        }
        let [first, second] = ends;
        Ok(if low == 0 { first } else { second })
    }
}

/// Returns the index of the end with the lower loss, or that of the first one if they have the same.
fn lower(ends: &[Point; 2]) -> usize {
    usize::from(ends[1].loss < ends[0].loss)
}

/// What the first part of a search found.
enum Bracket {
    /// A point that satisfies the conditions.
    Found(Point),
    /// Two points with such a point between them.
    Between([Point; 2]),
}

/// Whether a point brings too little of the decrease that the slope at the start promises.
fn is_too_high(start: &Point, point: &Point) -> bool {
    point.loss > start.loss + DECREASE * point.t * start.slope
}

/// Whether the slope at a point is small beside that at the start.
fn is_flat(start: &Point, point: &Point) -> bool {
    point.slope.abs() <= -FLATNESS * start.slope
}

/// Returns where the cubic through two points with their slopes is lowest, within bounds, or the middle of
/// the bounds if it has no minimum. `a` is on the left of `b`.
fn lowest_of_cubic(a: &Point, b: &Point, (min, max): (f64, f64)) -> f64 {
    let d1 = a.slope + b.slope - 3.0 * (a.loss - b.loss) / (a.t - b.t);
    let square = d1 * d1 - a.slope * b.slope;
    if square < 0.0 || square.is_nan() {
        return 0.5 * (min + max);
    }
    let d2 = square.sqrt();
    let lowest = b.t - (b.t - a.t) * ((b.slope + d2 - d1) / (b.slope - a.slope + 2.0 * d2));
    lowest.max(min).min(max)
}
