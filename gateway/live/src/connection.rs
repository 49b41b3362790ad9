//! One client after its authentication: requests in, records out.

use std::{
    collections::{HashSet, VecDeque},
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use dbn::{SType, enums::ErrorCode};
use socket2::SockRef;
use tokio::{
    io,
    net::TcpStream,
    sync::{mpsc, watch},
    time::Instant,
};

use crate::{
    control,
    open_sessions::{SessionProgress, Subscribed},
    outgoing::Outgoing,
    protocol::{
        AuthRequest, LineBuffer, Session, SlowReader, Step, SubscribeRequest, SymbolType, Symbols, UnsubscribeRequest,
    },
    schema::Schemas,
    stream::{
        answer::Answer,
        channel::marked,
        chunk::{CHUNK_BYTES, Chunk},
        dataset::{Dataset, Snapshot, SnapshotRecords, SnapshotWaiter},
        replay::{self, Replay, ReplayItem},
        ring::{RingPosition, RingRead},
    },
    subscriptions::{Phase, Subscriptions},
};

#[cfg(test)]
mod tests;

/// What a connection is made of.
pub(crate) struct Connection {
    pub(crate) stream: TcpStream,
    pub(crate) lines: LineBuffer,
    pub(crate) protocol: Session,
    pub(crate) auth: AuthRequest,
    pub(crate) dataset: Arc<Dataset>,
    pub(crate) limits: ConnectionLimits,
    /// What operators see of the session.
    pub(crate) progress: Arc<SessionProgress>,
    /// Turns true when the server stops.
    pub(crate) stop: watch::Receiver<bool>,
}

/// Bounds of one connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ConnectionLimits {
    /// Symbols subscribed to.
    pub(crate) symbols_max: usize,
    /// Bytes that a slow reader may be behind.
    pub(crate) queue_bytes_max: u64,
    /// How long a client may take nothing at all.
    pub(crate) stall: Duration,
}

/// Why a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// The client closed the connection, or the network failed.
    ClientClosed,
    /// The session of every channel ended.
    EndOfSession,
    /// The server ends, and its clients shall come back.
    Stopping,
    /// The client was too slow.
    TooSlow,
    /// A line was too long.
    LineTooLong,
    /// More requests at a time than a session may have, or answers to them that exceed the session's queue.
    TooManyRequests,
    /// The gateway that writes the log has ended, or has begun a new log: the client shall come back, or try the other gateway.
    GatewayEnded,
    /// Something failed here.
    Failed,
}

/// Where the next records come from.
enum Source {
    /// Nothing before the session's start.
    None,
    /// The ring, from that chunk on.
    Ring(u64),
    /// A replay, up to where it joins the ring.
    Replay(Replay),
}

enum Request {
    Subscribe(SubscribeRequest),
    /// A snapshot that was acknowledged and must be taken again, with the instruments whose mappings were sent.
    TakeAgain(SubscribeRequest, Vec<u32>),
    Unsubscribe(UnsubscribeRequest),
    Report(String),
}

impl Request {
    /// The schema and how many symbols are named, if it is about symbols.
    fn schema_and_count(&self) -> Option<(Schemas, usize)> {
        match self {
            Self::Subscribe(request) | Self::TakeAgain(request, _) => Some((request.schema, request.symbols.count())),
            Self::Unsubscribe(request) => Some((request.schema, request.symbols.count())),
            Self::Report(_) => None,
        }
    }

    /// Whether it is refused if its start lies before the oldest event.
    fn is_refused_before_oldest(&self) -> bool {
        matches!(self, Self::Subscribe(request) if request.start_of_books().is_some())
    }

    fn is_snapshot(&self) -> bool {
        match self {
            Self::Subscribe(request) => request.snapshot,
            Self::TakeAgain(..) => true,
            Self::Unsubscribe(_) | Self::Report(_) => false,
        }
    }

    /// Whether it may end the subscription of an earlier request.
    fn ends(&self, earlier: &Self) -> bool {
        match (self, earlier) {
            (Self::Unsubscribe(end), Self::Subscribe(request) | Self::TakeAgain(request, _)) => {
                end.schema == request.schema
            }
            _ => false,
        }
    }
}

impl SubscribeRequest {
    /// The start of a replay that must not lack records: books of them would be wrong.
    fn start_of_books(&self) -> Option<u64> {
        self.start.filter(|start| *start > 0 && self.schema == Schemas::MBO)
    }
}

