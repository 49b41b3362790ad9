//! Turns frames into blocks and blocks into chunks, and decides which file a block belongs to.

use mdgw_captures::capture_file::pcapng_blocks::{InterfaceBlock, PacketBlock, Section, StatisticsBlock};
use mdgw_sys::{batch::StampKind, sockets::Stamps};

use super::{
    CaptureProgress, CaptureSummary, LineInterface, LineSummary, OutputFiles, RecordError, TriggerOptions,
    files::{CurrentFile, Series},
    frame::{Content, Frame},
    pre_trigger::PreTriggerBuffer,
    spool::{CHUNK_BYTES, Spool},
    watch::TriggerEvent,
};

/// Writes a capture.
#[derive(Debug)]
pub(super) struct Recorder {
    lines: Vec<RecordedLine>,
    series: Series,
    spool: Spool,
    /// Blocks of frames on their way to the file.
    chunk: Vec<u8>,
    /// Time when the first of them was added.
    chunk_since_ns: u64,
    file: Option<CurrentFile>,
    trigger: Option<TriggerState>,
    /// Scratch block for the pre-trigger memory.
    block: Vec<u8>,
    started_ns: u64,
    span_ns: Option<(u64, u64)>,
    reasons: Vec<String>,
    trigger_count: u64,
}

/// A line and its counts.
#[derive(Debug)]
struct RecordedLine {
    interface: LineInterface,
    counts: LineSummary,
    /// Drops reported in a statistics block so far.
    dropped_reported: u64,
}

/// State of a trigger, and the packets kept in memory before it fires.
#[derive(Debug)]
pub(super) struct TriggerState {
    memory: PreTriggerBuffer,
    after_ns: u64,
    /// The trigger fired; packets are written until this time.
    until_ns: Option<u64>,
    /// The trigger fired, and nothing has been written yet.
    pending: Option<TriggerEvent>,
}

/// Blocks are handed to the system at most this long after they were built, ns: bounds the loss in a crash.
pub(crate) const FLUSH_NS: u64 = 100_000_000;
/// Trigger events that the summary lists.
const REASONS_MAX: usize = 10;

impl TriggerState {
    pub(super) fn new(options: &TriggerOptions) -> Self {
        Self {
            memory: PreTriggerBuffer::new(options.before_ns, options.memory_bytes),
            after_ns: options.after_ns,
            until_ns: None,
            pending: None,
        }
    }
}

impl Recorder {
    pub(super) fn start(
        interfaces: Vec<LineInterface>,
        files: &OutputFiles,
        trigger: Option<TriggerState>,
        now_ns: u64,
    ) -> Result<Self, RecordError> {
        let mut spool = Spool::start(files.files_max).map_err(RecordError::Thread)?;
        let chunk = spool.chunk()?;
        let lines = interfaces
            .into_iter()
            .map(|interface| {
                let counts = LineSummary { line: interface.name.clone(), ..LineSummary::default() };
                RecordedLine { interface, counts, dropped_reported: 0 }
            })
            .collect();
        Ok(Self {
            lines,
            series: Series::new(files, trigger.is_some()),
            spool,
            chunk,
            chunk_since_ns: now_ns,
            file: None,
            trigger,
            block: Vec::new(),
            started_ns: now_ns,
            span_ns: None,
            reasons: Vec::new(),
            trigger_count: 0,
        })
    }

    /// Begins the first file at once, header included, unless a trigger is configured.
    pub(super) fn begin(&mut self) -> Result<(), RecordError> {
        if self.trigger.is_none() {
            let path = self.series.next(self.started_ns);
            self.spool.begin_and_wait(path)?;
            self.write_header("")?;
            self.hand_over()?;
        }
        Ok(())
    }

    pub(super) fn interfaces(&self) -> impl Iterator<Item = &LineInterface> {
        self.lines.iter().map(|line| &line.interface)
    }

    pub(super) fn name(&self, line: usize) -> String {
        self.lines.get(line).map(|line| line.interface.name.clone()).unwrap_or_default()
    }

    pub(super) fn progress(&self) -> CaptureProgress {
        CaptureProgress {
            packets: self.lines.iter().map(|line| line.counts.packets).sum(),
            dropped: self.lines.iter().map(|line| line.counts.dropped).sum(),
            files: self.series.files_started(),
        }
    }

