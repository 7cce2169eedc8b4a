//! The alarm that there is no space for what a client wanted to write here: raised by the refusal, ended by itself as soon
//! as the state has become smaller, or by an operator.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// See the module.
#[derive(Default)]
pub(super) struct NoSpace {
    /// How many bytes the state has had at most since something was refused, as far as anybody has looked; nothing, if
    /// there is no alarm.
    most: Mutex<Option<u64>>,
}

impl NoSpace {
    /// Something was refused, with a state of so many bytes.
    pub(super) fn refused(&self, bytes: u64) {
        let mut most = self.most();
        *most = Some(most.unwrap_or_default().max(bytes));
    }

    /// Whether it is so still, with a state of so many bytes.
    pub(super) fn is_raised(&self, bytes: u64) -> bool {
        let mut most = self.most();
        // The first measure may have been from a little before the refusal.
        *most = most.filter(|most| bytes >= *most).map(|_| bytes);
        most.is_some()
    }

    /// An operator ends it, until something is refused again. Says whether there was any.
    pub(super) fn end(&self) -> bool {
        self.most().take().is_some()
    }

    fn most(&self) -> MutexGuard<'_, Option<u64>> {
        self.most.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_lasts_from_a_refusal_until_the_state_is_smaller_or_an_operator_ends_it() {
        let alarm = NoSpace::default();
        assert!(!alarm.is_raised(1000) && !alarm.end());
        alarm.refused(900);
        assert!(alarm.is_raised(1000) && alarm.is_raised(1010));
        assert!(!alarm.is_raised(1009), "there is room again");
        assert!(!alarm.is_raised(1010), "and nothing was refused since");
        alarm.refused(1010);
        assert!(alarm.end() && !alarm.is_raised(1010));
    }
}
