//! The server: one thread, one request for each connection.

use std::{
    convert::Infallible,
    fmt, io,
    net::{IpAddr, TcpListener},
    os::unix::net::UnixListener,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use http_body_util::Full;
use hyper::{
    Method, Request, Response, StatusCode,
    body::{Bytes, Incoming},
    header::{
        ALLOW, CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HOST, HeaderMap, HeaderName, HeaderValue,
        REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS,
    },
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    sync::Notify,
    task::AbortHandle,
};

use crate::{
    host, limits,
    metric::{self, Metric},
    page::Page,
    places::Places,
    runbooks::runbook,
};

/// A socket that listens.
#[derive(Debug)]
pub enum Listener {
    /// At an address.
    Tcp(TcpListener),
    /// In the file system.
    Unix(UnixListener),
}

/// A question about health.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Probe {
    /// Does the gateway work at all? If not, a service manager should restart it.
    Live,
    /// Does it receive all its channels?
    Ready,
    /// Does it lead? Of one group, or of all groups.
    Leader(Option<u16>),
}

/// An answer about health.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Health {
    /// Whether the status code is 200; else it is 503.
    pub is_ok: bool,
    /// The reason, one line.
    pub text: String,
}

/// What the listener counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Observed {
    /// A connection has arrived.
    Connection,
    /// A connection without a request was closed to make room for another one.
    Displaced,
    /// A connection sent no complete request in time.
    Silent,
    /// The bytes are no request.
    Malformed,
    /// The request is longer than any request.
    TooLong,
    /// All places for answers are taken, or all those of the client's address.
    Busy,
    /// The request names another host.
    ForeignHost,
}

/// Where answers come from. The functions run on the listener's thread and may take some milliseconds.
pub struct Sources {
    /// All metrics.
    pub metrics: Box<dyn Fn() -> Vec<Metric> + Send + Sync>,
    /// Health.
    pub health: Box<dyn Fn(Probe) -> Health + Send + Sync>,
    /// What only a gateway has; without it there are metrics, `/live` and `/ready`.
    pub page: Option<PageSources>,
    /// Counts what arrives and what is refused.
    pub count: Box<dyn Fn(Observed) + Send + Sync>,
}

/// What the page of a gateway shows.
pub struct PageSources {
    /// The status of the gateway, as JSON.
    pub status: Box<dyn Fn() -> String + Send + Sync>,
    /// The newest lines of the audit, as JSON; an error if they cannot be read.
    pub history: Box<dyn Fn() -> Result<String, String> + Send + Sync>,
}

impl fmt::Debug for PageSources {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PageSources").finish_non_exhaustive()
    }
}

impl fmt::Debug for Sources {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sources").finish_non_exhaustive()
    }
}

/// The running listener. Dropping it stops the listener.
#[derive(Debug)]
pub struct AdminServer {
    stop: Arc<Notify>,
    thread: Option<JoinHandle<()>>,
}

