//! Compiles and runs the snippets of the guide.

/// Makes a doc test of each chapter.
macro_rules! chapters {
    ($($name:ident: $file:literal;)+) => {$(
        #[doc = include_str!(concat!("../../docs/guide/src/", $file))]
        struct $name;
    )+};
}

chapters! {
    Install: "install.md";
    FirstModel: "first_model.md";
    Data: "data.md";
    Several: "several.md";
    Metrics: "metrics.md";
    Callbacks: "callbacks.md";
    Resume: "resume.md";
    ClassWeights: "class_weights.md";
    Lengths: "lengths.md";
    Transfer: "transfer.md";
    Phases: "phases.md";
    Predict: "predict.md";
    OwnLoop: "own_loop.md";
    Gpus: "gpus.md";
    Debugging: "debugging.md";
}
