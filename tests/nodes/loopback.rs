//! Loopback addresses that no other process takes. A port that was free a moment ago may be taken by any process or
//! outgoing connection. Therefore each process has a loopback address of its own, and gives out each port once.

use std::sync::atomic::{AtomicU16, Ordering};

/// The first port that is given out.
const FIRST: u16 = 7_000;

/// Returns an unused address as `host:port`.
pub(crate) fn address() -> String {
    static GIVEN: AtomicU16 = AtomicU16::new(0);
    let (process, port) = (std::process::id(), FIRST + GIVEN.fetch_add(1, Ordering::Relaxed));
    // All addresses in 127.0.0.0/8 belong to this machine. The ends of each range are not used.
    let last = [64 + process / 62_500 % 64, 1 + process / 250 % 250, 1 + process % 250];
    format!("127.{}.{}.{}:{port}", last[0], last[1], last[2])
}
