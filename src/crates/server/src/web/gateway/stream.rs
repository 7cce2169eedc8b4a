//! Converts streams message by message: requests from JSON, and responses to JSON.

use std::fmt::Display;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes, BytesMut};
use http_body::{Body as HttpBody, Frame};
use prost_reflect::MessageDescriptor;
use tonic::Status;
use tonic::body::Body;

use crate::middleware::cpu_permits::json_aside;
use crate::web::gateway::errors::{failed, last_words};
use crate::web::gateway::json;

/// Largest request of a stream, in bytes. It is buffered until complete.
pub(crate) const REQUEST_BYTES_MAX: usize = 256 << 10;

type Polled = Poll<Option<Result<Frame<Bytes>, Status>>>;

/// Tracks strings and brackets, so that an incomplete request is not parsed again with every fragment.
#[derive(Default)]
struct Shape {
    scanned: usize,
    depth: usize,
    in_string: bool,
    is_escaped: bool,
}

impl Shape {
    /// Returns whether the first value in the buffer may be complete. Examines each byte once.
    fn may_be_whole(&mut self, read: &[u8]) -> bool {
        while let Some(byte) = read.get(self.scanned) {
            self.scanned += 1;
            match byte {
                _ if self.is_escaped => self.is_escaped = false,
                b'\\' if self.in_string => self.is_escaped = true,
                b'"' => self.in_string = !self.in_string,
                _ if self.in_string => {}
                b'{' | b'[' => self.depth += 1,
                b'}' | b']' => self.depth = self.depth.saturating_sub(1),
                _ => {}
            }
            if self.depth == 0 && !self.in_string && !byte.is_ascii_whitespace() {
                return true;
            }
        }
        false
    }
}

/// Converts consecutive JSON requests to gRPC frames.
pub(crate) struct Requests<B> {
    body: B,
    read: BytesMut,
    shape: Shape,
    /// Size of the buffer at the last attempt to parse it.
    parsed_at: usize,
    of: MessageDescriptor,
    ended: bool,
}

impl<B> Requests<B> {
    pub(crate) fn new(body: B, of: MessageDescriptor) -> Self {
        Self {
            body,
            read: BytesMut::new(),
            shape: Shape::default(),
            parsed_at: 0,
            of,
            ended: false,
        }
    }

    /// Returns the next request if it is complete.
    fn next(&mut self) -> Result<Option<Bytes>, Status> {
        // While JSON may be incomplete, it is parsed again only after its size has doubled. Invalid JSON is detected
        // then.
        let is_due = self.ended || self.read.len() >= self.parsed_at * 2;
        if !self.shape.may_be_whole(&self.read) && !is_due {
            return self.wait();
        }
        match json_aside(self.read.len(), || json::first(&self.of, &self.read)) {
            // The buffer contains only white space so far.
            Ok(None) => {
                self.read.clear();
                (self.shape, self.parsed_at) = (Shape::default(), 0);
                Ok(None)
            }
            Ok(Some((value, bytes))) => {
                self.read.advance(bytes);
                (self.shape, self.parsed_at) = (Shape::default(), 0);
                json_aside(bytes, || json::framed(&self.of, value)).map(Some)
            }
            Err(error) if error.is_eof() && !self.ended => {
                self.parsed_at = self.read.len();
                self.wait()
            }
            Err(error) => Err(Status::invalid_argument(error.to_string())),
        }
    }

    /// Waits for more bytes of a request, unless it is too large already.
    fn wait(&self) -> Result<Option<Bytes>, Status> {
        match self.read.len() {
            bytes if bytes > REQUEST_BYTES_MAX => Err(Status::resource_exhausted(format!(
                "bowline: a streamed request is larger than {REQUEST_BYTES_MAX} bytes"
            ))),
            _ => Ok(None),
        }
    }
}

impl<B> HttpBody for Requests<B>
where
    B: HttpBody<Data = Bytes, Error: Display> + Unpin,
{
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
                // The error is not reported as `Cancelled`, because tonic treats that as the normal end of the
                // requests. The call would then continue to send responses to a client that has disconnected.
                Some(Err(error)) => {
                    this.ended = true;
                    let words = format!("bowline: cannot read the request: {error}");
                    return Poll::Ready(Some(Err(Status::invalid_argument(words))));
                }
            }
        }
    }
}

/// Converts gRPC frames of responses to lines of JSON.
pub(crate) struct Lines {
    body: Body,
    read: BytesMut,
    of: MessageDescriptor,
    ended: bool,
}

impl Lines {
    pub(crate) fn new(body: Body, of: MessageDescriptor) -> Self {
        Self { body, read: BytesMut::new(), of, ended: false }
    }

    /// Sends the error of a failed stream as the last line.
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
                return match json_aside(message.len(), || json::written(&this.of, message)) {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_request_is_complete_at_its_last_bracket() {
        let request = br#" {"key": "a}\\\"{", "ops": [{"x": "\u007d"}, 1]}"#;
        let mut shape = Shape::default();
        for end in 0..request.len() {
            assert!(!shape.may_be_whole(&request[..end]), "after {end} bytes");
        }
        assert!(shape.may_be_whole(request) && shape.scanned == request.len());
        // The parser reports values that are not objects.
        for wrong in [&b"}"[..], b"7", b"{]", b"\"text\""] {
            assert!(Shape::default().may_be_whole(wrong));
        }
    }
}
