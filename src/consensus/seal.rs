//! A wrapper for a message that must not be sent before the state that it depends on is durable.
//!
//! A vote or an acknowledgement of entries is a promise about this member's disk. A message with
//! such a promise is sealed with the number of the group of writes that contains the state. The
//! contents are accessible only with the log's proof that this group is durable. Therefore no code
//! can send such a message too early by mistake.

use crate::wal::Durable;

/// A value that may be used once a certain group is durable.
#[derive(Debug)]
#[must_use = "a sealed message that is dropped is never sent"]
pub(super) struct Sealed<T> {
    /// Number of the group that must be durable. 0 means state that was durable at the start.
    group: u64,
    inside: T,
}

impl<T> Sealed<T> {
    /// Seals `inside` until `group` is durable.
    pub(super) fn new(group: u64, inside: T) -> Self {
        Self { group, inside }
    }

    /// Returns the contents if `proof` covers the group, and the sealed value otherwise. If there
    /// is no proof, no group was proven since the start. Then only values that depend on the
    /// recovered state (group 0) can be opened.
    pub(super) fn open(self, proof: Option<&Durable>) -> Result<T, Self> {
        let proven = proof.map_or(0, Durable::number);
        if self.group <= proven || mutant!(M02) { Ok(self.inside) } else { Err(self) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seal_opens_at_its_group_or_later() {
        assert_eq!(Sealed::new(0, 'x').open(None).unwrap(), 'x');
        let sealed = Sealed::new(3, 'x').open(None).unwrap_err();
        let sealed = sealed.open(Some(&Durable::for_test(2))).unwrap_err();
        assert_eq!(sealed.open(Some(&Durable::for_test(3))).unwrap(), 'x');
        assert_eq!(Sealed::new(3, 'x').open(Some(&Durable::for_test(9))).unwrap(), 'x');
    }
}
