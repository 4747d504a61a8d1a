//! Buffers and textures in one memory, made with Vulkan's own calls.

#![expect(unsafe_code, reason = "wgpu has no safe name for two views of one memory")]

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use ash::vk;
use wgpu::hal::api::Vulkan;
use wgpu::hal::vulkan::{Buffer, TextureMemory};

use super::{BEHIND, ROW, TEXEL, WIDTH};
use crate::device::STORAGE;

/// The format of a texel.
const FORMAT: wgpu::TextureFormat = wgpu::TextureFormat::Rgba32Uint;
/// The memories of a device that are buffer and texture, by the driver's handle of the buffer.
#[derive(Debug, Default)]
pub(crate) struct Texels(Mutex<HashMap<vk::Buffer, Weak<Memory>>>);

/// Memory of the driver. It is freed after the buffer and the textures that lie in it.
struct Memory {
    device: ash::Device,
    raw: vk::DeviceMemory,
    bytes: u64,
}

impl std::fmt::Debug for Memory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Memory").field("bytes", &self.bytes).finish_non_exhaustive()
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: whatever lies in the memory holds it, so nothing is left. wgpu drops its objects, and with
        // the last one this, before the device.
        unsafe { self.device.free_memory(self.raw, None) };
    }
}

impl Texels {
    /// Returns no memories yet, where this build can make any.
    pub fn new() -> Option<Self> {
        Some(Self::default())
    }

    /// Creates a buffer that kernels and copies can use, and that textures can cover. Its bytes are
    /// undefined. Returns `None` if there is no memory for it.
    pub fn create(&self, device: &wgpu::Device, size: u64) -> Option<wgpu::Buffer> {
        // SAFETY: the handle is used for calls that create objects, and destroys nothing of wgpu's.
        let hal = unsafe { device.as_hal::<Vulkan>() }?;
        let raw = hal.raw_device().clone();
        let usage = vk::BufferUsageFlags::STORAGE_BUFFER
            | vk::BufferUsageFlags::TRANSFER_SRC
            | vk::BufferUsageFlags::TRANSFER_DST;
        let info = vk::BufferCreateInfo::default().size(size).usage(usage);
        // SAFETY: the size is not zero, and the usage is valid.
        let buffer = unsafe { raw.create_buffer(&info, None) }.ok()?;
        let destroy = {
            let raw = raw.clone();
            // SAFETY: it is called once, when nothing uses the buffer any more.
            move || unsafe { raw.destroy_buffer(buffer, None) }
        };
        // SAFETY: the buffer was created from this device and is not bound yet.
        let memory = unsafe { allocate(&raw, buffer) };
        let Some((memory, bytes)) = memory else {
            destroy();
            return None;
        };
        let memory = Arc::new(Memory { device: raw, raw: memory, bytes });
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.retain(|_, memory| memory.strong_count() > 0);
        known.insert(buffer, Arc::downgrade(&memory));
        drop(known);
        let dropped = Box::new(move || {
            destroy();
            drop(memory);
        });
        let descriptor =
            wgpu::BufferDescriptor { label: None, size, usage: STORAGE, mapped_at_creation: false };
        // SAFETY: the buffer is of this device, is as the descriptor says, and lives until wgpu drops it.
        Some(unsafe {
            let hal = Buffer::from_raw_externally_owned(buffer, dropped);
            device.create_buffer_from_hal::<Vulkan>(hal, &descriptor)
        })
    }