/// A snapshot between its request and its end. Lists are the instruments whose mappings were sent.
enum PendingSnapshot {
    /// Other sessions hold many snapshots. This one reads on meanwhile.
    WaitsForRoom(SubscribeRequest, Vec<u32>, SnapshotWaiter),
    Requested(SubscribeRequest, Vec<u32>, Answer<Snapshot>),
    /// Waits for the session to reach the snapshot's position.
    Taken(SubscribeRequest, Vec<u32>, Snapshot),
    /// Records from that offset on are still to be sent.
    Sending(SnapshotRecords, usize),
    /// After skipped records: taken and sent again, without another subscription.
    Resync(Answer<Snapshot>),
    ResyncTaken(Snapshot),
}

/// A session between its start and the answer to the question that a replay depends on.
struct Starting {
    live_from: RingPosition,
    /// Event time before which a replay would lack records.
    oldest_event: Answer<Option<u64>>,
}

/// A session's state besides its socket.
struct Served {
    dataset: Arc<Dataset>,
    auth: AuthRequest,
    limits: ConnectionLimits,
    outgoing: Outgoing,
    subscriptions: Subscriptions,
    waiting: VecDeque<Request>,
    /// More requests than [`WAITING_MAX`], or answers to them beyond the session's queue: the session ends.
    is_overfull: bool,
    replays: Vec<&'static str>,
    source: Source,
    starting: Option<Starting>,
    /// Event time before which a replay would lack records, as of the session's start.
    oldest_event: Option<u64>,
    /// Whether the day had ended before the session's start: then it waits for the next day.
    began_after_end: bool,
    snapshot: Option<PendingSnapshot>,
    warned: Option<Instant>,
    /// Whether the client is so far behind that it gets no records of the schemas that are skipped by default, until it is current.
    is_dropping: bool,
    /// The replay lacked records of this day, which ends the session: books that the client keeps may be wrong to the end.
    is_behind_hole: bool,
    progress: Arc<SessionProgress>,
}

/// While others wait for a snapshot: how long a session that sends one may take nothing, and how long it may take in all.
const SNAPSHOT_PAUSE_MAX: Duration = Duration::from_secs(5);
const SNAPSHOT_HELD_MAX: Duration = Duration::from_secs(60);
/// How often that, and the room for a snapshot, is checked.
const SNAPSHOT_INTERVAL: Duration = Duration::from_millis(100);
/// Requests that wait for the start or for a snapshot.
const WAITING_MAX: usize = 1_024;
/// Bytes that are collected before a write.
const BATCH_BYTES: usize = CHUNK_BYTES;
/// Least time between two warnings of a slow reader.
const WARNING_INTERVAL: Duration = Duration::from_secs(1);

/// Serves a client until either side ends the session.
pub(crate) async fn serve(connection: Connection) -> Ending {
    let Connection { stream, mut lines, mut protocol, auth, dataset, limits, progress, mut stop } = connection;
    let Ok(outgoing) = Outgoing::new(auth.compression, auth.ts_out) else { return Ending::Failed };
    let heartbeat = Duration::from_secs(auth.heartbeat_interval_s.into());
    let mut chunks = dataset.ring.subscribe();
    let mut logs = dataset.logs.subscribe();
    let began = *logs.borrow();
    let mut served = Served::new(dataset, auth, limits, outgoing, progress);
    let mut last_sent = Instant::now();
    let mut snapshot_check = last_sent;
    let mut received = [0; 4 << 10];
    loop {
        loop {
            match lines.next_line() {
                Ok(None) => break,
                Ok(Some(line)) => {
                    let step = protocol.accept(line);
                    if let Some(reason) = protocol.take_incomplete() {
                        served.accept(Step::Report(reason));
                    }
                    served.accept(step);
                }
                Err(_) => return served.close(&stream, Some("Request line too long"), Ending::LineTooLong).await,
            }
        }
        if served.is_overfull && protocol.has_started() {
            return served.close(&stream, Some("Too many requests at a time"), Ending::TooManyRequests).await;
        }
        if *stop.borrow() {
            return served.close(&stream, Some("Gateway is stopping"), Ending::Stopping).await;
        }
        let logs_state = *logs.borrow_and_update();
        if let Some(reason) = logs_state.end_of(began) {
            return served.close(&stream, Some(reason), Ending::GatewayEnded).await;
        }
        chunks.mark_unchanged();
        if let Err((ending, reason)) = served.fill() {
            return served.close(&stream, reason, ending).await;
        }
        served.show_position();
        let has_unsent = !served.outgoing.unsent().is_empty();
        tokio::select! {
            biased;
            writable = stream.writable(), if has_unsent => {
                match writable.and_then(|()| stream.try_write(served.outgoing.unsent())) {
                    Ok(bytes) => {
                        served.outgoing.advance(bytes);
                        served.progress.add_sent(bytes);
                        last_sent = Instant::now();
                    }
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    Err(_) => return Ending::ClientClosed,
                }
            }
            readable = stream.readable() => {
                match readable.and_then(|()| stream.try_read(&mut received)) {
                    Ok(0) => return served.close(&stream, None, Ending::ClientClosed).await,
                    Ok(bytes) => lines.push(received.get(..bytes).unwrap_or_default()),
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    Err(_) => return Ending::ClientClosed,
                }
            }
            () = served.wait(&mut chunks), if !has_unsent => {}
            _ = stop.changed() => {}
            _ = logs.changed() => {}
            () = tokio::time::sleep_until(last_sent + heartbeat), if !has_unsent && protocol.has_started() => {
                served.outgoing.push(control::heartbeat(now_ns()).as_ref(), now_ns());
            }
            () = tokio::time::sleep_until(last_sent + limits.stall), if has_unsent => {
                reset(&stream);
                return Ending::TooSlow;
            }
            () = tokio::time::sleep_until(snapshot_check), if served.has_snapshot_to_check() => {
                snapshot_check = Instant::now() + SNAPSHOT_INTERVAL;
                if served.holds_snapshot_for_too_long(last_sent) {
                    let reason = "Slow reading: other sessions waited for a snapshot";
                    return served.close(&stream, Some(reason), Ending::TooSlow).await;
                }
            }
        }
    }
}

