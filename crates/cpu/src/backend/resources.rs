//! Buffers, bindings, kernels and queries.

use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use wgpu::custom::{
    BindGroupInterface, BindGroupLayoutInterface, BufferInterface, BufferMapCallback,
    BufferMappedRangeInterface, ComputePipelineInterface, DispatchBindGroupLayout, DispatchBufferMappedRange,
    PipelineLayoutInterface, QuerySetInterface, QueueWriteBufferInterface, ShaderCompilationInfoFuture,
    ShaderModuleInterface,
};
use wgpu::{
    BindingType, BufferAddress, BufferAsyncError, BufferBindingType, BufferUsages, COPY_BUFFER_ALIGNMENT,
    MapMode, MapRangeError, WriteOnly,
};

use crate::compile::{Binding, Kind, Program};
use crate::kernels::Module;
use crate::run::launch::Bindings;
use crate::run::memory::Memory;
use crate::run::timeline::Progress;

use super::errors::Errors;

/// A buffer.
#[derive(Debug)]
pub(super) struct Buffer {
    pub memory: Arc<Memory>,
    pub bytes: u64,
    pub usage: BufferUsages,
    pub progress: Progress,
    pub errors: Arc<Errors>,
}

impl Buffer {
    /// Checks that these bytes may be used in this way: to be copied, written or cleared.
    ///
    /// # Errors
    /// A message that says why not.
    pub fn allows(&self, usage: BufferUsages, at: u64, bytes: u64) -> Result<(), String> {
        let what = || format!("{bytes} bytes from byte {at} on");
        if at.checked_add(bytes).is_none_or(|end| end > self.bytes) {
            return Err(format!("{}: behind the end of the buffer", what()));
        }
        if !(at | bytes).is_multiple_of(COPY_BUFFER_ALIGNMENT) {
            return Err(format!("{}: not multiples of {COPY_BUFFER_ALIGNMENT}", what()));
        }
        if !self.usage.contains(usage) {
            let has = self.usage;
            return Err(format!("{}: {usage:?} is no usage of the buffer, which has {has:?}", what()));
        }
        Ok(())
    }
}

impl BufferInterface for Buffer {
    fn map_async(&self, mode: MapMode, _: Range<BufferAddress>, callback: BufferMapCallback) {
        let usage = match mode {
            MapMode::Read => BufferUsages::MAP_READ,
            MapMode::Write => BufferUsages::MAP_WRITE,
        };
        if !self.usage.contains(usage) {
            self.errors.invalid(format!("a map of a buffer without the usage {usage:?}"));
            return callback(Err(BufferAsyncError));
        }
        self.progress.map(Arc::clone(&self.memory), move |is_given| {
            callback(if is_given { Ok(()) } else { Err(BufferAsyncError) });
        });
    }

    fn get_mapped_range(&self, range: Range<u64>) -> Result<DispatchBufferMappedRange, MapRangeError> {
        let mut length = range.end.min(self.bytes).saturating_sub(range.start) as usize;
        if !self.memory.is_here() {
            self.errors.invalid("a buffer that is not mapped yet");
            length = 0;
        }
        let memory = Arc::clone(&self.memory);
        Ok(DispatchBufferMappedRange::custom(Mapped { memory, first: range.start, length }))
    }

    fn unmap(&self) {
        self.memory.take_back();
    }

    fn destroy(&self) {
        self.memory.destroy();
    }
}

/// A part of a buffer that the host has mapped.
#[derive(Debug)]
struct Mapped {
    memory: Arc<Memory>,
    first: u64,
    length: usize,
}

impl BufferMappedRangeInterface for Mapped {
    fn len(&self) -> usize {
        self.length
    }

    #[expect(unsafe_code, reason = "a view of mapped memory")]
    unsafe fn read_slice(&self) -> &[u8] {
        // SAFETY: the range is inside of the memory, the host has it, and `Queue::submit` refuses commands
        // that use what the host has.
        unsafe { std::slice::from_raw_parts(self.memory.at(self.first), self.length) }
    }

    #[expect(unsafe_code, reason = "a view of mapped memory")]
    unsafe fn write_slice(&mut self) -> WriteOnly<'_, [u8]> {
        write_only(self.memory.at(self.first), self.length)
    }
}

