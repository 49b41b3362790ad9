//! A file that is written as its content comes: what was written stays when something fails. Compressed when its name
//! ends in `.zst`; `-` is standard output.

use std::{
    fmt,
    fs::{self, File, Metadata},
    io::{self, Write},
    path::Path,
};

/// Where output goes.
pub struct OutputFile(Sink);

enum Sink {
    Plain(File),
    Zstd(zstd::Encoder<'static, File>),
    StandardOutput(io::Stdout),
}

impl OutputFile {
    /// Begins a file, in place of what stood there.
    ///
    /// # Errors
    /// The folder does not exist or cannot be written to.
    pub fn create(path: &Path) -> io::Result<Self> {
        if path == Path::new("-") {
            return Ok(Self(Sink::StandardOutput(io::stdout())));
        }
        let file = File::create(path)?;
        if path.extension().is_some_and(|end| end == "zst") {
            let mut encoder = zstd::Encoder::new(file, zstd::DEFAULT_COMPRESSION_LEVEL)?;
            encoder.include_checksum(true)?;
            return Ok(Self(Sink::Zstd(encoder)));
        }
        Ok(Self(Sink::Plain(file)))
    }

    /// Ends the file.
    ///
    /// # Errors
    /// What is still held can't be written.
    pub fn finish(self) -> io::Result<()> {
        match self.0 {
            Sink::Plain(_) => Ok(()),
            Sink::Zstd(encoder) => encoder.finish().map(drop),
            Sink::StandardOutput(mut stdout) => stdout.flush(),
        }
    }
}

/// How far a file has come whose writing failed; nothing where it isn't a file. Reads as the end of "write FILE".
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FailedAtByte(Option<u64>);

impl FailedAtByte {
    /// The length of the file as it is now.
    #[must_use]
    pub fn of(path: &Path) -> Self {
        Self(fs::metadata(path).ok().filter(Metadata::is_file).map(|metadata| metadata.len()))
    }
}

impl fmt::Display for FailedAtByte {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.map_or(Ok(()), |bytes| write!(f, " at byte {bytes}"))
    }
}

impl Write for OutputFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match &mut self.0 {
            Sink::Plain(file) => file.write(bytes),
            Sink::Zstd(encoder) => encoder.write(bytes),
            Sink::StandardOutput(stdout) => stdout.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match &mut self.0 {
            Sink::Plain(file) => file.flush(),
            Sink::Zstd(encoder) => encoder.flush(),
            Sink::StandardOutput(stdout) => stdout.flush(),
        }
    }
}

impl fmt::Debug for OutputFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            Sink::Plain(_) => "OutputFile(plain)",
            Sink::Zstd(_) => "OutputFile(zstd)",
            Sink::StandardOutput(_) => "OutputFile(standard output)",
        })
    }
}
