//! What a device is given keeps to Vulkan's rules: Khronos' validation layer has nothing to say of the plans
//! of PyTorch's cases, races between launches included, and its SPIR-V validator nothing of the modules.
//! Debian's packages are `vulkan-validationlayers` and `spirv-tools`.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use ash::vk;
use unisono::data::{FieldDType, FieldSpec};
use unisono::{AdamW, Precision, ProgramId, Trainer};
use unisono_examples::Model;
use unisono_gpu::{Backend, adapters, spirv};
use unisono_graph::ops::REGISTRY;
use unisono_graph::plan::Kernel;
use unisono_graph::target::Machine;
use unisono_graph::{Program, Run, Target};
use unisono_testkit::{install, left_out, prepare};

const LAYER: &str = "VK_LAYER_KHRONOS_validation";
/// Set in the process that runs under the layer.
const UNDER_THE_LAYER: &str = "UNISONO_UNDER_THE_LAYER";

/// Runs a command under the layer with its checks of races. Returns what the layer says, or `None` if the
/// layer or a Vulkan driver is not there. The layer's GPU-assisted checks are off: they do not report a
/// kernel that reads beyond its buffer (1.3.239), because wgpu asks drivers to make such reads harmless.
fn said(command: &mut Command, dir: &Path) -> Option<String> {
    let found = ["/usr/share/vulkan", "/usr/local/share/vulkan", "/etc/vulkan"]
        .map(|dir| Path::new(dir).join("explicit_layer.d/VkLayer_khronos_validation.json"));
    if !found.iter().any(|path| path.exists()) || adapters(&[Backend::Vulkan]).is_empty() {
        left_out(&format!("Vulkan's validation layer{}", install("vulkan-validationlayers")));
        return None;
    }
    let (log, settings) = (dir.join("log.txt"), dir.join("vk_layer_settings.txt"));
    let lines = [
        "debug_action = VK_DBG_LAYER_ACTION_LOG_MSG".to_owned(),
        "report_flags = error,warn".to_owned(),
        "enables = VK_VALIDATION_FEATURE_ENABLE_SYNCHRONIZATION_VALIDATION_EXT".to_owned(),
        format!("log_filename = {}", log.display()),
    ];
    fs::write(&settings, lines.map(|line| format!("khronos_validation.{line}\n")).concat()).unwrap();
    let output = command.env("VK_INSTANCE_LAYERS", LAYER).env("VK_LAYER_SETTINGS_PATH", &settings).output();
    let output = output.unwrap();
    assert!(output.status.success(), "{output:?}");
    print!("{}", String::from_utf8_lossy(&output.stdout));
    Some(fs::read_to_string(&log).unwrap_or_default())
}

/// Runs one test of this program under the layer, in a process of its own where [`is_under_the_layer`].
/// Returns what the layer says as [`said`] does.
fn said_of(test: &str) -> Option<String> {
    let dir = tempfile::tempdir().unwrap();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "--nocapture", &format!("validation::{test}")]).env(UNDER_THE_LAYER, "1");
    said(&mut command, dir.path())
}

fn is_under_the_layer() -> bool {
    std::env::var_os(UNDER_THE_LAYER).is_some()
}

#[test]
fn the_validation_layer_has_nothing_to_say_of_the_plans_of_all_cases() {
    let dir = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_conformance"));
    command.arg(PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("oracle")).args(["--adapter", "vulkan"]);
    let suites = match std::env::var_os("UNISONO_LONG") {
        Some(_) => &["layers", "losses", "ops"][..],
        None => &["losses"],
    };
    command.args(suites.iter().flat_map(|suite| ["--suite", suite]));
    let Some(said) = said(&mut command, dir.path()) else { return };
    assert!(said.is_empty(), "{}", said.chars().take(4000).collect::<String>());
}

#[test]
fn the_validation_layer_has_nothing_to_say_of_training() {
    if is_under_the_layer() {
        return train();
    }
    let Some(said) = said_of("the_validation_layer_has_nothing_to_say_of_training") else { return };
    assert!(said.is_empty(), "{}", said.chars().take(4000).collect::<String>());
}

/// Trains a perceptron for an epoch in each precision, and in long tests all of the benchmark's models but
/// the two large ones.
fn train() {
    let is_long = std::env::var_os("UNISONO_LONG").is_some();
    let small = |model: &Model| !matches!(model, Model::Gpt100m | Model::Big);
    for model in Model::ALL.into_iter().filter(small).take(if is_long { usize::MAX } else { 1 }) {
        for precision in [Precision::F32, Precision::mixed()] {
            let builder = Trainer::builder(model.layers()).optimizer(AdamW::new(1e-3)).precision(precision);
            let data = model.noise(8).unwrap();
            let builder = builder.adapter("vulkan").replicas(2).shards(4);
            let mut trainer = builder.build(&data.fields().unwrap()).unwrap();
            trainer.fit(&data, None, 1).unwrap();
            println!("{}: {} steps under the layer", model.flag(), trainer.steps());
        }
    }
}

/// Otherwise silence would prove nothing.
#[test]
fn the_validation_layer_finds_a_missing_barrier() {
    if is_under_the_layer() {
        return without_a_barrier();
    }
    let Some(said) = said_of("the_validation_layer_finds_a_missing_barrier") else { return };
    assert!(
        said.contains("SYNC-HAZARD-READ-AFTER-WRITE") || said.contains("SYNC-HAZARD-WRITE_AFTER"),
        "{said}"
    );
}

