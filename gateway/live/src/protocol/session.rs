//! State of one client's session: which lines are allowed when, and which lines form one request.

use super::request::{AuthRequest, RequestLine, SubscribeRequest, Symbols, UnsubscribeRequest, is_last_line};

/// Bounds of a session's requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProtocolLimits {
    /// Symbols of a request.
    pub symbols_max: usize,
}

/// What the server does after a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Nothing: the line is part of a request, or empty.
    Wait,
    /// Decide about this request, and call [`Session::authenticated`] or close.
    Authenticate(AuthRequest),
    /// Answer with this reason in text and close: the client is not authenticated.
    Refuse(String),
    /// Subscribe.
    Subscribe(SubscribeRequest),
    /// Unsubscribe.
    Unsubscribe(UnsubscribeRequest),
    /// Begin the binary part.
    Start,
    /// Report this error (invalid subscription) in the binary part; the session goes on.
    Report(String),
}

/// State of one session.
#[derive(Clone, Debug)]
pub struct Session {
    state: State,
    limits: ProtocolLimits,
    /// The request whose last line is still to come.
    open: Option<OpenRequest>,
    /// Why the request whose last line is still to come is refused as a whole: one of its lines is invalid.
    invalid: Option<String>,
    /// Why a request that another one, or the start, interrupted is refused.
    incomplete: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Greeted,
    Deciding,
    Ready,
    Started,
}

#[derive(Clone, Debug)]
struct OpenRequest {
    first: RequestLine,
    is_unsubscribe: bool,
    /// Why the request will be refused when its last line has come.
    refusal: Option<String>,
}

impl Session {
    /// A session whose greeting and challenge have been sent.
    #[must_use]
    pub fn new(limits: ProtocolLimits) -> Self {
        Self { state: State::Greeted, limits, open: None, invalid: None, incomplete: None }
    }

    /// The server accepted the authentication request.
    pub fn authenticated(&mut self) {
        self.state = State::Ready;
    }

    /// Whether the binary part has begun.
    #[must_use]
    pub fn has_started(&self) -> bool {
        self.state == State::Started
    }

    /// Why the request before the latest line is refused: its last line did not come. To be reported before the step of that line.
    pub fn take_incomplete(&mut self) -> Option<String> {
        self.incomplete.take()
    }

    /// Handles one line, without its end.
    pub fn accept(&mut self, line: &[u8]) -> Step {
        let text = std::str::from_utf8(line).ok().filter(|text| !text.contains('\0'));
        match (self.state, text) {
            (_, Some("")) => Step::Wait,
            (State::Greeted, Some(text)) => match AuthRequest::parse(text) {
                Ok(request) => {
                    self.state = State::Deciding;
                    Step::Authenticate(request)
                }
                Err(reason) => Step::Refuse(format!("Invalid authentication request: {reason}")),
            },
            (State::Greeted, None) => Step::Refuse("Invalid authentication request".to_owned()),
            (State::Deciding, _) => Step::Refuse("Request before the answer to the authentication".to_owned()),
            (State::Ready | State::Started, None) => self.report("Invalid request: not text".to_owned()),
            (State::Ready | State::Started, Some(text)) => self.request(text),
        }
    }

    fn request(&mut self, text: &str) -> Step {
        let name = text.split(['|', '=']).next().unwrap_or_default();
        if name == "start_session" {
            if self.state == State::Started {
                return self.report("Invalid request: the session has started already".to_owned());
            }
            let invalid = self.invalid.take();
            self.incomplete = self.open.take().map(OpenRequest::incomplete).or(invalid);
            self.state = State::Started;
            return Step::Start;
        }
        let is_unsubscribe = text == "unsubscribe" || text.starts_with("unsubscribe|");
        if !is_unsubscribe && !text.split('|').any(|field| field.starts_with("schema=")) {
            return self.report("Invalid request: expected a subscription or start_session".to_owned());
        }
        let parsed = RequestLine::parse(text);
        let is_last = parsed.as_ref().map_or_else(|_| is_last_line(text), |line| line.is_last);
        let reason = match (self.invalid.take(), parsed) {
            (None, Ok(line)) => return self.join(line, is_unsubscribe),
            (Some(reason), _) => reason,
            (None, Err(reason)) => format!("Invalid subscription: {reason}"),
        };
        self.open = None;
        if is_last {
            return self.report(reason);
        }
        self.invalid = Some(reason);
        Step::Wait
    }

