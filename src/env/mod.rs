//! Traits for everything that is not deterministic: the clock, entropy, the disk, the network, and
//! named crash points where a test may kill the process.
//!
//! Each trait has a real implementation (here, or in `transport` for the network) and a simulated
//! one (in `sim`). All other parts of the library use the time, random numbers, files and sockets
//! only through these traits. The exceptions are a few modules at the boundary to the operating
//! system. Therefore a simulated cluster is deterministic: the same seed replays the same run.

mod clock;
mod disk;
mod entropy;
mod network;
mod point;

use std::sync::Arc;

pub use clock::{BootClock, BootId, Clock};
pub(crate) use disk::replace;
pub use disk::{Disk, DiskLock, File, OpenMode, RealDisk};
pub use entropy::{Entropy, OsEntropy};
pub(crate) use network::accept_ipv4;
pub use network::{Network, SendOutcome};
pub use point::{NoPoints, Point, Points};

/// The environment of a node, without its network.
#[derive(Clone)]
pub struct Env {
    /// Source of time.
    pub clock: Arc<dyn Clock>,
    /// Source of random numbers.
    pub entropy: Arc<dyn Entropy>,
    /// File system.
    pub disk: Arc<dyn Disk>,
    /// Crash points, where a test may end the process.
    pub points: Arc<dyn Points>,
}

impl Env {
    /// Returns the environment of the real machine.
    pub fn real() -> Self {
        Self {
            clock: Arc::new(BootClock),
            entropy: Arc::new(OsEntropy),
            disk: Arc::new(RealDisk),
            points: Arc::new(NoPoints),
        }
    }
}

impl std::fmt::Debug for Env {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Env")
    }
}
