//! Founds a cluster exactly once.
//!
//! A member on a new disk does not vote, propose or answer. The founder is the founding member with
//! the lowest id. The founder waits until it has met all founding members, each on a new disk. Then
//! the founder records a list of the founders and their disk ids. The other founding members take
//! this list from the founder, or from any member that has it. If a member's disk id differs from
//! the list, the member has lost its disk. Such a member must not come back under its old id,
//! because it may have voted and acknowledged entries that it no longer has. So two wiped disks out
//! of three never form an empty quorum: the third member still has the list and shows it to the
//! other two.
//!
//! Since there is only one founder, members that share a quorum never have different lists. If the
//! founder loses its disk after it has recorded the list, it starts again on a new disk. If any
//! other founding member has the old list, the founder stops. Otherwise no other founding member has
//! ever taken part in consensus, and the founder records a new list.

use std::collections::BTreeMap;

use std::time::Duration;

use crate::model::{DiskId, FoundingState, Hello, Moment, NodeId};
use crate::wal;

/// Time before the first log line about missing founding members. A cluster that is founded sooner
/// logs none.
const FIRST_REPORT: Duration = Duration::from_millis(500);

/// Minimum time between two log lines if the missing members have changed.
const REPORT_INTERVAL: Duration = Duration::from_secs(1);

/// Time after which an unchanged log line is repeated.
const UNCHANGED_REPORT_INTERVAL: Duration = Duration::from_secs(60);

/// The state of a member on a new disk: the founding members that it has met.
#[derive(Debug)]
pub(crate) struct Founding {
    me: NodeId,
    disk: DiskId,
    members: Vec<NodeId>,
    met: BTreeMap<NodeId, DiskId>,
    /// Whether `met` is the recorded list, received from a member that has it.
    has_list: bool,
    /// Time of the first call of [`Founding::report`].
    began: Option<Moment>,
    /// Time and content of the last report.
    reported: Option<(Moment, Vec<NodeId>)>,
}

impl Founding {
    /// Returns the state of a member that has met only itself.
    pub(crate) fn new(me: NodeId, disk: DiskId, members: Vec<NodeId>) -> Self {
        let met = BTreeMap::from([(me, disk)]);
        Self { me, disk, members, met, has_list: false, began: None, reported: None }
    }

    /// Processes the introduction of a peer.
    ///
    /// # Errors
    /// If the cluster exists and this disk is not part of it, returns the text with which the node
    /// stops.
    pub(crate) fn hear(&mut self, hello: &Hello) -> Result<(), String> {
        match &hello.standing {
            FoundingState::Blank if self.has_list => Ok(()),
            FoundingState::Blank => {
                self.met.insert(hello.from, hello.disk);
                Ok(())
            }
            FoundingState::Founded(list) if list.get(&self.me) == Some(&self.disk) => {
                self.met.clone_from(list);
                self.has_list = true;
                Ok(())
            }
            FoundingState::Founded(_) => Err(format!(
                "member {} reports that the cluster already exists and that this member's data was on another \
                 disk: a member that has lost its disk must be replaced under a new id, and cannot come back \
                 under its old one",
                hello.from
            )),
        }
    }

    /// Returns the list of founders, once this member may record it.
    pub(crate) fn done(&self) -> Option<wal::Founding> {
        let all = !self.members.is_empty()
            && self.members.iter().all(|member| self.met.contains_key(member));
        (all && (self.has_list || self.me == self.founder())).then(|| self.met.clone())
    }

    /// Returns the founding members that have not been met.
    pub(crate) fn missing(&self) -> Vec<NodeId> {
        self.members.iter().copied().filter(|member| !self.met.contains_key(member)).collect()
    }

    /// Returns the members for which this member waits: the founding members that it has not met,
    /// or else the founder, which may not have met all of them. Empty if this member waits for
    /// none.
    pub(crate) fn waits_for(&self) -> Vec<NodeId> {
        let missing = self.missing();
        if !missing.is_empty() || self.done().is_some() || self.members.is_empty() {
            return missing;
        }
        vec![self.founder()]
    }

