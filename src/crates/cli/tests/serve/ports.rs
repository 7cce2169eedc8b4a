//! Finds free ports for test servers.

use std::net::TcpStream;
use std::sync::atomic::{AtomicU16, Ordering};

/// The range of ports to search: below the ephemeral ports, one of which an outgoing connection could get while a
/// server is down, and apart from the ports that other tests use.
const FIRST: u16 = 19_000;
const COUNT: u16 = 10_000;

/// Returns free ports that stay free until a process listens on them.
pub(crate) fn lasting_ports(count: usize) -> Vec<u16> {
    // Tests of one process never try the same port. Tests of different processes rarely do.
    static TAKEN: AtomicU16 = AtomicU16::new(0);
    let some = std::process::id().wrapping_mul(97) % u32::from(COUNT);
    let some = u16::try_from(some).unwrap();
    let mut ports = Vec::new();
    while ports.len() < count {
        let step = TAKEN.fetch_add(1, Ordering::Relaxed);
        assert!(step < COUNT, "there are free ports");
        let port = FIRST + (some + step) % COUNT;
        // The port is tested by connecting and not by listening. A child process that another test starts at that
        // moment would inherit a listening socket until it calls exec.
        if TcpStream::connect(("127.0.0.1", port)).is_err() {
            ports.push(port);
        }
    }
    ports
}
