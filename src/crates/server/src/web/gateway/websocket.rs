//! WebSockets of the JSON gateway, for browsers, which cannot send a stream of requests over HTTP.
//!
//! A WebSocket carries one call. Each message of the client is the JSON of a request, and each message of the server
//! is what would be one line of the response over HTTP. The WebSocket ends with the call. A client that closes the
//! WebSocket cancels the call.

use std::convert::Infallible;
use std::error::Error;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures_util::{SinkExt, StreamExt};
use http::header::{AUTHORIZATION, CONNECTION, SEC_WEBSOCKET_PROTOCOL, UPGRADE};
use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response};
use http_body::{Body as HttpBody, Frame};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tokio::sync::{mpsc, oneshot};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Error as SocketError;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::handshake::server::create_response;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::protocol::{CloseFrame, Role, WebSocketConfig};
use tonic::body::Body;

use crate::grpc::Grpc;
use crate::web::gateway::stream::REQUEST_BYTES_MAX;
use crate::web::gateway::{answer, grpc_path, json_bytes_max, routes};
use crate::web::plain;

/// Size of the buffers of a WebSocket, in bytes. Larger messages are still possible.
const BUFFER_BYTES: usize = 4 << 10;

/// Time that a client has to confirm the end of a WebSocket.
const CLOSING_MAX: Duration = Duration::from_secs(1);

/// By this subprotocol a client passes its token, because browsers send no other headers of a web page's choice.
const BEARER: &str = "Bearer";

/// Returns whether a request asks for a WebSocket.
pub(crate) fn is_upgrade(headers: &HeaderMap) -> bool {
    let has = |name: HeaderName, word: &str| {
        headers
            .get_all(name)
            .iter()
            .filter_map(|list| list.to_str().ok())
            .any(|list| list.split(',').any(|listed| listed.trim().eq_ignore_ascii_case(word)))
    };
    has(CONNECTION, "upgrade") && has(UPGRADE, "websocket")
}

/// The call with which a connection continues after its last HTTP response, if it was upgraded to a WebSocket. The
/// connection's task runs the call, so the call ends in the same cases as the connection.
#[derive(Clone, Default)]
pub(crate) struct Upgraded(Arc<Mutex<Option<WebSocketCall>>>);

impl Upgraded {
    /// Upgrades the connection. Returns the response to the request.
    pub(crate) fn by(&self, grpc: Grpc, mut request: Request<Incoming>) -> Response<Body> {
        let upgrade = hyper::upgrade::on(&mut request);
        let (mut head, _) = request.into_parts();
        let response = match create_response(&Request::from_parts(head.clone(), ())) {
            Ok(response) => response,
            Err(error) => return plain::bad_request(&error.to_string()),
        };
        let mut response = response.map(|()| Body::empty());
        if let Some(token) = token(&head.headers) {
            head.headers.insert(AUTHORIZATION, token);
            let bearer = HeaderValue::from_static(BEARER);
            response.headers_mut().insert(SEC_WEBSOCKET_PROTOCOL, bearer);
        }
        head.method = Method::POST;
        *self.call() = Some(WebSocketCall { grpc, head, upgrade });
        response
    }

    /// Takes the call.
    pub(crate) fn take(&self) -> Option<WebSocketCall> {
        self.call().take()
    }