/// Fills a buffer and copies from it with nothing in between.
#[expect(unsafe_code, reason = "ash has no safe names")]
fn without_a_barrier() {
    // SAFETY: handles are created in order, used on one thread, and end with the process. The race is between
    // two commands on memory that nobody else reads.
    unsafe {
        let entry = ash::Entry::load().unwrap();
        let instance = entry.create_instance(&vk::InstanceCreateInfo::default(), None).unwrap();
        let physical = instance.enumerate_physical_devices().unwrap()[0];
        let queues = [vk::DeviceQueueCreateInfo::default().queue_family_index(0).queue_priorities(&[1.0])];
        let info = vk::DeviceCreateInfo::default().queue_create_infos(&queues);
        let device = instance.create_device(physical, &info, None).unwrap();
        let usage = vk::BufferUsageFlags::TRANSFER_SRC | vk::BufferUsageFlags::TRANSFER_DST;
        let [from, to] = [0, 1].map(|_| {
            let info = vk::BufferCreateInfo::default().size(256).usage(usage);
            let buffer = device.create_buffer(&info, None).unwrap();
            let needs = device.get_buffer_memory_requirements(buffer);
            let index = needs.memory_type_bits.trailing_zeros();
            let info = vk::MemoryAllocateInfo::default().allocation_size(needs.size).memory_type_index(index);
            let memory = device.allocate_memory(&info, None).unwrap();
            device.bind_buffer_memory(buffer, memory, 0).unwrap();
            buffer
        });
        let pool = device.create_command_pool(&vk::CommandPoolCreateInfo::default(), None).unwrap();
        let info = vk::CommandBufferAllocateInfo::default().command_pool(pool).command_buffer_count(1);
        let commands = device.allocate_command_buffers(&info).unwrap();
        device.begin_command_buffer(commands[0], &vk::CommandBufferBeginInfo::default()).unwrap();
        device.cmd_fill_buffer(commands[0], from, 0, 256, 7);
        device.cmd_copy_buffer(commands[0], from, to, &[vk::BufferCopy::default().size(256)]);
        device.end_command_buffer(commands[0]).unwrap();
        let submit = [vk::SubmitInfo::default().command_buffers(&commands)];
        device.queue_submit(device.get_device_queue(0, 0), &submit, vk::Fence::null()).unwrap();
        device.device_wait_idle().unwrap();
    }
}

/// Adds the kernels of a program's plans for a GPU.
fn add(
    found: &mut BTreeSet<(String, String)>,
    kernels: &mut Vec<Kernel>,
    program: &Program,
    sizes: &[usize],
) {
    let target = Target {
        machine: Machine::Gpu,
        f16: true,
        max_binding_bytes: u64::MAX,
        max_buffer_bytes: u64::MAX,
        ..Target::default()
    };
    for kernel in program.plan(&Run::whole(sizes), &target).unwrap().kernels {
        if found.insert((kernel.name.clone(), kernel.wgsl.clone())) {
            kernels.push(kernel);
        }
    }
}

/// All kernels of the benchmark's models, and of all ops where long tests run.
fn kernels() -> Vec<Kernel> {
    let (mut found, mut kernels) = Default::default();
    for model in Model::ALL {
        // Large batches make no other kernels than these do.
        let fields: Vec<FieldSpec> = model.fields();
        assert!(fields.iter().any(|field| field.dtype == FieldDType::I32));
        let builder = Trainer::builder(model.layers()).optimizer(AdamW::new(1e-3));
        let trainer = builder.adapter("cpu").replicas(1).global_batch(8).shards(4).build(&fields).unwrap();
        add(&mut found, &mut kernels, trainer.program(ProgramId::Train), &[2; 4]);
    }
    if std::env::var_os("UNISONO_LONG").is_some() {
        for entry in REGISTRY.iter().flat_map(|part| part.iter()) {
            for case in (entry.cases)() {
                let program = Program::compile(&prepare(&case, &[3, 2]).unwrap().graph).unwrap();
                add(&mut found, &mut kernels, &program, &[3, 2]);
            }
        }
    }
    kernels
}

#[test]
fn every_module_is_valid_spirv() {
    if Command::new("spirv-val").arg("--version").output().is_err() {
        return left_out(&format!("spirv-val{}", install("spirv-tools")));
    }
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("module.spv");
    let valid = |words: &[u32], environment: &str| {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        fs::write(&file, bytes).unwrap();
        let output =
            Command::new("spirv-val").args(["--target-env", environment]).arg(&file).output().unwrap();
        if output.status.success() { Ok(()) } else { Err(String::from_utf8(output.stderr).unwrap()) }
    };
    let kernels = kernels();
    assert!(kernels.len() > 60, "{}", kernels.len());
    for kernel in &kernels {
        for (version, environment) in [((1, 3), "vulkan1.1"), ((1, 6), "vulkan1.3")] {
            let words = spirv(kernel, version).unwrap();
            valid(&words, environment).unwrap_or_else(|said| panic!("{}: {said}", kernel.name));
        }
    }
    println!("{} kernels are valid for Vulkan 1.1 and 1.3", kernels.len());
    // A module without its last word, which is part of OpFunctionEnd.
    let words = spirv(&kernels[0], (1, 3)).unwrap();
    assert!(valid(&words[..words.len() - 1], "vulkan1.1").is_err());
}