impl Served {
    fn new(
        dataset: Arc<Dataset>,
        auth: AuthRequest,
        limits: ConnectionLimits,
        outgoing: Outgoing,
        progress: Arc<SessionProgress>,
    ) -> Self {
        Self {
            dataset,
            auth,
            limits,
            outgoing,
            subscriptions: Subscriptions::default(),
            waiting: VecDeque::new(),
            is_overfull: false,
            replays: Vec::new(),
            source: Source::None,
            starting: None,
            oldest_event: None,
            began_after_end: false,
            snapshot: None,
            warned: None,
            is_dropping: false,
            is_behind_hole: false,
            progress,
        }
    }

    /// Shows operators where the session is.
    fn show_position(&self) {
        match self.source {
            Source::None => {}
            Source::Ring(chunk) => self.progress.set_live(chunk),
            Source::Replay(_) => self.progress.set_replaying(),
        }
        self.progress.set_unsent(self.outgoing.unsent().len());
    }

    /// Shows operators what the session has subscribed to.
    fn show_subscribed(&self) {
        let has_all = self.subscriptions.has_all_of_any();
        self.progress.set_subscribed(Subscribed {
            schemas: self.subscriptions.schemas(),
            symbols: (!has_all).then(|| self.subscriptions.count()),
            policy: if self.is_skipping() { SlowReader::Skip } else { SlowReader::Warn },
        });
    }

    /// Whether all records are skipped when the client is too slow: its own choice, else by its schemas.
    fn is_skipping(&self) -> bool {
        match self.auth.slow_reader {
            Some(policy) => policy == SlowReader::Skip,
            None => Schemas::SKIPPED_WHEN_SLOW.contains(self.subscriptions.schemas()),
        }
    }

    /// Schemas of which a session that is behind gets no records, while it gets all of its others: the client chose no policy, and its
    /// schemas have different ones.
    fn dropped_first(&self) -> Schemas {
        match self.auth.slow_reader {
            None if !self.is_skipping() => Schemas::SKIPPED_WHEN_SLOW.and(self.subscriptions.schemas()),
            _ => Schemas::default(),
        }
    }

    fn accept(&mut self, step: Step) {
        let request = match step {
            Step::Wait | Step::Authenticate(_) | Step::Refuse(_) => return,
            Step::Start => return self.start(),
            Step::Subscribe(request) => Request::Subscribe(request),
            Step::Unsubscribe(request) => Request::Unsubscribe(request),
            Step::Report(reason) => Request::Report(reason),
        };
        // Bounds what waits. Clients repeat their symbols for each schema, so each schema may have that many.
        let of_waiting = self.waiting.iter().chain([&request]).filter_map(Request::schema_and_count);
        let is_of_schema = |(schema, _): &(Schemas, usize)| {
            request.schema_and_count().is_some_and(|(of_request, _)| of_request == *schema)
        };
        let symbols: usize = of_waiting.filter(is_of_schema).map(|(_, count)| count).sum();
        let symbols_max = self.limits.symbols_max;
        if self.waiting.len() >= WAITING_MAX {
            self.is_overfull = true;
        } else if symbols > symbols_max {
            let reason = format!("Invalid subscription: more than {symbols_max} symbols requested at a time");
            self.waiting.push_back(Request::Report(reason));
        } else {
            self.waiting.push_back(request);
        }
    }

