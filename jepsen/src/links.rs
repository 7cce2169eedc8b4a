//! What the harness does to the network: a rule for each ordered pair of members.
//!
//! Members reach each other through a door of the harness (`crate::proxy`), which asks this table for each piece of bytes
//! that passes. Nothing here moves bytes.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// What happens to what one member says to another. By default nothing.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Rule {
    /// Nothing passes: it waits, as behind a cable that was pulled, and the connection may time out. No new
    /// connection comes up.
    pub cut: bool,
    /// Everything takes so much longer.
    pub delay: Duration,
    /// And up to so much more, drawn for each piece. Order is kept: it is a stream.
    pub jitter: Duration,
    /// How many frames of a thousand are lost.
    pub lose_permille: u16,
    /// How many of a thousand come twice.
    pub double_permille: u16,
    /// How many of a thousand have a byte changed.
    pub spoil_permille: u16,
}

/// See the module. Clones share one table.
#[derive(Clone, Debug, Default)]
pub struct Links {
    rules: Arc<Mutex<BTreeMap<(usize, usize), Rule>>>,
}

impl Links {
    /// What happens to what `from` says to `to`.
    pub fn rule(&self, from: usize, to: usize) -> Rule {
        self.rules().get(&(from, to)).copied().unwrap_or_default()
    }

    /// From now on.
    pub fn set(&self, from: usize, to: usize, rule: Rule) {
        self.rules().insert((from, to), rule);
    }

    /// Cuts one direction.
    pub fn cut(&self, from: usize, to: usize) {
        self.set(from, to, Rule { cut: true, ..self.rule(from, to) });
    }

    /// Cuts both directions between each of `some` and each of `others`.
    pub fn part(&self, some: &[usize], others: &[usize]) {
        for (a, b) in some.iter().flat_map(|a| others.iter().map(|b| (*a, *b))) {
            self.cut(a, b);
            self.cut(b, a);
        }
    }

    /// Nothing happens to anything any more.
    pub fn heal(&self) {
        self.rules().clear();
    }

    fn rules(&self) -> MutexGuard<'_, BTreeMap<(usize, usize), Rule>> {
        self.rules.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