impl AdminServer {
    /// Starts the thread `mdgw-admin`, on the cores of the calling thread. A caller that keeps the sources in an `Arc` can try again
    /// after an error.
    ///
    /// # Errors
    /// If the thread or its event loop cannot be made.
    pub fn start(listener: Listener, sources: impl Into<Arc<Sources>>) -> io::Result<Self> {
        let is_on_loopback = match &listener {
            Listener::Tcp(listener) => {
                listener.set_nonblocking(true)?;
                listener.local_addr()?.ip().is_loopback()
            }
            Listener::Unix(listener) => {
                listener.set_nonblocking(true)?;
                false
            }
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build()?;
        let accepting = {
            let _entered = runtime.enter();
            match listener {
                Listener::Tcp(listener) => Accepting::Tcp(tokio::net::TcpListener::from_std(listener)?),
                Listener::Unix(listener) => Accepting::Unix(tokio::net::UnixListener::from_std(listener)?),
            }
        };
        let stop = Arc::new(Notify::new());
        let thread_stop = Arc::clone(&stop);
        let answers = Arc::new(Answers {
            sources: sources.into(),
            is_on_loopback,
            page: PageAnswer::new(&Page::new())?,
            metrics: Recent::default(),
            status: Recent::default(),
        });
        let thread = std::thread::Builder::new().name("mdgw-admin".to_owned()).spawn(move || {
            runtime.block_on(async {
                tokio::select! {
                    () = accept(accepting, answers) => {}
                    () = thread_stop.notified() => {}
                }
            });
        })?;
        Ok(Self { stop, thread: Some(thread) })
    }
}

impl Drop for AdminServer {
    fn drop(&mut self) {
        self.stop.notify_one();
        if let Some(thread) = self.thread.take() {
            let _ended = thread.join();
        }
    }
}

enum Accepting {
    Tcp(tokio::net::TcpListener),
    Unix(tokio::net::UnixListener),
}

async fn accept(listener: Accepting, answers: Arc<Answers>) {
    let places = Arc::new(SharedPlaces::default());
    loop {
        let accepted = match &listener {
            Accepting::Tcp(listener) => {
                listener.accept().await.map(|(stream, from)| (Stream::Tcp(stream), Some(from.ip())))
            }
            Accepting::Unix(listener) => listener.accept().await.map(|(stream, _)| (Stream::Unix(stream), None)),
        };
        let (stream, from) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::debug!(%error, "admin listener: cannot accept");
                tokio::time::sleep(PAUSE_AFTER_ERROR).await;
                continue;
            }
        };
        (answers.sources.count)(Observed::Connection);
        let (place, displaced) = Place::take(&places, from);
        if let Some(displaced) = displaced {
            displaced.abort();
            (answers.sources.count)(Observed::Displaced);
        }
        let (number, answers) = (place.number, Arc::clone(&answers));
        let task = tokio::spawn(async move {
            match stream {
                Stream::Tcp(stream) => serve(stream, answers, place).await,
                Stream::Unix(stream) => serve(stream, answers, place).await,
            }
        });
        places.lock().set_handle(number, task.abort_handle());
    }
}

enum Stream {
    Tcp(tokio::net::TcpStream),
    Unix(tokio::net::UnixStream),
}

#[derive(Debug, Default)]
struct SharedPlaces(Mutex<Places<AbortHandle>>);

impl SharedPlaces {
    fn lock(&self) -> MutexGuard<'_, Places<AbortHandle>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The place of a connection, until it ends.
#[derive(Debug)]
struct Place {
    places: Arc<SharedPlaces>,
    number: u64,
    has_request: AtomicBool,
}

impl Place {
    /// Takes a place. Also returns the connection that has to be closed for it.
    fn take(places: &Arc<SharedPlaces>, from: Option<IpAddr>) -> (Arc<Self>, Option<AbortHandle>) {
        let (number, displaced) = places.lock().admit(from);
        let place = Self { places: Arc::clone(places), number, has_request: AtomicBool::new(false) };
        (Arc::new(place), displaced)
    }

