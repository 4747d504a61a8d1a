//! The names of the facade and of its data module do not meet, and a program's `main` shows an error's
//! message.

mod globs {
    use unisono::data::*;
    use unisono::*;

    /// Each of these names is in one of the two modules alone, so that it needs no path.
    pub fn named(memory: Memory, estimate: MemoryEstimate) -> (DType, Precision, u64, u64) {
        (DType::F32, Precision::Mixed, memory.len(), estimate.total())
    }

    /// The observer and the state of a loader have different names too.
    pub fn progress() -> (Progress, LoaderState) {
        (Progress::lines(Vec::new()), LoaderState::default())
    }
}

mod prelude {
    use unisono::prelude::*;

    /// A whole program, with nothing but the prelude.
    pub fn program(values: Vec<f32>, labels: Vec<i32>) -> Result<Builder, Box<dyn std::error::Error>> {
        let data: Memory = Memory::labelled(values, [2], labels)?;
        let train = Loader::new(data).shuffle(7);
        assert_eq!(train.fields()?.len(), 2);
        let model = Sequential::new().add(Dense::new(4)).add(Relu).add(Dense::new(3));
        let optimizer = AdamW::new(Schedule::cosine(1e-3, 10)).clip_norm(1.0);
        let builder = Trainer::builder(model).loss(CrossEntropy::new()).optimizer(optimizer).metric(Accuracy);
        let lines: Progress = Progress::lines(Vec::new());
        let _: DType = DType::F32;
        Ok(builder.precision(Precision::F32).observer(lines))
    }
}

#[test]
fn programs_need_no_paths() {
    let memory = unisono::data::Memory::labelled(vec![0.0; 6], [2], vec![0; 3]).unwrap();
    let (.., samples, bytes) = globs::named(memory, unisono::MemoryEstimate::default());
    assert_eq!((samples, bytes), (3, 0));
    assert_eq!(globs::progress().1, unisono::data::LoaderState::default());
    assert!(prelude::program(vec![0.0; 6], vec![0; 3]).is_ok());
}

#[test]
fn every_error_shows_its_message_in_debug_too() {
    let shown = |error: &dyn std::error::Error| assert_eq!(format!("{error:?}"), error.to_string());
    let bad = unisono::data::Memory::labelled(vec![0.0; 5], [2], vec![0; 3]).err().unwrap();
    shown(&bad);
    shown(&unisono::Error::from(bad));
    shown(&unisono::graph::GraphError::Op { scope: "0".into(), op: "add".into(), problem: "none".into() });
    shown(&unisono::checkpoint::newest("Cargo.toml").err().unwrap());
    shown(&unisono::gpu::select(&["no such adapter"]).err().unwrap());
}
