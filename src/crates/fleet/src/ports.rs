//! Finds free ports for members and servers.

use std::net::{Ipv4Addr, TcpStream};
use std::sync::atomic::{AtomicU16, Ordering};

use crate::process::HarnessError;

/// Range of ports. The range is below the ephemeral ports, so that no outgoing connection takes the port
/// of a dead member before the member is restarted.
const PORTS: std::ops::Range<u16> = 10_000..29_000;

/// Returns this number of loopback addresses on which no process listens.
///
/// # Errors
/// Returns an error if there are not enough.
pub fn free_addresses(many: usize) -> Result<Vec<String>, HarnessError> {
    Ok(free_ports(many)?.into_iter().map(|port| format!("127.0.0.1:{port}")).collect())
}

/// Returns the ports of such addresses.
///
/// # Errors
/// Returns an error if there are not enough.
pub fn free_ports(many: usize) -> Result<Vec<u16>, HarnessError> {
    // Clusters of one process never try the same ports. Clusters of different processes rarely do.
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let span = PORTS.end - PORTS.start;
    let begin = u16::try_from(std::process::id().wrapping_mul(97) % u32::from(span)).unwrap_or(0);
    let mut found = Vec::new();
    for _ in 0..span {
        if found.len() == many {
            return Ok(found);
        }
        let step = NEXT.fetch_add(1, Ordering::Relaxed) % span;
        let port = PORTS.start + (begin + step) % span;
        // The port is tested by connecting and not by listening: a process that is spawned at that moment would
        // inherit the listening socket until its own program runs.
        if TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_err() {
            found.push(port);
        }
    }
    let source = std::io::Error::other("all are in use");
    Err(HarnessError::System { what: "cannot find free ports", source })
}
