//! Notes about a model that would train, and most likely not to what its author wants.

use unisono_graph::{StateKind, Type};

use crate::Chain;
use crate::compile::objective::{LossOn, On};
use crate::compile::parts::Parts;
use crate::compile::programs::Programs;
use crate::model::context::{FrozenNames, SummaryLine};
use crate::model::functional::OUTPUT;
use crate::objective::metrics::wrong_way;

/// The most channels that a picture has.
const CHANNELS: usize = 4;
/// The fewest rows and columns of a picture that is told from channels.
const SIDE: usize = 8;

/// The most names in a note.
const MOST_NAMES: usize = 5;

/// Returns what a user should know of a model and its optimizer.
pub(crate) fn advice(parts: &Parts, programs: &Programs) -> Vec<String> {
    let mut notes = Vec::new();
    notes.extend(activations_before_losses(programs));
    notes.extend(activations_before_metrics(parts, programs));
    notes.extend(numbers_as_probabilities(parts, programs));
    notes.extend(ignored_and_counted(parts));
    notes.extend(channels_last(programs));
    notes.extend(steps_as_channels(programs));
    notes.extend(along_width(programs));
    notes.extend(dropped_outputs(programs));
    notes.extend(programs.notes.told.iter().cloned());
    notes.extend(one_of_several(parts, programs));
    notes.extend(softmax_of_one(programs));
    let states = programs.train().states();
    let names = programs.states_of(&[StateKind::Parameter]);
    let names: Vec<&str> = names.into_iter().map(|index| &*states[index].name).collect();
    notes.extend(parts.freeze_notes(&names));
    notes.extend(parts.optimizer_notes());
    notes.extend(parts.note_on_averages());
    if parts.all_losses().all(|loss| loss.weight == 0.0) {
        notes.push("all losses have the weight 0: they train nothing".into());
    }
    notes.extend(out_of_reach(parts, programs, names.is_empty()));
    notes.extend(moving_statistics(parts, programs));
    notes.extend(plateaus(parts));
    let statistics = programs.states_of(&[StateKind::Statistic]);
    let accepts = |accepts: &FrozenNames| statistics.iter().any(|&index| accepts(&states[index].name));
    if parts.frozen_statistics.as_ref().is_some_and(|names| !accepts(&**names)) {
        let names: Vec<&str> = statistics.iter().map(|&index| &*states[index].name).collect();
        let there = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
        notes.push(format!("freeze_statistics accepts none of the model's statistics, which are {there}"));
    }
    notes
}

/// A parameter that is not frozen and that no loss depends on was most likely detached or forgotten.
fn out_of_reach(parts: &Parts, programs: &Programs, has_none: bool) -> Option<String> {
    if has_none {
        return Some("the model has no parameters: nothing is trained".into());
    }
    let names: Vec<&str> =
        programs.kept.iter().map(|name| &**name).filter(|name| parts.is_to_be_trained(name)).collect();
    let named = first_of(&names);
    (!names.is_empty()).then(|| format!("no loss depends on {named}: training does not change them"))
}

/// Returns the first names of a list as text, and how many more there are.
fn first_of(names: &[&str]) -> String {
    let more = names.len().saturating_sub(MOST_NAMES);
    let named = names[..names.len() - more].join(", ");
    if more == 0 { named } else { format!("{named} and {more} more") }
}

/// A schedule that is lowered where a metric improves lowers it too early.
fn plateaus(parts: &Parts) -> Vec<String> {
    let phases = parts.phases.iter().map(|phase| &phase.optimizer);
    let all = std::iter::once(&parts.optimizer).filter(|_| parts.phases.is_empty()).chain(phases);
    let metrics = &parts.objective().metrics;
    let who = "the schedule of the learning rate";
    all.flat_map(Chain::plateaus).filter_map(|plateau| wrong_way(metrics, who, plateau.watches())).collect()
}

