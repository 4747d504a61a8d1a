//! Notes on schedules that are made for a run of another length.

use super::{Schedule, Shape, steps};

/// The share of the highest learning rate that trains almost nothing.
const LEAST_SHARE: f64 = 1e-4;
/// The least learning rate that is written without an exponent.
const LEAST_WRITTEN_OUT: f64 = 1e-6;

/// Returns a learning rate with a few digits.
fn short(rate: f64) -> String {
    let digits = format!("{rate:.3e}");
    match digits.parse::<f64>() {
        Ok(rate) if rate == 0.0 || rate.abs() >= LEAST_WRITTEN_OUT => rate.to_string(),
        Ok(rate) => format!("{rate:e}"),
        Err(_) => digits,
    }
}

impl Schedule {
    /// Returns a note if the schedule is not made for a run of this many steps in all: the warm-up lasts
    /// longer, the learning rate is 0 long before the end, or the schedule is not half over then.
    pub(in crate::optimizers) fn note_on_steps(&self, total: u64) -> Option<String> {
        if let Shape::Step { every, .. } = self.shape
            && every >= total
            && total > 0
        {
            return Some(format!(
                "the learning rate changes after each {}, and the run has {}: it never does (these are steps, not epochs)",
                steps(every),
                steps(total)
            ));
        }
        if let Shape::Step { .. } | Shape::Function { .. } = self.shape {
            let [first, half] = [self.warm_up, total / 2].map(|step| self.planned(step).unwrap_or(f64::NAN));
            if half < LEAST_SHARE * first && self.warm_up < total / 2 {
                let [first, half] = [first, half].map(short);
                return Some(format!(
                    "the learning rate falls from {first} to {half} in the first half of the {}: a schedule counts steps \
                     of the optimizer, not epochs",
                    steps(total)
                ));
            }
        }
        let Some(end) = self.shape.steps().map(|own| self.warm_up.saturating_add(own)) else {
            return (self.warm_up > total).then(|| self.note_on_warm_up(total));
        };
        if self.warm_up > total {
            return Some(self.note_on_warm_up(total));
        }
        let schedule = self.describe();
        let last = self.planned(end).unwrap_or(f64::NAN);
        if end < total && last <= LEAST_SHARE * self.shape.highest() {
            let (rest, all) = (steps(total - end), steps(total));
            let little = if last == 0.0 { "nothing" } else { "almost nothing" };
            let last = short(last);
            return Some(format!(
                "the learning rate ({schedule}) is {last} from step {end} on, and the run has {all}: the last {rest} change \
                 {little}"
            ));
        }
        (end / 2 > total).then(|| {
            let reached = short(self.planned(total).unwrap_or(f64::NAN));
            format!(
                "the learning rate ({schedule}) is made for {}, and the run has {}, after which it is still {reached}",
                steps(end),
                steps(total)
            )
        })
    }

    fn note_on_warm_up(&self, total: u64) -> String {
        let (lasts, total) = (steps(self.warm_up), steps(total));
        format!("the warm-up lasts {lasts}, and the run has {total}: the learning rate does not get that far")
    }
}

impl Shape {
    /// Returns the highest learning rate of a shape that is over at some time, and 0 of others.
    fn highest(&self) -> f64 {
        match *self {
            Self::Cosine { lr, .. } | Self::Polynomial { lr, .. } | Self::OneCycle { highest: lr, .. } => lr,
            _ => 0.0,
        }
    }
}
