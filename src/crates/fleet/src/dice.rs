//! Random numbers from a seed, for the choices of a run.

/// A random number generator with a seed.
#[derive(Debug)]
pub struct Dice(u64);

impl Dice {
    /// Returns a generator with this seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Returns a number below `bound`.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        ((z ^ (z >> 27)) >> 16) % bound
    }

    /// Returns a random index below `many`.
    pub fn one_of(&mut self, many: usize) -> usize {
        usize::try_from(self.below(many as u64)).expect("it is below a usize")
    }
}

/// Returns the number in an environment variable, or `None` if the variable is not set.
///
/// # Panics
///
/// Panics if the value of the variable is not a number.
pub fn number_in(variable: &str) -> Option<u64> {
    let value = std::env::var(variable).ok()?;
    Some(value.parse().unwrap_or_else(|_| panic!("{variable} is not a number: {value:?}")))
}