/// A loss that takes logits computes softmax or sigmoid itself.
fn activations_before_losses(programs: &Programs) -> Vec<String> {
    let last = programs.summary.last();
    let note = |(loss, _): &(LossOn, Type)| {
        let name = loss.loss.name();
        // Hinge losses apply no activation: the margin between scores is what they train.
        let own = match name {
            "multi-class hinge" => "softmax",
            "hinge" => "sigmoid",
            _ => loss.loss.activation()?,
        };
        let found = *programs.activations.get(&loss.on.output)?;
        let takes = match name {
            "hinge" | "multi-class hinge" => format!("the loss {name} takes scores of any size, so leave"),
            _ if found == "relu" => format!("the loss {name} takes logits of any sign, so leave"),
            _ if found == "tanh" => format!("the loss {name} takes logits of any size, so leave"),
            _ => format!("the loss {name} takes logits: it computes {own} itself, so leave"),
        };
        Some(match last.filter(|line| line.kind == found && loss.on.output == OUTPUT) {
            Some(line) => format!("the model ends in {} ({found}), and {takes} the layer out", line.path),
            None => format!("the model's output {:?} is a {found}, and {takes} it out", loss.on.output),
        })
    };
    programs.losses.iter().filter_map(note).collect()
}

/// A metric that compares logits with a threshold finds all probabilities above it.
fn activations_before_metrics(parts: &Parts, programs: &Programs) -> Option<String> {
    let mut all = parts.objective().named_metrics().filter(|(metric, ..)| metric.takes_logits());
    all.find_map(|(metric, on, kind)| {
        let activation =
            programs.activations.get(&on.output).filter(|found| !["relu", "tanh"].contains(found))?;
        // A note on the loss says more.
        if parts.all_losses().any(|loss| loss.on.output == on.output && loss.loss.activation().is_some()) {
            return None;
        }
        let [metric, output] = [metric.name(), &on.output];
        let instead = match kind {
            "binary accuracy" => ": use F1::binary().probabilities() instead",
            "perplexity" => "",
            _ => ": call probabilities() on the metric",
        };
        Some(format!(
            "the metric {metric} takes logits, and the output {output:?} is a {activation}{instead}"
        ))
    })
}

/// What a dense layer gives is any number, and a threshold or a logarithm of probabilities takes 0 to 1.
fn numbers_as_probabilities(parts: &Parts, programs: &Programs) -> Option<String> {
    let objective = parts.objective();
    let losses = parts.all_losses().filter(|loss| loss.loss.takes_probabilities());
    let losses = losses.map(|loss| (loss.loss.name(), &loss.on.output));
    let metrics = objective.metrics.iter().zip(&objective.measured);
    let metrics = metrics.filter(|(metric, _)| metric.takes_probabilities());
    let metrics = metrics.map(|(metric, on)| (metric.name(), &on.output));
    let (name, output) = losses.chain(metrics).find(|(_, output)| programs.linear.contains(*output))?;
    Some(format!(
        "{name} takes probabilities, but the output {output:?} of a dense layer may be any number: add Sigmoid or \
         Softmax after it, or leave out probabilities()"
    ))
}

/// A metric follows no setting of the loss.
fn ignored_and_counted(parts: &Parts) -> Option<String> {
    let objective = parts.objective();
    let measured = || objective.metrics.iter().zip(&objective.measured);
    parts.all_losses().find_map(|loss| {
        let label = loss.loss.ignored_label()?;
        let (metric, _) = measured().find(|(metric, on)| **on == loss.on && metric.counts_label(label))?;
        Some(format!(
            "the loss {} ignores the label {label}, and the metric {} counts it: call ignore_index({label}) on the \
             metric too",
            loss.loss.name(),
            metric.name()
        ))
    })
}

