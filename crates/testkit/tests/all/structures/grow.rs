//! The ways in which a random model grows by a value.

use unisono_graph::ops::{Attention, Window};
use unisono_graph::{Type, Var};

use super::model::Builder;

/// The lengths of rows: multiples of four and others, of one chunk of a sum and of several.
const WIDTHS: [usize; 8] = [4, 5, 8, 12, 20, 33, 64, 300];

/// A way to make a value of others. It answers `None` where the one that it drew has no use for it.
type Way = fn(&mut Builder, &Var) -> Option<Var>;

/// Each way beside how often it is taken.
const WAYS: [(u32, Way); 14] = [
    (6, dense),
    (5, map),
    (4, of_two),
    (2, of_rows),
    (3, put_together),
    (4, view),
    (2, repeated),
    (2, reduction),
    (2, statistic),
    (3, product),
    (2, shortcut),
    (2, attention),
    (3, picture),
    (2, lookup),
];

/// Returns a value that is made of earlier ones, or `None` where what was drawn does not fit.
pub fn grow(model: &mut Builder) -> Option<Var> {
    let x = model.pick();
    let mut left = model.below(WAYS.iter().map(|(often, _)| *often as usize).sum());
    for (often, way) in WAYS {
        match left.checked_sub(often as usize) {
            Some(rest) => left = rest,
            None => return way(model, &x),
        }
    }
    None
}

fn width(x: &Var) -> Option<usize> {
    x.dims().last().copied()
}

/// An axis of a sample, counted from the last one.
fn from_end(x: &Var, axis: usize) -> isize {
    axis as isize - x.dims().len() as isize
}

/// A layer with weights.
fn dense(model: &mut Builder, x: &Var) -> Option<Var> {
    let width = width(x)?;
    let out = if model.below(2) == 0 { width } else { WIDTHS[model.below(WIDTHS.len())] };
    let w = model.state(&[out, width]);
    let product = x.matmul_t(&w);
    Some(match model.below(4) {
        0 | 3 => product,
        1 => (product + model.state(&[out])).gelu(),
        _ => product.tanh(),
    })
}

/// A value of one, element by element. Kinks are where no structure leads: a rounding on the other side of
/// one would be a difference to the reference.
fn map(model: &mut Builder, x: &Var) -> Option<Var> {
    Some(match model.below(9) {
        0 => x.gelu(),
        1 => x.tanh(),
        2 => (x + 0.0371).relu(),
        3 => x.sigmoid() * 0.5,
        4 => x.softplus() - 0.5,
        5 => x.silu(),
        6 => (x * 0.3).sin() + 0.25,
        7 => x.square().recip_of_more(),
        _ => x.dropout(0.25, &format!("dropout {}", model.len())),
    })
}

/// A map whose result stays small whatever the operand is.
trait Small {
    fn recip_of_more(&self) -> Var;
}

impl Small for Var {
    fn recip_of_more(&self) -> Var {
        (self + 1.5).recip()
    }
}

/// A value of two, element by element.
fn of_two(model: &mut Builder, x: &Var) -> Option<Var> {
    let y = model.like(x);
    Some(match model.below(8) {
        0 => x.sigmoid() * &y,
        1 => x + &y,
        2 => x * &y.tanh(),
        3 => x - &(y * 0.3),
        4 => y / &(x.square() + 1.0),
        5 if model.below(2) == 0 => x + model.state(&[width(x)?]),
        5 => {
            // Some of the axes, or all of them, and lengths of 1.
            let from = model.below(x.dims().len() + 1);
            let dims: Vec<usize> =
                x.dims()[from..].iter().map(|&n| if model.below(3) == 0 { 1 } else { n }).collect();
            x + model.state(&dims)
        }
        6 => x.maximum(&(y + 0.0213)),
        _ => {
            let leaf = model.leaf_like(x)?;
            leaf.greater(&model.tape.constant(0.1)).select(x, &y)
        }
    })
}