    /// `false`: there is no place for the answer.
    fn begin_answer(&self, is_health: bool) -> bool {
        self.has_request.store(true, Ordering::Relaxed);
        self.places.lock().begin_answer(self.number, is_health)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.places.lock().release(self.number);
    }
}

/// After an error of accept(2), such as too many open files.
const PAUSE_AFTER_ERROR: Duration = Duration::from_millis(100);

async fn serve(stream: impl AsyncRead + AsyncWrite + Unpin, answers: Arc<Answers>, place: Arc<Place>) {
    let (of_service, of_requests) = (Arc::clone(&answers), Arc::clone(&place));
    let service = service_fn(move |request: Request<Incoming>| {
        let answer = if of_requests.begin_answer(probe(&request).is_some()) {
            of_service.answer(&request)
        } else {
            (of_service.sources.count)(Observed::Busy);
            text(StatusCode::SERVICE_UNAVAILABLE, "all places for answers are taken\n")
        };
        async move { Ok::<_, Infallible>(answer) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits::HEADER_TIMEOUT)
        .max_buf_size(limits::REQUEST_BYTES_MAX)
        .max_headers(limits::HEADERS_MAX)
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), service);
    let ended = tokio::time::timeout(limits::CONNECTION_TIMEOUT, connection).await;
    if place.has_request.load(Ordering::Relaxed) {
        return;
    }
    // A connection that its client closes before a request is complete is a health check, or a client that went away.
    let refused = match ended {
        Err(_elapsed) => Some(Observed::Silent),
        Ok(Err(error)) if error.is_timeout() => Some(Observed::Silent),
        Ok(Err(error)) if error.is_parse_too_large() => Some(Observed::TooLong),
        Ok(Err(error)) if error.is_parse() => Some(Observed::Malformed),
        Ok(_) => None,
    };
    if let Some(refused) = refused {
        (answers.sources.count)(refused);
    }
}

/// The question about health that a request is, if it is one.
fn probe(request: &Request<Incoming>) -> Option<Result<Probe, ()>> {
    match request.uri().path() {
        "/live" => Some(Ok(Probe::Live)),
        "/ready" => Some(Ok(Probe::Ready)),
        "/leader" => {
            // A proxy may add parameters of its own.
            let mut parameters = request.uri().query().unwrap_or_default().split('&');
            let group = parameters.find_map(|parameter| parameter.strip_prefix("group=")).map(str::parse).transpose();
            Some(group.map(Probe::Leader).map_err(drop))
        }
        _ => None,
    }
}

struct Answers {
    sources: Arc<Sources>,
    is_on_loopback: bool,
    page: PageAnswer,
    metrics: Recent,
    status: Recent,
}

/// The page as it is sent.
struct PageAnswer {
    html: Bytes,
    policy: HeaderValue,
}

impl PageAnswer {
    fn new(page: &Page) -> io::Result<Self> {
        let policy = HeaderValue::from_str(&page.policy).map_err(io::Error::other)?;
        Ok(Self { html: Bytes::copy_from_slice(page.html.as_bytes()), policy })
    }
}

/// A text that several requests get, and when it was made.
#[derive(Debug, Default)]
struct Recent(Mutex<Option<(Instant, Bytes)>>);

impl Recent {
    /// The text, if it is younger than `age_max`; else a new one.
    fn get<E>(&self, age_max: Duration, make: impl FnOnce() -> Result<String, E>) -> Result<Bytes, E> {
        let mut held = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, text)) = held.as_ref().filter(|(at, _)| at.elapsed() < age_max) {
            return Ok(text.clone());
        }
        let text = Bytes::from(make()?);
        *held = Some((Instant::now(), text.clone()));
        Ok(text)
    }
}

const JSON: &str = "application/json";
const HTML: &str = "text/html; charset=utf-8";
const TEXT: &str = "text/plain; charset=utf-8";

