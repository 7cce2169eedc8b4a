//! Pseudo-random numbers that are the same on every platform.

/// The step between two states of [`SplitMix64`]: 2^64 divided by the golden ratio.
pub(crate) const SPLIT_MIX_STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// The finalizer of SplitMix64: every bit of the input affects every bit of the output. The
/// function maps 0 to 0.
pub(crate) const fn finalize(mut number: u64) -> u64 {
    number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}

/// The generator SplitMix64 by Steele, Lea and Flood. The same seed gives the same numbers on every
/// platform.
#[derive(Clone, Debug)]
pub struct SplitMix64(u64);

impl SplitMix64 {
    /// Creates a generator with this seed.
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Returns the next 64 pseudo-random bits.
    pub const fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(SPLIT_MIX_STEP);
        finalize(self.0)
    }

    /// Returns a pseudo-random number below `bound`, which must not be 0.
    pub const fn below(&mut self, bound: u64) -> u64 {
        self.next_u64() % bound
    }
}
