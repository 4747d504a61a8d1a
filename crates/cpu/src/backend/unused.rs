//! What wgpu knows and no kernel needs. Whoever asks for it gets an error, and this in its place, which does
//! nothing.

use std::ops::Range;

use wgpu::custom::*;
use wgpu::{BufferAddress, BufferAsyncError, MapMode, MapRangeError};

/// Nothing.
#[derive(Debug)]
pub(super) struct Unused;

impl SamplerInterface for Unused {}
impl TextureViewInterface for Unused {}
impl TlasInterface for Unused {}
impl RenderBundleInterface for Unused {}

impl TextureInterface for Unused {
    fn create_view(&self, _: &wgpu::TextureViewDescriptor<'_>) -> DispatchTextureView {
        DispatchTextureView::custom(Self)
    }
    fn destroy(&self) {}
}

impl ExternalTextureInterface for Unused {
    fn destroy(&self) {}
}

impl BlasInterface for Unused {
    fn prepare_compact_async(&self, callback: BlasCompactCallback) {
        callback(Err(wgpu::BlasAsyncError));
    }
    fn ready_for_compaction(&self) -> bool {
        false
    }
}

impl PipelineCacheInterface for Unused {
    fn get_data(&self) -> Option<Vec<u8>> {
        None
    }
}

impl RenderPipelineInterface for Unused {
    fn get_bind_group_layout(&self, _: u32) -> DispatchBindGroupLayout {
        DispatchBindGroupLayout::custom(super::resources::Layout::default())
    }
}

/// A buffer for which there was no memory.
impl BufferInterface for Unused {
    fn map_async(&self, _: MapMode, _: Range<BufferAddress>, callback: BufferMapCallback) {
        callback(Err(BufferAsyncError));
    }
    fn get_mapped_range(&self, _: Range<u64>) -> Result<DispatchBufferMappedRange, MapRangeError> {
        Ok(DispatchBufferMappedRange::custom(Self))
    }
    fn unmap(&self) {}
    fn destroy(&self) {}
}

impl BufferMappedRangeInterface for Unused {
    fn len(&self) -> usize {
        0
    }
    #[expect(unsafe_code, reason = "the trait's function is unsafe")]
    unsafe fn read_slice(&self) -> &[u8] {
        &[]
    }
    #[expect(unsafe_code, reason = "the trait's function is unsafe")]
    unsafe fn write_slice(&mut self) -> wgpu::WriteOnly<'_, [u8]> {
        wgpu::WriteOnly::default()
    }
}

impl RenderBundleEncoderInterface for Unused {
    fn set_pipeline(&mut self, _: &DispatchRenderPipeline) {}
    fn set_bind_group(&mut self, _: u32, _: Option<&DispatchBindGroup>, _: &[u32]) {}
    fn set_index_buffer(
        &mut self,
        _: &DispatchBuffer,
        _: wgpu::IndexFormat,
        _: BufferAddress,
        _: Option<wgpu::BufferSize>,
    ) {
    }
    fn set_vertex_buffer(
        &mut self,
        _: u32,
        _: Option<&DispatchBuffer>,
        _: BufferAddress,
        _: Option<wgpu::BufferSize>,
    ) {
    }
    fn set_immediates(&mut self, _: u32, _: &[u8]) {}
    fn draw(&mut self, _: Range<u32>, _: Range<u32>) {}
    fn draw_indexed(&mut self, _: Range<u32>, _: i32, _: Range<u32>) {}
    fn draw_indirect(&mut self, _: &DispatchBuffer, _: BufferAddress) {}
    fn draw_indexed_indirect(&mut self, _: &DispatchBuffer, _: BufferAddress) {}
    fn finish(self, _: &wgpu::RenderBundleDescriptor<'_>) -> DispatchRenderBundle {
        DispatchRenderBundle::custom(self)
    }
    fn finish_boxed(self: Box<Self>, _: &wgpu::RenderBundleDescriptor<'_>) -> DispatchRenderBundle {
        DispatchRenderBundle::custom(*self)
    }
}

impl Drop for Unused {
    fn drop(&mut self) {}
}

impl RenderPassInterface for Unused {
    fn set_pipeline(&mut self, _: &DispatchRenderPipeline) {}
    fn set_bind_group(&mut self, _: u32, _: Option<&DispatchBindGroup>, _: &[u32]) {}
    fn set_index_buffer(
        &mut self,
        _: &DispatchBuffer,
        _: wgpu::IndexFormat,
        _: BufferAddress,
        _: Option<wgpu::BufferSize>,
    ) {
    }
    fn set_vertex_buffer(
        &mut self,
        _: u32,
        _: Option<&DispatchBuffer>,
        _: BufferAddress,
        _: Option<wgpu::BufferSize>,
    ) {
    }
    fn set_immediates(&mut self, _: u32, _: &[u8]) {}
    fn set_blend_constant(&mut self, _: wgpu::Color) {}
    fn set_scissor_rect(&mut self, _: u32, _: u32, _: u32, _: u32) {}
    fn set_viewport(&mut self, _: f32, _: f32, _: f32, _: f32, _: f32, _: f32) {}
    fn set_stencil_reference(&mut self, _: u32) {}
    fn draw(&mut self, _: Range<u32>, _: Range<u32>) {}
    fn draw_indexed(&mut self, _: Range<u32>, _: i32, _: Range<u32>) {}
    fn draw_mesh_tasks(&mut self, _: u32, _: u32, _: u32) {}
    fn draw_indirect(&mut self, _: &DispatchBuffer, _: BufferAddress) {}
    fn draw_indexed_indirect(&mut self, _: &DispatchBuffer, _: BufferAddress) {}
    fn draw_mesh_tasks_indirect(&mut self, _: &DispatchBuffer, _: BufferAddress) {}
    fn multi_draw_indirect(&mut self, _: &DispatchBuffer, _: BufferAddress, _: u32) {}
    fn multi_draw_indexed_indirect(&mut self, _: &DispatchBuffer, _: BufferAddress, _: u32) {}
    fn multi_draw_indirect_count(
        &mut self,
        _: &DispatchBuffer,
        _: BufferAddress,
        _: &DispatchBuffer,
        _: BufferAddress,
        _: u32,
    ) {
    }
    fn multi_draw_mesh_tasks_indirect(&mut self, _: &DispatchBuffer, _: BufferAddress, _: u32) {}
    fn multi_draw_indexed_indirect_count(
        &mut self,
        _: &DispatchBuffer,
        _: BufferAddress,
        _: &DispatchBuffer,
        _: BufferAddress,
        _: u32,
    ) {
    }
    fn multi_draw_mesh_tasks_indirect_count(
        &mut self,
        _: &DispatchBuffer,
        _: BufferAddress,
        _: &DispatchBuffer,
        _: BufferAddress,
        _: u32,
    ) {
    }
    fn insert_debug_marker(&mut self, _: &str) {}
    fn push_debug_group(&mut self, _: &str) {}
    fn pop_debug_group(&mut self) {}
    fn write_timestamp(&mut self, _: &DispatchQuerySet, _: u32) {}
    fn begin_occlusion_query(&mut self, _: u32) {}
    fn end_occlusion_query(&mut self) {}
    fn begin_pipeline_statistics_query(&mut self, _: &DispatchQuerySet, _: u32) {}
    fn end_pipeline_statistics_query(&mut self) {}
    fn execute_bundles(&mut self, _: &mut dyn Iterator<Item = &DispatchRenderBundle>) {}
}
