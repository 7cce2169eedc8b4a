//! A message that speaks of state, closed until that state is durable.
//!
//! A vote, or a word that entries have arrived, is a promise about what is on this member's disk. It
//! is put under seal with the number of the group that carries the state to disk, and only the log's
//! own proof opens it. There is no other way to what is inside, so a message that leaves too early
//! cannot be written by mistake.

use crate::mutant::{self, Mutant};
use crate::wal::Durable;

/// Something that may leave when a certain group is durable.
#[derive(Debug)]
#[must_use = "what is sealed and dropped is never sent"]
pub(super) struct Sealed<T> {
    /// The number of the group that must be durable. 0: what was durable at the start.
    group: u64,
    inside: T,
}

impl<T> Sealed<T> {
    /// Closes it until `group` is durable.
    pub(super) fn new(group: u64, inside: T) -> Self {
        Self { group, inside }
    }

    /// What is inside, or itself if `proof` does not reach. Without a proof, nothing has been written
    /// since the start: only what speaks of recovered state opens.
    pub(super) fn open(self, proof: Option<&Durable>) -> Result<T, Self> {
        let proven = proof.map_or(0, Durable::number);
        if self.group <= proven || mutant::is(Mutant::M02) { Ok(self.inside) } else { Err(self) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seal_opens_at_its_group_and_later_and_not_before() {
        assert_eq!(Sealed::new(0, 'x').open(None).unwrap(), 'x');
        let sealed = Sealed::new(3, 'x').open(None).unwrap_err();
        let sealed = sealed.open(Some(&Durable::for_test(2))).unwrap_err();
        assert_eq!(sealed.open(Some(&Durable::for_test(3))).unwrap(), 'x');
        assert_eq!(Sealed::new(3, 'x').open(Some(&Durable::for_test(9))).unwrap(), 'x');
    }
}
