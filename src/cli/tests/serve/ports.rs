//! Ports for servers of tests.

use std::net::TcpStream;
use std::sync::atomic::{AtomicU16, Ordering};

/// Where they are looked for: below those that systems hand out to whoever connects, which would take a server's port while
/// it is down; and where nothing else here looks.
const FIRST: u16 = 19_000;
const COUNT: u16 = 10_000;

/// So many ports that nobody has, and that stay free while nobody listens on them.
pub(crate) fn lasting_ports(count: usize) -> Vec<u16> {
    // Tests of one process never look at the same ports; those of several rarely do.
    static TAKEN: AtomicU16 = AtomicU16::new(0);
    let some = std::process::id().wrapping_mul(97) % u32::from(COUNT);
    let some = u16::try_from(some).unwrap();
    let mut ports = Vec::new();
    while ports.len() < count {
        let step = TAKEN.fetch_add(1, Ordering::Relaxed);
        assert!(step < COUNT, "there are free ports");
        let port = FIRST + (some + step) % COUNT;
        // Not by listening: a process that another test begins just then would listen too, until it is that program.
        if TcpStream::connect(("127.0.0.1", port)).is_err() {
            ports.push(port);
        }
    }
    ports
}
