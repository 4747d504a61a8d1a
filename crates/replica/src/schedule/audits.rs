//! Which steps are audited. The schedule changes no bit, so it may depend on measured times.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::time::Duration;

use unisono_random::{Stream, below, stream};

/// How often a step is audited: made again by other replicas, which must give the same bytes.
///
/// The numbers of steps between audits are drawn, from 1 to less than twice their mean, so that a fault with
/// a rhythm does not escape. Each program has audits of its own: where several take turns, such as those of
/// phases or of samples of several lengths, there may be as many times more steps between two audits.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Audits {
    /// No step is audited.
    Never,
    /// One step in so many is audited, on average. 0 audits none.
    Every(u64),
    /// Audits take this share of the time: 0.015 is 1.5 %. The interval follows from what audits were
    /// measured to take, and is at most 4096 steps on average.
    Share(f64),
}

/// The longest mean interval that [`Audits::Share`] leads to.
const LONGEST: u64 = 4096;

/// The number of audits whose time is remembered.
const REMEMBERED: usize = 5;

/// What is known about the audits of a program.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct AuditReport {
    /// The number of steps that were made.
    pub steps: u64,
    /// The number of these that were audited with the result that nothing was wrong.
    pub passed: u64,
    /// The mean number of steps from one audit to the next, as it is now. A replica that is wrong in every
    /// step is found within twice as many steps of the program. 0 stands for never.
    pub interval: u64,
    /// The time that steps took, without their audits.
    pub stepping: Duration,
    /// The time that audits took in addition.
    pub auditing: Duration,
}

/// The audits of one program.
#[derive(Debug, Default)]
struct Count {
    report: AuditReport,
    /// The steps before the next audit; none before the first is drawn.
    left: Option<u64>,
    /// Whether the next step is audited whatever was drawn.
    asked: bool,
    /// The seconds that a step took lately, where nothing delayed it.
    usual: Option<f64>,
    /// The seconds that the last few audits took in addition.
    took: VecDeque<f64>,
}

/// Decides which steps are audited.
#[derive(Debug)]
pub(crate) struct AuditSchedule {
    rule: Audits,
    counts: BTreeMap<usize, Count>,
    /// The number of intervals that were drawn.
    drawn: u64,
}

impl AuditSchedule {
    pub fn new(rule: Audits) -> Self {
        Self { rule, counts: BTreeMap::new(), drawn: 0 }
    }

    /// Returns whether the next step of a program is audited.
    pub fn is_due(&mut self, program: usize) -> bool {
        let count = self.counts.entry(program).or_default();
        if count.report.interval == 0 {
            count.report.interval = first_interval(self.rule);
        }
        if count.left.is_none() && count.report.interval > 0 {
            count.left = Some(draw(&mut self.drawn, count.report.interval));
        }
        count.left == Some(0) || count.asked
    }

    /// Asks for an audit of the next step of a program, unless none is ever audited.
    pub fn ask(&mut self, program: usize) {
        self.counts.entry(program).or_default().asked = first_interval(self.rule) > 0;
    }

    /// Returns whether the next step of a program is audited because somebody has asked for it.
    pub fn is_asked(&self, program: usize) -> bool {
        self.counts.get(&program).is_some_and(|count| count.asked)
    }

    /// Notes a step that was not audited, and what it took.
    pub fn stepped(&mut self, program: usize, took: Duration) {
        self.began(program);
        self.ended(program, took);
    }

    /// Notes that a step has begun that is not audited.
    pub fn began(&mut self, program: usize) {
        let count = self.counts.entry(program).or_default();
        count.left = count.left.map(|left| left.saturating_sub(1));
    }

    /// Takes back that a step has begun: it did not happen.
    pub fn undone(&mut self, program: usize) {
        let count = self.counts.entry(program).or_default();
        count.left = count.left.map(|left| left.saturating_add(1));
    }

    /// Notes what a step took that has begun.
    pub fn ended(&mut self, program: usize, took: Duration) {
        let count = self.counts.entry(program).or_default();
        count.report.steps += 1;
        count.report.stepping += took;
        let seconds = took.as_secs_f64();
        // A step may be delayed and is never too fast, so the estimate falls at once and rises slowly.
        count.usual = Some(count.usual.map_or(seconds, |usual| seconds.min(usual * 1.02)));
    }

