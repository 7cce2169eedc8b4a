//! A small HTTP client for the tests.

#![allow(dead_code, reason = "each test program uses a part of it")]

use std::time::{Duration, Instant};

use axum::body::Bytes;
use axum::http::{HeaderMap, Request};
use http_body_util::{BodyExt as _, Full};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use serde_json::Value;

/// Longer than any request may take.
const ANSWER_WITHIN: Duration = Duration::from_secs(20);

/// Maximum time for a condition to become true.
const WAIT_MAX: Duration = Duration::from_secs(60);

/// Pause between two looks at a condition.
const PAUSE: Duration = Duration::from_millis(50);

/// A response.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) body: String,
}

impl Answer {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers[name].to_str().unwrap()
    }
}

/// Sends a request. Returns an error if there is no response.
pub(crate) async fn send(
    method: &str,
    url: &str,
    headers: &[(&str, &str)],
    body: &str,
) -> Result<Answer, String> {
    let mut request = Request::builder().method(method).uri(url);
    for (name, value) in headers.iter().chain([&("content-type", "application/json")]) {
        request = request.header(*name, *value);
    }
    let request = request.body(Full::new(Bytes::from(body.to_owned()))).unwrap();
    let answering = async {
        let client = Client::builder(TokioExecutor::new()).build_http();
        let answer = client.request(request).await.map_err(|error| error.to_string())?;
        let (parts, body) = answer.into_parts();
        let body = body.collect().await.map_err(|error| error.to_string())?.to_bytes();
        let body = String::from_utf8(body.into()).unwrap();
        Ok(Answer { status: parts.status.as_u16(), headers: parts.headers, body })
    };
    tokio::time::timeout(ANSWER_WITHIN, answering).await.map_err(|error| error.to_string())?
}

pub(crate) async fn get(url: impl AsRef<str>) -> Answer {
    send("GET", url.as_ref(), &[], "").await.unwrap()
}

pub(crate) async fn put(url: impl AsRef<str>, headers: &[(&str, &str)], body: &str) -> Answer {
    send("PUT", url.as_ref(), headers, body).await.unwrap()
}

/// A stream of server-sent events.
pub(crate) struct Events {
    body: axum::body::Body,
    text: String,
}

impl Events {
    /// Opens the stream, after the event with this id or from now on.
    pub(crate) async fn open(url: &str, after: Option<&str>) -> Self {
        let request = Request::builder().uri(url).header("accept", "text/event-stream");
        let request = match after {
            Some(id) => request.header("last-event-id", id),
            None => request,
        };
        let client = Client::builder(TokioExecutor::new()).build_http();
        let answer = client.request(request.body(Full::<Bytes>::default()).unwrap()).await.unwrap();
        assert_eq!(answer.status(), 200);
        Self { body: axum::body::Body::new(answer.into_body()), text: String::new() }
    }

    /// Returns the id and the data of the next event, or `None` at the end of the stream.
    pub(crate) async fn next(&mut self) -> Option<(String, Value)> {
        loop {
            if let Some((event, rest)) = self.text.split_once("\n\n") {
                let field = |name| event.lines().find_map(|line: &str| line.strip_prefix(name));
                let (id, data) = (field("id: ").map(str::to_owned), field("data: "));
                let event = id.zip(data.map(|data| serde_json::from_str(data).unwrap()));
                self.text = rest.to_owned();
                if event.is_some() {
                    return event;
                }
                continue;
            }
            let frame = tokio::time::timeout(ANSWER_WITHIN, self.body.frame()).await.unwrap()?;
            let data = frame.unwrap().into_data().unwrap();
            self.text.push_str(std::str::from_utf8(&data).unwrap());
        }
    }
}

/// Waits until `look` returns a value.
pub(crate) async fn until<T>(what: &str, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(found) = look().await {
            return found;
        }
        assert!(begun.elapsed() < WAIT_MAX, "{what} within {WAIT_MAX:?}");
        tokio::time::sleep(PAUSE).await;
    }
}