    /// Begins the binary part: the metadata, then what was requested so far, then records.
    fn start(&mut self) {
        let bytes = control::metadata(self.dataset.name, now_ns(), self.auth.ts_out);
        self.outgoing.push_bytes(&bytes);
        let live_from = self.dataset.ring.end();
        self.source = Source::Ring(live_from.chunk);
        self.began_after_end = live_from.is_ended;
        if self.waiting.iter().any(Request::is_refused_before_oldest) {
            self.starting =
                Some(Starting { live_from, oldest_event: Answer::new(replay::ask_oldest_event(&self.dataset)) });
        } else {
            self.begin(live_from);
        }
    }

    /// Goes on with the start once the oldest event is known. Returns whether the session has begun.
    fn continue_start(&mut self) -> bool {
        let Some(starting) = &mut self.starting else { return true };
        let Some(answer) = starting.oldest_event.take() else { return false };
        self.oldest_event = answer.flatten();
        if let Some(Starting { live_from, .. }) = self.starting.take() {
            self.begin(live_from);
        }
        true
    }

    /// Answers what was requested before the start, and begins the replay.
    fn begin(&mut self, live_from: RingPosition) {
        for request in std::mem::take(&mut self.waiting) {
            // Snapshots wait until the session reads the ring, one after the other, and so does what ends their subscriptions.
            if request.is_snapshot() || self.waiting.iter().any(|snapshot| request.ends(snapshot)) {
                self.waiting.push_back(request);
                continue;
            }
            self.handle(request);
            // Each subscription to all symbols is answered with all mappings.
            if self.outgoing.batch_bytes() as u64 > self.limits.queue_bytes_max {
                self.is_overfull = true;
                return;
            }
        }
        if !self.replays.is_empty() {
            self.source = Source::Replay(replay::start(&self.dataset, self.subscriptions.schemas(), live_from));
        }
    }

    fn handle(&mut self, request: Request) {
        match request {
            Request::Report(reason) => self.error(ErrorCode::InvalidSubscription, &reason, true),
            Request::Subscribe(request) => self.subscribe(request),
            Request::TakeAgain(request, mapped) => self.request_snapshot(request, mapped),
            Request::Unsubscribe(request) => self.unsubscribe(&request),
        }
    }

    fn subscribe(&mut self, request: SubscribeRequest) {
        let refusal = if !self.dataset.available().contains(request.schema) {
            Some(format!("{} has no schema {}", self.dataset.name, request.schema_name))
        } else if request.snapshot && !self.dataset.has_orders() {
            Some(format!("{} has no snapshot", self.dataset.name))
        } else if self.subscriptions.count_with(request.symbol_type, &request.symbols) > self.limits.symbols_max {
            Some(format!("more than {} symbols", self.limits.symbols_max))
        } else {
            None
        };
        if let Some(reason) = refusal {
            return self.error(ErrorCode::InvalidSubscription, &format!("Invalid subscription: {reason}"), true);
        }
        if let Some(start) = request.start_of_books()
            && self.oldest_event.is_some_and(|oldest| start < oldest)
        {
            let reason = "Replay data aged out: mbo cannot begin after the requested start";
            return self.error(ErrorCode::ReplayDataAgedOut, reason, true);
        }
        self.dataset.demand(request.schema);
        if let Source::Replay(replay) = &self.source {
            replay.add(request.schema);
        }
        let now = now_ns();
        let acknowledgement = control::subscription_acknowledgement(now, &request.id, request.schema_name);
        self.outgoing.push(acknowledgement.as_ref(), now);
        let mapped = self.send_mappings(&request);
        if request.start.is_some() {
            self.replays.push(request.schema_name);
        }
        if request.snapshot {
            return self.request_snapshot(request, mapped);
        }
        self.activate(&request);
    }

    /// Whether the session waits for room for a snapshot, or sends one.
    fn has_snapshot_to_check(&self) -> bool {
        matches!(self.snapshot, Some(PendingSnapshot::WaitsForRoom(..) | PendingSnapshot::Sending(..)))
    }

    /// Whether others wait, and the session takes nothing of its snapshot, or has taken too long.
    fn holds_snapshot_for_too_long(&self, last_sent: Instant) -> bool {
        let Some(PendingSnapshot::Sending(records, _)) = &self.snapshot else { return false };
        let is_slow = last_sent.elapsed() >= SNAPSHOT_PAUSE_MAX || records.age() >= SNAPSHOT_HELD_MAX;
        is_slow && self.dataset.has_waiting_snapshot()
    }

