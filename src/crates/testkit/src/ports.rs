//! Finds free ports for members and servers.

use std::net::{Ipv4Addr, TcpStream};
use std::sync::atomic::{AtomicU16, Ordering};

/// The range of ports to search: below the ephemeral ports, one of which an outgoing connection could get while a
/// member is down.
const FIRST: u16 = 10_000;
const COUNT: u16 = 19_000;

/// Returns ports that stay free until a process listens on them.
///
/// # Panics
/// Panics if there are not enough.
pub fn lasting_ports(count: usize) -> Vec<u16> {
    // Clusters of one process never try the same port. Clusters of different processes rarely do.
    static TAKEN: AtomicU16 = AtomicU16::new(0);
    let some = std::process::id().wrapping_mul(97) % u32::from(COUNT);
    let some = u16::try_from(some).expect("below the count");
    let mut ports = Vec::new();
    while ports.len() < count {
        let step = TAKEN.fetch_add(1, Ordering::Relaxed);
        assert!(step < COUNT, "there are free ports");
        let port = FIRST + (some + step) % COUNT;
        // The port is tested by connecting and not by listening. A child process that another thread starts at that
        // moment would inherit a listening socket until it calls exec.
        if TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_err() {
            ports.push(port);
        }
    }
    ports
}

/// Returns addresses on loopback with such ports.
pub fn lasting_addresses(count: usize) -> Vec<String> {
    lasting_ports(count).into_iter().map(|port| format!("127.0.0.1:{port}")).collect()
}
