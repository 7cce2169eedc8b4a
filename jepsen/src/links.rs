//! The links between members: what the network does to what one says to another.
//!
//! Members reach each other through a door of the harness ([`proxy`](crate::proxy)), which does what stands here to every
//! frame that passes. Nothing here moves bytes.
//!
//! Of the connections between two members each has dialed its own, on which only its own messages travel; what
//! comes back are signs of life. So the link from one to another is all connections that the one has
//! dialed: to cut it stops the messages in that direction and no others.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;

/// What happens on a link. By default everything passes at once.
///
/// Chances are for each frame, in thousandths. The frames of a greeting are neither lost nor doubled: what is
/// lost on a real network is sent again, and a message stays lost only behind the greeting, where
/// connections that break lose them.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Rule {
    /// Nothing passes.
    pub cut: Option<Cut>,
    /// Everything takes so much longer.
    pub delay: Duration,
    /// And up to so much more, drawn for each frame. None overtakes another: it is a stream.
    pub jitter: Duration,
    /// A whole frame is lost.
    pub lose_permille: u16,
    /// A whole frame comes twice.
    pub double_permille: u16,
    /// One bit of a frame is flipped: of its length, its checksum or its body.
    pub flip_permille: u16,
    /// Some bytes of a frame come twice in a row, so that everything behind them is displaced.
    pub stutter_permille: u16,
    /// A frame, and all that is behind it, is held up for [`Rule::hold`], as by a packet that has to be
    /// sent again.
    pub hold_permille: u16,
    /// For how long.
    pub hold: Duration,
    /// The connection breaks in the middle of a frame.
    pub break_permille: u16,
    /// No more bytes than these pass in a second, on each connection.
    pub bytes_per_second: Option<NonZeroU32>,
}

/// How a link is cut.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cut {
    /// Connections break, and new ones are closed at once: both ends know.
    Refused,
    /// Nothing comes through, and nobody is told, as behind a cable that was pulled. What was under way
    /// arrives when the link is there again, if the connection has not been given up by then.
    Silent,
}

impl Rule {
    /// A link that is cut.
    pub fn cut(how: Cut) -> Self {
        Self { cut: Some(how), ..Self::default() }
    }
}

/// What has passed over a link, and what has not, since the beginning.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Traffic {
    /// Frames that came, greetings and signs of life among them.
    pub frames: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Of the frames, those that were lost.
    pub lost: u64,
    /// Those that were sent on twice.
    pub doubled: u64,
    /// Those of which a bit was flipped, or some bytes sent on twice.
    pub spoiled: u64,
    /// Connections that broke in the middle of a frame.
    pub broken: u64,
    /// Connections that were closed because the link was cut.
    pub refused: u64,
    /// New ones that nobody has answered because it was.
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

    /// Its rule, as it changes.
    pub(crate) fn rule(&self) -> watch::Receiver<Rule> {
        self.rule.subscribe()
    }

    /// Counts.
    pub(crate) fn count(&self, count: impl FnOnce(&mut Traffic)) {
        count(&mut self.traffic.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

/// See the module. Clones are the same links.
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
    /// What happens to what `from` says to `to`.
    pub fn rule(&self, from: usize, to: usize) -> Rule {
        *self.link(from, to).rule.borrow()
    }

    /// From now on, also on connections that are there.
    pub fn set(&self, from: usize, to: usize, rule: Rule) {
        self.link(from, to).rule.send_replace(rule);
    }

    /// Cuts one direction, silently.
    pub fn cut(&self, from: usize, to: usize) {
        self.cut_so(from, to, Cut::Silent);
    }

    /// Cuts one direction in one way.
    pub fn cut_so(&self, from: usize, to: usize, how: Cut) {
        self.set(from, to, Rule { cut: Some(how), ..self.rule(from, to) });
    }

    /// Cuts both directions between each of `some` and each of `others`, silently.
    pub fn part(&self, some: &[usize], others: &[usize]) {
        for (a, b) in some.iter().flat_map(|a| others.iter().map(|b| (*a, *b))) {
            self.cut(a, b);
            self.cut(b, a);
        }
    }

    /// Nothing happens to anything any more.
    pub fn heal(&self) {
        for link in self.table().links.values() {
            link.rule.send_replace(Rule::default());
        }
    }

    /// What has passed over the link from one member to another.
    pub fn traffic(&self, from: usize, to: usize) -> Traffic {
        *self.link(from, to).traffic.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many connections were made by somebody who is no member, on whom nothing here has an effect: who
    /// asks to join, before it has.
    pub fn strangers(&self) -> u64 {
        self.table().strangers
    }

    pub(crate) fn link(&self, from: usize, to: usize) -> Arc<Link> {
        let mut table = self.table();
        Arc::clone(table.links.entry((from, to)).or_insert_with(|| Arc::new(Link::new())))
    }

    /// A link of its own for somebody who is no member.
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