    fn request_snapshot(&mut self, request: SubscribeRequest, mapped: Vec<u32>) {
        if !self.dataset.has_room_for_snapshot() {
            self.snapshot = Some(PendingSnapshot::WaitsForRoom(request, mapped, SnapshotWaiter::new(&self.dataset)));
            return;
        }
        match self.dataset.request_snapshot(mapped.clone()) {
            Some(reply) => self.snapshot = Some(PendingSnapshot::Requested(request, mapped, Answer::new(reply))),
            None => self.error(ErrorCode::InvalidSubscription, "Too many snapshots requested: try again", true),
        }
    }

    fn activate(&mut self, request: &SubscribeRequest) {
        let SubscribeRequest { schema, symbol_type, symbols, start, .. } = request;
        match symbols {
            Symbols::All => self.subscriptions.add_all(*schema, *start),
            Symbols::List(list) => {
                for text in list {
                    let id = self.resolve(*symbol_type, text);
                    match (symbol_type, id) {
                        (SymbolType::RawSymbol, id) => {
                            self.subscriptions.add_symbol(text.as_str().into(), id, *schema, *start);
                        }
                        (SymbolType::InstrumentId, Some(id)) => self.subscriptions.add_id(id, *schema, *start),
                        (SymbolType::InstrumentId, None) => {}
                    }
                }
            }
        }
        self.show_subscribed();
    }

    fn resolve(&self, symbol_type: SymbolType, text: &str) -> Option<u32> {
        match symbol_type {
            SymbolType::RawSymbol => self.dataset.id_of(text),
            SymbolType::InstrumentId => text.parse().ok().filter(|id| self.dataset.symbol_of(*id).is_some()),
        }
    }

    /// Errors for symbols that no instrument has so far, then the mappings of the others. Returns the mapped instruments.
    fn send_mappings(&mut self, request: &SubscribeRequest) -> Vec<u32> {
        let now = now_ns();
        let Symbols::List(list) = &request.symbols else {
            let instruments = self.dataset.instruments();
            for (id, symbol) in &instruments {
                self.push_mapping(*id, SymbolType::RawSymbol, symbol);
            }
            return instruments.into_iter().map(|(id, _)| id).collect();
        };
        let resolved: Vec<_> = list.iter().map(|text| (text, self.resolve(request.symbol_type, text))).collect();
        let mut unresolved = resolved.iter().filter(|(_, id)| id.is_none()).peekable();
        while let Some((text, _)) = unresolved.next() {
            let reason = format!("Failed to resolve symbol: {text}");
            self.error(ErrorCode::SymbolResolutionFailed, &reason, unresolved.peek().is_none());
        }
        let stype_in = match request.symbol_type {
            SymbolType::RawSymbol => SType::RawSymbol,
            SymbolType::InstrumentId => SType::InstrumentId,
        };
        let mut mapped = Vec::new();
        for (text, id) in resolved {
            if let Some(id) = id
                && let Some(symbol) = self.dataset.symbol_of(id)
            {
                self.outgoing.push(control::mapping(now, id, (stype_in, text), &symbol).as_ref(), now);
                mapped.push(id);
            }
        }
        mapped
    }

    /// Sends the mappings of wanted instruments that are not among `mapped`, and adds those.
    fn send_new_mappings(&mut self, request: &SubscribeRequest, mapped: &mut Vec<u32>) {
        let known: HashSet<u32> = mapped.iter().copied().collect();
        let wanted: Vec<(u32, Arc<str>)> = match &request.symbols {
            Symbols::All => self.dataset.instruments(),
            Symbols::List(list) => {
                let ids = list.iter().filter_map(|text| self.resolve(request.symbol_type, text));
                ids.filter_map(|id| Some((id, self.dataset.symbol_of(id)?))).collect()
            }
        };
        let asked = match &request.symbols {
            Symbols::All => SymbolType::RawSymbol,
            Symbols::List(_) => request.symbol_type,
        };
        for (id, symbol) in wanted.into_iter().filter(|(id, _)| !known.contains(id)) {
            self.push_mapping(id, asked, &symbol);
            mapped.push(id);
        }
    }

    /// Sends a mapping in the form in which the client asked for the instrument.
    fn push_mapping(&mut self, id: u32, asked: SymbolType, symbol: &str) {
        let now = now_ns();
        let mapping = match asked {
            SymbolType::RawSymbol => control::mapping(now, id, (SType::RawSymbol, symbol), symbol),
            SymbolType::InstrumentId => control::mapping(now, id, (SType::InstrumentId, &id.to_string()), symbol),
        };
        self.outgoing.push(mapping.as_ref(), now);
    }

