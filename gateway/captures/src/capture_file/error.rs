//! Where and why reading a capture ended.

use std::{fmt, io, path::PathBuf};

/// A capture that cannot be read, or cannot be read any further.
#[derive(Debug)]
pub struct CaptureError {
    /// The file.
    pub path: PathBuf,
    /// First byte that could not be used. In a compressed file: counted in what it decompresses to.
    pub offset: u64,
    /// Whether the file is compressed.
    pub decompressed: bool,
    /// What is wrong there.
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

/// What is wrong with a capture.
#[derive(Debug, thiserror::Error)]
pub enum CaptureFault {
    /// The file cannot be opened.
    #[error(transparent)]
    Open(io::Error),
    /// The system refused further bytes.
    #[error("cannot continue reading")]
    Read(#[source] io::Error),
    /// The decompressor could not go on.
    #[error("the {format} stream can't be unpacked any further at byte {compressed_offset} of the file: {reason}")]
    Decompress {
        /// What the file is compressed with.
        format: &'static str,
        /// Bytes of the file that were decompressed before.
        compressed_offset: u64,
        /// What the decompressor said.
        reason: io::Error,
    },
    /// There is nothing in the file.
    #[error("the file is empty")]
    Empty,
    /// The first bytes are those of no known kind of file.
    #[error("not a pcap, pcapng or Nasdaq day file")]
    NotACapture,
    /// The file ends inside something that it began.
    #[error("the file is truncated: {what} needs {needed} bytes, {left} remain")]
    Truncated {
        /// What was being read.
        what: &'static str,
        /// Bytes it needs, header included.
        needed: u64,
        /// Bytes that are left.
        left: u64,
    },
    /// A length that no such thing can have.
    #[error("damaged: {what} declares {claimed} bytes")]
    LengthImpossible {
        /// What was being read.
        what: &'static str,
        /// The length it claims.
        claimed: u64,
    },
    /// A pcapng block whose inside contradicts its frame.
    #[error("damaged: inconsistent block lengths")]
    BlockMalformed,
    /// A pcapng packet of an interface that was not described.
    #[error("damaged: packet of interface {0} without an interface description")]
    InterfaceUnknown(u32),
    /// Not an IP-carrying link layer that we read.
    #[error(
        "link type {0} is not supported (supported: Ethernet 1, raw IP 101, Linux cooked 113 and 276, null 0, loopback 108)"
    )]
    LinkTypeUnknown(i32),
    /// Bytes after the end-of-session mark of a day file.
    #[error("bytes after the end of session")]
    AfterEnd,
    /// A day file has times since midnight, but neither its name nor the caller tells the day.
    #[error("no trading date in the name of the day file (its times count from midnight): give --date YYYY-MM-DD")]
    DateUnknown,
}
