//! The deadline that a client sets for its call. When it passes, the call is cancelled as if the client had
//! disconnected, and the client receives `DeadlineExceeded`.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use http::{HeaderMap, Request, Response};
use http_body::{Body as _, Frame};
use tokio::time::{Instant, Sleep, sleep_until};
use tonic::Status;
use tonic::body::Body;

use crate::middleware::Middleware;
use crate::middleware::body::polled_body;

pub(crate) const HEADER: &str = "grpc-timeout";

/// Returns the status of an expired call, with the text of Go servers.
fn over() -> Status {
    Status::deadline_exceeded("context deadline exceeded")
}

/// Parses up to eight digits and a unit.
fn span(text: &str) -> Result<Duration, String> {
    let digits = text.get(..text.len().saturating_sub(1)).unwrap_or_default();
    if digits.is_empty() || digits.len() > 8 || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(format!("expected up to eight digits and a unit: {text:?}"));
    }
    let count: u64 = digits.parse().map_err(|_| format!("expected a number: {text:?}"))?;
    Ok(match text.as_bytes()[digits.len()] {
        b'H' => Duration::from_secs(count * 3600),
        b'M' => Duration::from_secs(count * 60),
        b'S' => Duration::from_secs(count),
        b'm' => Duration::from_millis(count),
        b'u' => Duration::from_micros(count),
        b'n' => Duration::from_nanos(count),
        _ => return Err(format!("unknown unit in {text:?}: use H, M, S, m, u or n")),
    })
}

/// Parses the deadline from the headers of a request.
///
/// # Errors
/// Fails if the header is malformed.
pub(crate) fn deadline_of(headers: &HeaderMap) -> Result<Option<Instant>, Status> {
    let Some(value) = headers.get(HEADER) else { return Ok(None) };
    let parsed = value.to_str().map_err(|error| error.to_string()).and_then(span);
    match parsed {
        // A deadline beyond the clock's range counts as no deadline.
        Ok(span) => Ok(Instant::now().checked_add(span)),
        Err(why) => Err(Status::internal(format!("malformed grpc-timeout: {why}"))),
    }
}

/// Cancels calls at their deadlines. Dropping the call also drops the work that it waits for.
#[derive(Clone)]
pub(crate) struct Deadlines;

impl Middleware for Deadlines {
    type State = Option<Pin<Box<Sleep>>>;

    fn request(&self, request: &mut Request<Body>) -> Result<Self::State, Status> {
        let deadline = deadline_of(request.headers())?;
        Ok(deadline.map(|end| Box::pin(sleep_until(end))))
    }

    fn poll_cancelled(end: &mut Self::State, context: &mut Context<'_>) -> Poll<Status> {
        match end {
            Some(end) => end.as_mut().poll(context).map(|()| over()),
            None => Poll::Pending,
        }
    }

    fn response(end: Self::State, response: Response<Body>) -> Response<Body> {
        response.map(|body| match end {
            Some(end) => ending(body, end),
            None => body,
        })
    }
}

/// Returns the body of a response that ends at a deadline.
fn ending(body: Body, mut end: Pin<Box<Sleep>>) -> Body {
    polled_body(body, move |body, context| {
        if body.is_end_stream() || end.as_mut().poll(context).is_pending() {
            return Pin::new(body).poll_frame(context);
        }
        // Dropping the body also drops the work that produces it.
        *body = Body::empty();
        let mut trailers = HeaderMap::new();
        Poll::Ready(Some(over().add_header(&mut trailers).map(|()| Frame::trailers(trailers))))
    })
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use std::convert::Infallible;
    use std::sync::Arc;

    use http::HeaderValue;
    use http_body_util::BodyExt as _;
    use tonic::Code;
    use tower::{Service as _, ServiceBuilder, service_fn};

    use super::*;
    use crate::middleware::Around;
    use crate::services::response_stream::ResponseStream;

    #[test]
    fn grpc_timeout_is_a_number_with_a_unit() {
        for (text, nanos) in [
            ("1H", 3_600_000_000_000_u64),
            ("2M", 120_000_000_000),
            ("3S", 3_000_000_000),
            ("00000500m", 500_000_000),
            ("7u", 7_000),
            ("0n", 0),
        ] {
            assert_eq!(span(text), Ok(Duration::from_nanos(nanos)), "{text}");
        }
        for text in ["", "S", "5", "5s", "-5S", "+5S", "1.5S", "123456789S", "5\u{fc}", " 5S"] {
            assert!(span(text).is_err(), "{text:?}");
        }
        let of = |text: &'static str| {
            let header = (http::HeaderName::from_static(HEADER), HeaderValue::from_static(text));
            deadline_of(&HeaderMap::from_iter([header]))
        };
        assert_eq!(of("5x").unwrap_err().code(), Code::Internal);
        assert!(of("99999999H").unwrap().is_some_and(|end| end > Instant::now()));
        assert!(deadline_of(&HeaderMap::new()).unwrap().is_none());
    }

    fn is_over(status: &Status) -> bool {
        (status.code(), status.message()) == (Code::DeadlineExceeded, "context deadline exceeded")
    }

    /// Calls `answer` with a deadline in a moment.
    async fn call_soon<F>(answer: impl Fn() -> F + Clone) -> Response<Body>
    where
        F: Future<Output = Response<Body>> + Send + 'static,
    {
        let service = service_fn(move |_: Request<Body>| {
            let answer = answer();
            Box::pin(async move { Ok::<_, Infallible>(answer.await) })
        });
        let request = Request::builder().header(HEADER, "50m").body(Body::empty()).unwrap();
        ServiceBuilder::new().layer(Around(Deadlines)).service(service).call(request).await.unwrap()
    }

    #[tokio::test]
    async fn work_past_its_deadline_is_dropped_with_an_error() {
        let held = Arc::new(());
        let works = Arc::clone(&held);
        let response = call_soon(move || {
            let held = Arc::clone(&works);
            async move {
                let _held = held;
                std::future::pending().await
            }
        });
        let status = Status::from_header_map(response.await.headers()).unwrap();
        assert!(is_over(&status), "{status:?}");
        assert_eq!(Arc::strong_count(&held), 1);
        let response = call_soon(|| async { Response::new(Body::empty()) }).await;
        assert!(Status::from_header_map(response.headers()).is_none());
    }

    #[tokio::test]
    async fn stream_past_its_deadline_ends_and_drops_its_producer() {
        let held = Arc::new(());
        let works = Arc::clone(&held);
        let response = call_soon(move || {
            let held = Arc::clone(&works);
            let answers = ResponseStream::by(move |answers| async move {
                let _held = held;
                drop(answers.send(Ok(Frame::data(Bytes::from_static(b"one")))).await);
                std::future::pending().await
            });
            async move { Response::new(Body::new(http_body_util::StreamBody::new(answers))) }
        });
        let collected = response.await.into_body().collect().await.unwrap();
        let status = Status::from_header_map(collected.trailers().unwrap()).unwrap();
        assert!(is_over(&status), "{status:?}");
        assert_eq!(collected.to_bytes(), "one");
        assert_eq!(Arc::strong_count(&held), 1);
    }
}
