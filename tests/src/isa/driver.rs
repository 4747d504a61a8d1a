//! Machine code from Mesa's drivers, which compile for GPUs that this machine need not have: RADV's null
//! device in older versions of Mesa, and in newer ones a library that stands in for the kernel's driver
//! (`drm-shim`).

use std::ffi::CStr;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::{env, ptr};

use ash::{khr, vk};
use serde::{Deserialize, Serialize};
use unisono_gpu::spirv;
use unisono_graph::plan::Kernel;

use super::arithmetic::undecorated;
use super::index::one_word;

/// The version of SPIR-V that wgpu-hal writes for RADV, which has Vulkan 1.3.
const SPIRV: (u8, u8) = (1, 6);

/// What a driver tells of a compiled kernel.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Machine {
    /// Names with `_` for spaces, and values: `VGPRs`, `Spilled_VGPRs`, `LDS_size`, `Subgroups_per_SIMD`, ...
    pub stats: Vec<(String, u64)>,
    /// The machine code. It is empty if the driver does not show it.
    pub assembly: String,
}

impl Machine {
    /// Returns a statistic by its name, or 0 if the driver does not tell it.
    pub fn stat(&self, name: &str) -> u64 {
        self.stats.iter().find(|(own, _)| own == name).map_or(0, |(_, value)| *value)
    }

    /// Returns whether the driver tells a statistic.
    pub fn tells(&self, name: &str) -> bool {
        self.stats.iter().any(|(own, _)| own == name)
    }

    /// Returns what the driver counts of registers that are spilled: registers on AMD GPUs, instructions that
    /// store them on others.
    pub fn spilled(&self) -> u64 {
        ["Spilled_VGPRs", "Spilled_SGPRs", "Spills_to_memory", "STP_Count", "Spills"]
            .map(|name| self.stat(name))
            .iter()
            .sum()
    }

    /// Returns the text of the kernel in `isa.txt`.
    pub fn text(&self, dir: &str, number: usize, name: &str) -> String {
        let mut text = format!("@@@ {dir} {number} {}\n", one_word(name));
        for (name, value) in &self.stats {
            let _ = writeln!(text, "stat {name} {value}");
        }
        let _ = writeln!(text, "### Assembly\n{}", self.assembly.trim_end());
        text
    }
}

/// Returns the environment in which RADV's null device stands for GPUs of a family, such as `gfx1100`, or
/// `None` where the driver is not installed. A process has to be started with it.
pub fn environment(family: &str) -> Option<[(&'static str, String); 3]> {
    let driver = driver()?.to_string_lossy().into_owned();
    Some([
        ("VK_DRIVER_FILES", driver),
        ("RADV_FORCE_FAMILY", family.to_owned()),
        ("MESA_SHADER_CACHE_DISABLE", "true".to_owned()),
    ])
}

/// Returns the file that tells Vulkan's loader of RADV.
fn driver() -> Option<PathBuf> {
    let is_radeon = |path: &Path| {
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        name.starts_with("radeon_icd") && name.ends_with(".json")
    };
    let given = env::var_os("VK_DRIVER_FILES").map(PathBuf::from).filter(|path| is_radeon(path));
    given.or_else(|| {
        let dirs = ["/etc/vulkan/icd.d", "/usr/local/share/vulkan/icd.d", "/usr/share/vulkan/icd.d"];
        let files = dirs.iter().flat_map(std::fs::read_dir).flatten().flatten().map(|entry| entry.path());
        files.filter(|path| is_radeon(path) && !path.to_string_lossy().contains("i686")).min()
    })
}

/// A driver, opened to compile kernels. What is submitted to it is not computed.
pub struct Compiler {
    device: ash::Device,
    /// What shows statistics and machine code, unless the driver shows none.
    executables: Option<khr::pipeline_executable_properties::Device>,
    instance: ash::Instance,
    /// The library, which stays loaded.
    _entry: ash::Entry,
    /// The name of the GPU that it compiles for.
    pub name: String,
}

/// Returns what was asked of the driver and what it answered.
fn failed(what: &str) -> impl Fn(vk::Result) -> String {
    move |error| format!("{what}: {error}")
}

#[expect(
    unsafe_code,
    reason = "Vulkan is called as its specification asks, each object by this thread alone"
)]
impl Compiler {
    /// Opens the first GPU. The process has [`environment`], or that of a chip.
    ///
    /// # Errors
    /// A text where there is no Vulkan, no GPU, or the driver does not open it.
    pub fn open() -> Result<Self, String> {
        // SAFETY: the loader is a Vulkan loader, and each object is made from ones that outlive it.
        unsafe {
            let entry = ash::Entry::load().map_err(|error| format!("no Vulkan: {error}"))?;
            let application = vk::ApplicationInfo::default().api_version(vk::API_VERSION_1_3);
            let info = vk::InstanceCreateInfo::default().application_info(&application);
            let instance = entry.create_instance(&info, None).map_err(failed("creating an instance"))?;
            let all = instance.enumerate_physical_devices().map_err(failed("listing GPUs"))?;
            let properties = |gpu: &vk::PhysicalDevice| instance.get_physical_device_properties(*gpu);
            let is_gpu =
                |gpu: &vk::PhysicalDevice| properties(gpu).device_type != vk::PhysicalDeviceType::CPU;
            let gpu = all.into_iter().find(is_gpu).ok_or("the driver lists no GPU")?;
            let name = text(&properties(&gpu).device_name).trim().to_owned();
            let (device, shows) = open(&instance, gpu)?;
            let of_device = || khr::pipeline_executable_properties::Device::new(&instance, &device);
            let executables = shows.then(of_device);
            Ok(Self { device, executables, instance, _entry: entry, name })
        }
    }

