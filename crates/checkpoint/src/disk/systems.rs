//! What some systems refuse, though the file system can do it: syncs on Apple's, renames on Windows.

use std::io::{self, ErrorKind};
use std::time::Duration;

/// The longest pause between two attempts. All pauses before the last attempt are 2.5 s together.
const LONGEST: Duration = Duration::from_millis(1280);

/// Returns what a full sync said, or what a plain one says where the file system has no full sync: shares and
/// file systems of users have none on Apple's systems.
#[cfg(unix)]
#[cfg_attr(not(target_vendor = "apple"), allow(dead_code, reason = "other systems have one sync"))]
pub(crate) fn synced(full: io::Result<()>, plain: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
    match full {
        Err(error) if is_without(&error) => plain(),
        result => result,
    }
}

/// Returns whether an error says that a file system does not have the operation.
#[cfg(unix)]
#[cfg_attr(not(target_vendor = "apple"), allow(dead_code, reason = "other systems have one sync"))]
pub(crate) fn is_without(error: &io::Error) -> bool {
    use rustix::io::Errno;
    let known = [Errno::INVAL, Errno::NOTSUP, Errno::OPNOTSUPP, Errno::NOTTY, Errno::NOSYS];
    Errno::from_io_error(error).is_some_and(|code| known.contains(&code))
}

/// Tries a rename again, with longer and longer pauses, while Windows refuses it because a scanner of
/// viruses, an indexer or another reader has the files open.
#[cfg_attr(not(windows), allow(dead_code, reason = "other systems rename what is open"))]
pub(crate) fn patiently(
    mut attempt: impl FnMut() -> io::Result<()>,
    mut pause: impl FnMut(Duration),
) -> io::Result<()> {
    let mut next = Duration::from_millis(10);
    loop {
        match attempt() {
            Err(error) if next <= LONGEST && is_in_use(&error) => pause(next),
            result => return result,
        }
        next *= 2;
    }
}

/// Returns whether an error of Windows may mean that somebody has the file open: access denied, a sharing
/// violation, a lock violation, or a file that is mapped.
fn is_in_use(error: &io::Error) -> bool {
    error.kind() == ErrorKind::PermissionDenied || matches!(error.raw_os_error(), Some(5 | 32 | 33 | 1224))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(unix)]
    #[test]
    fn a_plain_sync_takes_the_place_of_a_full_one_that_the_file_system_lacks() {
        use rustix::io::Errno;
        let plain = || Err(ErrorKind::StorageFull.into());
        for lacks in [Errno::NOTSUP, Errno::INVAL, Errno::NOTTY] {
            let kind = synced(Err(lacks.into()), plain).unwrap_err().kind();
            assert_eq!(kind, ErrorKind::StorageFull, "{lacks}");
            assert!(synced(Err(lacks.into()), || Ok(())).is_ok());
        }
        assert!(synced(Ok(()), plain).is_ok());
        let broken = synced(Err(Errno::IO.into()), || Ok(())).unwrap_err();
        assert_eq!(Errno::from_io_error(&broken), Some(Errno::IO));
    }

    /// Returns what a rename says that is refused so many times, and the pauses that it took.
    fn renamed(refusals: usize, refusal: impl Fn() -> io::Error) -> (io::Result<()>, Vec<u128>) {
        let (mut left, mut pauses) = (refusals, Vec::new());
        let attempt = || match left {
            0 => Ok(()),
            _ => {
                left -= 1;
                Err(refusal())
            }
        };
        (patiently(attempt, |pause| pauses.push(pause.as_millis())), pauses)
    }

    #[test]
    fn a_rename_is_tried_again_for_a_while_if_the_files_are_in_use() {
        let (denied, shared) = (|| ErrorKind::PermissionDenied.into(), || io::Error::from_raw_os_error(32));
        assert!(matches!(renamed(2, denied), (Ok(()), pauses) if pauses == [10, 20]));
        assert!(matches!(renamed(1, shared), (Ok(()), pauses) if pauses == [10]));
        let (refused, pauses) = renamed(usize::MAX, denied);
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::PermissionDenied);
        assert_eq!((pauses.len(), pauses.iter().sum::<u128>()), (8, 2550));
        assert!(matches!(renamed(1, || ErrorKind::NotFound.into()), (Err(_), pauses) if pauses.is_empty()));
    }
}
