//! Groups of users by name.

#![allow(unsafe_code, reason = "getgrnam_r(3), which neither rustix nor socket2 has")]

use std::{ffi::CString, io, mem::MaybeUninit, ptr};

/// Number of the group with that name, of whatever source the host is set to use; `None` if there is none.
///
/// # Errors
/// If the source cannot be asked.
pub fn group_id(name: &str) -> io::Result<Option<u32>> {
    let name = CString::new(name)?;
    let mut bytes = vec![0; BUFFER_BYTES];
    loop {
        let mut group = MaybeUninit::<libc::group>::uninit();
        let mut found: *mut libc::group = ptr::null_mut();
        // SAFETY: getgrnam_r(3) reads the name up to its zero byte, and writes one group, texts of up to `bytes.len()` bytes, and one
        // pointer. All four live over the call, and nothing else refers to them.
        let error = unsafe {
            libc::getgrnam_r(name.as_ptr(), group.as_mut_ptr(), bytes.as_mut_ptr(), bytes.len(), &raw mut found)
        };
        match error {
            libc::ERANGE if bytes.len() < BUFFER_BYTES_MAX => bytes.resize(2 * bytes.len(), 0),
            0 if found.is_null() => return Ok(None),
            // SAFETY: a result that is not null says that the group was written. The pointer is to `group`.
            0 => return Ok(Some(unsafe { group.assume_init_ref() }.gr_gid)),
            // Some sources report a name that they do not have as an error.
            libc::ENOENT | libc::ESRCH => return Ok(None),
            error => return Err(io::Error::from_raw_os_error(error)),
        }
    }
}

/// Bytes for the names of a group's members, at first.
const BUFFER_BYTES: usize = 4 << 10;
const BUFFER_BYTES_MAX: usize = 16 << 20;

#[cfg(test)]
mod tests {
    use super::group_id;

    #[test]
    fn groups_are_found_by_name() {
        assert_eq!(group_id("root").unwrap(), Some(0));
        assert_eq!(group_id("no such group").unwrap(), None);
        assert!(group_id("\0").is_err());
    }
}
