//! The layers that CONTRIBUTING.md shows as examples.

#[path = "scale.rs"]
mod scale;
#[path = "snake.rs"]
mod snake;

use super::{Mode, Tape, Type, check};
use crate::Var;
use crate::model::{Context, Forward, Initializer, Layer};
use scale::Scale;
use snake::Snake;

/// Makes layers of the types, as the list in `layers/mod.rs` does.
macro_rules! layers {
    ($($layer:ident = $name:literal;)+) => {
        $(
            impl Layer for $layer {
                fn name(&self) -> &str {
                    $name
                }

                fn forward(&self, cx: &mut Context, x: &Var) -> Var {
                    Forward::forward(self, cx, x)
                }
            }
        )+
    };
}

layers! {
    Scale = "scale";
    Snake = "snake";
}

#[test]
fn the_layers_of_the_contributing_guide_work() {
    check(Scale, &[3, 2], &[3, 2], &["scale [3, 2]"]);
    check(Snake::new(1), &[4], &[4], &["weight [1]"]);
    check(Snake::new(4).initializer(Initializer::Constant(0.5)), &[3, 4], &[3, 4], &["weight [4]"]);
    let tape = Tape::new();
    let x = tape.input("x", Type::sample(&[4]));
    Layer::forward(&Snake::new(3), &mut Context::new(&tape, Mode::Train), &x);
    let error = tape.finish().unwrap_err().to_string();
    assert!(error.ends_with("snake: 3 frequencies for [B, 4]"), "{error}");
}

/// A rebuilt layer has its settings and the default initializer.
#[test]
fn the_settings_of_the_contributing_guide_are_stored() {
    let json = serde_json::to_string(&Snake::new(3).initializer(Initializer::Zeros)).unwrap();
    assert_eq!(json, r#"{"frequencies":3}"#);
    let again: Snake = serde_json::from_str(&json).unwrap();
    assert_eq!(format!("{again:?}"), format!("{:?}", Snake::new(3)));
    assert!(serde_json::from_str::<Snake>(r#"{"frequencies":3,"phase":1}"#).is_err());
}
