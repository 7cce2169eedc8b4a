//! Readiness notifications to systemd, for units with `Type=notify`.

use std::io;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

use bowline::Node;

/// A connection to the socket in `NOTIFY_SOCKET`.
pub(super) struct Notifier {
    socket: UnixDatagram,
    address: SocketAddr,
    /// Interval of the watchdog messages, if the service manager requests them.
    watchdog: Option<Duration>,
}

impl Notifier {
    /// Reads `NOTIFY_SOCKET`, `WATCHDOG_USEC` and `WATCHDOG_PID`. Returns `None` if no service manager waits for
    /// messages.
    pub(super) fn from_environment() -> Option<Self> {
        let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        let path = variable("NOTIFY_SOCKET")?;
        match open(&path) {
            Ok((socket, address)) => {
                let (usec, pid) = (variable("WATCHDOG_USEC"), variable("WATCHDOG_PID"));
                let watchdog = watchdog(usec.as_deref(), pid.as_deref(), std::process::id());
                Some(Self { socket, address, watchdog })
            }
            Err(error) => {
                tracing::warn!(path, %error, "cannot use the socket in NOTIFY_SOCKET");
                None
            }
        }
    }

    /// Reports that the server is serving clients.
    pub(super) fn ready(&self) {
        self.send("READY=1\nSTATUS=serving clients");
    }

    /// Reports what the server waits for before it serves clients.
    pub(super) fn waiting(&self) {
        self.send("STATUS=waiting for a leader");
    }

    /// Reports that the server is shutting down.
    pub(super) fn stopping(&self) {
        self.send("STOPPING=1\nSTATUS=stopping");
    }

    /// Sends watchdog messages while `node` is alive. A stuck or stopped node sends none, so the manager restarts it.
    pub(super) async fn keep_watchdog(&self, node: &Node) {
        let Some(interval) = self.watchdog else { return std::future::pending().await };
        loop {
            if node.health().is_alive() {
                self.send("WATCHDOG=1");
            }
            tokio::time::sleep(interval).await;
        }
    }

    fn send(&self, message: &str) {
        if let Err(error) = self.socket.send_to_addr(message.as_bytes(), &self.address) {
            tracing::warn!(%error, "cannot notify the service manager");
        }
    }
}

/// Opens a socket for messages to `path`. A leading `@` means Linux's abstract namespace.
fn open(path: &str) -> io::Result<(UnixDatagram, SocketAddr)> {
    let address = match path.strip_prefix('@') {
        Some(name) => in_abstract_namespace(name)?,
        None => SocketAddr::from_pathname(path)?,
    };
    let socket = UnixDatagram::unbound()?;
    // A full socket of a slow manager must not block the server.
    socket.set_nonblocking(true)?;
    Ok((socket, address))
}

#[cfg(target_os = "linux")]
fn in_abstract_namespace(name: &str) -> io::Result<SocketAddr> {
    use std::os::linux::net::SocketAddrExt as _;
    SocketAddr::from_abstract_name(name)
}

#[cfg(not(target_os = "linux"))]
fn in_abstract_namespace(_: &str) -> io::Result<SocketAddr> {
    Err(io::Error::new(io::ErrorKind::Unsupported, "abstract sockets exist on Linux only"))
}

/// Returns half of the manager's timeout, if `pid` names this process or is absent.
fn watchdog(usec: Option<&str>, pid: Option<&str>, own: u32) -> Option<Duration> {
    if pid.is_some_and(|pid| pid.parse() != Ok(own)) {
        return None;
    }
    let usec: u64 = usec?.parse().ok()?;
    (usec > 0).then(|| Duration::from_micros(usec) / 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn watchdog_runs_at_half_of_the_timeout() {
        let half = Some(Duration::from_secs(5));
        assert_eq!(watchdog(Some("10000000"), None, 7), half);
        assert_eq!(watchdog(Some("10000000"), Some("7"), 7), half);
        for (usec, pid) in [
            (None, None),
            (Some("10000000"), Some("8")),
            (Some("10000000"), Some("x")),
            (Some("0"), None),
            (Some("-1"), None),
            (Some("soon"), None),
        ] {
            assert_eq!(watchdog(usec, pid, 7), None, "{usec:?} {pid:?}");
        }
    }
}
