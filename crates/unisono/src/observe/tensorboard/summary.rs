//! The messages of event files: summaries of scalars, texts, histograms, images and hyperparameters.
//!
//! The names and numbers of fields are those of `event.proto`, `summary.proto`, `tensor.proto` and the
//! hyperparameter plugin's `plugin_data.proto`.

use crate::LoggedImage;
use crate::observe::tensorboard::histogram::Histogram;
use crate::protobuf::Message;

const FLOAT: i64 = 1;
const STRING: i64 = 7;

/// A value of a hyperparameter.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Hyperparameter {
    /// A number.
    Number(f64),
    /// A text.
    Text(String),
}

/// Some values of one step, a `Summary`.
#[derive(Default)]
pub(crate) struct Summary(Message);

impl Summary {
    /// Adds a number.
    pub fn scalar(self, tag: &str, value: f64) -> Self {
        self.value(Message::new().bytes(1, tag).float(2, value as f32))
    }

    /// Adds an image.
    pub fn image(self, tag: &str, image: &LoggedImage) -> Self {
        let LoggedImage { width, height, channels, png } = image;
        let [height, width, channels] = [height, width, channels].map(|&size| i64::from(size));
        let image = Message::new().integer(1, height).integer(2, width).integer(3, channels).bytes(4, png);
        self.value(Message::new().bytes(1, tag).message(4, &image))
    }

    /// Adds a histogram.
    pub fn histogram(self, tag: &str, histogram: &Histogram) -> Self {
        let Histogram { min, max, count, sum, squares, limits, counts } = histogram;
        let message = Message::new().double(1, *min).double(2, *max).double(3, *count).double(4, *sum);
        let message = message.double(5, *squares).doubles(6, limits).doubles(7, counts);
        self.value(Message::new().bytes(1, tag).message(5, &message))
    }

    /// Adds a text, in Markdown.
    pub fn text(self, tag: &str, text: &str) -> Self {
        let tensor = Message::new().integer(1, STRING).message(2, &Message::new()).bytes(8, text);
        let metadata = plugin("text", &Message::new());
        self.value(Message::new().bytes(1, tag).message(8, &tensor).message(9, &metadata))
    }

    /// Adds the hyperparameters of a run that starts at a time, in seconds since 1970.
    pub fn hyperparameters(self, all: &[(String, Hyperparameter)], seconds: f64) -> Self {
        let mut start = Message::new();
        for (name, value) in all {
            let value = match value {
                Hyperparameter::Number(number) => Message::new().double(2, *number),
                Hyperparameter::Text(text) => Message::new().bytes(3, text),
            };
            start = start.message(1, &Message::new().bytes(1, name).message(2, &value));
        }
        let content = Message::new().message(3, &start.double(5, seconds));
        // A tensor of no elements stands for "there is no value".
        let empty = Message::new().integer(1, FLOAT).message(2, &Message::new().message(2, &Message::new()));
        let tag = "_hparams_/session_start_info";
        let metadata = plugin("hparams", &content);
        self.value(Message::new().bytes(1, tag).message(8, &empty).message(9, &metadata))
    }

    fn value(self, value: Message) -> Self {
        Self(self.0.message(1, &value))
    }

    /// Returns the event of these values at a step.
    pub fn at(&self, step: u64, seconds: f64) -> Message {
        event(step, seconds).message(5, &self.0)
    }
}

/// Returns the first event of a file, with its version.
pub(crate) fn version(seconds: f64) -> Message {
    event(0, seconds).bytes(3, "brain.Event:2")
}

/// Returns the event that a run goes on (`SessionLog.START`): readers drop what came before of steps that
/// are not smaller than `step`.
pub(crate) fn purge(step: u64, seconds: f64) -> Message {
    event(step, seconds).message(7, &Message::new().integer(1, 1))
}

fn event(step: u64, seconds: f64) -> Message {
    Message::new().double(1, seconds).integer(2, step as i64)
}

/// Returns the metadata of a value that a plugin of TensorBoard shows.
fn plugin(name: &str, content: &Message) -> Message {
    let plugin = Message::new().bytes(1, name).bytes(2, content.as_bytes());
    Message::new().message(1, &plugin)
}
