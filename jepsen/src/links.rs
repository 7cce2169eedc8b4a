//! The links between members: network faults on the messages from one member to another.
//!
//! Members reach each other through the [`proxy`](crate::proxy) of the harness, which applies these rules to every
//! frame. This module moves no data itself.
//!
//! Each pair of members has two connections, one dialed by each member. A member sends its messages only on the
//! connection that it dialed itself. The other direction of that connection carries only keep-alives. The link from
//! member A to member B is therefore the set of all connections that A has dialed to B. Cutting the link stops the
//! messages from A to B, but not those from B to A.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;

/// The faults on a link. By default, every frame passes at once.
///
/// Probabilities are per frame, in thousandths. Frames of the handshake are neither lost nor duplicated. A real
/// network retransmits lost data; a message is lost only when an established connection breaks.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Rule {
    /// Whether and how the link is cut.
    pub cut: Option<Cut>,
    /// Additional delay of each frame.
    pub delay: Duration,
    /// Maximum random delay of each frame, in addition to `delay`. Frames are never reordered, because a connection is
    /// a stream.
    pub jitter: Duration,
    /// Probability that a frame is lost.
    pub lose_permille: u16,
    /// Probability that a frame arrives twice.
    pub double_permille: u16,
    /// Probability that one bit of a frame is flipped. The bit may be in the length, the checksum or the body of the
    /// frame.
    pub flip_permille: u16,
    /// Probability that some bytes of a frame are repeated. The repetition displaces all bytes after them.
    pub stutter_permille: u16,
    /// Probability that a frame and all later frames are delayed by [`Rule::hold`], as by a retransmission.
    pub hold_permille: u16,
    /// Duration of such a delay.
    pub hold: Duration,
    /// Probability that the connection breaks in the middle of a frame.
    pub break_permille: u16,
    /// Maximum rate of each connection, in bytes per second.
    pub bytes_per_second: Option<NonZeroU32>,
}

/// A way to cut a link.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cut {
    /// Existing connections are broken and new connections are closed at once, so both ends notice the cut.
    Refused,
    /// No data passes and neither end is notified, as with an unplugged cable. When the link is restored, data in
    /// flight arrives if the connection still exists.
    Silent,
}

impl Rule {
    /// Returns the rule of a link that is cut.
    pub fn cut(how: Cut) -> Self {
        Self { cut: Some(how), ..Self::default() }
    }
}

/// Counts of the frames and connections on a link since the start of the run, and of the faults that affected them.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Traffic {
    /// Frames received, including handshakes and keep-alives.
    pub frames: u64,
    /// Size of the received frames, in bytes.
    pub bytes: u64,
    /// Frames that were lost.
    pub lost: u64,
    /// Frames that were forwarded twice.
    pub doubled: u64,
    /// Frames that were forwarded with a flipped bit or repeated bytes.
    pub spoiled: u64,
    /// Connections that were broken in the middle of a frame.
    pub broken: u64,
    /// Connections that were closed because the link was cut.
    pub refused: u64,
    /// New connections that got no response because the link was cut.
    pub silenced: u64,
}

/// One link.
#[derive(Debug)]
pub(crate) struct Link {
    rule: watch::Sender<Rule>,
    traffic: Mutex<Traffic>,
}

impl Link {
    fn new() -> Self {
        Self { rule: watch::Sender::new(Rule::default()), traffic: Mutex::default() }
    }

    /// Returns a receiver of the current rule of the link.
    pub(crate) fn rule(&self) -> watch::Receiver<Rule> {
        self.rule.subscribe()
    }

    /// Updates the counts.
    pub(crate) fn count(&self, count: impl FnOnce(&mut Traffic)) {
        count(&mut self.traffic.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

/// All links of a run. Clones share the links.
#[derive(Clone, Debug, Default)]
pub struct Links {
    table: Arc<Mutex<Table>>,
}

#[derive(Debug, Default)]
struct Table {
    links: BTreeMap<(usize, usize), Arc<Link>>,
    strangers: u64,
}

impl Links {
    /// Returns the rule for messages from `from` to `to`.
    pub fn rule(&self, from: usize, to: usize) -> Rule {
        *self.link(from, to).rule.borrow()
    }

    /// Sets the rule from now on, also for existing connections.
    pub fn set(&self, from: usize, to: usize, rule: Rule) {
        self.link(from, to).rule.send_replace(rule);
    }

    /// Silently cuts the link from `from` to `to`.
    pub fn cut(&self, from: usize, to: usize) {
        self.cut_so(from, to, Cut::Silent);
    }

    /// Cuts the link from `from` to `to` in the way `how`.
    pub fn cut_so(&self, from: usize, to: usize, how: Cut) {
        self.set(from, to, Rule { cut: Some(how), ..self.rule(from, to) });
    }

    /// Silently cuts the links between each member of `some` and each member of `others`, in both directions.
    pub fn part(&self, some: &[usize], others: &[usize]) {
        for (a, b) in some.iter().flat_map(|a| others.iter().map(|b| (*a, *b))) {
            self.cut(a, b);
            self.cut(b, a);
        }
    }

    /// Ends all faults.
    pub fn heal(&self) {
        for link in self.table().links.values() {
            link.rule.send_replace(Rule::default());
        }
    }

    /// Returns the counts of the link from one member to another.
    pub fn traffic(&self, from: usize, to: usize) -> Traffic {
        *self.link(from, to).traffic.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the number of connections made by nodes that are not members yet, such as nodes that ask to join. Rules
    /// have no effect on these connections.
    pub fn strangers(&self) -> u64 {
        self.table().strangers
    }

    pub(crate) fn link(&self, from: usize, to: usize) -> Arc<Link> {
        let mut table = self.table();
        Arc::clone(table.links.entry((from, to)).or_insert_with(|| Arc::new(Link::new())))
    }

    /// Returns a new link for a connection of a machine that is not a member.
    pub(crate) fn stranger(&self) -> Arc<Link> {
        self.table().strangers += 1;
        Arc::new(Link::new())
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn link_cut_is_one_way_and_heal_removes_all_cuts() {
        let links = Links::default();
        links.cut(0, 1);
        assert_eq!(links.rule(0, 1), Rule::cut(Cut::Silent));
        assert_eq!(links.rule(1, 0), Rule::default());
        links.part(&[2], &[0, 1]);
        for (from, to) in [(2, 0), (0, 2), (2, 1), (1, 2)] {
            assert_eq!(links.clone().rule(from, to).cut, Some(Cut::Silent));
        }
        links.heal();
        assert!((0..9).all(|pair| links.rule(pair / 3, pair % 3) == Rule::default()));
    }
}
