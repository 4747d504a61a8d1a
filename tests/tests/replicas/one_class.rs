//! Adapters of drivers of different makers are one run: without being told that they are a mixture, and over
//! the loss of replicas and a resume on another backend.

use unisono::{BatchNorm, Conv2d, Dense, Flatten, FromFn, Gelu, GroupNorm, Sequential, Trainer};
use unisono_gpu::{Adapter, Backend, adapters};
use unisono_tests::{CLASSES, loader};

fn model() -> Sequential {
    Sequential::new()
        .add(Dense::new(32))
        .add(FromFn::new("image", |_, x| x.reshape(&[2, 4, 4])))
        .add(Conv2d::new(4, 3).padding(1))
        .add(BatchNorm::new())
        .add(Gelu)
        .add(GroupNorm::new(2))
        .add(Flatten)
        .add(Dense::new(CLASSES))
}

fn name(adapter: &Adapter) -> String {
    format!("{}:{}", adapter.backend, adapter.name)
}

fn trainer(names: &[String], replicas: usize, scope: &str) -> Trainer {
    let builder = Trainer::builder(model()).global_batch(16).shards(6).seed(4).digest_every(1);
    let builder = names.iter().fold(builder, |builder, name| builder.adapter(name));
    let builder = builder.replicas(replicas).fault_scope(scope);
    builder.build(&loader(80, 5).unwrap().fields().unwrap()).unwrap()
}

#[test]
fn replicas_of_several_drivers_lose_some_and_a_third_one_goes_on() {
    let vulkan = adapters(&[Backend::Vulkan]);
    let gl = adapters(&[Backend::Gl]);
    let (Some(first), Some(last)) = (vulkan.first(), gl.first()) else {
        unisono_testkit::left_out("nothing is mixed: this machine does not have both Vulkan and GL");
        return;
    };
    // SwiftShader, where it is there.
    let other = vulkan.iter().find(|other| other.driver != first.driver).unwrap_or(last);
    println!("{first} and {other}, then {last}");
    let data = loader(80, 5).unwrap();
    let mut alone = trainer(&[name(first)], 1, "one class, alone:");
    alone.fit(&data, None, 3).unwrap();
    let expected = alone.state_sha256().unwrap();

    let dir = tempfile::tempdir().unwrap();
    let mut together = trainer(&[name(first), name(other)], 4, "one class, together:");
    together.checkpoints(dir.path(), 0).unwrap();
    fail::cfg("one class, together:replica-0:step-3", "return(lose)").unwrap();
    fail::cfg("one class, together:replica-1:step-6", "return(lose)").unwrap();
    together.fit(&data, None, 2).unwrap();
    let left = together.reports().iter().filter(|report| report.left.is_some()).count();
    assert_eq!(left, 2, "{:?}", together.reports());
    drop(together);

    let mut resumed = trainer(&[name(last)], 1, "one class, resumed:");
    resumed.checkpoints(dir.path(), 0).unwrap();
    assert_eq!(resumed.resume().unwrap().unwrap().step, 10);
    resumed.fit(&data, None, 3).unwrap();
    assert_eq!(resumed.state_sha256().unwrap(), expected);
}
