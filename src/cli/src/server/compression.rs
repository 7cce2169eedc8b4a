//! Messages that are compressed with gzip, and messages that are too large as sent or after decompression.

use http::{HeaderMap, HeaderValue};
use http_body_util::BodyExt as _;
use tonic::Status;
use tonic::body::Body;

/// The largest message of a stream whose messages are compressed, after decompression. A stream keeps the memory of its
/// largest message, or the key that it names: a few bytes on the wire must not hold megabytes.
pub(super) const COMPRESSED_STREAM_BYTES_MAX: usize = 256 << 10;

/// As servers in Go do, answers are compressed if the request is, whatever the client accepts. Reports whether that is so.
pub(super) fn compress_like_the_request(headers: &mut HeaderMap) -> bool {
    let is_compressed = headers.get("grpc-encoding").is_some_and(|encoding| encoding == "gzip");
    if !is_compressed {
        headers.remove("grpc-accept-encoding");
    }
    is_compressed
}

/// A message that was too large to be read is refused in the words that etcd's clients know. `headers` are those of an
/// answer, or the trailers of a stream.
pub(super) fn say_too_large(headers: &mut HeaderMap) {
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

/// The words of servers in Go for those of the gRPC library here.
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

/// The answers of a stream. It says so at its end if a request was too large.
pub(super) fn saying_too_large(body: Body) -> Body {
    Body::new(body.map_frame(|mut frame| {
        if let Some(trailers) = frame.trailers_mut() {
            say_too_large(trailers);
        }
        frame
    }))
}
