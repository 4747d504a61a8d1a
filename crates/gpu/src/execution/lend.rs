//! Lends the memory of uploads before their segment is submitted.

use unisono_graph::plan::Transfer;

use crate::device::mapped::Loan;
use crate::{Device, GpuError, MappedUpload};

use super::executable::{Executable, Lane, LoadedSegment, segment_of};

impl Lane {
    /// Takes back the memory of uploads that was lent. Returns the numbers of those uploads that are written,
    /// or an error if some of the memory is still kept.
    pub fn take_loans(&mut self) -> Result<Vec<usize>, GpuError> {
        let written = self.loans.iter_mut().map(Loan::end).collect::<Result<Vec<_>, _>>()?;
        self.loans.clear();
        Ok(written.into_iter().flatten().collect())
    }
}

impl Device {
    /// Lends the memory of those of a segment's uploads that are `wanted`, each with its slot, so that they
    /// can be written before the segment is submitted, while others run: see [`crate::Writer::keep`]. Uploads
    /// that the host writes into buffers of kernels are left out. Waits if an earlier submission of the
    /// segment still has the memory.
    ///
    /// # Errors
    /// [`GpuError::Plan`] if there is no such segment, or memory of it is lent already; errors of earlier
    /// submissions.
    pub fn lend_uploads(
        &self,
        executable: &mut Executable,
        segment: usize,
        wanted: &dyn Fn(&Transfer) -> bool,
    ) -> Result<Vec<(usize, MappedUpload)>, GpuError> {
        self.faults.check()?;
        self.own(executable)?;
        let LoadedSegment { uploads, lanes, .. } = segment_of(&mut executable.segments, segment)?;
        let lane = &mut lanes[0];
        lane.take_loans()?;
        self.reclaim(lane)?;
        let mut lent = Vec::new();
        for (upload, (transfer, place)) in uploads.iter().zip(&lane.upload.places).enumerate() {
            let Some((block, offset)) = place.filter(|_| wanted(transfer)) else { continue };
            let bytes = transfer.slice.bytes;
            let view = lane.upload.blocks[block].buffer.get_mapped_range_mut(offset..offset + bytes);
            let what = || format!("upload of slot {}", transfer.slot);
            let view = view.map_err(|error| self.blame(&what(), error))?;
            let (memory, loan) = MappedUpload::new(view, upload, bytes);
            lane.loans.push(loan);
            lent.push((transfer.slot, memory));
        }
        Ok(lent)
    }
}