    /// Records a frame of that line.
    pub(super) fn frame(&mut self, line: usize, frame: &Frame<'_>) -> Result<(), RecordError> {
        let Some(recorded) = self.lines.get_mut(line) else { return Ok(()) };
        recorded.counts.count(frame);
        let comment = comment(frame, recorded.interface.stamps);
        let time_ns = frame.time_ns;
        let (first_ns, last_ns) = self.span_ns.unwrap_or((time_ns, time_ns));
        self.span_ns = Some((first_ns.min(time_ns), last_ns.max(time_ns)));

        let pieces: [&[u8]; 3] = match &frame.content {
            Content::Datagram { header, payload, .. } => [header, payload, &[]],
            Content::RawFrame { bytes, vlan: None, .. } => [bytes, &[], &[]],
            // The tag follows both MAC addresses.
            Content::RawFrame { bytes, vlan: Some(tag), .. } => {
                let (addresses, rest) = bytes.split_at_checked(12).unwrap_or((bytes, &[]));
                [addresses, tag, rest]
            }
        };
        let interface = u32::try_from(line).unwrap_or(u32::MAX);
        let block = PacketBlock { interface, time_ns, wire_bytes: frame.wire_bytes(), pieces, comment };
        self.write_pre_trigger(time_ns)?;
        match &mut self.trigger {
            Some(trigger) if self.file.is_none() => {
                self.block.clear();
                block.append_to(&mut self.block);
                trigger.memory.push(time_ns, &self.block);
                Ok(())
            }
            _ => {
                self.make_room(time_ns, block.block_bytes())?;
                block.append_to(&mut self.chunk);
                Ok(())
            }
        }
    }

    /// The trigger fired: writes the packets in memory and those that follow.
    pub(super) fn trigger(&mut self, seen: &TriggerEvent) {
        let Some(trigger) = &mut self.trigger else { return };
        self.trigger_count += 1;
        if self.reasons.len() < REASONS_MAX {
            self.reasons.push(seen.reason.clone());
        }
        trigger.until_ns = Some(seen.time_ns.saturating_add(trigger.after_ns));
        if self.file.is_none() {
            trigger.pending.get_or_insert_with(|| seen.clone());
        }
    }

    /// Records the number of frames of that line that the kernel has dropped since it was opened. Returns the increase.
    pub(super) fn dropped(&mut self, line: usize, dropped: u64, now_ns: u64) -> Result<u64, RecordError> {
        let Some(recorded) = self.lines.get_mut(line) else { return Ok(0) };
        let new = dropped.saturating_sub(recorded.counts.dropped);
        recorded.counts.dropped = dropped;
        // Written at once, not only at the end, so that a crash does not hide drops.
        if recorded.dropped_reported != dropped && self.file.is_some() {
            self.statistics(line, now_ns)?;
        }
        Ok(new)
    }

    /// Periodic work: ends a trigger, flushes old blocks, reports a failed writer.
    pub(super) fn on_tick(&mut self, now_ns: u64) -> Result<(), RecordError> {
        self.spool.check()?;
        self.write_pre_trigger(now_ns)?;
        if let Some(trigger) = &mut self.trigger
            && trigger.until_ns.is_some_and(|until_ns| now_ns > until_ns)
        {
            trigger.until_ns = None;
            self.end_file(now_ns)?;
        }
        if now_ns >= self.chunk_since_ns.saturating_add(FLUSH_NS) {
            self.hand_over()?;
            self.chunk_since_ns = now_ns;
        }
        Ok(())
    }

    /// Ends the last file and waits until it is written.
    pub(super) fn finish(mut self, now_ns: u64) -> Result<CaptureSummary, RecordError> {
        self.write_pre_trigger(now_ns)?;
        self.end_file(now_ns)?;
        let disk_wait_ns = self.spool.disk_wait_ns();
        let written = self.spool.finish()?;
        let (first_ns, last_ns) = self.span_ns.unwrap_or_default();
        Ok(CaptureSummary {
            lines: self.lines.into_iter().map(|line| line.counts).collect(),
            seconds: std::time::Duration::from_nanos(last_ns - first_ns).as_secs_f64(),
            files: written.files.iter().map(|file| file.display().to_string()).collect(),
            files_removed: written.removed,
            bytes: written.bytes,
            trigger_count: self.trigger.is_some().then_some(self.trigger_count),
            trigger_reasons: self.reasons,
            disk_wait_ns,
        })
    }

    /// Writes the packets in memory after the trigger has fired.
    fn write_pre_trigger(&mut self, now_ns: u64) -> Result<(), RecordError> {
        let Some(seen) = self.trigger.as_mut().and_then(|trigger| trigger.pending.take()) else { return Ok(()) };
        let oldest_ns = self.trigger.as_ref().and_then(|trigger| trigger.memory.oldest_ns()).unwrap_or(seen.time_ns);
        let before_ms = seen.time_ns.saturating_sub(oldest_ns) / 1_000_000;
        let description = format!("{}; starting {before_ms} ms before the trigger", seen.reason);
        self.begin_file(&description, now_ns)?;
        let mut block = Vec::new();
        while let Some(time_ns) = self.trigger.as_mut().and_then(|trigger| trigger.memory.take_oldest(&mut block)) {
            self.make_room(time_ns, block.len())?;
            self.chunk.extend_from_slice(&block);
        }
        Ok(())
    }