    /// Compiles a kernel as devices do.
    ///
    /// # Errors
    /// A text where the kernel is not valid or the driver refuses it.
    pub fn compile(&self, kernel: &Kernel) -> Result<Machine, String> {
        self.compile_words(kernel, &spirv(kernel, SPIRV).map_err(|error| error.to_string())?)
    }

    /// Compiles a kernel whose float operations the driver may change.
    ///
    /// # Errors
    /// As for [`Compiler::compile`].
    pub fn compile_unprotected(&self, kernel: &Kernel) -> Result<Machine, String> {
        let words = spirv(kernel, SPIRV).map_err(|error| error.to_string())?;
        self.compile_words(kernel, &undecorated(&words))
    }

    fn compile_words(&self, kernel: &Kernel, words: &[u32]) -> Result<Machine, String> {
        let device = &self.device;
        // SAFETY: the module is valid SPIR-V, and everything that is made here is destroyed after its last
        // use.
        unsafe {
            let info = vk::ShaderModuleCreateInfo::default().code(words);
            let module = device.create_shader_module(&info, None).map_err(failed("making a module"))?;
            let set = self.set_layout(kernel.bindings.len())?;
            let info = vk::PipelineLayoutCreateInfo::default().set_layouts(std::slice::from_ref(&set));
            let layout = device.create_pipeline_layout(&info, None).map_err(failed("making a layout"))?;
            let stage = vk::PipelineShaderStageCreateInfo::default()
                .flags(vk::PipelineShaderStageCreateFlags::ALLOW_VARYING_SUBGROUP_SIZE)
                .stage(vk::ShaderStageFlags::COMPUTE)
                .module(module)
                .name(c"main");
            let shows = match self.executables {
                Some(_) => {
                    vk::PipelineCreateFlags::CAPTURE_STATISTICS_KHR
                        | vk::PipelineCreateFlags::CAPTURE_INTERNAL_REPRESENTATIONS_KHR
                }
                None => vk::PipelineCreateFlags::empty(),
            };
            let info = vk::ComputePipelineCreateInfo::default().flags(shows).stage(stage).layout(layout);
            let made = device.create_compute_pipelines(vk::PipelineCache::null(), &[info], None);
            let machine = match made {
                Ok(pipelines) => {
                    let machine = self.inspect(pipelines[0]);
                    pipelines.into_iter().for_each(|pipeline| device.destroy_pipeline(pipeline, None));
                    machine
                }
                Err((_, error)) => Err(failed("compiling")(error)),
            };
            device.destroy_pipeline_layout(layout, None);
            device.destroy_descriptor_set_layout(set, None);
            device.destroy_shader_module(module, None);
            machine
        }
    }

    /// Makes the layout of a kernel with so many storage buffers behind its uniform.
    fn set_layout(&self, buffers: usize) -> Result<vk::DescriptorSetLayout, String> {
        let binding = |at: usize| {
            let uniform = at == 0;
            vk::DescriptorSetLayoutBinding::default()
                .binding(at as u32)
                .descriptor_type(if uniform {
                    vk::DescriptorType::UNIFORM_BUFFER
                } else {
                    vk::DescriptorType::STORAGE_BUFFER
                })
                .descriptor_count(1)
                .stage_flags(vk::ShaderStageFlags::COMPUTE)
        };
        let bindings: Vec<_> = (0..=buffers).map(binding).collect();
        let info = vk::DescriptorSetLayoutCreateInfo::default().bindings(&bindings);
        // SAFETY: the description is a value of this function.
        unsafe {
            self.device.create_descriptor_set_layout(&info, None).map_err(failed("making a set's layout"))
        }
    }

