//! A headless Chromium, driven over its debugging pipe: it shows pages as a person's browser does, and reports each request and each
//! complaint of a page.

use std::{
    collections::BTreeSet,
    fs,
    io::{BufRead as _, BufReader, Write as _},
    path::Path,
    process::{Child, ChildStdin, Command, Stdio},
    sync::mpsc,
    thread,
    time::Duration,
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::{bound_child, process::comes_true};

/// A running browser. Killed when it is dropped.
#[derive(Debug)]
pub struct Chromium {
    child: Child,
    commands: ChildStdin,
    messages: mpsc::Receiver<Value>,
    last_id: u64,
    events: Vec<Value>,
    _profile: TempDir,
}

/// One page of the browser.
#[derive(Clone, Debug)]
pub struct Tab(String);

/// What a page is shown on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Screen {
    /// 1280 pixels wide, light.
    Desktop,
    /// The same, dark.
    Dark,
    /// 380 pixels wide, as a phone reports itself.
    Phone,
    /// A window of that width in pixels, light.
    Window(u32),
}

/// The program, as Debian names it.
const PROGRAM: &str = "chromium";
/// Longest time for an answer: the first start on a crowded machine.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(120);

/// Whether the browser is installed.
#[must_use]
pub fn is_installed() -> bool {
    Command::new(PROGRAM).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok()
}

impl Chromium {
    /// Starts a browser with an empty profile.
    ///
    /// # Panics
    /// When it is not installed or does not start.
    #[must_use]
    pub fn start() -> Self {
        let profile = tempfile::tempdir().expect("a temporary directory");
        // The browser reads commands from descriptor 3 and writes to 4; a shell makes them of its standard streams. A sandbox of its
        // own is refused to root.
        let mut shell = Command::new("sh");
        shell.args(["-c", "exec \"$@\" 3<&0 4>&1 </dev/null >&2", "sh", PROGRAM]);
        shell.args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"]);
        shell.args(["--disable-background-networking", "--remote-debugging-pipe"]);
        shell.arg(format!("--user-data-dir={}", profile.path().display())).arg("about:blank");
        shell.env("HOME", profile.path());
        let mut command = bound_child::bind(&shell);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = bound_child::spawn(command).expect("chromium starts");
        let commands = child.stdin.take().expect("its standard input is a pipe");
        let mut output = BufReader::new(child.stdout.take().expect("its standard output is a pipe"));
        let (sender, messages) = mpsc::channel();
        thread::spawn(move || {
            let mut message = Vec::new();
            while output.read_until(0, &mut message).is_ok_and(|bytes| bytes > 0) {
                let parsed = serde_json::from_slice(message.strip_suffix(&[0]).unwrap_or(&message));
                if parsed.is_ok_and(|parsed| sender.send(parsed).is_err()) {
                    return;
                }
                message.clear();
            }
        });
        Self { child, commands, messages, last_id: 0, events: Vec::new(), _profile: profile }
    }

    /// Opens a page, in a window of its own: another tab of the window would be hidden.
    pub fn open(&mut self, url: &str) -> Tab {
        let target =
            self.call(None, "Target.createTarget", &json!({ "url": "about:blank", "newWindow": true }))["targetId"]
                .clone();
        let attached = self.call(None, "Target.attachToTarget", &json!({ "targetId": target, "flatten": true }));
        let tab = Tab(attached["sessionId"].as_str().unwrap_or_default().to_owned());
        for domain in ["Page", "Runtime", "Network", "Log"] {
            self.call(Some(&tab), &format!("{domain}.enable"), &json!({}));
        }
        self.show_on(&tab, Screen::Desktop);
        self.call(Some(&tab), "Page.navigate", &json!({ "url": url }));
        tab
    }

    /// Sets what the page is shown on.
    pub fn show_on(&mut self, tab: &Tab, screen: Screen) {
        let is_phone = screen == Screen::Phone;
        let (width, height) = match screen {
            Screen::Phone => (380, 800),
            Screen::Window(width) => (width, 900),
            Screen::Desktop | Screen::Dark => (1_280, 900),
        };
        let metrics = json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": is_phone });
        self.call(Some(tab), "Emulation.setDeviceMetricsOverride", &metrics);
        let scheme = if screen == Screen::Dark { "dark" } else { "light" };
        let media = json!({ "features": [{ "name": "prefers-color-scheme", "value": scheme }] });
        self.call(Some(tab), "Emulation.setEmulatedMedia", &media);
    }

