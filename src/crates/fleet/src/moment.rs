//! Reads the monotonic clock of the machine. All processes read the same clock and no injected fault changes it, so
//! times recorded by members and by the harness are comparable. The clock stops while the machine is suspended. The
//! clock continues while a process is stopped.

use rustix::time::{ClockId, clock_gettime};

/// Returns the time in microseconds since a fixed point that is the same for all processes.
pub fn now() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    let (seconds, nanos) = (now.tv_sec.unsigned_abs(), now.tv_nsec.unsigned_abs());
    seconds * 1_000_000 + nanos / 1000
}
