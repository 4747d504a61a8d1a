//! The MPI library, opened at run time, and its functions, each with its return code checked.
//!
//! Open MPI's handles are pointers to its own variables, MPICH's are numbers of 32 bits. Both are passed in a
//! `usize` here: the platforms that they run on pass either in one register, and where a function writes a
//! handle of 32 bits into a `usize` of zero, it is the same number on machines that store the low byte first.

use std::ffi::{c_char, c_int, c_void};
use std::ptr::{null_mut, without_provenance_mut};

use crate::error::MpiError;
use crate::failures::Failures;
use crate::names::Names;

/// The environment variable that names the file of the library.
const FILE: &str = "UNISONO_MPI";
/// The names of the library, the most specific first: Open MPI's, MPICH's, and whatever the system has.
const NAMES: [&str; 3] = ["libmpi.so.40", "libmpi.so.12", "libmpi.so"];
/// The tag of all messages.
const TAG: c_int = 17;
/// `MPI_THREAD_SERIALIZED` would do too: one thread makes all calls, but not the main one.
const THREAD_FUNNELED: c_int = 1;
/// The longest text that a library returns (Open MPI: 256, MPICH: 8192 for its version).
const TEXT: usize = 8192;

/// A request that is under way.
#[derive(Clone, Copy, Debug)]
pub struct Request(usize);

/// A message that has arrived and is not received yet.
#[derive(Clone, Copy, Debug)]
pub struct Arrived {
    pub from: usize,
    pub bytes: usize,
    message: usize,
}

/// What differs between the libraries.
#[derive(Clone, Copy, Debug)]
struct Abi {
    cluster: usize,
    byte: usize,
    errors_return: usize,
    any_source: c_int,
    status_ignore: usize,
    /// The index of the source in a status, in numbers of 32 bits.
    source_at: usize,
    is_mpich: bool,
}

/// MPICH's numbers, which its ABI fixes.
const MPICH: Abi = Abi {
    cluster: 0x4400_0000,
    byte: 0x4c00_010d,
    errors_return: 0x5400_0001,
    any_source: -2,
    status_ignore: 1,
    source_at: 2,
    is_mpich: true,
};

/// A status is 20 or 24 bytes; this has room for more.
type Status = [c_int; 32];

macro_rules! functions {
    ($($field:ident = $name:literal ($($arg:ty),*);)*) => {
        /// The functions of the library.
        struct Functions {
            $($field: unsafe extern "C" fn($($arg),*) -> c_int,)*
        }

        impl Functions {
            fn find(library: &libloading::os::unix::Library) -> Result<Self, MpiError> {
                let missing = |error: libloading::Error| MpiError::Library(error.to_string());
                Ok(Self {
                    // SAFETY: the MPI standard fixes the functions' types, up to the size of handles, about
                    // which see the top of this file.
                    $($field: unsafe { *library.get(concat!($name, "\0").as_bytes()).map_err(missing)? },)*
                })
            }
        }
    };
}

functions! {
    init_thread = "MPI_Init_thread"(*mut c_int, *mut *mut *mut c_char, c_int, *mut c_int);
    finalize = "MPI_Finalize"();
    comm_rank = "MPI_Comm_rank"(usize, *mut c_int);
    comm_size = "MPI_Comm_size"(usize, *mut c_int);
    comm_dup = "MPI_Comm_dup"(usize, *mut usize);
    set_errhandler = "MPI_Comm_set_errhandler"(usize, usize);
    processor_name = "MPI_Get_processor_name"(*mut c_char, *mut c_int);
    isend = "MPI_Isend"(*const c_void, c_int, usize, c_int, c_int, usize, *mut usize);
    improbe = "MPI_Improbe"(c_int, c_int, usize, *mut c_int, *mut usize, *mut Status);
    get_count = "MPI_Get_count"(*const Status, usize, *mut c_int);
    imrecv = "MPI_Imrecv"(*mut c_void, c_int, usize, *mut usize, *mut usize);
    test = "MPI_Test"(*mut usize, *mut c_int, *mut Status);
    error_string = "MPI_Error_string"(c_int, *mut c_char, *mut c_int);
}