/// A batch norm whose parameters are frozen goes on to move its statistics, and to use those of the batch.
fn moving_statistics(parts: &Parts, programs: &Programs) -> Option<String> {
    if parts.frozen_statistics.is_some() {
        return None;
    }
    let (states, steps) = (programs.train().states(), || programs.trains());
    let moves = |at: &usize| steps().any(|step| step.graph().updates.contains_key(at));
    let layer = |name: &str| name.rsplit_once('.').map_or(String::new(), |(layer, _)| format!("{layer}."));
    let parameters = programs.states_of(&[StateKind::Parameter]);
    let parameters: Vec<&str> = parameters.into_iter().map(|at| &*states[at].name).collect();
    let is_frozen = |at: &usize| {
        let layer = layer(&states[*at].name);
        let own: Vec<&&str> = parameters.iter().filter(|name| of_layer(name, &layer)).collect();
        !own.is_empty() && !own.iter().any(|name| parts.is_to_be_trained(name))
    };
    let statistics = programs.states_of(&[StateKind::Statistic]).into_iter();
    let names: Vec<&str> = statistics.filter(moves).filter(is_frozen).map(|at| &*states[at].name).collect();
    let named = first_of(&names);
    (!names.is_empty()).then(|| {
        format!(
            "training changes {named}, although the parameters of the same layer are frozen: \
             Builder::freeze_statistics keeps them unchanged and uses them, as Keras's trainable = False does"
        )
    })
}

/// Returns whether a parameter is of the layer whose names begin so, and not of a layer inside of it.
fn of_layer(name: &str, layer: &str) -> bool {
    name.strip_prefix(layer).is_some_and(|own| !own.contains('.'))
}

/// Returns the layers that have no layers inside, in the order in which the model applies them.
fn leaves(programs: &Programs) -> impl Iterator<Item = &SummaryLine> {
    let lines = &programs.summary;
    let is_inside =
        |inner: &SummaryLine, outer: &SummaryLine| inner.path.starts_with(&format!("{}.", outer.path));
    let is_leaf = move |(at, line): &(usize, &SummaryLine)| {
        !lines.get(at + 1).is_some_and(|next| is_inside(next, line))
    };
    lines.iter().enumerate().filter(is_leaf).map(|(_, line)| line)
}

/// Layers of one axis take `[B, C, T]`; data from Keras, embeddings and recurrent layers give `[B, T, C]`.
fn steps_as_channels(programs: &Programs) -> Option<String> {
    const OF_STEPS: [&str; 5] = ["embedding", "lstm", "gru", "simple_rnn", "multi_head_attention"];
    const OF_CHANNELS: [&str; 6] =
        ["conv1d", "max_pool1d", "avg_pool1d", "global_avg_pool1d", "global_max_pool1d", "batch_norm"];
    let states = programs.train().states();
    let channels = |line: &SummaryLine| {
        let weight = format!("{}.weight", line.path);
        let weight = states.iter().find(|state| state.name == weight).and_then(|state| state.ty.dims.get(1));
        weight.or(line.output.dims.first()).copied()
    };
    let note = |line: &SummaryLine, steps: usize, features: usize| {
        format!(
            "{} ({}) takes {steps} channels of {features} steps: if these are {steps} steps of {features} features, put \
             FromFn::new(\"channels first\", |_, x| x.transpose(1, 2)) before it",
            line.path, line.kind
        )
    };
    let all: Vec<&SummaryLine> = leaves(programs).collect();
    let is_of_channels = |line: &SummaryLine| OF_CHANNELS.contains(&&*line.kind);
    if let (Some(first), &[steps, features]) = (all.first(), &*programs.input.dims)
        && is_of_channels(first)
        && steps > features
    {
        return Some(note(first, steps, features));
    }
    all.windows(2).find_map(|pair| {
        let &[before, line] = pair else { return None };
        let &[steps, features] = &*before.output.dims else { return None };
        let is_turned = is_of_channels(line) && OF_STEPS.contains(&&*before.kind) && steps != features;
        (is_turned && channels(line) == Some(steps)).then(|| note(line, steps, features))
    })
}

