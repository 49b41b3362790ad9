//! Merges several lines into one stream in timestamp order.
//!
//! Lines are read one after the other, so a frame just read may be younger than a frame that another line still has.
//! Frames younger than the horizon therefore wait for the next round. The horizon is the time at which the round began,
//! minus the lag of a reader. If timestamps come from clocks that disagree, the order holds within each line only.

use std::io;

use super::frame::{Frame, LineReader};

/// The lines of a capture.
#[derive(Debug)]
pub(super) struct Lines<R> {
    lines: Vec<LineState<R>>,
}

#[derive(Debug)]
struct LineState<R> {
    reader: R,
    /// The reader had nothing more when last polled in this round.
    is_drained: bool,
}

/// Limit of frames per round, so that a stop is noticed under any load.
pub(super) const FRAMES_PER_ROUND: usize = 16_384;

impl<R: LineReader> Lines<R> {
    pub(super) fn new(readers: Vec<R>) -> Self {
        Self { lines: readers.into_iter().map(|reader| LineState { reader, is_drained: false }).collect() }
    }

    pub(super) fn readers(&self) -> impl Iterator<Item = &R> {
        self.lines.iter().map(|line| &line.reader)
    }

    pub(super) fn readers_mut(&mut self) -> impl Iterator<Item = &mut R> {
        self.lines.iter_mut().map(|line| &mut line.reader)
    }

    /// Whether frames are held that are younger than the last horizon.
    pub(super) fn has_buffered(&self) -> bool {
        self.readers().any(|reader| reader.head_ns().is_some())
    }

    /// Delivers frames up to `horizon_ns`, at most `room`; returns their number.
    ///
    /// # Errors
    /// Index of the line that could not be read, and the error.
    pub(super) fn round(
        &mut self,
        now_ns: u64,
        horizon_ns: u64,
        room: usize,
        mut take: impl FnMut(usize, &Frame<'_>),
    ) -> Result<usize, (usize, io::Error)> {
        for line in &mut self.lines {
            line.is_drained = false;
        }
        let room = room.min(FRAMES_PER_ROUND);
        let mut taken = 0;
        while taken < room {
            let mut earliest = None;
            for (index, line) in self.lines.iter_mut().enumerate() {
                while line.reader.head_ns().is_none() && !line.is_drained {
                    line.is_drained = !line.reader.refill(now_ns).map_err(|error| (index, error))?;
                }
                let head = line.reader.head_ns().map(|time_ns| (time_ns, index));
                // Equal times: the line that was given first.
                earliest = [earliest, head].into_iter().flatten().min();
            }
            let Some((time_ns, index)) = earliest else { break };
            if time_ns > horizon_ns {
                break;
            }
            let Some(line) = self.lines.get_mut(index) else { break };
            if let Some(frame) = line.reader.head() {
                take(index, &frame);
            }
            line.reader.pop();
            taken += 1;
        }
        Ok(taken)
    }
}

#[cfg(test)]
mod tests {
    use std::{
        collections::VecDeque,
        net::UdpSocket,
        os::fd::{AsFd, BorrowedFd},
    };

    use mdgw_sys::batch::StampKind;

    use super::*;
    use crate::capture::frame::Content;

    /// Reads up to two frames at a time.
    struct FakeLineReader {
        waiting: VecDeque<u64>,
        read: VecDeque<u64>,
        socket: UdpSocket,
    }

    impl LineReader for FakeLineReader {
        fn refill(&mut self, _now_ns: u64) -> io::Result<bool> {
            self.read.extend(self.waiting.drain(..self.waiting.len().min(2)));
            Ok(!self.waiting.is_empty())
        }
        fn head_ns(&self) -> Option<u64> {
            self.read.front().copied()
        }
        fn head(&self) -> Option<Frame<'_>> {
            let content = Content::RawFrame { bytes: &[], vlan: None, wire_bytes: 0 };
            self.head_ns().map(|time_ns| Frame { time_ns, stamp: StampKind::Kernel, content })
        }
        fn pop(&mut self) {
            self.read.pop_front();
        }
        fn dropped(&mut self) -> io::Result<u64> {
            Ok(0)
        }
        fn descriptor(&self) -> BorrowedFd<'_> {
            self.socket.as_fd()
        }
    }

    fn lines(times: [&[u64]; 2]) -> Lines<FakeLineReader> {
        Lines::new(
            times
                .map(|times| FakeLineReader {
                    waiting: times.iter().copied().collect(),
                    read: VecDeque::new(),
                    socket: UdpSocket::bind("127.0.0.1:0").unwrap(),
                })
                .into(),
        )
    }

    fn round(lines: &mut Lines<FakeLineReader>, horizon_ns: u64, room: usize) -> Vec<(usize, u64)> {
        let mut frames = Vec::new();
        let taken = lines.round(0, horizon_ns, room, |line, frame| frames.push((line, frame.time_ns))).unwrap();
        assert_eq!(taken, frames.len());
        frames
    }

    #[test]
    fn frames_of_all_lines_are_delivered_in_time_order() {
        let mut lines = lines([&[1, 4, 5, 6, 7, 20], &[2, 3, 7, 21]]);
        let frames = round(&mut lines, 10, 100);
        assert_eq!(frames, [(0, 1), (1, 2), (1, 3), (0, 4), (0, 5), (0, 6), (0, 7), (1, 7)]);
        assert!(lines.has_buffered(), "read, but still within the reorder delay");
        lines.lines[1].reader.waiting.push_back(22);
        assert_eq!(round(&mut lines, 30, 100), [(0, 20), (1, 21), (1, 22)]);
        assert!(!lines.has_buffered());
    }

    #[test]
    fn a_round_ends_at_the_frame_limit() {
        let mut lines = lines([&[1, 2, 3], &[]]);
        assert_eq!(round(&mut lines, 10, 2), [(0, 1), (0, 2)]);
        assert_eq!(round(&mut lines, 10, 2), [(0, 3)]);
        assert_eq!(round(&mut lines, 10, 2), []);
    }
}
