//! Addresses for nodes on sockets that nobody else takes: a port that was free a moment ago is anybody's, also that of a
//! connection that goes out. Each process has a loopback address of its own, and gives each of its ports once.

use std::sync::atomic::{AtomicU16, Ordering};

/// The first port that is given.
const FIRST: u16 = 7_000;

/// `host:port`.
pub(crate) fn address() -> String {
    static GIVEN: AtomicU16 = AtomicU16::new(0);
    let (process, port) = (std::process::id(), FIRST + GIVEN.fetch_add(1, Ordering::Relaxed));
    // All of 127.0.0.0/8 is this machine. The ends of each range are left alone.
    let last = [64 + process / 62_500 % 64, 1 + process / 250 % 250, 1 + process % 250];
    format!("127.{}.{}.{}:{port}", last[0], last[1], last[2])
}
