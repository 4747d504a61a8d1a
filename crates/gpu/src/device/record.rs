//! Records commands, with the marks by which the host knows that the device has computed them.

use crate::Device;
use crate::device::clock::Timestamps;
use crate::device::fault::Lie;
use crate::device::staging::Staging;

/// Memory at an offset.
pub(crate) type Place<'a> = (&'a wgpu::Buffer, u64);

/// The commands of a submission while they are recorded.
pub(crate) struct Recorder<'a> {
    pub(crate) device: &'a Device,
    encoder: wgpu::CommandEncoder,
    /// Whether the run of copies and clears that is open is left out; none behind a pass.
    copies: Option<bool>,
    /// Whether copies or clears were recorded that neither a pass nor a copy of the count proves.
    unproven: bool,
    /// Whether a pass was recorded since the count was copied.
    counted: bool,
}

impl<'a> Recorder<'a> {
    pub fn new(device: &'a Device) -> Self {
        let encoder = device.raw.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
        Self { device, encoder, copies: None, unproven: false, counted: false }
    }

    pub fn copy(&mut self, (from, from_offset): Place<'_>, (to, to_offset): Place<'_>, bytes: u64) {
        if self.begin_copies() {
            self.encoder.copy_buffer_to_buffer(from, from_offset, to, to_offset, bytes);
        }
    }

    /// Records a copy to memory that the host reads.
    pub fn download(&mut self, from: Place<'_>, to: Place<'_>, bytes: u64) {
        if self.device.faults.lies(Lie::Zeros) {
            self.clear(to, bytes);
        } else if !self.device.faults.lies(Lie::Stale) {
            self.copy(from, to, bytes);
        }
    }

    pub fn clear(&mut self, (buffer, offset): Place<'_>, bytes: u64) {
        if self.begin_copies() {
            self.encoder.clear_buffer(buffer, offset, Some(bytes));
        }
    }

    /// Records the copy of timestamps to staging memory, behind all copies that need a proof: wgpu may begin
    /// a command buffer here. Timestamps need none, since those that make no sense turn the clock off.
    pub fn fetch(&mut self, timestamps: &Timestamps, (to, offset): Place<'_>) {
        if self.copies != Some(true) {
            timestamps.fetch(&mut self.encoder, to, offset);
        }
    }

    /// Opens a run of copies and clears, unless one is open. Returns whether it is recorded.
    fn begin_copies(&mut self) -> bool {
        self.unproven = true;
        !*self.copies.get_or_insert_with(|| self.device.faults.leaves_out())
    }

    /// Records a pass with these launches.
    pub fn pass(
        &mut self,
        timestamps: Option<wgpu::ComputePassTimestampWrites<'_>>,
        launches: impl FnOnce(&mut wgpu::ComputePass<'_>),
    ) {
        if let Some(marks) = &self.device.marks {
            let (from, to, bytes) = marks.number();
            self.copy(from, to, bytes);
        }
        self.pass_without_number(timestamps, launches);
    }

    fn pass_without_number(
        &mut self,
        timestamp_writes: Option<wgpu::ComputePassTimestampWrites<'_>>,
        launches: impl FnOnce(&mut wgpu::ComputePass<'_>),
    ) {
        let marks = self.device.marks.as_ref();
        let descriptor = wgpu::ComputePassDescriptor { label: None, timestamp_writes };
        let mut pass = self.encoder.begin_compute_pass(&descriptor);
        if !self.device.faults.leaves_out() {
            launches(&mut pass);
            if let Some(marks) = marks {
                marks.launch(&mut pass);
            }
        }
        drop(pass);
        if let Some(marks) = marks {
            marks.count();
        }
        (self.copies, self.unproven, self.counted) = (None, false, true);
    }

    /// Records the copy of the count to its place in staging memory. Returns the count that is to be there.
    pub fn stamp(&mut self, staging: &Staging) -> u32 {
        let (Some(marks), Some(&Some((block, offset)))) = (&self.device.marks, staging.places.last()) else {
            return 0;
        };
        // Without a pass in between, the count would be the one that is there.
        if !self.counted {
            self.pass(None, |_| ());
        }
        let (from, to, bytes) = marks.stamp(&staging.blocks[block].buffer, offset);
        self.download(from, to, bytes);
        (self.unproven, self.counted) = (false, false);
        marks.recorded()
    }

    /// Returns commands that count a pass if the number was written by wgpu's own queue. So they prove that
    /// queue's writes before it.
    pub fn proof_of_writes(device: &'a Device) -> wgpu::CommandBuffer {
        let mut recorder = Self::new(device);
        recorder.pass_without_number(None, |_| ());
        recorder.finish()
    }

    /// Asks for staging memory to be mapped when these commands are done.
    pub fn map(&self, staging: &Staging) {
        staging.map_after(&self.encoder);
    }

    pub fn finish(mut self) -> wgpu::CommandBuffer {
        if self.unproven && self.device.marks.is_some() {
            self.pass(None, |_| ());
        }
        self.encoder.finish()
    }
}
