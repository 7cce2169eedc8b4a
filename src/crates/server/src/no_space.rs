//! The alarm of a member that has rejected a write for lack of space. The alarm is cleared when the state has shrunk,
//! or by an operator.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// The alarm of one member.
#[derive(Default)]
pub(crate) struct NoSpace {
    /// Largest observed size of the state since a rejection, in bytes; `None` without an alarm.
    most: Mutex<Option<u64>>,
}

impl NoSpace {
    /// Raises the alarm after a rejection with a state of this size.
    pub(crate) fn refused(&self, bytes: u64) {
        let mut most = self.most();
        *most = Some(most.unwrap_or_default().max(bytes));
    }

    /// Returns whether the alarm is still active with a state of this size.
    pub(crate) fn is_raised(&self, bytes: u64) -> bool {
        let mut most = self.most();
        // The first size may have been measured slightly before the rejection.
        *most = most.filter(|most| bytes >= *most).map(|_| bytes);
        most.is_some()
    }

    /// Clears the alarm until the next rejection. Returns whether it was active.
    pub(crate) fn end(&self) -> bool {
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
    fn no_space_alarm_ends_when_state_shrinks_or_operator_disarms() {
        let alarm = NoSpace::default();
        assert!(!alarm.is_raised(1000) && !alarm.end());
        alarm.refused(900);
        assert!(alarm.is_raised(1000) && alarm.is_raised(1010));
        assert!(!alarm.is_raised(1009), "there is enough space again");
        assert!(!alarm.is_raised(1010), "nothing was rejected since");
        alarm.refused(1010);
        assert!(alarm.end() && !alarm.is_raised(1010));
    }
}