    fn call(&self) -> MutexGuard<'_, Option<WebSocketCall>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the token of the subprotocols `Bearer, TOKEN`.
fn token(headers: &HeaderMap) -> Option<HeaderValue> {
    let protocols = headers.get(SEC_WEBSOCKET_PROTOCOL)?.to_str().ok()?;
    let token = protocols.strip_prefix(BEARER)?.trim_start().strip_prefix(',')?;
    HeaderValue::from_str(token.trim()).ok()
}

/// A call that uses a WebSocket.
pub(crate) struct WebSocketCall {
    grpc: Grpc,
    head: Parts,
    upgrade: OnUpgrade,
}

impl WebSocketCall {
    /// Runs the call until it has ended, the client has closed the WebSocket, or the server stops.
    ///
    /// # Errors
    /// Fails if the connection fails.
    pub(crate) async fn run(
        self,
        stop: impl Future<Output = ()>,
    ) -> Result<(), Box<dyn Error + Send + Sync>> {
        let Self { grpc, head, upgrade } = self;
        let method = routes::method(head.uri.path());
        let streams = method.as_ref().is_some_and(|method| method.is_client_streaming());
        let bytes_max = match &method {
            Some(method) if !streams => json_bytes_max(&grpc, &grpc_path(method)),
            _ => REQUEST_BYTES_MAX,
        };
        let socket = TokioIo::new(upgrade.await?);
        let socket =
            WebSocketStream::from_raw_socket(socket, Role::Server, Some(config(bytes_max))).await;
        let (mut sink, mut source) = socket.split();
        let (ask, asked) = oneshot::channel();
        let (requests, messages) = mpsc::channel(1);
        let body = Messages { ask: Some(ask), messages };
        let respond = async {
            let mut body = answer(&grpc, Request::from_parts(head, body)).await.into_body();
            while let Some(Ok(frame)) = body.frame().await {
                let Ok(line) = frame.into_data() else { continue };
                let line =
                    line.strip_suffix(b"\n").map_or(line.clone(), |text| line.slice_ref(text));
                sink.send(Message::Text(line.try_into()?)).await?;
            }
            Ok::<_, Box<dyn Error + Send + Sync>>(())
        };
        let mut requests = Some(requests);
        let receive = async {
            // The server allocates no memory for a message before it may be read.
            drop(asked.await);
            loop {
                match source.next().await {
                    Some(Ok(message @ (Message::Text(_) | Message::Binary(_)))) => {
                        // Messages that the call does not expect are discarded.
                        if let Some(requests) = &requests {
                            drop(requests.send(message.into_data()).await);
                        }
                        if !streams {
                            requests = None;
                        }
                    }
                    Some(Ok(Message::Close(_))) | None => return CloseCode::Normal,
                    // The library answers pings.
                    Some(Ok(_)) => {}
                    Some(Err(SocketError::Capacity(_))) => return CloseCode::Size,
                    Some(Err(_)) => return CloseCode::Protocol,
                }
            }
        };
        let mut receive = pin!(receive);
        let (code, has_received_all) = tokio::select! {
            sent = respond => (sent.map(|()| CloseCode::Normal)?, false),
            code = &mut receive => (code, true),
            () = stop => (CloseCode::Away, false),
        };
        let close = async {
            let frame = CloseFrame { code, reason: "".into() };
            // This fails if the client has closed the WebSocket. In that case `sink.close` sends the reply.
            drop(sink.send(Message::Close(Some(frame))).await);
            drop(sink.close().await);
            if !has_received_all {
                // The client's reply. Closing a connection with unread bytes would discard what was sent.
                receive.await;
            }
        };
        drop(tokio::time::timeout(CLOSING_MAX, close).await);
        Ok(())
    }
}

/// The messages of the client, as the body of a request.
struct Messages {
    /// Sent when the body is first read.
    ask: Option<oneshot::Sender<()>>,
    messages: mpsc::Receiver<Bytes>,
}

impl HttpBody for Messages {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if let Some(ask) = self.ask.take() {
            // The receiver exists for as long as the call.
            ask.send(()).ok();
        }
        self.messages.poll_recv(context).map(|message| Some(Ok(Frame::data(message?))))
    }
}

fn config(bytes_max: usize) -> WebSocketConfig {
    WebSocketConfig::default()
        .read_buffer_size(BUFFER_BYTES)
        .write_buffer_size(BUFFER_BYTES)
        .max_message_size(Some(bytes_max))
        .max_frame_size(Some(bytes_max))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(all: &[(&'static str, &'static str)]) -> HeaderMap {
        let parsed = all
            .iter()
            .map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value)));
        parsed.collect()
    }

    #[test]
    fn upgrade_needs_both_headers() {
        for (all, expected) in [
            (&[("connection", "Upgrade"), ("upgrade", "websocket")][..], true),
            (&[("connection", "keep-alive, Upgrade"), ("upgrade", "WebSocket")], true),
            (&[("connection", "Upgrade"), ("upgrade", "h2c")], false),
            (&[("upgrade", "websocket")], false),
            (&[("connection", "Upgrade")], false),
        ] {
            assert_eq!(is_upgrade(&headers(all)), expected, "{all:?}");
        }
    }

    #[test]
    fn token_is_the_second_subprotocol_after_bearer() {
        for (protocols, expected) in [
            ("Bearer, abc.1", Some("abc.1")),
            ("Bearer,abc.1", Some("abc.1")),
            ("Bearer", None),
            ("abc.1, Bearer", None),
            ("Bearerabc", None),
        ] {
            let found = token(&headers(&[("sec-websocket-protocol", protocols)]));
            assert_eq!(
                found.as_ref().map(|token| token.to_str().unwrap()),
                expected,
                "{protocols}"
            );
        }
    }
}