/// Rows beside their own sums.
fn of_rows(model: &mut Builder, x: &Var) -> Option<Var> {
    let width = width(x)?;
    Some(match model.below(4) {
        0 => x.softmax(),
        1 => x.log_softmax() * 0.2,
        2 => {
            let mean = |x: &Var| x.sum_keep(&[-1]) / width as f32;
            let centred = x - mean(x);
            &centred * (mean(&centred.square()) + 1e-3).rsqrt()
        }
        _ => x * &x.square().sum_keep(&[-1]).tanh(),
    })
}

/// Values one behind the other, along any axis.
fn put_together(model: &mut Builder, x: &Var) -> Option<Var> {
    if x.dims().is_empty() {
        return None;
    }
    let axis = model.below(x.dims().len());
    if model.below(2) == 0 {
        let others: Vec<Var> = (0..1 + model.below(2)).map(|_| model.beside(x, axis)).collect();
        return Some(x.concat(&others.iter().collect::<Vec<_>>(), from_end(x, axis)));
    }
    two_parts(model, x, axis)
}

/// A value of the same shape of two parts.
fn two_parts(model: &mut Builder, x: &Var, axis: usize) -> Option<Var> {
    let length = x.dims()[axis];
    let axis = from_end(x, axis);
    if length < 2 {
        return None;
    }
    let cut = 1 + model.below(length - 1);
    let (y, z) = (model.like(x), model.like(x));
    let parts = [y.slice(axis, 0..cut), z.slice(axis, cut..length)];
    let [first, second] = parts.map(|part| match model.below(4) {
        0 => part.tanh(),
        1 => (part + 0.0417).relu(),
        2 => part.sigmoid() * 0.5,
        _ => -part,
    });
    Some(first.concat(&[&second], axis))
}

/// The same elements, or some of them, elsewhere.
fn view(model: &mut Builder, x: &Var) -> Option<Var> {
    let dims = x.dims().to_vec();
    let rank = dims.len();
    match model.below(6) {
        0 if rank > 1 => {
            let mut order: Vec<usize> = (0..rank).collect();
            (1..rank).for_each(|i| order.swap(i, model.below(i + 1)));
            Some(x.permute(&order))
        }
        1 if rank > 1 => {
            let axis = model.below(rank - 1);
            let joined = [&dims[..axis], &[dims[axis] * dims[axis + 1]], &dims[axis + 2..]].concat();
            Some(x.reshape(&joined))
        }
        2 | 3 if (1..5).contains(&rank) => {
            let axis = model.below(rank);
            let parts = [2, 3, 4, 5, 1][model.below(5)];
            let fits = dims[axis].is_multiple_of(parts);
            let [one, other] =
                if model.below(2) == 0 { [parts, dims[axis] / parts] } else { [dims[axis] / parts, parts] };
            fits.then(|| x.reshape(&[&dims[..axis], &[one, other], &dims[axis + 1..]].concat()))
        }
        4 if rank > 0 => {
            let axis = model.below(rank);
            let first = model.below(dims[axis]);
            let end = first + 1 + model.below(dims[axis] - first);
            Some(x.slice(from_end(x, axis), first..end))
        }
        5 if rank > 0 => {
            let mut borders = || (0..rank).map(|_| model.below(4).saturating_sub(1)).collect::<Vec<_>>();
            Some(x.pad(&borders(), &borders()))
        }
        _ => None,
    }
}