impl Answers {
    fn answer(&self, request: &Request<Incoming>) -> Response<Full<Bytes>> {
        let mut response = self.content(request);
        // A browser takes an answer as what it says it is, keeps no copy, and shows it in no frame of another page.
        for (name, value) in [
            (CACHE_CONTROL, "no-store"),
            (X_CONTENT_TYPE_OPTIONS, "nosniff"),
            (X_FRAME_OPTIONS, "DENY"),
            (REFERRER_POLICY, "no-referrer"),
            (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
        ] {
            response.headers_mut().insert(name, HeaderValue::from_static(value));
        }
        response
    }

    fn content(&self, request: &Request<Incoming>) -> Response<Full<Bytes>> {
        let method = request.method();
        let probe = probe(request);
        // HAProxy asks for health with OPTIONS, unless its check names another method.
        let is_allowed = matches!(*method, Method::GET | Method::HEAD) || *method == Method::OPTIONS && probe.is_some();
        if !is_allowed {
            let (allowed, reason) = match probe {
                Some(_) => ("GET, HEAD, OPTIONS", "only GET, HEAD and OPTIONS\n"),
                None => ("GET, HEAD", "only GET and HEAD\n"),
            };
            let mut refused = text(StatusCode::METHOD_NOT_ALLOWED, reason);
            refused.headers_mut().insert(ALLOW, HeaderValue::from_static(allowed));
            return refused;
        }
        let has_page = self.sources.page.is_some();
        let probe = match probe {
            Some(Ok(Probe::Leader(_)) | Err(())) if !has_page => return self.unknown_path(),
            Some(Ok(probe)) => probe,
            Some(Err(())) => return text(StatusCode::BAD_REQUEST, "expected /leader or /leader?group=NUMBER\n"),
            // Health is one line that says little, and load balancers ask for it under names of their own.
            None if self.is_on_loopback && !is_meant_for_this_host(request.headers()) => {
                (self.sources.count)(Observed::ForeignHost);
                return text(StatusCode::MISDIRECTED_REQUEST, FOREIGN_HOST);
            }
            None => return self.document(request.uri().path()),
        };
        let health = (self.sources.health)(probe);
        let status = if health.is_ok { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
        text(status, format!("{}\n", health.text))
    }

    fn document(&self, path: &str) -> Response<Full<Bytes>> {
        if path == "/metrics" {
            let encoded = self.metrics.get(limits::METRICS_AGE_MAX, || metric::encode((self.sources.metrics)()));
            return match encoded {
                Ok(encoded) => response(StatusCode::OK, metric::CONTENT_TYPE, encoded),
                Err(fmt::Error) => text(StatusCode::INTERNAL_SERVER_ERROR, "a metric has a value of another kind\n"),
            };
        }
        match &self.sources.page {
            Some(sources) => self.of_page(path, sources),
            None => self.unknown_path(),
        }
    }

    fn of_page(&self, path: &str, sources: &PageSources) -> Response<Full<Bytes>> {
        let runbook = |path: &str| runbook(path.strip_prefix("/runbooks/")?.strip_suffix(".md")?);
        match path {
            "/" => {
                let mut answer = response(StatusCode::OK, HTML, self.page.html.clone());
                answer.headers_mut().insert(CONTENT_SECURITY_POLICY, self.page.policy.clone());
                answer
            }
            "/status.json" => {
                let status = self.status.get(limits::STATUS_AGE_MAX, || Ok::<_, Infallible>((sources.status)()));
                let Ok(status) = status;
                response(StatusCode::OK, JSON, status)
            }
            "/history.json" => match (sources.history)() {
                Ok(history) => response(StatusCode::OK, JSON, history),
                Err(reason) => text(StatusCode::NOT_FOUND, format!("{reason}\n")),
            },
            _ => match runbook(path) {
                Some(runbook) => text(StatusCode::OK, runbook),
                None => self.unknown_path(),
            },
        }
    }

    fn unknown_path(&self) -> Response<Full<Bytes>> {
        let known = if self.sources.page.is_some() {
            "/ /status.json /history.json /metrics /live /ready /leader\n"
        } else {
            "/metrics /live /ready\n"
        };
        text(StatusCode::NOT_FOUND, known)
    }
}

/// A request without the header is no browser's.
fn is_meant_for_this_host(headers: &HeaderMap) -> bool {
    headers.get_all(HOST).iter().all(|host| host.to_str().is_ok_and(host::is_own))
}

const FOREIGN_HOST: &str = "this listener is on loopback and answers to an address, localhost or a name without a dot only; \
                            a proxy in front of it must send such a Host header\n";

fn text(status: StatusCode, body: impl Into<Bytes>) -> Response<Full<Bytes>> {
    response(status, TEXT, body)
}

fn response(status: StatusCode, content_type: &'static str, body: impl Into<Bytes>) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body.into()));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}

#[cfg(test)]
mod tests {
    use std::{
        io::{Read as _, Write as _},
        net::{SocketAddr, TcpStream},
    };

    use super::*;
    use crate::metric::{MetricKind, Sample, Value};

    /// What a server has counted.
    type Counted = Arc<Mutex<Vec<Observed>>>;

    fn start() -> (AdminServer, SocketAddr) {
        let (server, address, _) = start_counting();
        (server, address)
    }

    fn start_counting() -> (AdminServer, SocketAddr, Counted) {
        start_with(true)
    }

    fn start_with(has_page: bool) -> (AdminServer, SocketAddr, Counted) {
        let counted = Counted::default();
        let counts = Arc::clone(&counted);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let metric = || Metric {
            name: "x".to_owned(),
            help: "an x".to_owned(),
            kind: MetricKind::Gauge,
            unit: None,
            samples: vec![Sample { labels: Vec::new(), value: Value::Count(7) }],
        };
        let sources = Sources {
            metrics: Box::new(move || vec![metric()]),
            health: Box::new(|probe| Health { is_ok: probe != Probe::Leader(Some(2)), text: format!("{probe:?}") }),
            page: has_page.then(|| PageSources {
                status: Box::new(|| "1".repeat(STATUS_BYTES)),
                history: Box::new(|| Err("no audit file".to_owned())),
            }),
            count: Box::new(move |observed| counts.lock().unwrap().push(observed)),
        };
        (AdminServer::start(Listener::Tcp(listener), sources).unwrap(), address, counted)
    }

    /// Everything that the server answers until it closes the connection.
    fn exchange(address: SocketAddr, request: &[u8]) -> String {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        // The server may close the connection before it has read everything.
        let _written = stream.write_all(request);
        let mut answer = Vec::new();
        let _reset = stream.read_to_end(&mut answer);
        String::from_utf8_lossy(&answer).into_owned()
    }

    #[test]
    fn each_path_has_its_answer() {
        let (_server, address) = start();
        for (request, status, content) in [
            ("GET /metrics", "200", "x 7"),
            ("GET /live", "200", "Live"),
            ("GET /ready", "200", "Ready"),
            ("GET /leader", "200", "Leader(None)"),
            ("GET /leader?group=1", "200", "Leader(Some(1))"),
            ("GET /leader?group=2", "503", "Leader(Some(2))"),
            ("GET /leader?group=x", "400", "expected"),
            ("GET /leader?group=70000", "400", "expected"),
            ("GET /leader?x", "200", "Leader(None)"),
            ("GET /leader?x=7&group=2", "503", "Leader(Some(2))"),
            ("GET /../../etc/passwd", "404", "/metrics /live"),
            ("GET /", "200", "<!DOCTYPE html>"),
            ("GET /status.json", "200", "11111"),
            ("GET /history.json", "404", "no audit file"),
            ("GET /runbooks/gap-declared.md", "200", "# Gap declared"),
            ("GET /runbooks/upgrade.md", "200", "# Upgrade a pair"),
            ("GET /runbooks/README.md", "200", "# Runbooks"),
            ("GET /runbooks/no-such-alarm.md", "404", "/metrics /live"),
            ("GET /runbooks/../runbooks/gap-declared.md", "404", "/metrics /live"),
            ("POST /", "405", "only GET"),
            ("PUT /status.json", "405", "only GET"),
            ("OPTIONS /live", "200", "Live"),
            ("OPTIONS /ready", "200", "Ready"),
            ("OPTIONS /leader", "200", "Leader(None)"),
            ("OPTIONS /leader?group=2", "503", "Leader(Some(2))"),
            ("OPTIONS /leader?group=x", "400", "expected"),
            ("OPTIONS /", "405", "only GET"),
            ("OPTIONS /metrics", "405", "only GET"),
            ("OPTIONS /status.json", "405", "only GET"),
            ("POST /metrics", "405", "only GET"),
            ("DELETE /live", "405", "only GET"),
        ] {
            let answer = exchange(address, format!("{request} HTTP/1.1\r\nHost: x\r\n\r\n").as_bytes());
            assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{request}: {answer}");
            assert!(
                answer.contains(content) && answer.to_lowercase().contains("connection: close"),
                "{request}: {answer}"
            );
        }
        let head = exchange(address, b"HEAD /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
        assert!(head.starts_with("HTTP/1.1 200") && head.contains("openmetrics") && !head.contains("x 7"), "{head}");
    }

    #[test]
    fn a_browser_loads_nothing_else_and_frames_nothing() {
        let (_server, address) = start();
        let page = exchange(address, b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n").to_lowercase();
        let head = page.split("\r\n\r\n").next().unwrap();
        for header in [
            "content-security-policy: default-src 'none'; style-src 'sha256-",
            "frame-ancestors 'none'",
            "x-frame-options: deny",
            "x-content-type-options: nosniff",
            "cache-control: no-store",
            "cross-origin-resource-policy: same-origin",
        ] {
            assert!(head.contains(header), "no {header} in {head}");
        }
        assert!(!head.contains("set-cookie") && !head.contains("access-control"), "{head}");
    }

    #[test]
    fn a_foreign_name_reads_health_only() {
        let (_server, address, counted) = start_counting();
        for (path, status) in [
            ("/", "421"),
            ("/status.json", "421"),
            ("/history.json", "421"),
            ("/metrics", "421"),
            ("/runbooks/gap-declared.md", "421"),
            ("/live", "200"),
            ("/leader", "200"),
        ] {
            let answer = exchange(address, format!("GET {path} HTTP/1.1\r\nHost: evil.example\r\n\r\n").as_bytes());
            assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{path}: {answer}");
        }
        assert_eq!(count(&counted, Observed::ForeignHost), 5);
    }

    #[test]
    fn requests_beyond_the_limits_are_refused_and_the_next_is_answered() {
        let (_server, address) = start();
        let long_path = format!("GET /{} HTTP/1.1\r\n\r\n", "x".repeat(2 * limits::REQUEST_BYTES_MAX));
        let long_header = format!("GET /live HTTP/1.1\r\nX: {}\r\n\r\n", "x".repeat(2 * limits::REQUEST_BYTES_MAX));
        let many_headers = format!("GET /live HTTP/1.1\r\n{}\r\n", "X: y\r\n".repeat(limits::HEADERS_MAX + 1));
        let garbage = [0xff_u8; 4_096];
        for request in [long_path.as_bytes(), long_header.as_bytes(), many_headers.as_bytes(), &garbage, b"\r\n\r\n\0"]
        {
            let answer = exchange(address, request);
            assert!(!answer.starts_with("HTTP/1.1 200"), "{answer}");
        }
        assert!(exchange(address, b"GET /live HTTP/1.1\r\nHost: x\r\n\r\n").starts_with("HTTP/1.1 200"));
    }

    #[test]
    fn idle_connections_are_closed_and_do_not_keep_others_out_for_long() {
        let (_server, address) = start();
        let mut idle: Vec<_> = (0..limits::WAITING_MAX).map(|_| TcpStream::connect(address).unwrap()).collect();
        for stream in &mut idle {
            stream.write_all(b"GET /live HT").unwrap();
        }
        // The server closes each of them after the time-out for headers.
        for stream in &mut idle {
            stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
            let mut answer = Vec::new();
            let _reset = stream.read_to_end(&mut answer);
            assert!(!String::from_utf8_lossy(&answer).contains("200 OK"));
        }
        assert!(exchange(address, b"GET /live HTTP/1.1\r\nHost: x\r\n\r\n").starts_with("HTTP/1.1 200"));
    }

    /// More than the sockets of a connection take without a reader.
    const STATUS_BYTES: usize = 16 << 20;

    fn count(counted: &Counted, of: Observed) -> usize {
        counted.lock().unwrap().iter().filter(|observed| **observed == of).count()
    }

    #[test]
    fn idle_connections_keep_neither_health_nor_a_scrape_out() {
        let (_server, address, counted) = start_counting();
        let (mut idle, mut opened) = (std::collections::VecDeque::new(), 0);
        let end = Instant::now() + Duration::from_secs(3);
        // One user of this host opens connections all the time and sends nothing.
        while Instant::now() < end {
            while idle.len() < 3 * limits::WAITING_MAX {
                idle.push_back(TcpStream::connect(address).unwrap());
                opened += 1;
            }
            for path in ["/live", "/leader", "/metrics"] {
                let answer = exchange(address, format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n").as_bytes());
                assert!(answer.starts_with("HTTP/1.1 200"), "{path}: {answer:?}");
                opened += 1;
            }
            idle.drain(..limits::WAITING_MAX);
        }
        assert_eq!(count(&counted, Observed::Connection), opened);
        assert!(count(&counted, Observed::Displaced) > 2 * limits::WAITING_MAX);
        // Without newcomers those that are left are closed in time.
        let left = Instant::now() + Duration::from_secs(30);
        while count(&counted, Observed::Silent) == 0 && Instant::now() < left {
            std::thread::sleep(Duration::from_millis(10));
        }
        assert!(count(&counted, Observed::Silent) > 0);
    }

    #[test]
    fn clients_that_do_not_read_keep_health_in_and_further_documents_out() {
        let (_server, address, counted) = start_counting();
        let slow: Vec<_> = (0..limits::ANSWERS_MAX)
            .map(|_| {
                let mut stream = TcpStream::connect(address).unwrap();
                stream.write_all(b"GET /status.json HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
                let mut begin = [0; 8];
                stream.read_exact(&mut begin).unwrap();
                stream
            })
            .collect();
        assert!(exchange(address, b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n").starts_with("HTTP/1.1 503"));
        assert_eq!(count(&counted, Observed::Busy), 1);
        assert!(exchange(address, b"GET /live HTTP/1.1\r\nHost: x\r\n\r\n").starts_with("HTTP/1.1 200"));
        drop(slow);
        let end = Instant::now() + Duration::from_secs(30);
        while !exchange(address, b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n").starts_with("HTTP/1.1 200") {
            assert!(Instant::now() < end, "the places become free");
        }
    }

    #[test]
    fn each_refusal_is_counted_by_its_reason_and_a_health_check_is_none() {
        let (_server, address, counted) = start_counting();
        drop(TcpStream::connect(address).unwrap());
        let long = format!("GET /{} HTTP/1.1\r\n\r\n", "x".repeat(2 * limits::REQUEST_BYTES_MAX));
        let _refused = exchange(address, b"\xff\xff\xff\xff\r\n\r\n");
        let _refused = exchange(address, long.as_bytes());
        let _answered = exchange(address, b"GET /live HTTP/1.1\r\nHost: x\r\n\r\n");
        let end = Instant::now() + Duration::from_secs(30);
        let expected = [(Observed::Connection, 4), (Observed::Malformed, 1), (Observed::TooLong, 1)];
        while expected.iter().any(|(of, times)| count(&counted, *of) != *times) {
            assert!(Instant::now() < end, "{counted:?}");
            std::thread::sleep(Duration::from_millis(5));
        }
        assert_eq!(counted.lock().unwrap().len(), 6, "{counted:?}");
    }

    #[test]
    fn without_a_page_there_are_metrics_and_health_alone() {
        let (_server, address, _) = start_with(false);
        let status = |path: &str| {
            let answer = exchange(address, format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n").as_bytes());
            answer.split(' ').nth(1).map(str::to_owned)
        };
        for path in ["/metrics", "/live", "/ready"] {
            assert_eq!(status(path).as_deref(), Some("200"), "{path}");
        }
        for path in ["/", "/status.json", "/history.json", "/runbooks/upgrade.md", "/leader", "/leader?group=x"] {
            assert_eq!(status(path).as_deref(), Some("404"), "{path}");
        }
    }

    #[test]
    fn a_dropped_server_listens_no_more() {
        let (server, address) = start();
        let _open = TcpStream::connect(address).unwrap();
        drop(server);
        assert!(TcpStream::connect(address).is_err());
    }
}
