//! Receives the signals that ask this process to end. If a signal was ignored when the process started, the signal
//! stays ignored by this process and its children. `nohup`, and shells that start background jobs, rely on that.

use std::io;

use rustix::process::Signal;
use tokio::signal::unix::{self, SignalKind, signal};

/// Signals that ask the process to end.
const NUMBERS: [Signal; 4] = [Signal::INT, Signal::TERM, Signal::HUP, Signal::QUIT];

/// A receiver of the signals. While the receiver exists, the signals do not end the process.
pub struct Signals([Option<unix::Signal>; 4]);

impl Signals {
    /// Starts receiving the signals that are not ignored.
    pub fn new() -> io::Result<Self> {
        let ignored = ignored();
        let listen = |number: Signal| match ignored >> (number.as_raw() - 1) & 1 {
            0 => signal(SignalKind::from_raw(number.as_raw())).map(Some),
            _ => Ok(None),
        };
        let [a, b, c, d] = NUMBERS.map(listen);
        Ok(Self([a?, b?, c?, d?]))
    }

    /// Returns the next signal. Cancel safe.
    pub async fn next(&mut self) -> Signal {
        let [a, b, c, d] = &mut self.0;
        tokio::select! {
            () = come(a) => NUMBERS[0],
            () = come(b) => NUMBERS[1],
            () = come(c) => NUMBERS[2],
            () = come(d) => NUMBERS[3],
        }
    }
}

async fn come(listened: &mut Option<unix::Signal>) {
    match listened {
        Some(listened) => drop(listened.recv().await),
        None => std::future::pending().await,
    }
}

/// Returns a bit mask of the ignored signals on Linux, and 0 on other systems.
fn ignored() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or_default()
}
