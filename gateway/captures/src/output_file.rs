//! A file that is written as its content comes: what was written stays when something fails. Compressed when its name
//! ends in `.zst`; `-` is standard output.

use std::{
    fmt,
    fs::{self, File, Metadata},
    io::{self, Write},
    path::Path,
};

/// Where output goes.
pub struct OutputFile(Kind);

enum Kind {
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
            return Ok(Self(Kind::StandardOutput(io::stdout())));
        }
        let file = File::create(path)?;
        if path.extension().is_some_and(|end| end == "zst") {
            let mut encoder = zstd::Encoder::new(file, zstd::DEFAULT_COMPRESSION_LEVEL)?;
            encoder.include_checksum(true)?;
            return Ok(Self(Kind::Zstd(encoder)));
        }
        Ok(Self(Kind::Plain(file)))
    }

    /// Ends the file.
    ///
    /// # Errors
    /// What is still held can't be written.
    pub fn finish(self) -> io::Result<()> {
        match self.0 {
            Kind::Plain(_) => Ok(()),
            Kind::Zstd(encoder) => encoder.finish().map(drop),
            Kind::StandardOutput(mut stdout) => stdout.flush(),
        }
    }
}

/// How far a file has come whose writing failed; nothing where it isn't a file. Reads as the end of "write FILE".
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EndedAt(Option<u64>);

impl EndedAt {
    /// The length of the file as it is now.
    #[must_use]
    pub fn of(path: &Path) -> Self {
        Self(fs::metadata(path).ok().filter(Metadata::is_file).map(|metadata| metadata.len()))
    }
}

impl fmt::Display for EndedAt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.map_or(Ok(()), |bytes| write!(f, " at byte {bytes}"))
    }
}

impl Write for OutputFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match &mut self.0 {
            Kind::Plain(file) => file.write(bytes),
            Kind::Zstd(encoder) => encoder.write(bytes),
            Kind::StandardOutput(stdout) => stdout.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match &mut self.0 {
            Kind::Plain(file) => file.flush(),
            Kind::Zstd(encoder) => encoder.flush(),
            Kind::StandardOutput(stdout) => stdout.flush(),
        }
    }
}

impl fmt::Debug for OutputFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            Kind::Plain(_) => "OutputFile(plain)",
            Kind::Zstd(_) => "OutputFile(zstd)",
            Kind::StandardOutput(_) => "OutputFile(standard output)",
        })
    }
}
