//! The names of machines through the launcher: mpirun passes them on where the machines do not reach each
//! other.

use std::ffi::{c_char, c_int, c_void};

/// The longest name of a port in Open MPI, with room to spare.
const TEXT: usize = 8192;

/// The functions that publish a name and look it up. Only Open MPI's are used.
#[derive(Clone, Copy)]
pub struct Names {
    publish: unsafe extern "C" fn(*const c_char, usize, *const c_char) -> c_int,
    look_up: unsafe extern "C" fn(*const c_char, usize, *mut c_char) -> c_int,
    no_info: usize,
}

impl Names {
    /// Finds the functions in the library.
    pub fn find(library: &libloading::os::unix::Library) -> Option<Self> {
        // SAFETY: the MPI standard fixes the functions' types, up to the size of handles, about which see
        // `library.rs`. Only the address of the variable is taken.
        unsafe {
            let no_info = library.get::<*const c_void>(b"ompi_mpi_info_null\0").ok()?;
            Some(Self {
                publish: *library.get(b"MPI_Publish_name\0").ok()?,
                look_up: *library.get(b"MPI_Lookup_name\0").ok()?,
                no_info: no_info.into_raw() as usize,
            })
        }
    }

    /// Publishes the machine of a rank.
    pub fn publish(&self, rank: usize, host: &str) {
        let service = format!("unisono-host-{rank}\0");
        let host = format!("{}\0", host.replace('\0', ""));
        // SAFETY: both texts end with a zero, and the handle is the library's own. A failure leaves the name
        // unknown.
        unsafe { (self.publish)(service.as_ptr().cast(), self.no_info, host.as_ptr().cast()) };
    }

    /// Returns the machine of a rank, if that rank has published it.
    pub fn look_up(&self, rank: usize) -> Option<String> {
        let service = format!("unisono-host-{rank}\0");
        let mut host = [0u8; TEXT];
        // SAFETY: the text ends with a zero, and the library writes at most MPI_MAX_PORT_NAME bytes, which is
        // 1024.
        let code = unsafe { (self.look_up)(service.as_ptr().cast(), self.no_info, host.as_mut_ptr().cast()) };
        let end = host.iter().position(|byte| *byte == 0).unwrap_or(0);
        (code == 0 && end > 0).then(|| String::from_utf8_lossy(&host[..end]).into_owned())
    }
}
