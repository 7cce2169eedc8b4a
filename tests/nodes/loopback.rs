//! Loopback addresses that no other process takes. A port that was free a moment ago may be taken
//! by any process or outgoing connection. Therefore each test process uses its own loopback
//! address, and uses each port once.

use std::sync::atomic::{AtomicU16, Ordering};

/// The first port that is used.
const FIRST: u16 = 7_000;

/// Returns an unused address as `host:port`.
pub(crate) fn address() -> String {
    static GIVEN: AtomicU16 = AtomicU16::new(0);
    let (process, port) = (std::process::id(), FIRST + GIVEN.fetch_add(1, Ordering::Relaxed));
    // Derive the address from the process id. All addresses in 127.0.0.0/8 belong to this machine,
    // and the ends of each range are not used.
    let last = [64 + process / 62_500 % 64, 1 + process / 250 % 250, 1 + process % 250];
    format!("127.{}.{}.{}:{port}", last[0], last[1], last[2])
}
