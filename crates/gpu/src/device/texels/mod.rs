//! Memory that kernels write as a storage buffer and read as a texture.
//!
//! A software driver may load from a storage buffer lane by lane, with a wait for each number, but fetch
//! texels for all lanes at once: Mesa's lavapipe reads a vector of four up to eleven times as fast so. A
//! texture of four `u32` a texel and [`WIDTH`] texels a row lies in the same memory as the buffer. Nothing is
//! copied, and every bit arrives as it is. Kernels are changed to read through it ([`super::reads`]), and no
//! result depends on it.
//!
//! wgpu does not know that the two are one. What a kernel reads through a texture stays bound as a buffer
//! too, so that wgpu's barriers are those of the buffers. All of this is for CPU adapters only: they execute
//! commands in order, and keep linear images as plain rows.

pub(crate) mod measure;
#[cfg(not(all(feature = "vulkan", any(target_os = "linux", target_os = "windows"))))]
mod none;
#[cfg(all(feature = "vulkan", any(target_os = "linux", target_os = "windows")))]
mod vulkan;

#[cfg(not(all(feature = "vulkan", any(target_os = "linux", target_os = "windows"))))]
pub(crate) use none::Texels;
#[cfg(all(feature = "vulkan", any(target_os = "linux", target_os = "windows")))]
pub(crate) use vulkan::Texels;

/// The texels of a row, which kernels know as a constant.
pub(crate) const WIDTH: u64 = 1 << 14;
/// The bytes of a texel.
const TEXEL: u64 = 16;
/// The bytes of a row.
const ROW: u64 = WIDTH * TEXEL;
/// The bytes of memory behind a buffer for the last rows of its textures: for one that begins inside of the
/// buffer, two that a texture may have so that they are no power of two, and three to the end of a block of
/// four, since drivers end images at whole blocks.
pub(crate) const BEHIND: u64 = 6 * ROW;
/// The most bytes of a buffer that a texture covers, which has fewer rows than a row has texels.
pub(crate) const MOST_BYTES: u64 = (WIDTH - 1) * ROW;
