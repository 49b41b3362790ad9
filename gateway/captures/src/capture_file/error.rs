//! Errors of captures: where and why reading ended.

use std::{fmt, io, path::PathBuf};

/// Error in opening or reading a capture.
#[derive(Debug)]
pub struct CaptureError {
    /// Path of the file.
    pub path: PathBuf,
    /// First byte that could not be used; in a compressed file, an offset in the decompressed stream.
    pub offset: u64,
    /// Whether the file is compressed.
    pub decompressed: bool,
    /// The fault at that offset.
    pub fault: CaptureFault,
}

impl fmt::Display for CaptureError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.path.display();
        match self.fault {
            CaptureFault::Open(_) => return write!(f, "open {path}"),
            CaptureFault::Empty | CaptureFault::DateUnknown => return write!(f, "read {path}"),
            _ => {}
        }
        write!(f, "read {path} at byte {}", self.offset)?;
        if self.decompressed { f.write_str(" of the decompressed stream") } else { Ok(()) }
    }
}

impl std::error::Error for CaptureError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.fault)
    }
}

/// Kinds of faults in a capture.
#[derive(Debug, thiserror::Error)]
pub enum CaptureFault {
    /// The file cannot be opened.
    #[error(transparent)]
    Open(io::Error),
    /// The system reported a read error.
    #[error("cannot continue reading")]
    Read(#[source] io::Error),
    /// Decompression failed.
    #[error("cannot decompress the {format} stream at byte {compressed_offset} of the file: {reason}")]
    Decompress {
        /// Compression format of the file.
        format: &'static str,
        /// Bytes of the file decompressed before the error.
        compressed_offset: u64,
        /// Error of the decompressor.
        reason: io::Error,
    },
    /// The file is empty.
    #[error("the file is empty")]
    Empty,
    /// The first bytes match no known format.
    #[error("not a pcap, pcapng or Nasdaq day file")]
    NotACapture,
    /// The file ends inside an element.
    #[error("the file is truncated: {what} needs {needed} bytes, {left} remain")]
    Truncated {
        /// The element that was being read.
        what: &'static str,
        /// Its length in bytes, header included.
        needed: u64,
        /// Bytes left in the file.
        left: u64,
    },
    /// An impossible length.
    #[error("damaged: {what} declares {claimed} bytes")]
    LengthImpossible {
        /// The element that was being read.
        what: &'static str,
        /// Length that the file declares, bytes.
        claimed: u64,
    },
    /// A pcapng block whose content contradicts its frame.
    #[error("damaged: inconsistent block lengths")]
    BlockMalformed,
    /// A pcapng packet of an undescribed interface.
    #[error("damaged: packet of interface {0} without an interface description")]
    InterfaceUnknown(u32),
    /// A link layer that carries no IP, or that is not supported.
    #[error(
        "link type {0} is not supported (supported: Ethernet 1, raw IP 101, Linux cooked 113 and 276, null 0, \
         loopback 108)"
    )]
    LinkTypeUnknown(i32),
    /// Bytes after the end-of-session mark of a day file.
    #[error("bytes after the end of session")]
    AfterEnd,
    /// A day file has times since midnight, but neither its name nor the caller gives the day.
    #[error("no trading date in the name of the day file (its times count from midnight): give --date YYYY-MM-DD")]
    DateUnknown,
}