    /// Asks the driver what a pipeline became.
    fn inspect(&self, pipeline: vk::Pipeline) -> Result<Machine, String> {
        let mut machine = Machine::default();
        let Some(driver) = &self.executables else { return Ok(machine) };
        // SAFETY: the pipeline is alive and was made to be asked. Each text is asked for twice: for its
        // length, and then with a buffer of that length.
        unsafe {
            let info = vk::PipelineInfoKHR::default().pipeline(pipeline);
            let parts = driver.get_pipeline_executable_properties(&info).map_err(failed("its parts"))?;
            machine.stats.extend(parts.first().map(|p| ("subgroup".to_owned(), u64::from(p.subgroup_size))));
            let info = vk::PipelineExecutableInfoKHR::default().pipeline(pipeline);
            for stat in driver.get_pipeline_executable_statistics(&info).map_err(failed("its statistics"))? {
                let value = match stat.format {
                    vk::PipelineExecutableStatisticFormatKHR::FLOAT64 => stat.value.f64.round() as u64,
                    vk::PipelineExecutableStatisticFormatKHR::BOOL32 => stat.value.b32.into(),
                    _ => stat.value.u64,
                };
                machine.stats.push((text(&stat.name).replace(' ', "_"), value));
            }
            let mut all = driver
                .get_pipeline_executable_internal_representations(&info)
                .map_err(failed("the length of its code"))?;
            let mut texts: Vec<Vec<u8>> = all.iter().map(|one| vec![0; one.data_size]).collect();
            for (one, text) in all.iter_mut().zip(&mut texts) {
                one.p_data = text.as_mut_ptr().cast();
            }
            let (mut count, ask) =
                (all.len() as u32, driver.fp().get_pipeline_executable_internal_representations_khr);
            ask(self.device.handle(), ptr::from_ref(&info), &mut count, all.as_mut_ptr())
                .result()
                .map_err(failed("its code"))?;
            for (one, code) in all.iter().zip(&texts) {
                let code = String::from_utf8_lossy(code).trim_end_matches('\0').to_owned();
                if text(&one.name).to_lowercase().contains("assembly") {
                    machine.assembly = code;
                }
            }
        }
        Ok(machine)
    }
}

impl Drop for Compiler {
    #[expect(unsafe_code, reason = "Vulkan is called as its specification asks")]
    fn drop(&mut self) {
        // SAFETY: nothing else holds the device or the instance, and nothing was submitted.
        unsafe {
            self.device.destroy_device(None);
            self.instance.destroy_instance(None);
        }
    }
}

/// Opens a device with those of the features that kernels use which it has. Returns it, and whether it shows
/// statistics and machine code.
#[expect(unsafe_code, reason = "Vulkan is called as its specification asks")]
fn open(instance: &ash::Instance, gpu: vk::PhysicalDevice) -> Result<(ash::Device, bool), String> {
    let queue = vk::DeviceQueueCreateInfo::default().queue_family_index(0).queue_priorities(&[1.0]);
    let name = khr::pipeline_executable_properties::NAME;
    // SAFETY: the GPU is the instance's, and the descriptions are values of this function.
    unsafe {
        let extensions =
            instance.enumerate_device_extension_properties(gpu).map_err(failed("listing its extensions"))?;
        let shows = extensions.iter().any(|own| own.extension_name_as_c_str() == Ok(name));
        let mut v11 = vk::PhysicalDeviceVulkan11Features::default();
        let mut v12 = vk::PhysicalDeviceVulkan12Features::default();
        let mut v13 = vk::PhysicalDeviceVulkan13Features::default();
        let mut has = vk::PhysicalDeviceFeatures2::default()
            .push_next(&mut v11)
            .push_next(&mut v12)
            .push_next(&mut v13);
        instance.get_physical_device_features2(gpu, &mut has);
        let core =
            vk::PhysicalDeviceFeatures { shader_int64: has.features.shader_int64, ..Default::default() };
        let mut own11 = vk::PhysicalDeviceVulkan11Features {
            storage_buffer16_bit_access: v11.storage_buffer16_bit_access,
            ..Default::default()
        };
        let has_matrices =
            extensions.iter().any(|own| own.extension_name_as_c_str() == Ok(khr::cooperative_matrix::NAME));
        let mut own12 = vk::PhysicalDeviceVulkan12Features {
            shader_float16: v12.shader_float16,
            vulkan_memory_model: v12.vulkan_memory_model,
            ..Default::default()
        };
        let mut matrices = vk::PhysicalDeviceCooperativeMatrixFeaturesKHR::default().cooperative_matrix(true);
        let mut own13 = vk::PhysicalDeviceVulkan13Features {
            subgroup_size_control: v13.subgroup_size_control,
            ..Default::default()
        };
        let mut own_shows = vk::PhysicalDevicePipelineExecutablePropertiesFeaturesKHR::default()
            .pipeline_executable_info(true);
        let mut names = if shows { vec![name.as_ptr()] } else { vec![] };
        names.extend(has_matrices.then_some(khr::cooperative_matrix::NAME.as_ptr()));
        let mut info = vk::DeviceCreateInfo::default()
            .queue_create_infos(std::slice::from_ref(&queue))
            .enabled_extension_names(&names)
            .enabled_features(&core)
            .push_next(&mut own11)
            .push_next(&mut own12)
            .push_next(&mut own13);
        if shows {
            info = info.push_next(&mut own_shows);
        }
        if has_matrices {
            info = info.push_next(&mut matrices);
        }
        let device = instance.create_device(gpu, &info, None).map_err(failed("opening the GPU"))?;
        Ok((device, shows))
    }
}

/// Returns a name that the driver gives as bytes that end with 0.
fn text(name: &[std::ffi::c_char]) -> String {
    let bytes: Vec<u8> = name.iter().map(|&c| c as u8).collect();
    CStr::from_bytes_until_nul(&bytes).map(|text| text.to_string_lossy().into_owned()).unwrap_or_default()
}