/// An initialised MPI library and a communicator of all ranks.
pub struct Mpi {
    functions: Functions,
    abi: Abi,
    comm: usize,
    failures: Option<Failures>,
    names: Option<Names>,
    /// The functions are valid as long as this is open.
    _library: libloading::os::unix::Library,
}

impl Mpi {
    /// Opens the library and initialises it. The calling thread makes all further calls. Messages go through
    /// the library's own communicator of all ranks until [`Mpi::own_communicator`].
    pub fn init() -> Result<Self, MpiError> {
        let library = open()?;
        let functions = Functions::find(&library)?;
        let abi = abi(&library);
        // MPICH has functions of these names too, which end the process.
        let failures = if abi.is_mpich { None } else { Failures::find(&library) };
        let names = if abi.is_mpich { None } else { Names::find(&library) };
        let mpi = Self { functions, abi, comm: abi.cluster, failures, names, _library: library };
        let mut provided = 0;
        // SAFETY: null stands for no arguments, which the standard allows.
        let code =
            unsafe { (mpi.functions.init_thread)(null_mut(), null_mut(), THREAD_FUNNELED, &mut provided) };
        mpi.check("MPI_Init_thread", code)?;
        // SAFETY: both are handles of this library.
        let code = unsafe { (mpi.functions.set_errhandler)(abi.cluster, abi.errors_return) };
        mpi.check("MPI_Comm_set_errhandler", code)?;
        Ok(mpi)
    }

    /// Makes a communicator for this crate's messages alone. All ranks call it, and it waits for them without
    /// a limit: each must have heard from all others before.
    pub fn own_communicator(&mut self) -> Result<(), MpiError> {
        let mut comm = 0;
        // SAFETY: a handle of this library, and room for another one.
        let code = unsafe { (self.functions.comm_dup)(self.abi.cluster, &mut comm) };
        self.check("MPI_Comm_dup", code)?;
        // SAFETY: both are handles of this library.
        let code = unsafe { (self.functions.set_errhandler)(comm, self.abi.errors_return) };
        self.check("MPI_Comm_set_errhandler", code)?;
        self.comm = comm;
        Ok(())
    }

    /// Returns this rank and the number of ranks.
    pub fn rank_and_size(&self) -> Result<(usize, usize), MpiError> {
        let (mut rank, mut size) = (0, 0);
        // SAFETY: a handle of this library, and room for a number.
        let code = unsafe { (self.functions.comm_rank)(self.comm, &mut rank) };
        self.check("MPI_Comm_rank", code)?;
        // SAFETY: as above.
        let code = unsafe { (self.functions.comm_size)(self.comm, &mut size) };
        self.check("MPI_Comm_size", code)?;
        Ok((rank as usize, size as usize))
    }

    /// Returns the ranks that the library knows to be lost. Libraries without fault tolerance end the job
    /// instead.
    pub fn lost(&self) -> Vec<usize> {
        self.failures.and_then(|failures| failures.lost(self.comm)).unwrap_or_default()
    }

    /// Returns the name of this machine.
    pub fn host(&self) -> Result<String, MpiError> {
        let (mut name, mut len) = ([0u8; TEXT], 0);
        // SAFETY: the library writes at most MPI_MAX_PROCESSOR_NAME bytes, which is 256 or less everywhere.
        let code = unsafe { (self.functions.processor_name)(name.as_mut_ptr().cast(), &mut len) };
        self.check("MPI_Get_processor_name", code)?;
        let name = name.get(..len.max(0) as usize).unwrap_or_default();
        let end = name.iter().position(|byte| *byte == 0).unwrap_or(name.len());
        Ok(String::from_utf8_lossy(&name[..end]).into_owned())
    }

    /// Returns what the launcher passes names on with, if the library has it.
    pub fn names(&self) -> Option<Names> {
        self.names
    }

