//! Sources of random numbers.

/// A source of random numbers.
pub trait Entropy: Send + Sync + 'static {
    /// Returns 64 random bits.
    fn next_u64(&self) -> u64;

    /// Returns 128 random bits.
    fn next_u128(&self) -> u128 {
        u128::from(self.next_u64()) << 64 | u128::from(self.next_u64())
    }

    /// Returns a random number below `bound`, which must not be 0. The numbers are almost uniformly
    /// distributed: the bias is below 2^-32 for bounds below 2^32.
    fn below(&self, bound: u64) -> u64 {
        assert!(bound > 0, "a number below 0 was asked for");
        self.next_u64() % bound
    }
}

/// The operating system's source of random numbers.
#[derive(Clone, Copy, Debug, Default)]
pub struct OsEntropy;

impl Entropy for OsEntropy {
    fn next_u64(&self) -> u64 {
        getrandom::u64().expect("the operating system has random numbers")
    }
}