    /// The value of an expression of the page's language; a promise is awaited.
    ///
    /// # Panics
    /// When the expression throws.
    pub fn evaluate(&mut self, tab: &Tab, expression: &str) -> Value {
        let wanted = json!({ "expression": expression, "awaitPromise": true, "returnByValue": true });
        let evaluated = self.call(Some(tab), "Runtime.evaluate", &wanted);
        assert!(evaluated.get("exceptionDetails").is_none(), "{expression}: {evaluated}");
        evaluated["result"]["value"].clone()
    }

    /// The text of the first element that matches, as it is shown: without what is hidden. Empty without such an element.
    pub fn text(&mut self, tab: &Tab, selector: &str) -> String {
        let shown = self.evaluate(tab, &format!("document.querySelector({})?.innerText ?? ''", json!(selector)));
        shown.as_str().unwrap_or_default().to_owned()
    }

    /// Waits until that text contains these.
    ///
    /// # Panics
    /// When it never does.
    pub fn wait_for_text(&mut self, tab: &Tab, selector: &str, wanted: &[&str]) {
        let mut shown = String::new();
        let is_shown = comes_true(|| {
            shown = self.text(tab, selector);
            wanted.iter().all(|wanted| shown.contains(wanted))
        });
        assert!(is_shown, "{selector} does not show {wanted:?}, but {shown:?}; complaints: {:?}", self.complaints());
    }

    /// Writes a picture of the whole page to that file.
    ///
    /// # Panics
    /// When the file cannot be written.
    pub fn screenshot(&mut self, tab: &Tab, path: &Path) {
        let wanted = json!({ "format": "png", "captureBeyondViewport": true });
        self.save(tab, "Page.captureScreenshot", &wanted, path);
    }

    /// Writes a picture of the top of the page to that file: that many pixels high, then reduced.
    ///
    /// # Panics
    /// When the file cannot be written.
    pub fn screenshot_of_top(&mut self, tab: &Tab, height: u32, scale: f64, path: &Path) {
        let width = self.evaluate(tab, "document.documentElement.clientWidth");
        let clip = json!({ "x": 0, "y": 0, "width": width, "height": height, "scale": scale });
        self.save(tab, "Page.captureScreenshot", &json!({ "format": "png", "clip": clip }), path);
    }

    /// Writes the page to that file as a printer gets it, A4.
    ///
    /// # Panics
    /// When the file cannot be written.
    pub fn print(&mut self, tab: &Tab, path: &Path) {
        self.save(tab, "Page.printToPDF", &json!({ "paperWidth": 8.27, "paperHeight": 11.69 }), path);
    }

    fn save(&mut self, tab: &Tab, method: &str, wanted: &Value, path: &Path) {
        let data = self.call(Some(tab), method, wanted)["data"].clone();
        let bytes = STANDARD.decode(data.as_str().unwrap_or_default()).expect("the browser sends base64");
        fs::write(path, bytes).expect("a file can be written");
    }

    /// Addresses of all requests of all pages so far.
    #[must_use]
    pub fn requested(&self) -> BTreeSet<String> {
        let sent = self.events.iter().filter(|event| event["method"] == "Network.requestWillBeSent");
        sent.filter_map(|event| event["params"]["request"]["url"].as_str()).map(str::to_owned).collect()
    }

    /// Exceptions of the pages' scripts, and what the browser logs, such as violations of a page's policy. Requests that fail because
    /// a server is gone are left out.
    #[must_use]
    pub fn complaints(&self) -> Vec<String> {
        let is_complaint = |event: &&Value| match event["method"].as_str() {
            Some("Runtime.exceptionThrown") => true,
            Some("Log.entryAdded") => event["params"]["entry"]["source"] != "network",
            _ => false,
        };
        self.events.iter().filter(is_complaint).map(ToString::to_string).collect()
    }

    fn call(&mut self, tab: Option<&Tab>, method: &str, parameters: &Value) -> Value {
        self.last_id += 1;
        let mut command = json!({ "id": self.last_id, "method": method, "params": parameters });
        if let Some(Tab(session)) = tab {
            command["sessionId"] = json!(session);
        }
        self.commands.write_all(format!("{command}\0").as_bytes()).expect("the browser takes commands");
        loop {
            let message = self.messages.recv_timeout(ANSWER_TIMEOUT).expect("the browser answers");
            if message["id"] == self.last_id {
                assert!(message.get("error").is_none(), "{method}: {message}");
                return message["result"].clone();
            }
            self.events.push(message);
        }
    }
}

impl Drop for Chromium {
    fn drop(&mut self) {
        // Its other processes end with the first one.
        let _gone = self.child.kill();
        let _ended = self.child.wait();
    }
}
