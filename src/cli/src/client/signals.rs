//! The signals by which somebody tells this process to end. Those that were ignored when it was started stay ignored, by
//! it and by what it starts: `nohup`, and a shell that starts something in the background, mean that.

use std::io;

use rustix::process::Signal;
use tokio::signal::unix::{self, SignalKind, signal};

/// Those that are listened to.
const NUMBERS: [Signal; 4] = [Signal::INT, Signal::TERM, Signal::HUP, Signal::QUIT];

/// They come here from now on, and do nothing else.
pub(crate) struct Signals([Option<unix::Signal>; 4]);

impl Signals {
    /// From now on.
    pub(crate) fn new() -> io::Result<Self> {
        let ignored = ignored();
        let listen = |number: Signal| match ignored >> (number.as_raw() - 1) & 1 {
            0 => signal(SignalKind::from_raw(number.as_raw())).map(Some),
            _ => Ok(None),
        };
        let [a, b, c, d] = NUMBERS.map(listen);
        Ok(Self([a?, b?, c?, d?]))
    }

    /// The next one. May be dropped, and called again.
    pub(crate) async fn next(&mut self) -> Signal {
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

/// The signals that this process ignores, a bit for each, where the system tells: Linux.
fn ignored() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or_default()
}
