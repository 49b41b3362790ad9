//! The page for a browser: one document with its style and its script inside, and the policy that it is served under.
//!
//! The policy admits that style, that script and requests to this listener; nothing else is loaded, nothing is sent
//! elsewhere, and no other page may frame this one. Script and style are named by their hashes, so text that a gateway shows
//! could not run even if the script put it in as HTML.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use sha2::{Digest as _, Sha256};

/// What `/` answers.
#[derive(Debug)]
pub(crate) struct Page {
    /// The document, complete.
    pub(crate) html: String,
    /// Value of the header `Content-Security-Policy`.
    pub(crate) policy: String,
}

const BODY: &str = include_str!("page/page.html");
const STYLE: &str = include_str!("page/page.css");
const SCRIPT: &str = include_str!("page/page.js");

impl Page {
    pub(crate) fn new() -> Self {
        let html = format!(
            "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
             <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>mdgw</title>\n\
             <link rel=\"icon\" href=\"data:,\">\n<style>{STYLE}</style>\n</head>\n<body>\n{BODY}\
             <script>{SCRIPT}</script>\n</body>\n</html>\n"
        );
        let (style, script) = (source(STYLE), source(SCRIPT));
        let policy = format!(
            "default-src 'none'; style-src {style}; script-src {script}; connect-src 'self'; img-src data:; \
             base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'"
        );
        Self { html, policy }
    }
}

/// The hash of an inline style or script, as a policy names it.
fn source(text: &str) -> String {
    format!("'sha256-{}'", STANDARD.encode(Sha256::digest(text)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_is_self_contained() {
        let Page { html, policy } = Page::new();
        for outside in
            ["http:", "https:", "//cdn", "@import", "url(", "<img", "<iframe", "<form", " src=", " style=", "onclick"]
        {
            assert!(!html.contains(outside), "{outside}");
        }
        for element in ["<style>", "</style>", "<script>", "</script>"] {
            assert_eq!(html.matches(element).count(), 1, "{element}");
        }
        assert!(!policy.contains("unsafe") && policy.starts_with("default-src 'none'"), "{policy}");
    }

    #[test]
    fn runbooks_that_the_document_links_are_in_the_program() {
        let links = BODY.split("href=\"runbooks/").skip(1).filter_map(|rest| rest.split(".md\"").next());
        let missing: Vec<_> = links.clone().filter(|name| crate::runbook(name).is_none()).collect();
        assert!(links.count() > 3 && missing.is_empty(), "{missing:?}");
    }

    #[test]
    fn the_script_never_makes_html_of_text() {
        for unsafe_use in ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "Function("] {
            assert!(!SCRIPT.contains(unsafe_use), "{unsafe_use}");
        }
    }

    #[test]
    fn a_hash_has_the_form_of_the_policy() {
        // `printf %s "alert('Hello, world.');" | openssl dgst -sha256 -binary | base64`
        assert_eq!(source("alert('Hello, world.');"), "'sha256-qznLcsROx4GACP2dm0UCKCzCG+HiZ1guq6ZZDob/Tng='");
    }
}