    /// Begins to send a message.
    ///
    /// # Safety
    /// The bytes stay where they are until [`Mpi::test`] says that the request is done.
    pub unsafe fn send(&self, to: usize, bytes: &[u8]) -> Result<Request, MpiError> {
        let (count, mut request) = (self.count(bytes.len())?, 0);
        let (at, byte) = (bytes.as_ptr().cast(), self.abi.byte);
        // SAFETY: the caller keeps the bytes.
        let code =
            unsafe { (self.functions.isend)(at, count, byte, to as c_int, TAG, self.comm, &mut request) };
        self.check("MPI_Isend", code)?;
        Ok(Request(request))
    }

    /// Returns a message that has arrived, if there is one.
    pub fn probe(&self) -> Result<Option<Arrived>, MpiError> {
        let (mut flag, mut message, mut status) = (0, 0, [0; 32]);
        let source = self.abi.any_source;
        // SAFETY: room for a number, a handle and a status.
        let code =
            unsafe { (self.functions.improbe)(source, TAG, self.comm, &mut flag, &mut message, &mut status) };
        self.check("MPI_Improbe", code)?;
        if flag == 0 {
            return Ok(None);
        }
        let mut count = 0;
        // SAFETY: the status is the one that the library has just written.
        let code = unsafe { (self.functions.get_count)(&status, self.abi.byte, &mut count) };
        self.check("MPI_Get_count", code)?;
        let from = status[self.abi.source_at] as usize;
        Ok(Some(Arrived { from, bytes: count.max(0) as usize, message }))
    }

    /// Begins to receive a message that has arrived.
    ///
    /// # Safety
    /// `into` has the message's size and stays where it is until [`Mpi::test`] says that the request is done.
    pub unsafe fn receive(&self, arrived: Arrived, into: &mut [u8]) -> Result<Request, MpiError> {
        let (count, mut message, mut request) = (self.count(into.len())?, arrived.message, 0);
        let (at, byte) = (into.as_mut_ptr().cast(), self.abi.byte);
        // SAFETY: the caller keeps the bytes.
        let code = unsafe { (self.functions.imrecv)(at, count, byte, &mut message, &mut request) };
        self.check("MPI_Imrecv", code)?;
        Ok(Request(request))
    }

    /// Returns whether a request is done. It must not be tested again after that.
    pub fn test(&self, request: &mut Request) -> Result<bool, MpiError> {
        let mut flag = 0;
        // No status is asked for.
        let status = without_provenance_mut(self.abi.status_ignore);
        // SAFETY: the request is one of this library, and the address is the library's own for no status.
        let code = unsafe { (self.functions.test)(&mut request.0, &mut flag, status) };
        self.check("MPI_Test", code)?;
        Ok(flag != 0)
    }

    /// Finalises the library. No other call comes after it.
    pub fn finalize(self) -> Result<(), MpiError> {
        // SAFETY: no request is under way and nothing is called after it, since `self` is gone.
        let code = unsafe { (self.functions.finalize)() };
        if code == 0 { Ok(()) } else { Err(MpiError::Call { call: "MPI_Finalize", why: code.to_string() }) }
    }

    /// Returns the number of bytes as MPI counts them.
    fn count(&self, bytes: usize) -> Result<c_int, MpiError> {
        let why = || format!("{bytes} bytes are too many for one message");
        c_int::try_from(bytes).map_err(|_| MpiError::Call { call: "MPI_Isend", why: why() })
    }

    fn check(&self, call: &'static str, code: c_int) -> Result<(), MpiError> {
        if code == 0 {
            return Ok(());
        }
        let (mut text, mut len) = ([0u8; TEXT], 0);
        // SAFETY: the library writes at most MPI_MAX_ERROR_STRING bytes, which is 1024 or less everywhere.
        let told = unsafe { (self.functions.error_string)(code, text.as_mut_ptr().cast(), &mut len) };
        let text = text.get(..len.max(0) as usize).unwrap_or_default();
        let why = if told == 0 { String::from_utf8_lossy(text).into_owned() } else { format!("code {code}") };
        Err(MpiError::Call { call, why })
    }
}