    fn unsubscribe(&mut self, request: &UnsubscribeRequest) {
        match &request.symbols {
            Symbols::All => self.subscriptions.remove_all(request.schema),
            Symbols::List(list) => {
                for text in list {
                    match (request.symbol_type, text.parse()) {
                        (SymbolType::RawSymbol, _) => self.subscriptions.remove_symbol(text, request.schema),
                        (SymbolType::InstrumentId, Ok(id)) => self.subscriptions.remove_id(id, request.schema),
                        (SymbolType::InstrumentId, Err(_)) => {}
                    }
                }
            }
        }
        self.show_subscribed();
        let now = now_ns();
        self.outgoing.push(control::unsubscription_acknowledgement(now, request.schema_name).as_ref(), now);
    }

    /// Collects what can be sent now, up to the size of a batch.
    fn fill(&mut self) -> Result<(), (Ending, Option<&'static str>)> {
        if !self.outgoing.unsent().is_empty() {
            return Ok(());
        }
        let has_begun = self.continue_start();
        while has_begun && self.outgoing.batch_bytes() < BATCH_BYTES && !matches!(self.source, Source::None) {
            if self.snapshot.is_some() {
                if self.continue_snapshot() {
                    continue;
                }
            } else if let Some(request) = self.next_request() {
                self.handle(request);
                continue;
            }
            if !self.next_chunk()? {
                break;
            }
        }
        self.outgoing.flush().map_err(|_| (Ending::Failed, None))
    }

    /// The next request that can be handled now: a snapshot has its position in the ring, so it waits for the end of a replay.
    fn next_request(&mut self) -> Option<Request> {
        let is_replaying = matches!(self.source, Source::Replay(_));
        if is_replaying && self.waiting.front().is_some_and(Request::is_snapshot) {
            return None;
        }
        self.waiting.pop_front()
    }

    /// Advances a snapshot. Returns whether anything was done; if not, the session goes on with its stream.
    fn continue_snapshot(&mut self) -> bool {
        let position = match &self.source {
            Source::Ring(position) => *position,
            Source::None | Source::Replay(_) => return false,
        };
        match self.snapshot.take() {
            Some(PendingSnapshot::WaitsForRoom(request, mut mapped, waiter)) => {
                if !self.dataset.has_room_for_snapshot() {
                    self.snapshot = Some(PendingSnapshot::WaitsForRoom(request, mapped, waiter));
                    return false;
                }
                // What the venue has named meanwhile.
                self.send_new_mappings(&request, &mut mapped);
                self.request_snapshot(request, mapped);
            }
            Some(PendingSnapshot::Requested(request, mapped, mut answer)) => match answer.take() {
                Some(snapshot) => {
                    self.snapshot = snapshot.map(|snapshot| PendingSnapshot::Taken(request, mapped, snapshot));
                }
                None => {
                    self.snapshot = Some(PendingSnapshot::Requested(request, mapped, answer));
                    return false;
                }
            },
            Some(PendingSnapshot::Taken(request, mut mapped, snapshot)) if position >= snapshot.next_chunk => {
                // Instruments that the venue has named since the request are in no list of the snapshot.
                let before = mapped.len();
                self.send_new_mappings(&request, &mut mapped);
                if mapped.len() > before {
                    self.request_snapshot(request, mapped);
                } else {
                    self.activate(&request);
                    self.snapshot = Some(PendingSnapshot::Sending(snapshot.records, 0));
                }
            }
            Some(PendingSnapshot::Resync(mut answer)) => match answer.take() {
                Some(snapshot) => self.snapshot = snapshot.map(PendingSnapshot::ResyncTaken),
                None => {
                    self.snapshot = Some(PendingSnapshot::Resync(answer));
                    return false;
                }
            },
            Some(PendingSnapshot::ResyncTaken(snapshot)) => {
                // The skipped chunks are part of the snapshot.
                self.source = Source::Ring(snapshot.next_chunk.max(position));
                self.snapshot = Some(PendingSnapshot::Sending(snapshot.records, 0));
            }
            Some(PendingSnapshot::Sending(records, mut offset)) => {
                let now = now_ns();
                while offset < records.len() && self.outgoing.batch_bytes() < BATCH_BYTES {
                    let end = (offset + size_of::<dbn::MboMsg>()).min(records.len());
                    self.outgoing.push(records.get(offset..end).unwrap_or_default(), now);
                    offset = end;
                }
                if offset < records.len() {
                    self.snapshot = Some(PendingSnapshot::Sending(records, offset));
                }
            }
            pending => {
                self.snapshot = pending;
                return false;
            }
        }
        true
    }

