//! The random numbers of a simulated world.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::env::Entropy;
use crate::model::{SPLIT_MIX_STEP, finalize};

/// A random number generator with a seed that threads can share. It returns the numbers of
/// [`SplitMix64`](crate::model::SplitMix64), one step earlier.
#[derive(Debug)]
pub struct Rng(AtomicU64);

impl Rng {
    /// Returns a generator with this seed.
    pub fn new(seed: u64) -> Self {
        Self(AtomicU64::new(seed))
    }
}

impl Entropy for Rng {
    fn next_u64(&self) -> u64 {
        finalize(self.0.fetch_add(SPLIT_MIX_STEP, Ordering::Relaxed))
    }
}
