//! An output file that is written in order; the bytes written before a failure stay. It is compressed if its name ends
//! in `.zst`; `-` is standard output.

use std::{
    fmt,
    fs::{self, File, Metadata},
    io::{self, Write},
    path::Path,
};

/// An open output.
pub struct OutputFile(Sink);

enum Sink {
    Plain(File),
    Zstd(zstd::Encoder<'static, File>),
    StandardOutput(io::Stdout),
}

impl OutputFile {
    /// Creates the file, or truncates an existing one.
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

    /// Flushes and closes the file.
    ///
    /// # Errors
    /// The buffered bytes can't be written.
    pub fn finish(self) -> io::Result<()> {
        match self.0 {
            Sink::Plain(_) => Ok(()),
            Sink::Zstd(encoder) => encoder.finish().map(drop),
            Sink::StandardOutput(mut stdout) => stdout.flush(),
        }
    }
}

/// Length that a file had when writing failed; no length if the output is not a regular file. It is displayed after
/// "write FILE", as " at byte N".
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FailedAtByte(Option<u64>);

impl FailedAtByte {
    /// Takes the current length of the file.
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
