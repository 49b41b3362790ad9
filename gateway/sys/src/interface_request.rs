//! The request of ioctl(2) calls about one interface.

use std::ffi::c_void;

/// `ifreq` of linux/if.h with its pointer as the union's member.
#[repr(C)]
pub(crate) struct InterfaceRequest {
    name: [u8; NAME_BYTES],
    data: *mut c_void,
    rest: [u8; 16],
}
const _: () = assert!(size_of::<InterfaceRequest>() == 40);

/// `IFNAMSIZ`, the final zero included.
const NAME_BYTES: usize = 16;

impl InterfaceRequest {
    /// A request with a pointer to its data; `None` if no interface can have that name.
    pub(crate) fn new<T>(interface: &str, data: *mut T) -> Option<Self> {
        let mut name = [0; NAME_BYTES];
        let used = name.get_mut(..interface.len()).filter(|used| !used.is_empty() && used.len() < NAME_BYTES)?;
        used.copy_from_slice(interface.as_bytes());
        Some(Self { name, data: data.cast(), rest: [0; 16] })
    }
}
