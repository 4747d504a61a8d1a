//! Runs a kernel through wgpu.

use unisono_cpu::Options;

/// Returns the CPU as an adapter: with the instructions of a target alone, if `UNISONO_CPU_TARGET` has
/// its name.
fn adapter(options: Options) -> wgpu::Adapter {
    #[cfg(feature = "targets")]
    if let Ok(name) = std::env::var("UNISONO_CPU_TARGET") {
        let target = unisono_cpu::targets::ALL.into_iter().find(|target| target.name == name);
        return target.and_then(|target| target.adapter(options)).expect("a target that runs here");
    }
    unisono_cpu::adapter(options)
}

/// A device of the CPU.
pub struct Machine {
    pub device: wgpu::Device,
    pub queue: wgpu::Queue,
}

impl Machine {
    pub fn new(threads: usize) -> Self {
        Self::with(Options { threads, ..Options::default() })
    }

    pub fn with(options: Options) -> Self {
        Self::of(&adapter(options))
    }

    /// Opens the device with all features of the adapter.
    pub fn of(adapter: &wgpu::Adapter) -> Self {
        Self::opened(adapter, adapter.features())
    }

    /// Opens the device without any feature.
    pub fn plain() -> Self {
        Self::opened(&adapter(Options::default()), wgpu::Features::empty())
    }

    fn opened(adapter: &wgpu::Adapter, required_features: wgpu::Features) -> Self {
        let descriptor = wgpu::DeviceDescriptor {
            required_features,
            required_limits: adapter.limits(),
            ..wgpu::DeviceDescriptor::default()
        };
        let (device, queue) = pollster::block_on(adapter.request_device(&descriptor)).unwrap();
        Self { device, queue }
    }

    pub fn buffer(&self, bytes: &[u8]) -> wgpu::Buffer {
        let buffer = self.device.create_buffer(&wgpu::BufferDescriptor {
            label: None,
            size: bytes.len() as u64,
            usage: wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_SRC | wgpu::BufferUsages::COPY_DST,
            mapped_at_creation: false,
        });
        self.queue.write_buffer(&buffer, 0, bytes);
        buffer
    }

    pub fn read(&self, buffer: &wgpu::Buffer) -> Vec<u8> {
        let staging = self.device.create_buffer(&wgpu::BufferDescriptor {
            label: None,
            size: buffer.size(),
            usage: wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST,
            mapped_at_creation: false,
        });
        let mut encoder = self.device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
        encoder.copy_buffer_to_buffer(buffer, 0, &staging, 0, buffer.size());
        self.queue.submit([encoder.finish()]);
        staging.map_async(wgpu::MapMode::Read, .., |_| ());
        self.device.poll(wgpu::PollType::wait_indefinitely()).unwrap();
        staging.get_mapped_range(..).unwrap().to_vec()
    }

    /// Compiles a kernel, with bounds checks or without.
    pub fn pipeline(&self, wgsl: &str, checked: bool) -> Result<wgpu::ComputePipeline, String> {
        let scope = self.device.push_error_scope(wgpu::ErrorFilter::Validation);
        let descriptor =
            wgpu::ShaderModuleDescriptor { label: None, source: wgpu::ShaderSource::Wgsl(wgsl.into()) };
        let module = if checked {
            self.device.create_shader_module(descriptor)
        } else {
            // SAFETY: the tests' kernels stay within their bindings and end.
            #[expect(unsafe_code, reason = "kernels are trusted")]
            unsafe {
                self.device.create_shader_module_trusted(descriptor, wgpu::ShaderRuntimeChecks::unchecked())
            }
        };
        let pipeline = self.device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
            label: None,
            layout: None,
            module: &module,
            entry_point: Some("main"),
            compilation_options: wgpu::PipelineCompilationOptions::default(),
            cache: None,
        });
        match pollster::block_on(scope.pop()) {
            Some(error) => Err(error.to_string()),
            None => Ok(pipeline),
        }
    }

    /// Launches a kernel once with these buffers, which are bound in order from 0.
    pub fn launch(&self, pipeline: &wgpu::ComputePipeline, buffers: &[&wgpu::Buffer], groups: [u32; 3]) {
        let entries: Vec<_> = buffers
            .iter()
            .zip(0..)
            .map(|(buffer, binding)| wgpu::BindGroupEntry { binding, resource: buffer.as_entire_binding() })
            .collect();
        let group = self.device.create_bind_group(&wgpu::BindGroupDescriptor {
            label: None,
            layout: &pipeline.get_bind_group_layout(0),
            entries: &entries,
        });
        let mut encoder = self.device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
        let mut pass = encoder.begin_compute_pass(&wgpu::ComputePassDescriptor::default());
        pass.set_pipeline(pipeline);
        pass.set_bind_group(0, &group, &[]);
        pass.dispatch_workgroups(groups[0], groups[1], groups[2]);
        drop(pass);
        self.queue.submit([encoder.finish()]);
    }

    /// Runs a kernel that writes binding 0, in both ways, and returns what it wrote.
    pub fn run(&self, wgsl: &str, out: usize, inputs: &[&[u8]], groups: [u32; 3]) -> Vec<u8> {
        let [checked, trusted] = [true, false].map(|checked| {
            let pipeline = self.pipeline(wgsl, checked).unwrap_or_else(|error| panic!("{error}"));
            let mut buffers = vec![self.buffer(&vec![0; out])];
            buffers.extend(inputs.iter().map(|bytes| self.buffer(bytes)));
            self.launch(&pipeline, &buffers.iter().collect::<Vec<_>>(), groups);
            self.read(&buffers[0])
        });
        assert_eq!(checked, trusted, "bounds checks change nothing of a kernel that stays inside");
        trusted
    }
}

pub fn words(bytes: &[u8]) -> Vec<u32> {
    bytes.chunks_exact(4).map(|word| u32::from_le_bytes(word.try_into().unwrap())).collect()
}

pub fn floats(bytes: &[u8]) -> Vec<f32> {
    words(bytes).into_iter().map(f32::from_bits).collect()
}

pub fn bytes_of(numbers: &[f32]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
}

pub fn bytes_of_words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// Returns the error of what `work` does.
pub fn error(machine: &Machine, work: impl FnOnce()) -> String {
    let scope = machine.device.push_error_scope(wgpu::ErrorFilter::Validation);
    work();
    pollster::block_on(scope.pop()).map_or_else(String::new, |error| error.to_string())
}