/// The last axis of a picture is its width, and that of Keras's pictures has the channels.
fn along_width(programs: &Programs) -> Option<String> {
    let all: Vec<&SummaryLine> = leaves(programs).collect();
    all.windows(2).find_map(|pair| {
        let &[before, line] = pair else { return None };
        let &[channels, height, width] = &*before.output.dims else { return None };
        let output = &*line.output.dims;
        let instead = match &*line.kind {
            "layer_norm" | "rms_norm" if output == [channels, height, width] && line.parameters <= 2 * width => {
                "GroupNorm::new(1) normalizes a picture, and to normalize the channels of each pixel, put channels \
                 last (permute)"
            }
            "softmax" => "for a softmax over channels, put the channels last (permute)",
            "dense" if output[..2] == [channels, height] => {
                "Flatten comes before a dense layer, or Conv2d with a kernel of 1 applies it to each pixel"
            }
            _ => return None,
        };
        before.kind.contains("2d").then(|| {
            format!("{} ({}) works on each row of {width} pixels of {}: {instead}", line.path, line.kind, before.output)
        })
    })
}

/// Dropout behind the last layer sets outputs to 0 that the loss is computed from.
fn dropped_outputs(programs: &Programs) -> Option<String> {
    let last = leaves(programs).last().filter(|line| line.kind == "dropout")?;
    Some(format!(
        "the model ends in {} (dropout), which sets outputs to 0 in training: it belongs before the last layer",
        last.path
    ))
}

/// The softmax of one number is 1, whatever the number is.
fn softmax_of_one(programs: &Programs) -> Option<String> {
    let (loss, output) = programs.losses.iter().find(|(loss, output)| {
        let is_softmax = programs.activations.get(&loss.on.output) == Some(&"softmax");
        output.dims.last() == Some(&1) && is_softmax && loss.loss.activation().is_none()
    })?;
    Some(format!(
        "the output {:?}, {output}, is the softmax of one number, which is always 1: Sigmoid is for a yes or no",
        loss.on.output
    ))
}

/// The accuracy of several answers that are not exclusive is that of each, and not of the largest.
fn one_of_several(parts: &Parts, programs: &Programs) -> Option<String> {
    let yes_or_no = programs.losses.iter().find(|(loss, output)| {
        loss.loss.name() == "binary cross-entropy" && output.dims.last().is_some_and(|answers| *answers > 1)
    })?;
    let is_on = |on: &On| on.output == yes_or_no.0.on.output;
    let mut metrics = parts.objective().named_metrics();
    let (metric, _, kind) = metrics.find(|(metric, on, _)| metric.takes_largest() && is_on(on))?;
    let name = metric.name();
    let instead = if kind == "accuracy" { "use BinaryAccuracy" } else { "use multilabel(), as F1 has it" };
    Some(format!(
        "the metric {name} looks only at the largest output, but the loss binary cross-entropy has several answers \
         that may all be true: {instead}"
    ))
}

/// A convolution takes `[B, C, H, W]`, or volumes `[B, C, D, H, W]`; sources of pictures give `[B, H, W, C]`.
fn channels_last(programs: &Programs) -> Option<String> {
    let first = leaves(programs).next()?;
    let (&channels, places) = programs.input.dims.split_last()?;
    let is_picture = places.iter().all(|&side| side >= SIDE) && (1..=CHANNELS).contains(&channels);
    let is_taken = matches!((&*first.kind, places.len()), ("conv2d", 2) | ("conv3d", 3));
    let shown = |extents: &[usize]| extents.iter().map(usize::to_string).collect::<Vec<_>>().join(" x ");
    (is_taken && is_picture).then(|| {
        let (taken, size) = (shown(&programs.input.dims[1..]), shown(places));
        let what = if places.len() == 2 { "pictures" } else { "volumes" };
        let instead =
            if places.len() == 2 { "unisono::data::channels_first" } else { "permute(&[3, 0, 1, 2])" };
        format!(
            "{} ({}) takes {} channels of {taken}: if these are {what} of {size}, put {instead} before it",
            first.path, first.kind, places[0]
        )
    })
}