    /// Appends the wanted records of the next chunk. Returns whether there was one.
    fn next_chunk(&mut self) -> Result<bool, (Ending, Option<&'static str>)> {
        // Before a snapshot is taken, a session that reads on could pass the snapshot's position.
        if matches!(self.snapshot, Some(PendingSnapshot::Requested(..) | PendingSnapshot::Resync(_))) {
            return Ok(false);
        }
        match &mut self.source {
            Source::None => Ok(false),
            Source::Ring(position) => {
                let position = *position;
                self.check_lag(position)?;
                let Source::Ring(position) = &mut self.source else { return Ok(true) };
                match self.dataset.ring.read(*position) {
                    RingRead::NotYet if self.is_dropping => {
                        self.is_dropping = false;
                        let reason =
                            "Records were skipped after slow reading, of the schemas whose records replace each other";
                        self.error(ErrorCode::SkippedRecordsAfterSlowReading, reason, true);
                        Ok(true)
                    }
                    RingRead::NotYet => Ok(false),
                    RingRead::Gone => Ok(true),
                    RingRead::Chunk(chunk) => {
                        *position += 1;
                        self.append(&chunk, Phase::Live);
                        if chunk.is_end_of_session {
                            return Err((Ending::EndOfSession, None));
                        }
                        Ok(true)
                    }
                }
            }
            Source::Replay(replay) => match replay.take() {
                Ok(ReplayItem::Chunk { chunk, is_past_start }) => {
                    let phase = if is_past_start { Phase::Live } else { Phase::Replay };
                    self.append(&chunk, phase);
                    Ok(true)
                }
                Ok(ReplayItem::LostJournal) => {
                    let reason = "Replay data aged out: a journal was removed before the replay came to it";
                    self.error(ErrorCode::ReplayDataAgedOut, reason, true);
                    Ok(true)
                }
                Ok(ReplayItem::Joined { position, has_hole }) => {
                    self.is_behind_hole = has_hole;
                    self.source = Source::Ring(position.chunk);
                    let now = now_ns();
                    for schema in std::mem::take(&mut self.replays) {
                        self.outgoing.push(control::replay_completed(now, schema).as_ref(), now);
                    }
                    // The day ended while the session replayed, so no further chunk will say so.
                    if position.is_ended && !self.began_after_end {
                        return Err((Ending::EndOfSession, None));
                    }
                    Ok(true)
                }
                Err(mpsc::error::TryRecvError::Empty) => Ok(false),
                Err(mpsc::error::TryRecvError::Disconnected) if replay.is_displaced() => {
                    Err((Ending::TooSlow, Some("Slow reading: other sessions waited for a replay")))
                }
                Err(mpsc::error::TryRecvError::Disconnected) => Err((Ending::Failed, Some("Replay failed"))),
            },
        }
    }

    /// What happens to a reader that is behind: a warning, skipped records, or the end.
    fn check_lag(&mut self, position: u64) -> Result<(), (Ending, Option<&'static str>)> {
        let behind = self.dataset.ring.bytes_behind(position);
        let limit = self.limits.queue_bytes_max;
        if behind.is_some_and(|behind| behind <= limit / 2) {
            return Ok(());
        }
        let is_skipping = self.is_skipping();
        if !self.is_dropping && !self.dropped_first().is_empty() {
            self.is_dropping = true;
            self.progress.add_skip();
        }
        if behind.is_some_and(|behind| behind <= limit) {
            let is_due = self.warned.is_none_or(|warned| warned.elapsed() >= WARNING_INTERVAL);
            if !is_skipping && is_due {
                self.warned = Some(Instant::now());
                let now = now_ns();
                self.outgoing.push(control::slow_reader_warning(now, behind.unwrap_or(limit)).as_ref(), now);
            }
            return Ok(());
        }
        if !is_skipping {
            return Err((Ending::TooSlow, Some("Slow reading: the limit of the session's queue is reached")));
        }
        self.skip_to_end()
    }

    /// Goes on at the ring's end, with what the client needs of the skipped records: mappings, and orders.
    fn skip_to_end(&mut self) -> Result<(), (Ending, Option<&'static str>)> {
        let end = self.dataset.ring.end();
        self.source = Source::Ring(end.chunk);
        self.progress.add_skip();
        self.error(ErrorCode::SkippedRecordsAfterSlowReading, "Records were skipped after slow reading", true);
        if end.is_ended {
            return Err((Ending::EndOfSession, None));
        }
        for (id, symbol) in self.dataset.instruments() {
            if let Some(asked) = self.subscriptions.map(id, &symbol) {
                self.push_mapping(id, asked, &symbol);
            }
        }
        if let Some(
            PendingSnapshot::WaitsForRoom(request, mapped, _)
            | PendingSnapshot::Requested(request, mapped, _)
            | PendingSnapshot::Taken(request, mapped, _),
        ) = self.snapshot.take()
        {
            // Taken again, since its position lies among the skipped records.
            self.waiting.push_front(Request::TakeAgain(request, mapped));
        }
        if self.subscriptions.schemas().contains(Schemas::MBO) && self.dataset.has_orders() {
            let instruments = if self.subscriptions.has_all(Schemas::MBO) {
                self.dataset.instruments().into_iter().map(|(id, _)| id).collect()
            } else {
                self.subscriptions.instruments(Schemas::MBO)
            };
            self.snapshot =
                self.dataset.request_snapshot(instruments).map(|reply| PendingSnapshot::Resync(Answer::new(reply)));
        }
        Ok(())
    }

