//! The bpf(2) calls of the fence, and its map as memory.

#![allow(unsafe_code, reason = "bpf(2), which rustix lacks")]

use std::{
    ffi::CStr,
    io,
    os::fd::{AsFd, AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd},
    ptr,
    sync::atomic::AtomicU64,
};

use rustix::mm::{MapFlags, ProtFlags, mmap};

use super::program::Instruction;

/// 64-bit atomics that programs and processes share: an array of one value, mapped for the rest of the process's life.
#[derive(Debug)]
pub(super) struct Map {
    descriptor: OwnedFd,
    atomics: &'static [AtomicU64],
}

impl Map {
    /// Creates a map of `word_count` atomics, all 0.
    pub(super) fn create(word_count: usize) -> io::Result<Self> {
        let request = MapCreate {
            map_type: MAP_TYPE_ARRAY,
            key_size: 4,
            value_size: to_u32(word_count * size_of::<AtomicU64>())?,
            max_entries: 1,
            map_flags: MAP_MMAPABLE,
            inner_map_fd: 0,
            numa_node: 0,
            map_name: *b"mdgw_fence\0\0\0\0\0\0",
        };
        Self::open(call(MAP_CREATE, &request)?, word_count)
    }

    /// Opens a map of another process, of at least `word_count` atomics.
    pub(super) fn open(descriptor: OwnedFd, word_count: usize) -> io::Result<Self> {
        let bytes = word_count * size_of::<AtomicU64>();
        // SAFETY: mmap(2) chooses a fresh address, so nothing that exists is touched.
        let address = unsafe {
            mmap(ptr::null_mut(), bytes, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED, &descriptor, 0)
        }?;
        // SAFETY: the mapping is page-aligned and never unmapped; the kernel refuses a mapping larger than the map,
        // rounded up to pages. Other parties may change atomics at any time, and every bit pattern is valid.
        let atomics = unsafe { std::slice::from_raw_parts(address.cast::<AtomicU64>(), word_count) };
        Ok(Self { descriptor, atomics })
    }

    pub(super) fn atomics(&self) -> &'static [AtomicU64] {
        self.atomics
    }

    pub(super) fn into_descriptor(self) -> OwnedFd {
        self.descriptor
    }
}

impl AsFd for Map {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

/// Loads a program for the egress of cgroups; the kernel verifies it.
pub(super) fn load(program: &[Instruction]) -> io::Result<OwnedFd> {
    let mut log = vec![0_u8; LOG_BYTES];
    let mut request = ProgramLoad {
        prog_type: PROGRAM_CGROUP_SKB,
        insn_cnt: to_u32(program.len())?,
        insns: program.as_ptr() as u64,
        license: LICENSE.as_ptr() as u64,
        log_level: 0,
        log_size: 0,
        log_buf: 0,
        kern_version: 0,
        prog_flags: 0,
        prog_name: *b"mdgw_fence\0\0\0\0\0\0",
        prog_ifindex: 0,
        expected_attach_type: CGROUP_INET_EGRESS,
    };
    let refused = match call(PROGRAM_LOAD, &request) {
        Ok(loaded) => return Ok(loaded),
        Err(refused) => refused,
    };
    // Load again with a log, for the verifier's reason.
    (request.log_level, request.log_size, request.log_buf) = (1, to_u32(log.len())?, log.as_mut_ptr() as u64);
    if call(PROGRAM_LOAD, &request).is_err()
        && let Ok(reason) = CStr::from_bytes_until_nul(&log)
        && !reason.is_empty()
    {
        tracing::debug!("BPF verifier: {}", reason.to_string_lossy());
    }
    Err(refused)
}

/// Attaches the program to the cgroup of that directory, for as long as the link is open.
pub(super) fn link_to_egress(program: &OwnedFd, cgroup: &impl AsFd) -> io::Result<OwnedFd> {
    let number = |descriptor: BorrowedFd<'_>| descriptor.as_raw_fd().cast_unsigned();
    let request = LinkCreate {
        prog_fd: number(program.as_fd()),
        target_fd: number(cgroup.as_fd()),
        attach_type: CGROUP_INET_EGRESS,
        flags: 0,
    };
    call(LINK_CREATE, &request)
}

/// Makes a request that returns a descriptor.
fn call<T: Request>(command: libc::c_int, request: &T) -> io::Result<OwnedFd> {
    // SAFETY: bpf(2) reads a request of that size. The addresses in it point to live memory of the sizes stored beside
    // them (`load` ensures this), and only the log is written.
    let descriptor = unsafe { libc::syscall(libc::SYS_bpf, command, ptr::from_ref(request), size_of::<T>()) };
    match libc::c_int::try_from(descriptor) {
        // SAFETY: these commands return a new descriptor that has no other owner.
        Ok(descriptor) if descriptor >= 0 => Ok(unsafe { OwnedFd::from_raw_fd(descriptor) }),
        _ => Err(io::Error::last_os_error()),
    }
}

fn to_u32(count: usize) -> io::Result<u32> {
    u32::try_from(count).map_err(io::Error::other)
}

/// Requests: prefixes of `bpf_attr` of linux/bpf.h. The kernel takes the missing fields as 0.
trait Request {}

#[repr(C)]
struct MapCreate {
    map_type: u32,
    key_size: u32,
    value_size: u32,
    max_entries: u32,
    map_flags: u32,
    inner_map_fd: u32,
    numa_node: u32,
    map_name: [u8; 16],
}
impl Request for MapCreate {}

#[repr(C)]
struct ProgramLoad {
    prog_type: u32,
    insn_cnt: u32,
    insns: u64,
    license: u64,
    log_level: u32,
    log_size: u32,
    log_buf: u64,
    kern_version: u32,
    prog_flags: u32,
    prog_name: [u8; 16],
    prog_ifindex: u32,
    expected_attach_type: u32,
}
impl Request for ProgramLoad {}
const _: () = assert!(size_of::<ProgramLoad>() == 72);

#[repr(C)]
struct LinkCreate {
    prog_fd: u32,
    target_fd: u32,
    attach_type: u32,
    flags: u32,
}
impl Request for LinkCreate {}

const MAP_CREATE: libc::c_int = 0;
const PROGRAM_LOAD: libc::c_int = 5;
const LINK_CREATE: libc::c_int = 28;
const MAP_TYPE_ARRAY: u32 = 2;
const MAP_MMAPABLE: u32 = 1 << 10;
const PROGRAM_CGROUP_SKB: u32 = 8;
const CGROUP_INET_EGRESS: u32 = 1;
/// Licence of the program. None of the helper functions in use requires the GPL.
const LICENSE: &CStr = c"Apache-2.0";
const LOG_BYTES: usize = 64 << 10;