    /// Creates a texture over what a buffer of [`Texels::create`] holds from an offset on. Returns `None` for
    /// other buffers, and if the driver refuses.
    pub fn view(
        &self,
        device: &wgpu::Device,
        buffer: &wgpu::Buffer,
        offset: u64,
    ) -> Option<wgpu::TextureView> {
        // SAFETY: the handles are used to look up, and for calls that create objects.
        let (hal, handle) = unsafe { (device.as_hal::<Vulkan>()?, buffer.as_hal::<Vulkan>()?.raw_handle()) };
        let memory = self.0.lock().unwrap_or_else(PoisonError::into_inner).get(&handle)?.upgrade()?;
        let texels = buffer.size().checked_sub(offset)?.div_ceil(TEXEL);
        let (width, height) = (WIDTH as u32, rows(texels) as u32);
        let info = vk::ImageCreateInfo::default()
            .image_type(vk::ImageType::TYPE_2D)
            .format(vk::Format::R32G32B32A32_UINT)
            .extent(vk::Extent3D { width, height, depth: 1 })
            .mip_levels(1)
            .array_layers(1)
            .samples(vk::SampleCountFlags::TYPE_1)
            .tiling(vk::ImageTiling::LINEAR)
            .usage(vk::ImageUsageFlags::SAMPLED)
            .initial_layout(vk::ImageLayout::PREINITIALIZED);
        let raw = hal.raw_device().clone();
        // SAFETY: the numbers are within the limits that `MOST_BYTES` stands for.
        let image = unsafe { raw.create_image(&info, None) }.ok()?;
        // SAFETY: the image is new, of this device, and the memory is held by what is dropped with it.
        let bound = unsafe { bind(&raw, image, &memory, offset) };
        let destroy = move || {
            // SAFETY: it is called once, when nothing uses the image any more.
            unsafe { raw.destroy_image(image, None) };
            drop(memory);
        };
        if bound.is_none() {
            destroy();
            return None;
        }
        let size = wgpu::Extent3d { width, height, depth_or_array_layers: 1 };
        let hal_descriptor = wgpu::hal::TextureDescriptor {
            label: None,
            size,
            mip_level_count: 1,
            sample_count: 1,
            dimension: wgpu::TextureDimension::D2,
            format: FORMAT,
            usage: wgpu::TextureUses::RESOURCE,
            memory_flags: wgpu::hal::MemoryFlags::empty(),
            view_formats: vec![],
        };
        let descriptor = wgpu::TextureDescriptor {
            label: None,
            size,
            mip_level_count: 1,
            sample_count: 1,
            dimension: wgpu::TextureDimension::D2,
            format: FORMAT,
            usage: wgpu::TextureUsages::TEXTURE_BINDING,
            view_formats: &[],
        };
        // SAFETY: the image is of this device and as the descriptors say. A CPU adapter reads it as it lies.
        let texture = unsafe {
            let texture = hal.texture_from_raw(
                image,
                &hal_descriptor,
                Some(Box::new(destroy)),
                TextureMemory::External,
            );
            device.create_texture_from_hal::<Vulkan>(texture, &descriptor, wgpu::TextureUses::RESOURCE)
        };
        Some(texture.create_view(&wgpu::TextureViewDescriptor::default()))
    }
}

/// Returns the rows of a texture over so many texels. They are no power of two, and the texels of a row are
/// one: Mesa's llvmpipe compiles a kernel once more for a texture that differs in this from the one before,
/// though it makes no difference to what the kernel does.
fn rows(texels: u64) -> u64 {
    let rows = texels.div_ceil(WIDTH).max(3);
    rows + u64::from(rows.is_power_of_two())
}

/// Allocates memory for a buffer and binds it. Returns it with its bytes.
///
/// # Safety
/// The buffer is of this device and not bound.
unsafe fn allocate(device: &ash::Device, buffer: vk::Buffer) -> Option<(vk::DeviceMemory, u64)> {
    // SAFETY: see above.
    unsafe {
        let needs = device.get_buffer_memory_requirements(buffer);
        // A CPU adapter has one kind of memory, or takes any of those it allows.
        let kind = needs.memory_type_bits.trailing_zeros();
        // Memory that nobody touches takes no room.
        let bytes = needs.size + BEHIND;
        let info = vk::MemoryAllocateInfo::default().allocation_size(bytes).memory_type_index(kind);
        let memory = device.allocate_memory(&info, None).ok()?;
        if device.bind_buffer_memory(buffer, memory, 0).is_err() {
            device.free_memory(memory, None);
            return None;
        }
        Some((memory, bytes))
    }
}

/// Binds an image to memory, from an offset on, if its texels then lie there one after another.
///
/// # Safety
/// The image is of this device and not bound.
unsafe fn bind(device: &ash::Device, image: vk::Image, memory: &Memory, offset: u64) -> Option<()> {
    // SAFETY: see above.
    unsafe {
        let needs = device.get_image_memory_requirements(image);
        let whole = vk::ImageSubresource::default().aspect_mask(vk::ImageAspectFlags::COLOR);
        let rows = device.get_image_subresource_layout(image, whole);
        let plain = rows.offset == 0 && rows.row_pitch == ROW;
        let fits = offset.is_multiple_of(needs.alignment) && offset + needs.size <= memory.bytes;
        if !plain || !fits {
            return None;
        }
        device.bind_image_memory(image, memory.raw, offset).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_texture_has_a_power_of_two_of_rows_nor_too_many() {
        let most = super::super::MOST_BYTES / TEXEL;
        for texels in [0, 1, WIDTH, 3 * WIDTH, 4 * WIDTH - 1, 4 * WIDTH, 5 * WIDTH, 1 << 24, most] {
            let (rows, needed) = (rows(texels), texels.div_ceil(WIDTH));
            assert!(!rows.is_power_of_two() && rows <= WIDTH, "{texels}: {rows}");
            assert!(rows >= needed && rows <= needed.max(1) + 2, "{texels}: {rows}");
        }
    }
}
