//! Cuts the bytes of a client into lines of bounded length.

/// Bytes received and not yet handed out as lines.
#[derive(Debug)]
pub struct LineBuffer {
    bytes: Vec<u8>,
    /// Where the next line begins.
    begin: usize,
    /// Up to where no line end was found.
    searched: usize,
    line_bytes_max: usize,
}

/// A line is longer than the limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line too long")]
pub struct LineTooLong;

impl LineBuffer {
    /// For lines of up to that many bytes, without their end. Takes no memory until bytes arrive.
    #[must_use]
    pub fn new(line_bytes_max: usize) -> Self {
        Self { bytes: Vec::new(), begin: 0, searched: 0, line_bytes_max }
    }

    /// Appends received bytes.
    pub fn push(&mut self, received: &[u8]) {
        self.bytes.drain(..self.begin);
        self.searched -= self.begin;
        self.begin = 0;
        self.bytes.extend_from_slice(received);
    }

    /// The next whole line, without its end: `\n`, or `\r\n`.
    ///
    /// # Errors
    /// When the line, whole or not, exceeds the limit. All later calls fail too.
    pub fn next_line(&mut self) -> Result<Option<&[u8]>, LineTooLong> {
        let unsearched = self.bytes.get(self.searched..).unwrap_or_default();
        let end = unsearched.iter().position(|byte| *byte == b'\n').map(|at| self.searched + at);
        let length = end.unwrap_or(self.bytes.len()) - self.begin;
        if length > self.line_bytes_max {
            return Err(LineTooLong);
        }
        let Some(end) = end else {
            self.searched = self.bytes.len();
            if self.bytes.is_empty() || self.begin == self.bytes.len() {
                // An idle session keeps no buffer.
                (self.bytes, self.begin, self.searched) = (Vec::new(), 0, 0);
            }
            return Ok(None);
        };
        let line = self.begin..end;
        (self.begin, self.searched) = (end + 1, end + 1);
        let line = self.bytes.get(line).unwrap_or_default();
        Ok(Some(line.strip_suffix(b"\r").unwrap_or(line)))
    }
}
