//! Recipes for layers. They call the functions that the public layers are made of.

use unisono::functional::{self, GruWeights, LstmWeights, RnnWeights};
use unisono_graph::Var;
use unisono_graph::ops::Window;

use super::{Case, Recipe, Vars, as_layer};

/// Returns the recipe for a case of a layer, or `None` if the op is not a layer.
pub fn recipe(case: &Case) -> Option<Recipe> {
    match case.op.as_str() {
        "linear" => Some(linear(case)),
        "conv2d" => conv2d(case),
        "conv_transpose2d" => conv_transpose2d(case),
        "max_pool2d" | "avg_pool2d" => pool(case),
        "global_avg_pool2d" => Some(Recipe::one(&["x"], |x| x["x"].mean(&[-2, -1]))),
        "batch_norm" => Some(batch_norm(case)),
        "layer_norm" | "rms_norm" | "group_norm" => norm(case),
        "lstm" => Some(Recipe::many(&["x", "h0", "c0"], |x| {
            let (y, h, c) = functional::lstm(&x["x"], &lstm_weights(x), &x["h0"], &x["c0"]);
            vec![("y", y), ("hn", h), ("cn", c)]
        })),
        "gru" => Some(Recipe::many(&["x", "h0"], |x| {
            let (y, h) = functional::gru(&x["x"], &gru_weights(x), &x["h0"]);
            vec![("y", y), ("hn", h)]
        })),
        "scaled_dot_product_attention" => {
            let causal = case.flag("causal");
            Some(Recipe::one(&["q", "k", "v"], move |x| {
                functional::scaled_dot_product_attention(&x["q"], &x["k"], &x["v"], causal)
            }))
        }
        "masked_attention" => {
            let causal = case.flag("causal");
            Some(Recipe::one(&["q", "k", "v", "mask"], move |x| {
                let [q, k, v] = ["q", "k", "v"].map(|role| &x[role]);
                functional::scaled_dot_product_attention_masked(q, k, v, causal, x.get("mask"))
            }))
        }
        "rnn" => Some(Recipe::many(&["x", "h0"], |x| {
            let (y, h) = functional::rnn(&x["x"], &rnn_weights(x), &x["h0"]);
            vec![("y", y), ("hn", h)]
        })),
        "grouped_query_attention" => {
            let causal = case.flag("causal");
            Some(Recipe::one(&["q", "k", "v"], move |x| {
                let times = x["q"].dims()[0] / x["k"].dims()[0];
                let [k, v] = ["k", "v"].map(|role| functional::repeat_heads(&x[role], times));
                functional::scaled_dot_product_attention(&x["q"], &k, &v, causal)
            }))
        }
        "rotary" => {
            let base = case.number("base")? as f32;
            Some(Recipe::one(&["x"], move |x| functional::rotary(&x["x"], base)))
        }
        _ => as_layer::layer(case),
    }
}

fn batch_norm(case: &Case) -> Recipe {
    let epsilon = case.number("eps").unwrap_or(1e-5) as f32;
    let momentum = case.number("momentum").unwrap_or(0.1) as f32;
    if !case.flag("training") {
        return Recipe::one(&["x"], move |x| {
            functional::batch_norm_with(&x["x"], &x["rm"], &x["rv"], x.get("w"), x.get("b"), epsilon)
        });
    }
    Recipe::many(&["x"], move |x| {
        let normed = functional::batch_norm(&x["x"], x.get("w"), x.get("b"), epsilon);
        let (mean, variance) = normed.running(&x["rm"], &x["rv"], momentum);
        vec![("y", normed.y), ("running_mean", mean), ("running_var", variance)]
    })
}

fn norm(case: &Case) -> Option<Recipe> {
    let epsilon = case.number("eps").unwrap_or(1e-5) as f32;
    let axes = case.sizes("normalized_shape").map_or(1, |dims| dims.len());
    Some(match case.op.as_str() {
        "layer_norm" => Recipe::one(&["x"], move |x| {
            functional::layer_norm(&x["x"], axes, x.get("w"), x.get("b"), epsilon)
        }),
        "rms_norm" => Recipe::one(&["x"], move |x| functional::rms_norm(&x["x"], axes, x.get("w"), epsilon)),
        _ => {
            let groups = case.number("groups")? as usize;
            Recipe::one(&["x"], move |x| {
                functional::group_norm(&x["x"], groups, x.get("w"), x.get("b"), epsilon)
            })
        }
    })
}

