//! Lists the adapters of this machine: their names, what kind of machine they are, and their limits. It opens
//! none of them, except with --probe.
//!
//!     cargo run --release -p unisono-examples --bin adapters -- --backend all

use std::io::{Write, stdout};
use std::process::ExitCode;

use clap::{Parser, ValueEnum};
use unisono::Class;
use unisono::gpu::{Adapter, Arithmetic, Backend, MatrixSize, adapters};
use unisono_examples::{Error, bytes, program, table};

#[derive(Parser)]
#[command(
    about = "Lists the adapters of this machine: GPUs, software drivers and the CPU",
    after_help = "Exit code: 0. 1 if there is no adapter or, with --probe, if any of those listed cannot be used. \
                  --backend chooses which are listed."
)]
struct Flags {
    /// List this backend. Repeat the flag for several [default: Vulkan, Metal and DirectX 12, then OpenGL if
    /// these have no adapter, then the CPU. An adapter that several backends have is listed once]
    #[arg(long, value_name = "BACKEND")]
    backend: Vec<Wanted>,
    /// Open each adapter and print its numeric class. Adapters of the same class give the same bits. If one
    /// cannot be used, the table says why, and the exit code is 1
    #[arg(long)]
    probe: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum Wanted {
    Vulkan,
    Metal,
    Dx12,
    Gl,
    Cpu,
    All,
}

pub(crate) fn main() -> ExitCode {
    program(list)
}

fn list(flags: Flags) -> Result<(), Error> {
    let found = adapters(&flags.backend.iter().flat_map(|wanted| wanted.backends()).collect::<Vec<_>>());
    if found.is_empty() {
        return Err("no adapter found; `--backend all` lists those of every backend".into());
    }
    let head = |names: &str| names.split(", ").map(str::to_owned).collect();
    let mut drivers: Vec<Vec<String>> = vec![head("adapter, kind, driver")];
    drivers.extend(found.iter().map(driver));
    let mut all: Vec<Vec<String>> = vec![head(
        "adapter, largest buffer, binding, bindings, workgroups, invocations, shared, subgroup, f16, \
         matrix units",
    )];
    all.extend(found.iter().map(limits));
    writeln!(stdout(), "{}\n\n{}", table(&drivers), table(&all))?;
    if flags.probe { probe(&found) } else { Ok(()) }
}

/// Prints the numeric class of each adapter, and why those cannot be used that have none. Adapters without a
/// class are an error.
fn probe(found: &[Adapter]) -> Result<(), Error> {
    let cpus = cpus();
    let mut unusable = Vec::new();
    let mut classes = vec![["adapter", "numeric class", "same bits as"].map(str::to_owned).to_vec()];
    for adapter in found {
        let label = adapter.label();
        classes.push(match unisono::probe(adapter) {
            Ok(class) => vec![label, format!("{} {class}", class.rounding.name()), same_as(&class, &cpus)],
            Err(error) => {
                unusable.push(label.clone());
                // The first cell has the label.
                let (text, own) = (error.to_string(), format!("{label}: "));
                let why = text.rsplit_once(&own).map_or(text.as_str(), |(_, why)| why).to_owned();
                vec![label, why, String::new()]
            }
        });
    }
    writeln!(stdout(), "\n{}", table(&classes))?;
    match unusable.is_empty() {
        true => Ok(()),
        false => Err(format!(
            "{} of {} adapters cannot be used: {}",
            unusable.len(),
            found.len(),
            unusable.join(", ")
        )
        .into()),
    }
}

/// Returns the names of the CPU's arithmetics that give the bits of a class. Two adapters are of one class if
/// their digests are equal and both classes are portable, whatever their backends, devices and drivers are.
fn same_as(class: &Class, cpus: &[(Arithmetic, Class)]) -> String {
    let same = cpus.iter().filter(|(_, cpu)| cpu.is_same(class));
    let names: Vec<String> = same.map(|(arithmetic, _)| format!("cpu:{}", arithmetic.name())).collect();
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}

/// Returns the classes of the CPU in all arithmetics that it knows.
fn cpus() -> Vec<(Arithmetic, Class)> {
    let probed = |arithmetic| Some((arithmetic, unisono::probe(&Adapter::cpu(arithmetic)?).ok()?));
    Arithmetic::distinct(false).filter_map(probed).collect()
}

fn driver(adapter: &Adapter) -> Vec<String> {
    let driver = format!("{} {}", adapter.driver, adapter.driver_info);
    vec![adapter.label(), adapter.kind.to_string(), driver.trim().to_owned()]
}

/// Returns the text for the limits of an adapter: the largest buffer and binding, the bindings of a kernel,
/// the workgroups in a dimension, and the invocations and the memory of a workgroup.
fn limits(adapter: &Adapter) -> Vec<String> {
    let l = &adapter.limits;
    let subgroup = match l.subgroup {
        _ if !adapter.features.subgroups => "none".to_owned(),
        (least, most) if least == most => least.to_string(),
        (least, most) => format!("{least}-{most}"),
    };
    vec![
        adapter.label(),
        bytes(l.buffer_bytes),
        bytes(l.storage_binding_bytes),
        l.storage_buffers.to_string(),
        l.workgroups.to_string(),
        l.invocations.to_string(),
        bytes(u64::from(l.workgroup_bytes)),
        subgroup,
        if adapter.features.f16 { "yes" } else { "no" }.to_owned(),
        matrix_sizes(adapter),
    ]
}

/// Returns the sizes of the matrix unit that an adapter lists, with a star at those that kernels can use.
fn matrix_sizes(adapter: &Adapter) -> String {
    let size = |size: &MatrixSize| format!("{size}{}", if size.is_used() { "*" } else { "" });
    match adapter.matrix_sizes.iter().map(size).collect::<Vec<_>>() {
        sizes if sizes.is_empty() => "none".to_owned(),
        sizes => sizes.join(" "),
    }
}

impl Wanted {
    fn backends(self) -> Vec<Backend> {
        match self {
            Self::Vulkan => vec![Backend::Vulkan],
            Self::Metal => vec![Backend::Metal],
            Self::Dx12 => vec![Backend::Dx12],
            Self::Gl => vec![Backend::Gl],
            Self::Cpu => vec![Backend::Cpu],
            Self::All => Backend::ALL.to_vec(),
        }
    }
}
