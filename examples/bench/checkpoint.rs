//! Measures what saving costs a run, and how fast it is beside the disk.

use std::fs::{self, File};
use std::io::{Write, stdout};
use std::path::Path;
use std::time::{Duration, Instant};

use unisono::checkpoint::{Contents, Options, StdDisk, Store};
use unisono::data::{Batch, Draws, Loader, Memory};
use unisono::{AdamW, Dense, Relu, Saving, Sequential, Trainer};
use unisono_examples::{Error, bytes, table};

use super::{Flags, median, ticks};

const BATCH: usize = 128;
const INPUTS: usize = 1024;
/// The width of the model's square layers, of 9 MB each. There are [`SQUARES`] of them.
const HIDDEN: usize = 1536;
const SQUARES: usize = 5;
/// The number of steps from one checkpoint to the next.
const EVERY: u32 = 20;
/// The number of bytes that are written to a plain file at once.
const BLOCK: usize = 1 << 20;

/// Measures rounds of steps without and with a checkpoint in turns, so that both see the same state of the
/// machine; then saves and plain writes of as many bytes.
pub fn run(flags: &Flags) -> Result<(), Error> {
    // The directory of the flag may hold what is somebody's: only a directory made here is removed.
    let dir = flags.dir.join(format!("unisono-bench-{}", std::process::id()));
    let failed = |error: std::io::Error| format!("{}: {error}", dir.display());
    fs::create_dir_all(&flags.dir).and_then(|()| fs::create_dir(&dir)).map_err(failed)?;
    let result = measure(flags, &dir);
    let removed = fs::remove_dir_all(&dir).map_err(failed);
    result.and(removed.map_err(Into::into))
}

fn measure(flags: &Flags, dir: &Path) -> Result<(), Error> {
    let data = noise()?;
    let mut trainer = trainer(flags, dir, &data)?;
    let batch = data.epoch(0)?.next().ok_or("no batch")??;
    let contents = trainer.contents()?;
    let size =
        |tensors: &unisono::checkpoint::Tensors| tensors.values().map(|t| t.bytes().len()).sum::<usize>();
    let sizes = [size(&contents.model), size(&contents.optimizer)];
    writeln!(
        stdout(),
        "perceptron from {INPUTS} over {SQUARES} times {HIDDEN} x {HIDDEN} to 10, batch {BATCH}, AdamW: {} of weights, {} of optimizer state",
        bytes(sizes[0] as u64),
        bytes(sizes[1] as u64)
    )?;
    steps(&mut trainer, &batch, flags.warmup.min(EVERY))?;

    let (mut without, mut with, mut copies, mut late) = (vec![], vec![], vec![], vec![]);
    // The CPU time of this process does not include other programs on the machine.
    let mut busy = [0, 0];
    for round in 0..flags.rounds {
        // Steps with and steps without a checkpoint take turns in going first.
        for saves in [round % 2 == 1, round % 2 == 0] {
            let (before, started) = (ticks(), Instant::now());
            if !saves {
                without.push(steps(&mut trainer, &batch, EVERY)?);
                busy[0] += ticks() - before;
                continue;
            }
            trainer.save_behind()?;
            copies.push(started.elapsed());
            steps(&mut trainer, &batch, EVERY)?;
            with.push(started.elapsed());
            let waiting = Instant::now();
            trainer.finish_saves()?;
            late.push(waiting.elapsed());
            busy[1] += ticks() - before;
        }
    }
    let ratios = with.iter().zip(&without).map(|(with, without)| with.as_secs_f64() / without.as_secs_f64());
    let mut ratios: Vec<f64> = ratios.collect();
    ratios.sort_by(f64::total_cmp);
    drop(trainer);
    // On a busy machine a difference of a few percent means nothing.
    let ends = (without.iter().min(), without.iter().max());
    let spread =
        ends.0.zip(ends.1).map_or(0.0, |(least, most)| most.as_secs_f64() / least.as_secs_f64() - 1.0);

    let (saves, plain) = disk(flags, dir, &contents, sizes.iter().sum())?;
    let speed = |time: Duration| sizes.iter().sum::<usize>() as f64 / time.as_secs_f64();
    let (save, raw) = (speed(median(saves)), speed(median(plain)));
    let ms = |times: Vec<Duration>| format!("{:.1} ms", 1e3 * median(times).as_secs_f64());
    let row = |name: &str, value: String| vec![name.to_owned(), value];
    let rows = [
        row(&format!("{EVERY} steps (median of {})", flags.rounds), ms(without)),
        row("the same, with a checkpoint behind them", ms(with)),
        row("cost (median of the pairs)", format!("{:+.2} %", 100.0 * (ratios[ratios.len() / 2] - 1.0))),
        row(
            "cost in this process's time on the host's CPUs",
            match busy {
                [0, _] => "not known here".into(),
                [without, with] => format!("{:+.2} %", 100.0 * (with as f64 / without as f64 - 1.0)),
            },
        ),
        row("of which the copy off the device", ms(copies)),
        row("rounds without a checkpoint differ by up to", format!("{:.2} %", 100.0 * spread)),
        row(&format!("writing that was left after {EVERY} steps"), ms(late)),
        row("saving", format!("{}/s", bytes(save as u64))),
        row(
            "the disk: a plain file of as many bytes, synced and replaced alike",
            format!("{}/s", bytes(raw as u64)),
        ),
        row("saving, of the disk's speed", format!("{:.0} %", 100.0 * save / raw)),
    ];
    Ok(writeln!(stdout(), "{}", table(&rows))?)
}