    /// If a log line is due, returns the members for which this member waits.
    pub(crate) fn report(&mut self, now: Moment) -> Option<Vec<NodeId>> {
        let began = *self.began.get_or_insert(now);
        let waits_for = self.waits_for();
        let is_due = match &self.reported {
            None => now.since(began) >= FIRST_REPORT,
            Some((at, before)) if *before == waits_for => {
                now.since(*at) >= UNCHANGED_REPORT_INTERVAL
            }
            Some((at, _)) => now.since(*at) >= REPORT_INTERVAL,
        };
        if waits_for.is_empty() || !is_due {
            return None;
        }
        self.reported = Some((now, waits_for.clone()));
        Some(waits_for)
    }

    fn founder(&self) -> NodeId {
        *self.members.iter().min().expect("a cluster has members")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::samples::node;
    use crate::model::{ClusterId, Incarnation};
    use crate::model::{ClusterVersion, LogIndex};

    fn hello(from: u64, disk: u128, standing: FoundingState) -> Hello {
        Hello {
            cluster: ClusterId(7),
            from: node(from),
            to: node(9),
            disk: DiskId(disk),
            incarnation: Incarnation(1),
            standing,
            since: LogIndex(1),
            address: String::new(),
            supported_version: ClusterVersion::NEWEST,
        }
    }

    fn three(me: u64) -> Founding {
        Founding::new(node(me), DiskId(u128::from(me)), vec![node(1), node(2), node(3)])
    }

    fn list(disks: [u128; 3]) -> wal::Founding {
        (1..).map(node).zip(disks.map(DiskId)).collect()
    }

    #[test]
    fn single_member_bootstraps_at_once() {
        let founding = Founding::new(node(1), DiskId(1), vec![node(1)]);
        assert_eq!(founding.done(), Some(BTreeMap::from([(node(1), DiskId(1))])));
    }

    #[test]
    fn founder_waits_until_it_has_met_all_members() {
        let mut founding = three(1);
        founding.hear(&hello(2, 2, FoundingState::Blank)).unwrap();
        assert_eq!(founding.done(), None);
        assert_eq!(founding.missing(), [node(3)]);
        founding.hear(&hello(3, 3, FoundingState::Blank)).unwrap();
        assert_eq!(founding.done(), Some(list([1, 2, 3])));
    }

    #[test]
    fn other_members_wait_for_the_list_of_the_founder() {
        let mut founding = three(2);
        founding.hear(&hello(1, 1, FoundingState::Blank)).unwrap();
        founding.hear(&hello(3, 3, FoundingState::Blank)).unwrap();
        assert_eq!(founding.done(), None);
        founding.hear(&hello(3, 3, FoundingState::Founded(list([1, 2, 3])))).unwrap();
        assert_eq!(founding.done(), Some(list([1, 2, 3])));
        founding.hear(&hello(1, 1, FoundingState::Founded(list([1, 2, 3])))).unwrap();
        assert_eq!(founding.done(), Some(list([1, 2, 3])), "it may be received twice");
    }

    #[test]
    fn waiting_member_names_absent_peers_within_a_second() {
        let at = |ms| Moment::since_boot(Duration::from_millis(ms));
        let mut founding = three(2);
        assert_eq!(founding.report(at(0)), None);
        assert_eq!(founding.report(at(499)), None, "the others may be starting");
        assert_eq!(founding.report(at(500)), Some(vec![node(1), node(3)]));
        founding.hear(&hello(1, 1, FoundingState::Blank)).unwrap();
        assert_eq!(founding.report(at(1_400)), None);
        assert_eq!(founding.report(at(1_500)), Some(vec![node(3)]));
        assert_eq!(founding.report(at(61_400)), None);
        assert_eq!(founding.report(at(61_500)), Some(vec![node(3)]));
        founding.hear(&hello(3, 3, FoundingState::Blank)).unwrap();
        assert_eq!(founding.waits_for(), [node(1)], "the founder has not met all of them");
        founding.hear(&hello(3, 3, FoundingState::Founded(list([1, 2, 3])))).unwrap();
        assert_eq!(founding.waits_for(), []);
    }

    #[test]
    fn a_member_whose_disk_is_not_in_the_list_stops() {
        for me in [1, 2] {
            let why =
                three(me).hear(&hello(3, 3, FoundingState::Founded(list([8, 9, 3])))).unwrap_err();
            assert!(why.contains("must be replaced under a new id"), "{why}");
        }
    }
}