    /// Adds a line to the open request, or begins one; completes the request with its last line.
    fn join(&mut self, line: RequestLine, is_unsubscribe: bool) -> Step {
        let is_last = line.is_last;
        let mut request = match self.open.take() {
            Some(open) if open.continues_with(&line, is_unsubscribe) => open.with(line, self.limits.symbols_max),
            interrupted => {
                self.incomplete = interrupted.map(OpenRequest::incomplete);
                OpenRequest { refusal: self.refusal_of(&line, is_unsubscribe), first: line, is_unsubscribe }
            }
        };
        if !is_last {
            // The rest of a refused request is only counted as part of it.
            if request.refusal.is_some() {
                request.first.symbols = Symbols::List(Vec::new());
            }
            self.open = Some(request);
            return Step::Wait;
        }
        if let Some(reason) = request.refusal {
            return self.report(reason);
        }
        let RequestLine { id, schema: (schema, schema_name), symbol_type, symbols, start, snapshot, .. } =
            request.first;
        if is_unsubscribe {
            return Step::Unsubscribe(UnsubscribeRequest { schema, schema_name, symbol_type, symbols });
        }
        Step::Subscribe(SubscribeRequest { id, schema, schema_name, symbol_type, symbols, start, snapshot })
    }

    fn refusal_of(&self, line: &RequestLine, is_unsubscribe: bool) -> Option<String> {
        if is_unsubscribe {
            return None;
        }
        if self.state == State::Started && line.start.is_some() {
            return Some("Invalid subscription: start is only possible before the session start".to_owned());
        }
        if line.snapshot && line.schema.1 != "mbo" {
            return Some(format!("Invalid subscription: no snapshot of {}, only of mbo", line.schema.1));
        }
        if line.snapshot && line.start.is_some() {
            return Some("Invalid subscription: snapshot and start exclude each other".to_owned());
        }
        (line.symbols.count() > self.limits.symbols_max).then(|| too_many_symbols(self.limits.symbols_max))
    }

    fn report(&mut self, reason: String) -> Step {
        Step::Report(reason)
    }
}

impl OpenRequest {
    fn continues_with(&self, line: &RequestLine, is_unsubscribe: bool) -> bool {
        self.is_unsubscribe == is_unsubscribe && self.first.id == line.id && self.first.schema == line.schema
    }

    /// Why a request without its last line is refused.
    fn incomplete(self) -> String {
        let (request, id) = (if self.is_unsubscribe { "unsubscribe" } else { "subscription" }, self.first.id);
        self.refusal
            .unwrap_or_else(|| format!("Invalid {request}: the last line (is_last=1) of request {id} is missing"))
    }

    fn with(mut self, line: RequestLine, symbols_max: usize) -> Self {
        if self.refusal.is_some() {
            return self;
        }
        match (&mut self.first.symbols, line.symbols) {
            (Symbols::List(symbols), Symbols::List(more)) => symbols.extend(more),
            (symbols, Symbols::All) => *symbols = Symbols::All,
            (Symbols::All, _) => {}
        }
        if self.first.symbols.count() > symbols_max {
            self.refusal = Some(too_many_symbols(symbols_max));
        }
        self
    }
}

fn too_many_symbols(symbols_max: usize) -> String {
    format!("Invalid subscription: more than {symbols_max} symbols")
}
