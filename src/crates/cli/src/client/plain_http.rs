//! Reads a server's metrics over plain HTTP, with TLS if its endpoint uses TLS.

use std::sync::Arc;

use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::TlsConnector;

use super::connect::Client;
use super::failure::Failure;
use bowline_client::is_unix_socket;
use bowline_client::root_cause;

/// Maximum size of a response.
const ANSWER_BYTES_MAX: u64 = 64 << 20;

/// Returns the value of a metric from `/metrics` of the first endpoint.
pub(crate) async fn measured(client: &Client, name: &str) -> Result<f64, Failure> {
    let endpoint = &client.settings.endpoints[0];
    let limit = client.settings.command_timeout;
    let text = tokio::time::timeout(limit, metrics(client, endpoint)).await;
    let text = text.map_err(|_| Failure::Timeout(limit))??;
    let value = value_of(&text, name);
    value.ok_or_else(|| Failure::Failed(format!("{endpoint}/metrics has no metric {name}")))
}

/// Returns the value of a metric that has no labels.
fn value_of(text: &str, name: &str) -> Option<f64> {
    let mut values = text.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    values.next()?.trim().parse().ok()
}

async fn metrics(client: &Client, endpoint: &str) -> Result<String, Failure> {
    let (is_secure, place) = client.place(endpoint)?;
    let failed = |why: String| Failure::Unreachable(vec![(endpoint.to_owned(), why)]);
    if is_unix_socket(endpoint) {
        let stream = UnixStream::connect(place).await.map_err(|error| failed(error.to_string()))?;
        return get(stream, "localhost").await.map_err(|error| failed(root_cause(&error)));
    }
    let stream = TcpStream::connect(place).await.map_err(|error| failed(error.to_string()))?;
    let answer = if is_secure {
        let host = place.rsplit_once(':').map_or(place, |(host, _)| host);
        let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        let name = ServerName::try_from(host).map_err(|error| failed(error.to_string()))?;
        let connector = TlsConnector::from(Arc::new(client.settings.tls.config()?));
        let stream = connector.connect(name, stream).await;
        get(stream.map_err(|error| failed(root_cause(&error)))?, place).await
    } else {
        get(stream, place).await
    };
    answer.map_err(|error| failed(root_cause(&error)))
}

/// Sends a GET request and returns the whole response. Uses HTTP/1.0 so that the body is not chunked.
async fn get(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    host: &str,
) -> Result<String, std::io::Error> {
    stream.write_all(format!("GET /metrics HTTP/1.0\r\nHost: {host}\r\n\r\n").as_bytes()).await?;
    let mut answer = Vec::new();
    let read = stream.take(ANSWER_BYTES_MAX).read_to_end(&mut answer).await;
    // Some servers close TLS connections without close_notify, which is an error only if nothing was received.
    if answer.is_empty() {
        read?;
    }
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metric_value_is_matched_by_its_exact_name() {
        let text = "HTTP/1.0 200 OK\r\n\r\n# HELP x a x\nx_total 3\nx{a=\"b\"} 4\nx 1.5e+07\nx 9\n";
        assert_eq!(value_of(text, "x"), Some(1.5e7));
        assert_eq!(value_of(text, "y"), None);
    }
}
