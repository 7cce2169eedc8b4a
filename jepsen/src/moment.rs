//! The machine's clock, which all processes on it share and nobody bends: what was at which moment can be said by a member as
//! well as by the harness. It stands still while the machine is suspended, and goes on while a process is stopped.

use rustix::time::{ClockId, clock_gettime};

/// Microseconds since some moment that is the same for all processes.
pub fn now() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    let (seconds, nanos) = (now.tv_sec.unsigned_abs(), now.tv_nsec.unsigned_abs());
    seconds * 1_000_000 + nanos / 1000
}
