//! Adapters of several numeric classes, and replicas that join, on several machines: both are refused.

use unisono::cluster::Script;
use unisono::{Builder, Cluster, Error, Trainer};
use unisono_gpu::{Backend, adapters};
use unisono_tests::{loader, on_ranks, perceptron};

/// Returns an adapter of Vulkan and one of GL, if there are both. That of GL counts as of another class.
fn two() -> Option<[String; 2]> {
    fail::cfg("probe-gl", "return(state:0)").unwrap();
    let first = |backend: Backend| Some(format!("{backend}:{}", adapters(&[backend]).first()?.name));
    let names = first(Backend::Vulkan).zip(first(Backend::Gl));
    if names.is_none() {
        let install = unisono_testkit::install("mesa-vulkan-drivers libegl1 libgl1-mesa-dri");
        unisono_testkit::left_out(&format!(
            "no classes are mixed: this machine does not have both Vulkan and GL{install}"
        ));
    }
    names.map(Into::into)
}

fn build(builder: Builder, cluster: Cluster) -> Result<Trainer, Error> {
    builder.cluster(cluster).build(&loader(40, 5).unwrap().fields().unwrap())
}

#[test]
fn a_machine_of_another_numeric_class_is_refused_by_name() {
    let Some([own, other]) = two() else { return };
    let ended = on_ranks(2, Script::default(), |cluster| {
        let adapter = if cluster.rank() == 1 { &other } else { &own };
        let mut trainer = build(perceptron(8).replicas(1).adapter(adapter), cluster)?;
        trainer.fit(&loader(40, 5)?, None, 1).map(drop)
    });
    for ended in ended {
        let text = ended.expect_err("machines of two classes").to_string();
        assert!(text.starts_with("rank 1 (thread1): the numeric class of the adapter split "), "{text}");
    }
}

#[test]
fn a_mixture_of_numeric_classes_on_one_machine_is_refused() {
    let Some([own, other]) = two() else { return };
    let ended = on_ranks(2, Script::default(), |cluster| {
        let builder = perceptron(8).adapter(&own).mixed(true);
        let builder =
            if cluster.rank() == 1 { builder.adapter(&other).replicas(2) } else { builder.replicas(1) };
        build(builder, cluster).map(drop)
    });
    for ended in ended {
        let text = ended.expect_err("a machine of two classes").to_string();
        assert!(text.ends_with("mixed: a run on several machines takes one numeric class"), "{text}");
    }
}

#[test]
fn no_replica_joins_on_several_machines() {
    let ended = on_ranks(2, Script::default(), |cluster| {
        let mut trainer = build(perceptron(8).replicas(1), cluster).unwrap();
        let error = trainer.join("").unwrap_err().to_string();
        trainer.fit(&loader(40, 5).unwrap(), None, 1).unwrap();
        (error, trainer.reports().len())
    });
    for ended in ended {
        assert_eq!(ended, ("join: in a run on several machines no replica joins".to_owned(), 1));
    }
}