/// Returns a view through which so many bytes are written.
#[expect(unsafe_code, reason = "a view of memory that one owner has")]
fn write_only<'a>(start: *mut u8, length: usize) -> WriteOnly<'a, [u8]> {
    let slice = std::ptr::slice_from_raw_parts_mut(start, length);
    // SAFETY: the bytes are inside of one allocation that outlives the view, as both callers borrow its owner
    // for as long, and wgpu lends no byte twice. An address of an allocation is not null.
    unsafe { WriteOnly::new(NonNull::new_unchecked(slice)) }
}

/// Bytes that go to a buffer with the next submission.
#[derive(Debug)]
pub(super) struct Staged {
    pub memory: Arc<Memory>,
    pub length: usize,
}

impl QueueWriteBufferInterface for Staged {
    fn len(&self) -> usize {
        self.length
    }

    #[expect(unsafe_code, reason = "the trait's function is unsafe")]
    unsafe fn write_slice(&mut self) -> WriteOnly<'_, [u8]> {
        write_only(self.memory.at(0), self.length)
    }
}

/// A module of WGSL, if it is valid.
#[derive(Debug)]
pub(super) struct Shader {
    pub module: Option<Arc<Module>>,
    pub checked: bool,
}

impl ShaderModuleInterface for Shader {
    fn get_compilation_info(&self) -> std::pin::Pin<Box<dyn ShaderCompilationInfoFuture>> {
        Box::pin(std::future::ready(wgpu::CompilationInfo { messages: Vec::new() }))
    }
}

/// How kernels may declare the buffers of a group, by number.
#[derive(Clone, Debug, Default)]
pub(super) struct Layout(Vec<(u32, Kind)>);

impl Layout {
    /// Returns the layout of these entries.
    ///
    /// # Errors
    /// A message, if one is no buffer.
    pub fn of(entries: &[wgpu::BindGroupLayoutEntry]) -> Result<Self, String> {
        let kind = |entry: &wgpu::BindGroupLayoutEntry| match entry.ty {
            BindingType::Buffer { ty: BufferBindingType::Uniform, .. } => Ok((entry.binding, Kind::Uniform)),
            BindingType::Buffer { ty: BufferBindingType::Storage { read_only }, .. } => {
                Ok((entry.binding, if read_only { Kind::Read } else { Kind::Written }))
            }
            _ => Err(format!("binding {}: what is bound and no buffer: not supported", entry.binding)),
        };
        entries.iter().map(kind).collect::<Result<_, _>>().map(Self)
    }

    /// Checks that a kernel declares its buffers as the layout says.
    ///
    /// # Errors
    /// A message that names one that it declares in another way.
    pub fn allows(&self, bindings: &[Binding]) -> Result<(), String> {
        for Binding { number, kind, .. } in bindings {
            match self.0.iter().find(|(other, _)| other == number) {
                Some((_, other)) if other == kind => (),
                Some((_, other)) => {
                    return Err(format!(
                        "binding {number}: {kind:?} in the kernel, and {other:?} in the layout"
                    ));
                }
                None => return Err(format!("binding {number}: not in the layout")),
            }
        }
        Ok(())
    }
}

impl BindGroupLayoutInterface for Layout {}
impl PipelineLayoutInterface for Layout {}

/// What is bound, if it is valid.
#[derive(Debug)]
pub(super) struct Group(pub Option<Arc<Bindings>>);

impl BindGroupInterface for Group {}

/// A kernel, if it was compiled.
#[derive(Debug)]
pub(super) struct Pipeline {
    /// The module is held so that other devices find the program.
    pub kernel: Option<(Arc<Module>, Arc<Program>)>,
    /// Whether memory of workgroups begins as zeros.
    pub clears: bool,
}

impl ComputePipelineInterface for Pipeline {
    fn get_bind_group_layout(&self, _: u32) -> DispatchBindGroupLayout {
        DispatchBindGroupLayout::custom(Layout::default())
    }
}

/// Times.
#[derive(Debug)]
pub(super) struct Queries(pub Arc<[AtomicU64]>);

impl QuerySetInterface for Queries {
    fn destroy(&self) {}
}
