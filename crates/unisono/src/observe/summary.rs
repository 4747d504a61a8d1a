//! The summary of a model: its layers as a table.

use std::fmt;

use unisono_graph::Type;

use crate::MemoryEstimate;
use crate::model::context::SummaryLine;

/// The layers of a model with output shapes and parameter counts. Prints as a table.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Summary {
    /// The lines of the table, one for each layer. Outer layers come before inner ones.
    pub lines: Vec<SummaryLine>,
    /// The type of the model's input.
    pub input: Type,
    /// What a training step takes of each replica's memory. `None` where it is not known.
    pub memory: Option<MemoryEstimate>,
}

impl Summary {
    /// Returns the number of elements in all parameters.
    pub fn parameters(&self) -> usize {
        self.lines.iter().map(|l| l.parameters).sum()
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<String> = self.lines.iter().map(|l| format!("{} ({})", l.path, l.kind)).collect();
        let shapes: Vec<String> = self.lines.iter().map(|l| l.output.to_string()).collect();
        let wide = |texts: &[String], least: usize| {
            texts.iter().map(|t| t.chars().count()).max().unwrap_or(0).max(least)
        };
        let input = self.input.to_string();
        let (name, shape) = (wide(&names, 5), wide(&shapes, input.len().max(6)));
        writeln!(f, "{:name$}  {:shape$}  {:>10}", "layer", "output", "parameters")?;
        writeln!(f, "{:name$}  {:shape$}  {:>10}", "input", input, "")?;
        for (line, (n, s)) in self.lines.iter().zip(names.iter().zip(&shapes)) {
            writeln!(f, "{n:name$}  {s:shape$}  {:>10}", line.parameters)?;
        }
        write!(f, "{:name$}  {:shape$}  {:>10}", "total", "", self.parameters())?;
        self.memory.iter().try_for_each(|memory| write!(f, "\nmemory: {memory}"))
    }
}