    fn append(&mut self, chunk: &Arc<Chunk>, phase: Phase) {
        if !self.is_dropping
            && !self.is_behind_hole
            && let Some((schemas, ts_event_min)) = chunk.whole()
            && self.subscriptions.passes_all(schemas, ts_event_min, phase)
            && self.outgoing.push_whole(chunk)
        {
            return;
        }
        let now = now_ns();
        let dropped = if self.is_dropping { self.dropped_first() } else { Schemas::default() };
        for mut record in chunk.records() {
            record.schemas = record.schemas.without(dropped);
            if record.is_mapping() {
                if let Some(symbol) = record.mapped_symbol()
                    && let Some(asked) = self.subscriptions.map(record.instrument_id, symbol)
                {
                    self.push_mapping(record.instrument_id, asked, symbol);
                }
            } else if self.subscriptions.passes(&record, control::ts_event(record.bytes), phase) {
                match control::sent_at(record.bytes, now).filter(|_| record.is_control()) {
                    Some(announcement) => self.outgoing.push(&announcement, now),
                    None => match marked(record.bytes)
                        .filter(|_| self.is_behind_hole && record.bytes.get(1) == Some(&dbn::enums::rtype::MBO))
                    {
                        Some(marked) => self.outgoing.push(&marked, now),
                        None => self.outgoing.push(record.bytes, now),
                    },
                }
            }
        }
    }

    /// Waits until [`Self::fill`] may have more to do.
    async fn wait(&mut self, chunks: &mut watch::Receiver<u64>) {
        if let Some(starting) = &mut self.starting {
            return starting.oldest_event.wait().await;
        }
        match (&mut self.snapshot, &mut self.source) {
            (Some(PendingSnapshot::Requested(_, _, answer) | PendingSnapshot::Resync(answer)), _) => {
                answer.wait().await
            }
            (_, Source::Replay(replay)) => replay.wait().await,
            (_, Source::None | Source::Ring(_)) => _ = chunks.changed().await,
        }
    }

    fn error(&mut self, code: ErrorCode, reason: &str, is_last: bool) {
        let now = now_ns();
        self.outgoing.push(control::error(now, code, reason, is_last).as_ref(), now);
    }

    /// Sends what is left, within the time that the session's end allows, and ends the session. With a reason a client
    /// reconnects, without one the session is finished.
    async fn close(&mut self, stream: &TcpStream, reason: Option<&str>, ending: Ending) -> Ending {
        // The last bytes may take seconds: a replay that nobody takes ends before.
        if let Source::Replay(_) = self.source {
            self.source = Source::Ring(0);
        }
        if !matches!(self.source, Source::None) {
            if let Some(reason) = reason {
                self.error(ErrorCode::InternalError, reason, true);
            }
            // The day's last records are due to every client that still takes some.
            let limit = if ending == Ending::EndOfSession { self.limits.stall } else { CLOSE_TIMEOUT };
            if self.outgoing.finish().is_err()
                || !matches!(tokio::time::timeout(limit, self.drain(stream)).await, Ok(Ok(())))
            {
                reset(stream);
            }
        } else if reason.is_some() {
            // Before the start nothing can be said, and a plain close would be the end of the day.
            reset(stream);
        }
        ending
    }

    async fn drain(&mut self, stream: &TcpStream) -> io::Result<()> {
        while !self.outgoing.unsent().is_empty() {
            stream.writable().await?;
            match stream.try_write(self.outgoing.unsent()) {
                Ok(bytes) => self.outgoing.advance(bytes),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

/// Lets the end of the connection be a reset: the client lacks bytes, and would take a plain close for the end of the day.
fn reset(stream: &TcpStream) {
    // Without the reset the client sees a plain close; nothing better is left to do.
    let _ = SockRef::from(stream).set_linger(Some(Duration::ZERO));
}

/// How long the last bytes may take when a session ends for another reason than the end of the day.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// Time of sending, ns since 1970 UTC.
pub(crate) fn now_ns() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}
