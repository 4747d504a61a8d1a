//! Recipes for single ops. They call the methods of values.

use unisono::functional;
use unisono_graph::{Lead, Var};

use super::{Case, Recipe};

/// Returns the recipe for a case of an op, or `None` if it has none here.
pub fn recipe(case: &Case) -> Option<Recipe> {
    unary(case)
        .or_else(|| binary(case))
        .or_else(|| reduction(case))
        .or_else(|| shape(case))
        .or_else(|| fourier(case))
        .or_else(|| other(case))
}

/// Returns the recipe of a Fourier transform, whose parts are `re` and `im`.
fn fourier(case: &Case) -> Option<Recipe> {
    let parts = |(re, im): (Var, Var)| vec![("re", re), ("im", im)];
    Some(match case.op.as_str() {
        "rfft" => Recipe::many(&["x"], move |x| parts(functional::rfft(&x["x"]))),
        "fft" => Recipe::many(&["a", "b"], move |x| parts(functional::fft(&x["a"], &x["b"]))),
        "ifft" => Recipe::many(&["a", "b"], move |x| parts(functional::ifft(&x["a"], &x["b"]))),
        "irfft" => {
            let n = case.number("n")? as usize;
            Recipe::one(&["a", "b"], move |x| functional::irfft(&x["a"], &x["b"], n))
        }
        "stft" => {
            let hop = case.number("hop")? as usize;
            Recipe::many(&["x"], move |x| parts(functional::stft(&x["x"], &x["window"], hop)))
        }
        _ => return None,
    })
}

fn unary(case: &Case) -> Option<Recipe> {
    let f: fn(&Var) -> Var = match case.op.as_str() {
        "relu" => Var::relu,
        "gelu" => Var::gelu,
        "gelu_tanh" => Var::gelu_tanh,
        "silu" => Var::silu,
        "tanh" => Var::tanh,
        "sigmoid" => Var::sigmoid,
        "exp" => Var::exp,
        "log" => Var::log,
        "softplus" => Var::softplus,
        "square" => Var::square,
        "sqrt" => Var::sqrt,
        "rsqrt" => Var::rsqrt,
        "recip" => Var::recip,
        "abs" => Var::abs,
        "neg" => |x| -x,
        "sin" => Var::sin,
        "cos" => Var::cos,
        "erf" => Var::erf,
        "relu6" => Var::relu6,
        "hard_sigmoid" => Var::hard_sigmoid,
        "hard_swish" => Var::hard_swish,
        "mish" => Var::mish,
        "selu" => Var::selu,
        "floor" => Var::floor,
        "round" => Var::round,
        "elu" | "leaky_relu" | "pow" | "clamp" => return parametric(case),
        _ => return None,
    };
    Some(Recipe::one(&["x"], move |x| f(&x["x"])))
}

fn parametric(case: &Case) -> Option<Recipe> {
    let number = |name: &str, default: f64| case.number(name).unwrap_or(default) as f32;
    Some(match case.op.as_str() {
        "elu" => {
            let alpha = number("alpha", 1.0);
            Recipe::one(&["x"], move |x| x["x"].elu(alpha))
        }
        "clamp" => {
            let (low, high) = (case.number("low")? as f32, case.number("high")? as f32);
            Recipe::one(&["x"], move |x| x["x"].clamp(low, high))
        }
        "leaky_relu" => {
            let slope = number("slope", 0.01);
            Recipe::one(&["x"], move |x| x["x"].leaky_relu(slope))
        }
        _ => {
            let exponent = case.number("exponent")? as f32;
            Recipe::one(&["x"], move |x| x["x"].pow(exponent))
        }
    })
}

