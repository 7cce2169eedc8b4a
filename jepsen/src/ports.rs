//! Ports for members.

use std::net::{Ipv4Addr, TcpStream};
use std::sync::atomic::{AtomicU16, Ordering};

use crate::process::HarnessError;

/// Where ports are looked for: below those that systems hand out for outgoing connections, so that a
/// dead member's port is not taken by somebody's connection before it is back.
const PORTS: std::ops::Range<u16> = 10_000..19_000;

/// So many addresses on loopback that nobody listens at.
///
/// # Errors
/// There are not so many.
pub fn free_addresses(many: usize) -> Result<Vec<String>, HarnessError> {
    // Clusters of one process never look at the same ports; those of several rarely do.
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let span = PORTS.end - PORTS.start;
    let begin = u16::try_from(std::process::id().wrapping_mul(97) % u32::from(span)).unwrap_or(0);
    let mut found = Vec::new();
    for _ in 0..span {
        let step = NEXT.fetch_add(1, Ordering::Relaxed);
        let port = PORTS.start + (begin + step % span) % span;
        // Not by listening: a process that is begun just then would listen too, until it is its own program.
        if TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_err() {
            found.push(format!("127.0.0.1:{port}"));
        }
        if found.len() == many {
            return Ok(found);
        }
    }
    let source = std::io::Error::other("all are taken");
    Err(HarnessError::System { what: "looking for free ports", source })
}
