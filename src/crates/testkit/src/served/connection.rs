//! The clients' connection: HTTP/2 without the queues and tasks of tonic's client, which would use as much CPU as the
//! servers under test.

use std::io;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker, ready};

use bytes::Bytes;
use h2::client::{Builder, SendRequest};
use h2::{RecvStream, SendStream};
use http::uri::{Authority, PathAndQuery, Scheme};
use http::{Request, Response, Uri};
use http_body::{Body as HttpBody, Frame};
use http_body_util::BodyExt as _;
use tokio::net::TcpStream;
use tonic::body::Body;
use tower_service::Service;

/// HTTP/2 flow control windows of a stream and of a connection, in bytes.
const STREAM_WINDOW: u32 = 1 << 20;
const CONNECTION_WINDOW: u32 = 4 << 20;

/// A connection to a server. Clones share it.
#[derive(Clone)]
pub struct Connection {
    requests: SendRequest<Bytes>,
    authority: Authority,
}

impl Connection {
    /// Connects to a port of this machine.
    pub(super) async fn open(port: u16) -> io::Result<Self> {
        let stream = TcpStream::connect(("127.0.0.1", port)).await?;
        stream.set_nodelay(true)?;
        let mut builder = Builder::new();
        builder
            .initial_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW);
        let opened = builder.handshake(stream).await;
        let (requests, connection) = opened.map_err(io::Error::other)?;
        // An error of the connection is also the error of each call.
        tokio::spawn(async move { drop(connection.await) });
        let authority = format!("127.0.0.1:{port}").parse().map_err(io::Error::other)?;
        Ok(Self { requests, authority })
    }

    fn uri(&self, path: Option<PathAndQuery>) -> Uri {
        let mut parts = http::uri::Parts::default();
        parts.scheme = Some(Scheme::HTTP);
        parts.authority = Some(self.authority.clone());
        parts.path_and_query = path;
        Uri::from_parts(parts).expect("a call has a path")
    }
}

type Called = Pin<Box<dyn Future<Output = Result<Response<Received>, h2::Error>> + Send>>;

impl Service<Request<Body>> for Connection {
    type Response = Response<Received>;
    type Error = h2::Error;
    type Future = Called;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), h2::Error>> {
        self.requests.poll_ready(context)
    }

    fn call(&mut self, request: Request<Body>) -> Called {
        let (mut parts, body) = request.into_parts();
        parts.uri = self.uri(parts.uri.into_parts().path_and_query);
        let sent = self.requests.send_request(Request::from_parts(parts, ()), false);
        let (response, stream) = match sent {
            Ok(sent) => sent,
            Err(error) => return Box::pin(async { Err(error) }),
        };
        // The message of a unary call is there already.
        let mut sending = Box::pin(send(body, stream));
        if sending.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending() {
            tokio::spawn(sending);
        }
        Box::pin(
            async move { Ok(response.await?.map(|stream| Received { stream, has_data: true })) },
        )
    }
}

/// Sends the messages of a request. An error ends the call as well.
async fn send(body: Body, mut stream: SendStream<Bytes>) {
    let mut body = pin!(body);
    while let Some(Ok(frame)) = body.frame().await {
        let Ok(data) = frame.into_data() else { continue };
        if stream.send_data(data, false).is_err() {
            return;
        }
    }
    drop(stream.send_data(Bytes::new(), true));
}

/// The body of a response.
pub struct Received {
    stream: RecvStream,
    /// Whether data may follow. The trailers come after the data.
    has_data: bool,
}

impl HttpBody for Received {
    type Data = Bytes;
    type Error = h2::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, h2::Error>>> {
        if self.has_data {
            if let Some(data) = ready!(self.stream.poll_data(context)) {
                let data = data?;
                self.stream.flow_control().release_capacity(data.len())?;
                return Poll::Ready(Some(Ok(Frame::data(data))));
            }
            self.has_data = false;
        }
        let trailers = ready!(self.stream.poll_trailers(context))?;
        Poll::Ready(trailers.map(|trailers| Ok(Frame::trailers(trailers))))
    }
}