fn binary(case: &Case) -> Option<Recipe> {
    let f: fn(&Var, &Var) -> Var = match case.op.as_str() {
        "add" => |a, b| a + b,
        "sub" => |a, b| a - b,
        "mul" => |a, b| a * b,
        "div" => |a, b| a / b,
        "maximum" => Var::maximum,
        "minimum" => Var::minimum,
        _ => return None,
    };
    // An operand that is broadcast along the batch is global.
    let (a, b) = (case.dims("a"), case.dims("b"));
    let batched: &[&str] = match (a.len() == b.len() && a.first() == b.first(), a.len() > b.len()) {
        (true, _) => &["a", "b"],
        (_, true) => &["a"],
        _ => &[],
    };
    Some(Recipe::one(batched, move |x| f(&x["a"], &x["b"])))
}

fn reduction(case: &Case) -> Option<Recipe> {
    let axes: Vec<isize> = match case.attrs.get("axes").or_else(|| case.attrs.get("axis")) {
        Some(value) => value.as_array().cloned().unwrap_or_else(|| vec![value.clone()]),
        None => return None,
    }
    .iter()
    .filter_map(|v| v.as_i64().map(|axis| axis as isize))
    .collect();
    let keep = case.flag("keep_dims");
    // A value that is reduced over its first axis cannot be cut into samples along that axis.
    let rank = case.dims("x").len() as isize;
    let whole = axes.iter().any(|a| a.rem_euclid(rank.max(1)) == 0);
    let batched: &[&str] = if whole { &[] } else { &["x"] };
    let last = move |x: &Var, f: fn(&Var) -> Var| match axes_last(x, axes[0]) {
        Some(order) => f(&x.permute(&order)).permute(&order),
        None => f(x),
    };
    let axes = reduction_axes(case)?;
    Some(match case.op.as_str() {
        "reduce_sum" => {
            Recipe::one(batched, move |x| if keep { x["x"].sum_keep(&axes) } else { x["x"].sum(&axes) })
        }
        "reduce_max" => {
            Recipe::one(batched, move |x| if keep { x["x"].max_keep(&axes) } else { x["x"].max(&axes) })
        }
        "reduce_min" => {
            Recipe::one(batched, move |x| if keep { x["x"].min_keep(&axes) } else { x["x"].min(&axes) })
        }
        "cumulative_sum" => Recipe::one(batched, move |x| x["x"].cumulative_sum(axes[0])),
        "argmin" => Recipe::one(batched, move |x| with_axis_last(&x["x"], axes[0]).argmin()),
        "reduce_mean" => Recipe::one(batched, move |x| {
            let mean = x["x"].mean(&axes);
            if keep { mean.reshape(x["x"].sum_keep(&axes).dims()) } else { mean }
        }),
        "argmax" => Recipe::one(batched, move |x| with_axis_last(&x["x"], axes[0]).argmax()),
        "softmax" => Recipe::one(batched, move |x| last(&x["x"], Var::softmax)),
        "log_softmax" => Recipe::one(batched, move |x| last(&x["x"], Var::log_softmax)),
        _ => return None,
    })
}

fn reduction_axes(case: &Case) -> Option<Vec<isize>> {
    let value = case.attrs.get("axes").or_else(|| case.attrs.get("axis"))?;
    let list = value.as_array().cloned().unwrap_or_else(|| vec![value.clone()]);
    list.iter().map(|v| v.as_i64().map(|axis| axis as isize)).collect()
}

/// Returns the order of axes that swaps an axis, counted with the batch, with the last one; `None` if it is
/// the last one.
fn axes_last(x: &Var, axis: isize) -> Option<Vec<usize>> {
    let lead = usize::from(x.ty().lead == Lead::Sample);
    let own = axis.rem_euclid(x.ty().rank() as isize) as usize - lead;
    let last = x.dims().len() - 1;
    (own != last).then(|| {
        let mut order: Vec<usize> = (0..=last).collect();
        order.swap(own, last);
        order
    })
}