/// Takes `count` steps on one batch and returns how long they took.
fn steps(trainer: &mut Trainer, batch: &Batch, count: u32) -> Result<Duration, Error> {
    let started = Instant::now();
    for _ in 0..count {
        trainer.step(batch)?;
    }
    Ok(started.elapsed())
}

/// Measures saves and plain writes of as many bytes, in turns.
fn disk(
    flags: &Flags,
    dir: &Path,
    contents: &Contents,
    size: usize,
) -> Result<(Vec<Duration>, Vec<Duration>), Error> {
    let dir = dir.join("disk");
    let options = Options::default().keep(1);
    let mut store = Store::open_with(&dir, options, std::sync::Arc::new(StdDisk))?;
    let noise: Vec<u8> = (0..BLOCK as u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let (mut saves, mut plain) = (vec![], vec![]);
    // The first save and the first write are not counted: they have nothing to replace.
    for round in 0..=flags.rounds {
        let started = Instant::now();
        replace(&dir.join("plain"), &noise, size)?;
        plain.push(started.elapsed());
        let started = Instant::now();
        store.save(round.into(), contents)?;
        saves.push(started.elapsed());
    }
    Ok((saves.split_off(1), plain.split_off(1)))
}

/// Replaces a file in the way in which a checkpoint replaces its predecessor: writes a new file beside it,
/// syncs it, renames it, and syncs the directory.
fn replace(path: &Path, block: &[u8], size: usize) -> Result<(), Error> {
    let beside = path.with_extension("tmp");
    // What an earlier process left. A link there is not followed.
    fs::remove_file(&beside).ok();
    let mut file = File::create_new(&beside)?;
    for at in (0..size).step_by(block.len()) {
        file.write_all(&block[..block.len().min(size - at)])?;
    }
    file.sync_all()?;
    fs::rename(&beside, path)?;
    // Systems other than Unix cannot open a directory.
    if cfg!(unix) {
        File::open(path.parent().unwrap_or(path))?.sync_all()?;
    }
    Ok(())
}

fn trainer(flags: &Flags, dir: &Path, data: &Loader) -> Result<Trainer, Error> {
    let hidden = |model: Sequential, _| model.add(Dense::new(HIDDEN)).add(Relu);
    let model = (0..=SQUARES).fold(Sequential::new(), hidden).add(Dense::new(10));
    let builder = Trainer::builder(model).optimizer(AdamW::new(1e-4)).global_batch(BATCH);
    let mut builder = flags.adapter.iter().fold(builder, |builder, name| builder.adapter(name));
    if let Some(&replicas) = flags.replicas.first() {
        builder = builder.replicas(replicas.into());
    }
    let mut trainer = builder.build(&data.fields()?)?;
    trainer.save_to(Saving::new(dir.join("run")).keep_last(1).require())?;
    Ok(trainer)
}

/// Returns a batch of noise with labels.
fn noise() -> Result<Loader, Error> {
    let mut draws = Draws::of(0, "bench", "noise", 0, 0);
    let values: Vec<f32> = (0..BATCH * INPUTS).map(|_| draws.range(-1.0, 1.0)).collect();
    let labels: Vec<i32> = (0..BATCH).map(|sample| (sample % 10) as i32).collect();
    Ok(Loader::new(Memory::labelled(values, [INPUTS], labels)?).batch(BATCH).threads(1))
}