fn lstm_weights(x: &Vars) -> LstmWeights {
    let [weight_ih, weight_hh] = [x["w_ih"].clone(), x["w_hh"].clone()];
    LstmWeights { weight_ih, weight_hh, bias_ih: optional(x, "b_ih"), bias_hh: optional(x, "b_hh") }
}

fn gru_weights(x: &Vars) -> GruWeights {
    let [weight_ih, weight_hh] = [x["w_ih"].clone(), x["w_hh"].clone()];
    GruWeights { weight_ih, weight_hh, bias_ih: optional(x, "b_ih"), bias_hh: optional(x, "b_hh") }
}

fn rnn_weights(x: &Vars) -> RnnWeights {
    let [weight_ih, weight_hh] = [x["w_ih"].clone(), x["w_hh"].clone()];
    RnnWeights { weight_ih, weight_hh, bias_ih: optional(x, "b_ih"), bias_hh: optional(x, "b_hh") }
}

fn optional(x: &Vars, role: &str) -> Option<Var> {
    x.get(role).cloned()
}

fn linear(case: &Case) -> Recipe {
    let bias = case.inputs.contains_key("b");
    Recipe::one(&["x"], move |x| {
        let y = x["x"].matmul_t(&x["w"]);
        if bias { y + &x["b"] } else { y }
    })
}

/// Returns the window of a case. Attributes that are missing have PyTorch's default values.
fn window(case: &Case, kernel: [usize; 2], stride: [usize; 2]) -> Window {
    Window {
        kernel,
        stride: case.pair("stride").unwrap_or(stride),
        dilation: case.pair("dilation").unwrap_or([1, 1]),
        padding: case.pair("padding").unwrap_or([0, 0]),
    }
}

fn conv2d(case: &Case) -> Option<Recipe> {
    let kernel: [usize; 2] = case.dims("w").get(2..)?.try_into().ok()?;
    let (window, groups) = (window(case, kernel, [1, 1]), case.number("groups").unwrap_or(1.0) as usize);
    let bias = case.inputs.contains_key("b");
    Some(Recipe::one(&["x"], move |x| {
        let y = x["x"].conv2d(&x["w"], &window, groups);
        if bias { y + x["b"].reshape(&[x["b"].dims()[0], 1, 1]) } else { y }
    }))
}

fn conv_transpose2d(case: &Case) -> Option<Recipe> {
    let kernel: [usize; 2] = case.dims("w").get(2..)?.try_into().ok()?;
    let input: [usize; 2] = case.dims("x").get(2..)?.try_into().ok()?;
    let (window, groups) = (window(case, kernel, [1, 1]), case.number("groups").unwrap_or(1.0) as usize);
    let extra = case.pair("output_padding").unwrap_or([0, 0]);
    let along = |a: usize| {
        (input[a] - 1) * window.stride[a] + window.dilation[a] * (kernel[a] - 1) + 1 + extra[a]
            - 2 * window.padding[a]
    };
    let image = [along(0), along(1)];
    let bias = case.inputs.contains_key("b");
    Some(Recipe::one(&["x"], move |x| {
        let y = x["x"].conv_transpose2d(&x["w"], &window, groups, image);
        if bias { y + x["b"].reshape(&[x["b"].dims()[0], 1, 1]) } else { y }
    }))
}

fn pool(case: &Case) -> Option<Recipe> {
    let kernel = case.pair("kernel")?;
    let window = window(case, kernel, kernel);
    let largest = case.op == "max_pool2d";
    let border_counts = case.flag("count_include_pad");
    Some(Recipe::one(&["x"], move |x| match (largest, border_counts) {
        (true, _) => x["x"].max_pool2d(&window),
        (false, false) => x["x"].avg_pool2d(&window),
        (false, true) => x["x"].windows(&window, 0.0).mean(&[-2, -1]),
    }))
}