/// The same elements again and again, along a new axis or one of length 1.
fn repeated(model: &mut Builder, x: &Var) -> Option<Var> {
    let mut dims = x.dims().to_vec();
    let axis = model.below(dims.len() + 1);
    let times = 2 + model.below(4);
    if dims.len() > 3 {
        return None;
    }
    dims.insert(axis, 1);
    let one = x.reshape(&dims);
    dims[axis] = times;
    let all = one.expand(x.ty().lead, &dims);
    // Repeated and joined with what stands before or behind: tiles, or each element several times.
    match model.below(3) {
        0 if axis + 1 < dims.len() => {
            let joined = times * dims.remove(axis + 1);
            dims[axis] = joined;
            Some(all.reshape(&dims))
        }
        1 if axis > 0 => {
            let joined = times * dims.remove(axis - 1);
            dims[axis - 1] = joined;
            Some(all.reshape(&dims))
        }
        _ => Some(all),
    }
}

/// Sums and largest elements along some of the axes.
fn reduction(model: &mut Builder, x: &Var) -> Option<Var> {
    let rank = x.dims().len();
    let axes: Vec<isize> = (-(rank as isize)..0).filter(|_| model.below(2) == 0).collect();
    if axes.is_empty() {
        return (rank > 0).then(|| x.cumulative_sum(-1) * 0.2);
    }
    Some(match model.below(6) {
        0 => x.sum(&axes) * 0.3,
        1 => x - &(x.mean(&axes)).reshape(&kept(x, &axes)),
        2 => x.max(&axes),
        3 => x * &x.max_keep(&axes),
        4 => x.min_keep(&axes),
        _ => x * &(x.square().sum_keep(&axes) * 0.1).tanh(),
    })
}

/// The axes of a reduction that keeps those that it reduces.
fn kept(x: &Var, axes: &[isize]) -> Vec<usize> {
    let length = |(axis, n): (usize, &usize)| if axes.contains(&from_end(x, axis)) { 1 } else { *n };
    x.dims().iter().enumerate().map(length).collect()
}

/// A statistic of the whole batch, for each sample.
fn statistic(model: &mut Builder, x: &Var) -> Option<Var> {
    let part = 1.0 / model.samples() as f32;
    let mean = |x: &Var| x.sum_samples().sum_shards() * part;
    let everywhere = |y: &Var| y.expand(x.ty().lead, x.dims());
    Some(match model.below(3) {
        0 => x - everywhere(&mean(x)),
        1 => x * everywhere(&(mean(&x.square()) + 0.01).rsqrt()) * 0.5,
        _ => x + everywhere(&mean(x).tanh()),
    })
}

/// Products of values with each other and with weights on either side.
fn product(model: &mut Builder, x: &Var) -> Option<Var> {
    let dims = x.dims().to_vec();
    let [rows, width] = *dims.last_chunk()?;
    let y = model.like(x);
    let filters = 1 + model.below(40);
    match model.below(5) {
        0 => Some(x.matmul_t(&y).softmax().matmul(&y)),
        1 => Some(model.state(&[filters, width]).matmul_t(x)),
        2 if dims.len() == 2 => Some(model.state(&[filters, rows]).matmul(x)),
        3 => Some(y.transpose(-1, -2).matmul(x) * 0.3),
        _ => Some(x.matmul(&y.transpose(-1, -2)) * 0.3),
    }
}

/// A product, and a way round it that is computed later.
fn shortcut(model: &mut Builder, x: &Var) -> Option<Var> {
    let width = width(x)?;
    let w = model.state(&[width, width]);
    let product = x.matmul_t(&w);
    let shortcut = match model.below(4) {
        0 | 1 => two_parts(model, x, x.dims().len() - 1)?,
        2 => x * &model.like(x).square().sum_keep(&[-1]).tanh(),
        _ => model.like(x).softmax(),
    };
    model.keep(&product);
    Some(match model.below(3) {
        0 => (&product + &shortcut).gelu(),
        1 => &product * &shortcut,
        _ => product.sigmoid() * &shortcut,
    })
}

