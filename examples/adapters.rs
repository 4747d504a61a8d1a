//! Lists the adapters of this machine: what they are called, what kind of machine they are, and their limits. Opens none.
//!
//!     cargo run --release -p unisono-examples --bin adapters -- --backend all

use std::process::ExitCode;

use clap::{Parser, ValueEnum};
use unisono::gpu::{Adapter, Backend, adapters};
use unisono_examples::{Error, bytes, program, table};

#[derive(Parser)]
#[command(about = "Lists the adapters of this machine without opening any")]
struct Flags {
    /// List these backends; may be repeated [default: vulkan, metal and dx12, each machine once; gl if these have none]
    #[arg(long, value_name = "BACKEND")]
    backend: Vec<Wanted>,
}

#[derive(Clone, Copy, ValueEnum)]
enum Wanted {
    Vulkan,
    Metal,
    Dx12,
    Gl,
    All,
}

fn main() -> ExitCode {
    unisono::gpu::prepare_environment();
    program(list)
}

fn list(flags: Flags) -> Result<(), Error> {
    let found = adapters(&flags.backend.iter().flat_map(|wanted| wanted.backends()).collect::<Vec<_>>());
    if found.is_empty() {
        return Err("no adapter found; `cargo xtask demo` installs a software one".into());
    }
    let mut rows = vec![["adapter", "kind", "driver"].map(str::to_owned)];
    rows.extend(found.iter().map(|a| [a.label(), a.kind.to_string(), format!("{} {}", a.driver, a.driver_info)]));
    println!("{}\n", table(&rows));
    let names = ["adapter", "buffer", "binding", "bindings", "workgroups", "invocations", "shared", "subgroup", "f16"];
    let mut rows = vec![names.map(str::to_owned)];
    rows.extend(found.iter().map(limits));
    println!("{}", table(&rows));
    Ok(())
}

/// Largest buffer and binding, bindings of a kernel, workgroups in a dimension, invocations and memory of a workgroup.
fn limits(adapter: &Adapter) -> [String; 9] {
    let l = &adapter.limits;
    let subgroup = match l.subgroup {
        (least, most) if least == most => least.to_string(),
        (least, most) => format!("{least}-{most}"),
    };
    [
        adapter.label(),
        bytes(l.buffer_bytes),
        bytes(l.storage_binding_bytes),
        l.storage_buffers.to_string(),
        l.workgroups.to_string(),
        l.invocations.to_string(),
        bytes(u64::from(l.workgroup_bytes)),
        subgroup,
        if adapter.features.f16 { "yes" } else { "no" }.to_owned(),
    ]
}

impl Wanted {
    fn backends(self) -> Vec<Backend> {
        match self {
            Self::Vulkan => vec![Backend::Vulkan],
            Self::Metal => vec![Backend::Metal],
            Self::Dx12 => vec![Backend::Dx12],
            Self::Gl => vec![Backend::Gl],
            Self::All => vec![Backend::Vulkan, Backend::Metal, Backend::Dx12, Backend::Gl],
        }
    }
}
