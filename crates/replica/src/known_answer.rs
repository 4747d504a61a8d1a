//! The known-answer test: a program of products, maps and sums of small whole numbers, whose every value f32
//! holds exactly. So all orders of summation and all devices give the same bytes, and the host knows them.

use std::sync::Arc;

use unisono_graph::{GraphError, Program, Tape, Type};

use crate::batch::feed::Feed;
use crate::batch::outputs::Outputs;

/// The number of this program in every run. The caller's programs are numbered from 0.
pub(crate) const PROGRAM_NUMBER: usize = u32::MAX as usize;

/// The numbers of a sample.
const WIDTH: usize = 48;
/// The numbers that the product makes of them.
const HIGH: usize = 40;
/// The most samples that the test takes.
const MOST_ROWS: usize = 128;

/// Compiles the program: a layer `y = x w^T`, the sum over samples of half of `y^2` as its loss, and the
/// gradient of the loss by `w`.
///
/// # Errors
/// None is expected: the program is fixed.
pub(crate) fn program() -> Result<Arc<Program>, GraphError> {
    let tape = Tape::new();
    let x = tape.input("x", Type::sample(&[WIDTH]));
    let w = tape.input("w", Type::global(&[HIGH, WIDTH]));
    let y = x.matmul_t(&w);
    // Half of the square has y as its gradient by y.
    let loss = (&y * &y * 0.5).sum(&[-1]).sum_shards();
    let gradients = tape.gradients(&loss, &[w]);
    tape.output("loss", &loss);
    gradients.iter().for_each(|gradient| tape.output("gradient", gradient));
    // These are computed from sums that the host has added up and given back.
    tape.output("loss twice", &(&loss * 2.0));
    gradients.iter().for_each(|gradient| tape.output("gradient twice", &(gradient * 2.0)));
    tape.output("y", &y);
    Ok(Arc::new(Program::compile(&tape.finish()?)?))
}

/// A small whole number, from -2 to 2.
fn whole(at: usize) -> i64 {
    (at.wrapping_mul(0x9e37_79b9) >> 7) as i64 % 5 - 2
}

fn x(row: usize, at: usize) -> i64 {
    whole(row * WIDTH + at)
}

fn w(out: usize, at: usize) -> i64 {
    whole(1_000_003 + out * WIDTH + at)
}

fn bytes(values: impl Iterator<Item = i64>) -> Vec<u8> {
    values.flat_map(|value| (value as f32).to_le_bytes()).collect()
}

/// Returns the batch of the test for a full batch of so many samples.
pub(crate) fn feed(global_batch: usize) -> Feed {
    let rows = global_batch.min(MOST_ROWS);
    let samples = (0..rows).flat_map(|row| (0..WIDTH).map(move |at| x(row, at)));
    let weights = (0..HIGH).flat_map(|out| (0..WIDTH).map(move |at| w(out, at)));
    Feed { rows, inputs: vec![bytes(samples).into(), bytes(weights).into()], ..Feed::default() }
}

/// Returns whether a replica gave the known answer to [`feed`].
pub(crate) fn is_right(program: &Program, rows: usize, given: &Outputs) -> bool {
    let y = |row: usize, out: usize| (0..WIDTH).map(|at| x(row, at) * w(out, at)).sum::<i64>();
    let all: Vec<Vec<i64>> = (0..rows).map(|row| (0..HIGH).map(|out| y(row, out)).collect()).collect();
    let squares = all.iter().flatten().map(|y| y * y).sum::<i64>();
    let gradient = |out: usize, at: usize| (0..rows).map(|row| all[row][out] * x(row, at)).sum::<i64>();
    let gradients: Vec<i64> = (0..HIGH * WIDTH).map(|of| gradient(of / WIDTH, of % WIDTH)).collect();
    program.outputs().iter().enumerate().all(|(index, output)| {
        let expected = match &*output.name {
            "loss" => ((squares as f32) / 2.0).to_le_bytes().to_vec(),
            "loss twice" => (squares as f32).to_le_bytes().to_vec(),
            "gradient" => bytes(gradients.iter().copied()),
            "gradient twice" => bytes(gradients.iter().map(|gradient| 2 * gradient)),
            _ => bytes(all.iter().flatten().copied()),
        };
        given.bytes(index) == Some(&*expected)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn f32_holds_every_value_of_the_test() {
        let y = |row: usize, out: usize| (0..WIDTH).map(|at| x(row, at) * w(out, at)).sum::<i64>();
        let squares: i64 = (0..MOST_ROWS).flat_map(|row| (0..HIGH).map(move |out| y(row, out).pow(2))).sum();
        // Half of it, and every part of that sum, is a multiple of a half that f32 holds.
        assert!((1_000_000..1 << 24).contains(&squares), "{squares}");
        let gradient =
            |out: usize, at: usize| (0..MOST_ROWS).map(|row| (y(row, out) * x(row, at)).abs()).sum::<i64>();
        let most = (0..HIGH).flat_map(|out| (0..WIDTH).map(move |at| gradient(out, at))).max();
        assert!(most.is_some_and(|most| most < 1 << 23), "{most:?}");
    }
}