    /// Notes an audit that found nothing wrong: what the step took, and what the audit took in addition.
    pub fn passed(&mut self, program: usize, step: Duration, audit: Duration) {
        let count = self.counts.entry(program).or_default();
        count.report.steps += 1;
        count.report.passed += 1;
        count.report.stepping += step;
        count.report.auditing += audit;
        count.asked = false;
        count.took.push_back(audit.as_secs_f64());
        if count.took.len() > REMEMBERED {
            count.took.pop_front();
        }
        let mut sorted: Vec<f64> = count.took.iter().copied().collect();
        sorted.sort_by(f64::total_cmp);
        // An audit that loads plans takes longer than later ones. The first one always does.
        let usually = sorted.get((sorted.len() - 1) / 2).copied().filter(|_| sorted.len() > 1);
        if let (Audits::Share(share), Some(usual), Some(audit)) = (self.rule, count.usual, usually) {
            let interval = audit / (share * usual).max(f64::MIN_POSITIVE);
            count.report.interval = (interval.ceil() as u64)
                .clamp(first_interval(self.rule), LONGEST.max(first_interval(self.rule)));
        }
        count.left = Some(draw(&mut self.drawn, count.report.interval));
    }

    /// Notes an audit that could not be finished: the next one is drawn.
    pub fn postponed(&mut self, program: usize) {
        let count = self.counts.entry(program).or_default();
        count.asked = false;
        count.left = Some(draw(&mut self.drawn, count.report.interval));
    }

    /// Forgets the steps of programs.
    pub fn forget(&mut self, programs: &Range<usize>) {
        self.counts.retain(|program, _| !programs.contains(program));
    }

    /// Returns whether any step is ever audited.
    pub fn audits_any(&self) -> bool {
        first_interval(self.rule) > 0
    }

    pub fn report(&self, program: usize) -> AuditReport {
        let report = self.counts.get(&program).map(|count| count.report).unwrap_or_default();
        AuditReport { interval: report.interval.max(first_interval(self.rule)), ..report }
    }
}

/// Returns the mean interval before an audit was measured: such that an audit that takes as long as a step
/// takes its share.
fn first_interval(rule: Audits) -> u64 {
    match rule {
        Audits::Never => 0,
        Audits::Every(steps) => steps,
        Audits::Share(share) if share > 0.0 => (1.0 / share).ceil().clamp(1.0, LONGEST as f64) as u64,
        Audits::Share(_) => 0,
    }
}

/// Draws the number of steps before the next audit, from 0 to less than twice the mean interval less one.
fn draw(drawn: &mut u64, interval: u64) -> u64 {
    *drawn += 1;
    let most = (2 * interval.clamp(1, u64::from(u32::MAX / 2)) - 1) as u32;
    u64::from(below(Stream::new(0, stream("audit", "interval")).word(0, *drawn, 0), most))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the steps that are audited, where a step takes 10 ms and its audit so many times as long.
    fn audited(rule: Audits, steps: u64, times: f64) -> (Vec<u64>, AuditReport) {
        let mut schedule = AuditSchedule::new(rule);
        let step = Duration::from_millis(10);
        let mut audited = Vec::new();
        for at in 0..steps {
            if schedule.is_due(7) {
                audited.push(at);
                schedule.passed(7, step, step.mul_f64(times));
            } else {
                schedule.stepped(7, step);
            }
        }
        (audited, schedule.report(7))
    }

    #[test]
    fn intervals_have_their_mean_and_their_bound() {
        for interval in [1, 2, 10, 67] {
            let (steps, report) = audited(Audits::Every(interval), 50_000, 1.0);
            let gaps: Vec<u64> = steps.windows(2).map(|pair| pair[1] - pair[0]).collect();
            assert!(gaps.iter().all(|gap| (1..2 * interval).contains(gap)), "{gaps:?}");
            let mean = 50_000.0 / steps.len() as f64;
            assert!((mean / interval as f64 - 1.0).abs() < 0.05, "{mean}, not {interval}");
            assert_eq!((report.steps, report.passed), (50_000, steps.len() as u64));
        }
        assert_eq!(audited(Audits::Every(1), 5, 1.0).0, [0, 1, 2, 3, 4]);
        assert_eq!(audited(Audits::Never, 100, 1.0).0, []);
        assert_eq!(audited(Audits::Every(0), 100, 1.0).0, []);
    }

    #[test]
    fn audits_keep_to_their_share_whatever_they_take() {
        for (times, interval) in [(0.5, 67), (1.0, 67), (3.0, 200), (1e9, LONGEST)] {
            let (_, report) = audited(Audits::Share(0.015), 100_000, times);
            assert_eq!(report.interval, interval);
            let share = report.auditing.as_secs_f64() / report.stepping.as_secs_f64();
            assert!(share < 0.0165 || interval == LONGEST, "{share}");
        }
    }

    #[test]
    fn an_audit_can_be_asked_for() {
        let mut schedule = AuditSchedule::new(Audits::Every(1000));
        assert!(!schedule.is_due(0));
        schedule.ask(0);
        assert!(schedule.is_due(0) && !schedule.is_due(1));
        schedule.passed(0, Duration::ZERO, Duration::ZERO);
        assert!(!schedule.is_due(0));
        let mut never = AuditSchedule::new(Audits::Never);
        never.ask(0);
        assert!(!never.is_due(0));
    }
}
