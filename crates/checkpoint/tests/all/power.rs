//! "After a power cut the newest checkpoint that was reported durable is there, or a newer one, and nothing
//! half-written."

use std::path::Path;
use std::sync::Arc;

use crate::common::contents;
use crate::common::power::PowerDisk;
use crate::common::random::Random;
use unisono_checkpoint::{Best, Contents, Disk, Options, Store, load_with, newest_with};

/// Returns a metric for a step. The best is somewhere in the middle.
fn metric(step: u64) -> f64 {
    ((step * 7) % 11) as f64
}

/// Runs one run several times, each ended by a power cut. An error says which promise was broken.
fn lives(seed: u64, base: &Path, lies: fn(&mut PowerDisk)) -> Result<usize, String> {
    let random = &mut Random(seed);
    let mut disk = PowerDisk::new(base);
    lies(&mut disk);
    let best = [None, Some(Best::Lowest(1)), Some(Best::Highest(2))][random.below(3)];
    let options = Options::default().keep(1 + random.below(3)).every([0, 3][random.below(2)]).best(best);
    let mut reported: Option<(u64, Contents)> = None;
    let mut milestones: Vec<u64> = Vec::new();
    let mut lowest = f64::INFINITY;
    let mut saves = 0;
    for life in 0..4 {
        let mut tried: Vec<(u64, Contents)> = reported.iter().cloned().collect();
        disk.fails_after(random.below(250));
        if let Ok(mut store) = Store::open_with(base, options.clone(), Arc::new(disk.clone())) {
            loop {
                // It saves the next step, or the same step once more with other contents.
                let now = reported.as_ref().map_or(0, |(step, _)| *step);
                let step = now.max(1) + u64::from(random.below(4) > 0);
                let mut new = contents(step);
                new.trainer["try"] = (life * 1000 + saves).into();
                tried.push((step, new.clone()));
                if store.save_with_metric(step, &new, Some(&metric(step).into())).is_err() {
                    break;
                }
                reported = Some((step, new));
                lowest = lowest.min(metric(step));
                milestones.extend((options.every > 0 && step.is_multiple_of(options.every)).then_some(step));
                saves += 1;
            }
        }
        disk.cut(random);

        let found = newest_with(&disk, base).map_err(|error| error.to_string())?;
        let checkpoints = base.join("checkpoints");
        let mut whole = Vec::new();
        for name in disk.list(&checkpoints).unwrap_or_default() {
            // Whatever has a final name must be complete, not only the newest.
            if let Some(step) = name.strip_prefix("step-") {
                load_with(&disk, checkpoints.join(&name)).map_err(|error| error.to_string())?;
                whole.push(step.parse::<u64>().unwrap());
            }
        }
        match (&found, &reported) {
            (None, None) => continue,
            (None, Some((step, _))) => return Err(format!("step {step} was lost")),
            (Some(found), _) => {
                let saved =
                    tried.iter().any(|(step, contents)| *step == found.step && *contents == found.contents);
                if !saved || !found.skipped.is_empty() {
                    return Err(format!("step {} is not what was saved: {:?}", found.step, found.skipped));
                }
                if reported.as_ref().is_some_and(|(step, _)| *step > found.step) {
                    return Err(format!("step {} was found, and a later one had been reported", found.step));
                }
                // A milestone may be between two names while its step is saved again. Then it is the newest.
                if let Some(lost) =
                    milestones.iter().find(|step| !whole.contains(step) && **step != found.step)
                {
                    return Err(format!("the milestone {lost} was lost"));
                }
                let best =
                    whole.iter().chain([&found.step]).map(|&step| metric(step)).fold(f64::INFINITY, f64::min);
                if options.best == Some(Best::Lowest(1)) && best > lowest {
                    return Err(format!("the best is {best} now, and was {lowest}"));
                }
            }
        }
        reported = found.map(|found| (found.step, found.contents));
    }
    Ok(saves)
}

/// A run may fail to make its directories durable and be started again. They are there after that.
#[test]
fn directories_that_were_not_durable_are_made_so_by_the_next_run() {
    let above = tempfile::tempdir().unwrap();
    let dir = above.path().join("run");
    // The file that locks the run is on the machine's own disk.
    std::fs::create_dir(&dir).unwrap();
    let mut failed = 0;
    for (at, luck) in (0..8).flat_map(|at| (0..8).map(move |luck| (at, luck))) {
        let disk = PowerDisk::new(above.path());
        let open = || Store::open_with(&dir, Options::default(), Arc::new(disk.clone()));
        disk.fails_once_after(at);
        failed += usize::from(open().is_err());
        disk.recover();
        open().unwrap().save(1, &contents(1)).unwrap();
        disk.cut(&mut Random(luck));
        let found = newest_with(&disk, &dir).unwrap().map(|found| found.step);
        assert_eq!(found, Some(1), "operation {at}, luck {luck}");
    }
    assert!(failed >= 32, "{failed} failed");
}

/// Cuts the power four times a seed. `UNISONO_POWER_SEEDS` sets the number of seeds.
#[test]
fn thousands_of_power_cuts_lose_nothing_that_was_reported_durable() {
    let dir = tempfile::tempdir().unwrap();
    let seeds = std::env::var("UNISONO_POWER_SEEDS").map_or(2_000, |seeds| seeds.parse().unwrap());
    let mut saves = 0;
    for seed in 0..seeds {
        saves += lives(seed, dir.path(), |_| {}).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    }
    assert!(saves as u64 > 3 * seeds, "only {saves} saves");
}

/// Checks that the model finds mistakes: on disks that lie about syncing, promises are broken.
#[test]
fn on_a_disk_that_does_not_sync_checkpoints_are_lost() {
    let dir = tempfile::tempdir().unwrap();
    let broken =
        |lies: fn(&mut PowerDisk)| (0..200).filter(|&seed| lives(seed, dir.path(), lies).is_err()).count();
    let (files, names) = (broken(|disk| disk.forgets_files = true), broken(|disk| disk.forgets_names = true));
    assert!(files > 50 && names > 50, "{files} and {names} of 200");
}