/// Opens the library. Its symbols are global, because Open MPI opens parts of itself that look for them.
fn open() -> Result<libloading::os::unix::Library, MpiError> {
    use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_NOW};
    let own = std::env::var(FILE).ok();
    let names: Vec<&str> = own.as_deref().map_or(NAMES.to_vec(), |own| vec![own]);
    first_of(&names, |name| {
        // SAFETY: what the library does when it is opened is the library's own affair, as for one that the
        // program is linked to.
        unsafe { Library::open(Some(name), RTLD_NOW | RTLD_GLOBAL) }.map_err(|error| error.to_string())
    })
    .map_err(MpiError::Library)
}

/// Returns the first of the libraries that can be opened, or why none can be: the reason of the first one
/// that is there, such as one for another machine, or else that of the first one.
fn first_of<T>(names: &[&str], mut open: impl FnMut(&str) -> Result<T, String>) -> Result<T, String> {
    let mut reasons = Vec::new();
    for name in names {
        match open(name) {
            Ok(library) => return Ok(library),
            Err(reason) => reasons.push(reason),
        }
    }
    // The loaders of systems say in words alone that a file is missing. If it is another one, which the
    // library needs, they name that one, or both.
    let is_missing = |name: &str, reason: &str| {
        let has = |words: &str| reason.to_lowercase().contains(words);
        has(name) && has("no such file") && !has("needed by") && !has("incompatible")
    };
    let found = names.iter().zip(&reasons).find(|(name, reason)| !is_missing(name, reason));
    Err(found.map(|(_, reason)| reason.clone()).or_else(|| reasons.into_iter().next()).unwrap_or_default())
}

/// Returns what this library has for the predefined handles: Open MPI exports them as variables.
fn abi(library: &libloading::os::unix::Library) -> Abi {
    let address = |name: &[u8]| {
        // SAFETY: only the address of the variable is taken.
        let symbol = unsafe { library.get::<*const c_void>(name) };
        symbol.ok().map(|symbol| symbol.into_raw() as usize)
    };
    let handles = (
        address(b"ompi_mpi_comm_world\0"),
        address(b"ompi_mpi_byte\0"),
        address(b"ompi_mpi_errors_return\0"),
    );
    match handles {
        (Some(cluster), Some(byte), Some(errors_return)) => {
            let (any_source, status_ignore, source_at) = (-1, 0, 0);
            Abi { cluster, byte, errors_return, any_source, status_ignore, source_at, is_mpich: false }
        }
        _ => MPICH,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the reason that is given when each name has one.
    fn reason(all: [(&str, &str); 3]) -> String {
        let reason_of =
            |name: &str| all.iter().find(|(own, _)| *own == name).map(|(_, why)| (*why).to_owned());
        first_of(&all.map(|(name, _)| name), |name| Err::<(), _>(reason_of(name).unwrap())).unwrap_err()
    }

    #[test]
    fn the_reason_is_that_of_the_first_library_that_is_there() {
        let absent = std::io::Error::from_raw_os_error(2);
        let missing = |name: &str| format!("{name}: cannot open shared object file: {absent}");
        let [openmpi, mpich, system] = NAMES.map(missing);
        let broken = "libmpi.so.12: wrong ELF class: ELFCLASS32";
        let lacks = &missing("libhwloc.so.15");
        let of = |all: [&str; 3]| reason([(NAMES[0], all[0]), (NAMES[1], all[1]), (NAMES[2], all[2])]);
        assert_eq!(of([&openmpi, broken, &system]), broken);
        // What it depends on is missing, and not the library itself.
        assert_eq!(&of([lacks, &mpich, &system]), lacks);
        assert_eq!(of([&openmpi, &mpich, &system]), openmpi);
    }

    #[test]
    fn the_first_library_that_can_be_opened_is_taken() {
        let opened = first_of(&NAMES, |name| if name == NAMES[1] { Ok(7) } else { Err(name.to_owned()) });
        assert_eq!(opened, Ok(7));
    }
}