    /// Selects the file of the next packet's block, begins it if necessary, and counts the packet there.
    fn make_room(&mut self, time_ns: u64, block_bytes: usize) -> Result<(), RecordError> {
        if let Some(current) = self.file
            && self.series.is_full(current, time_ns, block_bytes)
        {
            self.end_file(time_ns)?;
            self.begin_file("", time_ns)?;
        }
        if let Some(current) = &mut self.file {
            current.first_ns.get_or_insert(time_ns);
        }
        self.make_room_in_chunk(block_bytes)
    }

    fn begin_file(&mut self, comment: &str, now_ns: u64) -> Result<(), RecordError> {
        let path = self.series.next(now_ns);
        self.spool.begin(path)?;
        self.write_header(comment)
    }

    fn write_header(&mut self, comment: &str) -> Result<(), RecordError> {
        self.file = Some(CurrentFile { bytes: 0, first_ns: None });
        let mut header = Vec::new();
        Section { application: concat!("mdgw ", env!("CARGO_PKG_VERSION")), comment }.append_to(&mut header);
        for LineInterface { name, description, comment, .. } in self.interfaces() {
            InterfaceBlock { name, description, comment }.append_to(&mut header);
        }
        self.write(&header)
    }

    fn end_file(&mut self, now_ns: u64) -> Result<(), RecordError> {
        if self.file.is_none() {
            return Ok(());
        }
        for line in 0..self.lines.len() {
            self.statistics(line, now_ns)?;
        }
        self.hand_over()?;
        self.file = None;
        self.spool.end()
    }

    /// Statistics of a line since the capture began.
    fn statistics(&mut self, line: usize, now_ns: u64) -> Result<(), RecordError> {
        let start_ns = self.started_ns;
        let Some(recorded) = self.lines.get_mut(line) else { return Ok(()) };
        let counts = &recorded.counts;
        recorded.dropped_reported = counts.dropped;
        let comment = format!(
            "{}; timestamps: {} NIC, {} kernel, {} none",
            recorded.interface.drop_count_source, counts.stamps_hardware, counts.stamps_kernel, counts.stamps_none
        );
        let mut block = Vec::new();
        let interface = u32::try_from(line).unwrap_or(u32::MAX);
        let (delivered, dropped) = (counts.packets, counts.dropped);
        StatisticsBlock { interface, time_ns: now_ns, start_ns, delivered, dropped, comment: &comment }
            .append_to(&mut block);
        self.write(&block)
    }

    /// Blocks of frames for the current file.
    fn write(&mut self, blocks: &[u8]) -> Result<(), RecordError> {
        self.make_room_in_chunk(blocks.len())?;
        self.chunk.extend_from_slice(blocks);
        Ok(())
    }

    fn make_room_in_chunk(&mut self, block_bytes: usize) -> Result<(), RecordError> {
        if self.chunk.len() + block_bytes > CHUNK_BYTES {
            self.hand_over()?;
        }
        if let Some(current) = &mut self.file {
            current.bytes += block_bytes as u64;
        }
        Ok(())
    }

    fn hand_over(&mut self) -> Result<(), RecordError> {
        if !self.chunk.is_empty() {
            let chunk = std::mem::take(&mut self.chunk);
            self.spool.write(chunk)?;
            self.chunk = self.spool.chunk()?;
        }
        Ok(())
    }
}

impl LineSummary {
    fn count(&mut self, frame: &Frame<'_>) {
        self.packets += 1;
        self.bytes += u64::from(frame.wire_bytes());
        self.truncated += u64::from(frame.is_truncated());
        match frame.stamp {
            StampKind::Hardware => self.stamps_hardware += 1,
            StampKind::Kernel => self.stamps_kernel += 1,
            StampKind::None => self.stamps_none += 1,
        }
    }
}

/// Comment of a packet that differs from the interface description.
fn comment(frame: &Frame<'_>, requested: Stamps) -> &'static str {
    let stamp = match (frame.stamp, requested) {
        (StampKind::None, _) => 2,
        (StampKind::Kernel, Stamps::Hardware) => 1,
        _ => 0,
    };
    match (&frame.content, frame.is_truncated(), stamp) {
        (Content::Datagram { .. }, true, _) => "truncated when read; original length unknown",
        (_, _, 2) => "no timestamp: time of the read call",
        (_, _, 1) => "kernel timestamp",
        _ => "",
    }
}