/// Attention of heads, or of whole values, to each other, with as many keys as queries or others.
fn attention(model: &mut Builder, x: &Var) -> Option<Var> {
    let [rows, width] = *x.dims().last_chunk()?;
    let apart = x.dims().len() == 2 && model.below(2) == 0;
    let (k, v) = (model.like(x), model.like(x));
    let (mut k, mut v) = (k, if model.below(3) == 0 { v.gelu() } else { v });
    if model.below(3) == 0 {
        (k, v) = (k.concat(&[x], -2), v.concat(&[x], -2));
    }
    let q = if width <= 64 && model.below(2) == 0 {
        let w = model.state(&[width, width]);
        x.matmul_t(&w)
    } else {
        x.clone()
    };
    let heads = [4, 3, 2, 1].into_iter().find(|heads| width % heads == 0 && apart).unwrap_or(1);
    if width / heads > 256 {
        return None;
    }
    let causal = model.below(2) == 0;
    let op = Attention { causal, scale: 0.5 };
    let masked = model.below(3) == 0;
    let attend = |q: &Var, k: &Var, v: &Var, model: &Builder| {
        let mut operands = vec![q, k, v];
        let mask = model.mask(q, k);
        operands.extend(masked.then_some(&mask));
        model.tape.apply(op, &operands)
    };
    if !apart {
        return Some(attend(&q, &k, &v, model));
    }
    let split = |x: &Var| x.reshape(&[x.dims()[0], heads, width / heads]).permute(&[1, 0, 2]);
    let y = attend(&split(&q), &split(&k), &split(&v), model);
    Some(y.permute(&[1, 0, 2]).reshape(&[rows, width]))
}

/// Convolutions and pools.
fn picture(model: &mut Builder, x: &Var) -> Option<Var> {
    let (channels, image) = match *x.dims() {
        [channels, height, width] => (channels, [height, width]),
        [height, width] => (1, [height, width]),
        _ => return None,
    };
    let x = x.reshape(&[channels, image[0], image[1]]);
    let mut two = |least: usize, count: usize| [least + model.below(count), least + model.below(count)];
    let window = Window { kernel: two(1, 3), stride: two(1, 2), dilation: two(1, 2), padding: two(0, 2) };
    window.count(image).ok()?;
    let groups = if channels % 2 == 0 && model.below(3) == 0 { 2 } else { 1 };
    let [height, width] = window.kernel;
    match model.below(5) {
        // A window of the border alone has -inf.
        0 => Some(x.max_pool2d(&window).maximum(&model.tape.constant(-2.0))),
        1 => Some(x.avg_pool2d(&window)),
        2 => {
            let at = window.count(image).ok()?;
            let w = model.state(&[channels, 2, height, width]);
            let small = x.slice(-2, 0..at[0].min(image[0])).slice(-1, 0..at[1].min(image[1]));
            (small.dims()[1..] == at).then(|| small.conv_transpose2d(&w, &window, 1, image))
        }
        _ => {
            let filters = groups * (1 + model.below(5));
            let w = model.state(&[filters, channels / groups, height, width]);
            Some(x.conv2d(&w, &window, groups))
        }
    }
}

/// What the ids name: rows of a table, or elements of rows.
fn lookup(model: &mut Builder, x: &Var) -> Option<Var> {
    let ids = model.ids.clone();
    let count = ids.dims()[0];
    match model.below(3) {
        0 => {
            let width = 1 + model.below(24);
            Some(model.state(&[7, width]).embed(&ids))
        }
        1 => {
            let rows = x.flatten();
            let all = rows.dims()[0];
            Some(rows.reshape(&[1, all]).expand(x.ty().lead, &[count, all]).take(&ids))
        }
        _ => (x.dims().first() == Some(&count) && x.dims().len() == 2).then(|| x.take(&ids)),
    }
}

/// Returns the types of the inputs of every model.
pub fn inputs() -> [(&'static str, Type); 5] {
    let of = |name, dims: &[usize]| (name, Type::sample(dims));
    [of("x", &[20]), of("y", &[5, 12]), of("z", &[64]), of("image", &[2, 6, 7]), of("scalar", &[])]
}
