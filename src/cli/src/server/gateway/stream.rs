//! What streams: requests as they come, and answers as they are made, each way one message after the other.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes, BytesMut};
use http_body::{Body as HttpBody, Frame};
use hyper::body::Incoming;
use prost_reflect::MessageDescriptor;
use tonic::Status;
use tonic::body::Body;

use super::{failed, json, last_words};

/// The largest request of a stream, in bytes: it is looked at anew with all that arrives of it.
const REQUEST_BYTES_MAX: usize = 256 << 10;

type Polled = Poll<Option<Result<Frame<Bytes>, Status>>>;

/// Requests as JSON, one after the other, become frames of gRPC.
pub(super) struct Requests {
    body: Incoming,
    read: BytesMut,
    of: MessageDescriptor,
    ended: bool,
}

impl Requests {
    pub(super) fn new(body: Incoming, of: MessageDescriptor) -> Self {
        Self { body, read: BytesMut::new(), of, ended: false }
    }

    /// The next request, if all of it is there.
    fn next(&mut self) -> Result<Option<Bytes>, Status> {
        match json::first(&self.read) {
            Ok(None) => Ok(None),
            Ok(Some((value, bytes))) => {
                self.read.advance(bytes);
                json::framed(&self.of, value).map(Some)
            }
            Err(error) if error.is_eof() && !self.ended => match self.read.len() {
                bytes if bytes > REQUEST_BYTES_MAX => Err(Status::resource_exhausted(format!(
                    "bowline: a request of a stream that is larger than {REQUEST_BYTES_MAX} bytes"
                ))),
                _ => Ok(None),
            },
            Err(error) => Err(Status::invalid_argument(error.to_string())),
        }
    }
}

impl HttpBody for Requests {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Polled {
        let this = &mut *self;
        loop {
            match this.next() {
                Ok(Some(request)) => return Poll::Ready(Some(Ok(Frame::data(request)))),
                Ok(None) if this.ended => return Poll::Ready(None),
                Ok(None) => {}
                Err(status) => {
                    (this.ended, this.read) = (true, BytesMut::new());
                    return Poll::Ready(Some(Err(status)));
                }
            }
            match ready!(Pin::new(&mut this.body).poll_frame(context)) {
                None => this.ended = true,
                Some(Ok(frame)) => {
                    if let Ok(data) = frame.into_data() {
                        this.read.extend_from_slice(&data);
                    }
                }
                // Not as cancelled, which tonic would take for an end: whoever only listens from now on stays, and
                // this client is gone, which nobody would notice any more.
                Some(Err(error)) => {
                    this.ended = true;
                    let words = format!("bowline: the request broke off: {error}");
                    return Poll::Ready(Some(Err(Status::invalid_argument(words))));
                }
            }
        }
    }
}

/// Answers in frames of gRPC become lines of JSON.
pub(super) struct Lines {
    body: Body,
    read: BytesMut,
    of: MessageDescriptor,
    ended: bool,
}

impl Lines {
    pub(super) fn new(body: Body, of: MessageDescriptor) -> Self {
        Self { body, read: BytesMut::new(), of, ended: false }
    }

    /// What is said last, of a stream that has failed.
    fn fail(&mut self, status: &Status) -> Polled {
        self.ended = true;
        Poll::Ready(Some(Ok(Frame::data(format!("{}\n", last_words(status)).into()))))
    }
}

impl HttpBody for Lines {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Polled {
        let this = &mut *self;
        loop {
            if this.ended {
                return Poll::Ready(None);
            }
            if let Some(message) = json::unframed(&mut this.read) {
                return match json::written(&this.of, message) {
                    Ok(json) => {
                        let line = [b"{\"result\":", &json[..], b"}\n"].concat();
                        Poll::Ready(Some(Ok(Frame::data(line.into()))))
                    }
                    Err(status) => this.fail(&status),
                };
            }
            match ready!(Pin::new(&mut this.body).poll_frame(context)) {
                None => this.ended = true,
                Some(Err(status)) => return this.fail(&status),
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => this.read.extend_from_slice(&data),
                    Err(frame) => {
                        if let Some(status) = frame.trailers_ref().and_then(failed) {
                            return this.fail(&status);
                        }
                    }
                },
            }
        }
    }
}
