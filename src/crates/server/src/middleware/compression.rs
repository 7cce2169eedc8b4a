//! Compresses messages with gzip, and translates errors for messages that are too large before or after decompression.

use http::{HeaderMap, HeaderValue, Request, Response};
use http_body_util::BodyExt as _;
use tonic::Status;
use tonic::body::Body;

use crate::middleware::Middleware;
use crate::protocol::Method;

/// Largest message of a compressed stream, in bytes after decompression. An open stream keeps the buffer of its
/// largest message. Without this limit, a few hundred bytes on the wire could therefore occupy megabytes.
pub(crate) const COMPRESSED_STREAM_BYTES_MAX: usize = 256 << 10;

/// Returns whether the messages of a request are compressed.
pub(crate) fn is_compressed(headers: &HeaderMap) -> bool {
    headers.get("grpc-encoding").is_some_and(|encoding| encoding == "gzip")
}

/// Keeps the response uncompressed unless the request is compressed, as Go servers do, even if the client accepts gzip.
/// Translates errors about the size of a message.
#[derive(Clone)]
pub(crate) struct Compression;

impl Middleware for Compression {
    /// Whether the requests are a stream, which is read after the headers of the response are sent.
    type State = bool;

    fn request(&self, request: &mut Request<Body>) -> Result<bool, Status> {
        if !is_compressed(request.headers()) {
            request.headers_mut().remove("grpc-accept-encoding");
        }
        Ok(Method::of(request).streams_requests)
    }

    fn response(is_stream: bool, mut response: Response<Body>) -> Response<Body> {
        set_too_large_error(response.headers_mut());
        if !is_stream {
            return response;
        }
        response.map(|body| {
            Body::new(body.map_frame(|mut frame| {
                if let Some(trailers) = frame.trailers_mut() {
                    set_too_large_error(trailers);
                }
                frame
            }))
        })
    }
}

/// Replaces the error for a message that is too large by the code and text of Go servers, which clients compare.
/// `headers` are the headers of a response or the trailers of a stream.
fn set_too_large_error(headers: &mut HeaderMap) {
    const OUT_OF_RANGE: &str = "11";
    const EXHAUSTED: &str = "8";
    let is_size = |code: &HeaderValue| code == OUT_OF_RANGE || code == EXHAUSTED;
    if !headers.get("grpc-status").is_some_and(is_size) {
        return;
    }
    let Some(status) = Status::from_header_map(headers) else { return };
    let Some(words) = too_large(status.message()) else { return };
    headers.insert("grpc-status", HeaderValue::from_static(EXHAUSTED));
    if let Ok(words) = HeaderValue::from_str(&words.replace(' ', "%20")) {
        headers.insert("grpc-message", words);
    }
}

/// Translates the gRPC library's texts into those of Go servers. Returns `None` for other texts.
fn too_large(message: &str) -> Option<String> {
    let mut numbers = message.split([' ', ',']).filter(|word| word.parse::<u64>().is_ok());
    if message.starts_with("Error, decoded message length too large: found ") {
        let (found, max) = (numbers.next()?, numbers.next()?);
        return Some(format!("grpc: received message larger than max ({found} vs. {max})"));
    }
    if message.starts_with("Error decompressing: size limit, of ") {
        let max = numbers.next()?;
        return Some(format!("grpc: received message after decompression larger than max {max}"));
    }
    None
}
