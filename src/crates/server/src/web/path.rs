//! Normalizes the path of an HTTP request, so that it can be compared with the served paths.

use http::header::LOCATION;
use http::{HeaderValue, Response, StatusCode, Uri};
use tonic::body::Body;

use crate::web::plain;

/// Replaces the path by its decoded form. `/%76%33/kv/range` and `/v3/kv/range` are the same path.
///
/// # Errors
/// Returns the response to send instead, as etcd does. If the path has `//`, `.` or `..`, the response is a redirect to
/// the clean path. If the encoding is invalid, it is 400. If the path has characters that no served path has, it is
/// 404.
#[expect(clippy::result_large_err, reason = "created at most once per request, and sent")]
pub(crate) fn normalize(uri: &mut Uri) -> Result<(), Response<Body>> {
    let path = uri.path();
    if let Some(clean) = cleaned(path) {
        return Err(moved(&clean, uri.query()));
    }
    if !path.contains('%') {
        return Ok(());
    }
    let Some(decoded) = decoded(path) else {
        return Err(plain::bad_request("malformed percent-encoding in the path"));
    };
    // Served paths have no other characters. A decoded `?` would start a query.
    let is_plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"/-_.~".contains(byte);
    if !decoded.iter().all(is_plain) {
        return Err(plain::not_found());
    }
    let mut whole = String::from_utf8_lossy(&decoded).into_owned();
    if let Some(query) = uri.query() {
        whole = format!("{whole}?{query}");
    }
    *uri = whole.parse().map_err(|_| plain::not_found())?;
    Ok(())
}

/// Removes empty, `.` and `..` segments, and keeps a slash at the end. Returns `None` if the path has none of them.
fn cleaned(path: &str) -> Option<String> {
    let rest = path.strip_prefix('/')?;
    let is_unclean = |segment: &str| ["", ".", ".."].contains(&segment);
    let (inner, last) = rest.rsplit_once('/').map_or((None, rest), |(a, b)| (Some(a), b));
    let is_clean = inner.is_none_or(|inner| !inner.split('/').any(is_unclean));
    if is_clean && ![".", ".."].contains(&last) {
        return None;
    }
    let mut segments = Vec::new();
    for segment in rest.split('/') {
        match segment {
            "" | "." => {}
            ".." => drop(segments.pop()),
            segment => segments.push(segment),
        }
    }
    let slash = if last.is_empty() && !segments.is_empty() { "/" } else { "" };
    Some(format!("/{}{slash}", segments.join("/")))
}

/// Decodes a percent-encoded path.
fn decoded(path: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(path.len());
    let mut rest = path.bytes();
    while let Some(byte) = rest.next() {
        let digit = |byte: u8| char::from(byte).to_digit(16).map(|digit| digit as u8);
        bytes.push(match byte {
            b'%' => digit(rest.next()?)? << 4 | digit(rest.next()?)?,
            byte => byte,
        });
    }
    Some(bytes)
}

/// Redirects to a path on this server. Browsers read `\` as `/`, so it is encoded: `/\host` would leave the server.
fn moved(path: &str, query: Option<&str>) -> Response<Body> {
    let mut location = String::with_capacity(path.len());
    for byte in path.bytes() {
        match byte {
            byte if byte.is_ascii_alphanumeric() => location.push(char::from(byte)),
            byte if b"/-_.~%!$&'()*+,;=:@".contains(&byte) => location.push(char::from(byte)),
            byte => location += &format!("%{byte:02X}"),
        }
    }
    if let Some(query) = query {
        location = format!("{location}?{query}");
    }
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::MOVED_PERMANENTLY;
    if let Ok(location) = HeaderValue::from_str(&location) {
        response.headers_mut().insert(LOCATION, location);
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unclean_paths_are_redirected_to_the_clean_one() {
        for (path, location) in [
            ("//v3/kv/range", "/v3/kv/range"),
            ("/v3//kv/range?x=//y", "/v3/kv/range?x=//y"),
            ("/v3/./kv/../kv/range/", "/v3/kv/range/"),
            ("/..", "/"),
            ("//", "/"),
            ("/v3/.", "/v3"),
            ("//%76%33", "/%76%33"),
            (r"//\evil.example/", "/%5Cevil.example/"),
        ] {
            let mut uri: Uri = path.parse().unwrap();
            let response = normalize(&mut uri).unwrap_err();
            assert_eq!(response.status(), StatusCode::MOVED_PERMANENTLY, "{path}");
            assert_eq!(response.headers()[LOCATION], location, "{path}");
        }
    }

    #[test]
    fn percent_encoded_paths_match_decoded() {
        for (path, expected) in [
            ("/", Ok("/")),
            ("/v3/kv/put/", Ok("/v3/kv/put/")),
            ("/%76%33/kv%2Fput?a=%20", Ok("/v3/kv/put?a=%20")),
            ("/health%3Fserializable=true", Err(404)),
            ("/v3/%00", Err(404)),
            ("/v3/%zz", Err(400)),
            ("/v3/%7", Err(400)),
            ("/v3/%", Err(400)),
            ("/v3/%+1", Err(400)),
        ] {
            let mut uri: Uri = path.parse().unwrap();
            let normal = normalize(&mut uri).map(|()| uri.to_string());
            let normal = normal.as_deref().map_err(|response| response.status().as_u16());
            assert_eq!(normal, expected, "{path}");
        }
    }
}