/// Moves an axis, counted with the batch, behind all others, which keep their order.
fn with_axis_last(x: &Var, axis: isize) -> Var {
    let lead = usize::from(x.ty().lead == Lead::Sample);
    let own = axis.rem_euclid(x.ty().rank() as isize) as usize - lead;
    let mut order: Vec<usize> = (0..x.dims().len()).filter(|&axis| axis != own).collect();
    order.push(own);
    if own + 1 == order.len() { x.clone() } else { x.permute(&order) }
}

fn shape(case: &Case) -> Option<Recipe> {
    Some(match case.op.as_str() {
        "transpose" => {
            let perm = case.sizes("perm")?;
            if perm.first() == Some(&0) {
                let order: Vec<usize> = perm[1..].iter().map(|axis| axis - 1).collect();
                Recipe::one(&["x"], move |x| x["x"].permute(&order))
            } else {
                Recipe::one(&[], move |x| x["x"].permute(&perm))
            }
        }
        "concat" => {
            let axis = case.number("axis")? as isize;
            let batched: &[&str] =
                if axis == 0 || axis + case.dims("a").len() as isize == 0 { &[] } else { &["a", "b"] };
            Recipe::one(batched, move |x| x["a"].concat(&[&x["b"]], axis))
        }
        "slice" => {
            let (axis, start, end) =
                (case.number("axis")? as isize, case.number("start")?, case.number("end")?);
            let batched: &[&str] = if axis == 0 { &[] } else { &["x"] };
            Recipe::one(batched, move |x| x["x"].slice(axis, start as usize..end as usize))
        }
        "pad" => {
            let (before, after) = (case.sizes("before")?, case.sizes("after")?);
            if before[0] + after[0] == 0 {
                Recipe::one(&["x"], move |x| x["x"].pad(&before[1..], &after[1..]))
            } else {
                Recipe::one(&[], move |x| x["x"].pad(&before, &after))
            }
        }
        "broadcast_to" => {
            let dims = case.sizes("shape")?;
            Recipe::one(&[], move |x| x["x"].expand(Lead::Global, &dims))
        }
        "reshape" => {
            let dims = case.sizes("shape")?;
            Recipe::one(&[], move |x| x["x"].reshape(&dims))
        }
        _ => return None,
    })
}

fn other(case: &Case) -> Option<Recipe> {
    Some(match case.op.as_str() {
        // The rows of a plain product are samples, and so is the first axis of a batched product.
        "matmul" if case.dims("b").len() <= 2 || case.dims("a").len() != case.dims("b").len() => {
            Recipe::one(&["a"], |x| x["a"].matmul(&x["b"]))
        }
        "matmul" => Recipe::one(&["a", "b"], |x| x["a"].matmul(&x["b"])),
        "topk" => {
            let k = case.number("k")? as usize;
            Recipe::many(&["x"], move |x| {
                let (values, indices) = x["x"].top_k(k);
                vec![("values", values), ("indices", indices)]
            })
        }
        "einsum" => einsum(case)?,
        "gather" => Recipe::one(&["x", "index"], |x| x["x"].gather(&x["index"])),
        "embedding" => Recipe::one(&["ids"], |x| x["weight"].embed(&x["ids"])),
        _ => return None,
    })
}

/// Returns a sum of the operands `a`, `b`, ... by an equation. `batched` names those with samples.
fn einsum(case: &Case) -> Option<Recipe> {
    let equation = case.text("equation")?.to_owned();
    let batched: &[&str] = match case.text("batched")? {
        "a" => &["a"],
        "b" => &["b"],
        "c" => &["c"],
        "ab" => &["a", "b"],
        "ac" => &["a", "c"],
        "bc" => &["b", "c"],
        "abc" => &["a", "b", "c"],
        _ => &[],
    };
    Some(Recipe::one(batched, move |x| {
        let operands: Vec<&Var> = ["a", "b", "c"].iter().filter_map(|role| x.get(*role)).collect();
        operands[0].tape().einsum(&equation, &operands)
    }))
}
