//! Which ranks are lost, as libraries with fault tolerance (ULFM, Open MPI 5 with `mpirun --with-ft ulfm`)
//! know it.

use std::ffi::c_int;

use libloading::os::unix::Library;

/// The functions of a library with fault tolerance.
#[derive(Clone, Copy, Debug)]
pub struct Failures {
    ack: unsafe extern "C" fn(usize) -> c_int,
    get_acked: unsafe extern "C" fn(usize, *mut usize) -> c_int,
    comm_group: unsafe extern "C" fn(usize, *mut usize) -> c_int,
    group_size: unsafe extern "C" fn(usize, *mut c_int) -> c_int,
    group_free: unsafe extern "C" fn(*mut usize) -> c_int,
    translate: unsafe extern "C" fn(usize, c_int, *const c_int, usize, *mut c_int) -> c_int,
}

impl Failures {
    /// Returns the functions, or `None` if the library has no fault tolerance.
    pub fn find(library: &Library) -> Option<Self> {
        // SAFETY: the MPI standard and its extension fix the functions' types, up to the size of handles,
        // about which see `library.rs`.
        unsafe {
            Some(Self {
                ack: *library.get(b"MPIX_Comm_failure_ack\0").ok()?,
                get_acked: *library.get(b"MPIX_Comm_failure_get_acked\0").ok()?,
                comm_group: *library.get(b"MPI_Comm_group\0").ok()?,
                group_size: *library.get(b"MPI_Group_size\0").ok()?,
                group_free: *library.get(b"MPI_Group_free\0").ok()?,
                translate: *library.get(b"MPI_Group_translate_ranks\0").ok()?,
            })
        }
    }

    /// Returns the ranks of a communicator that are lost, as far as the library knows. From then on messages
    /// from any of the others can be received again.
    pub fn lost(&self, comm: usize) -> Option<Vec<usize>> {
        let (mut lost, mut all, mut count) = (0, 0, 0);
        // SAFETY: a handle of this library, and room for handles and a number.
        let asked = unsafe {
            (self.ack)(comm) == 0
                && (self.get_acked)(comm, &mut lost) == 0
                && (self.comm_group)(comm, &mut all) == 0
                && (self.group_size)(lost, &mut count) == 0
        };
        if !asked {
            return None;
        }
        let own: Vec<c_int> = (0..count.max(0)).collect();
        let mut ranks = vec![0; own.len()];
        // SAFETY: both arrays have that many numbers; the handles are those that were just returned.
        let translated = unsafe {
            let code = (self.translate)(lost, count, own.as_ptr(), all, ranks.as_mut_ptr());
            (self.group_free)(&mut lost);
            (self.group_free)(&mut all);
            code == 0
        };
        translated.then(|| ranks.into_iter().filter_map(|rank| usize::try_from(rank).ok()).collect())
    }
}
