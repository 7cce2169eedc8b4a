//! Explains a mismatch of cluster ids: compares the configurations of two members and finds out how
//! they differ.
//!
//! A cluster's id is derived from its token and the names of its founding members. The upper half
//! of the id depends on the token alone. Therefore a comparison of two ids reveals whether the
//! tokens or the names differ. To compare the names, the member that was dialed appends its own
//! list to its rejection, and the dialer compares that list with its own.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Mutex, PoisonError};

use crate::model::{ClusterId, Hello, NodeId};

/// Separates the name of the rejecting member from its list of names in a rejection.
const LISTS: &str = " lists ";
/// Maximum number of other clusters to remember. A larger number can only be caused by forged
/// hellos.
const CLUSTERS_MAX: usize = 16;

/// Two members of different clusters, as seen by one of them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct OtherCluster {
    mine: ClusterId,
    theirs: ClusterId,
    /// The other member: the address that it reports, and its id.
    address: String,
    id: NodeId,
    /// The name of this member, and the names that it knows.
    own: (String, Vec<String>),
}

impl OtherCluster {
    /// Creates the difference between two hellos. The two clusters assign ids independently, so an
    /// id does not identify a member of the other cluster.
    pub(super) fn new(mine: &Hello, theirs: &Hello) -> Self {
        let own = (format!("member {}", mine.from), Vec::new());
        let (address, id) = (theirs.address.clone(), theirs.from);
        Self { mine: mine.cluster, theirs: theirs.cluster, address, id, own }
    }

    /// Adds the name of this member and the names that it knows.
    pub(super) fn of(self, own: String, names: Vec<String>) -> Self {
        Self { own: (own, names), ..self }
    }

    /// Returns the cluster of the other member.
    pub(super) fn theirs(&self) -> ClusterId {
        self.theirs
    }

    /// Returns the address that the other member reports.
    pub(super) fn address(&self) -> &str {
        &self.address
    }
}

impl fmt::Display for OtherCluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { mine, theirs, address, id, own: (own, names) } = self;
        let other = match address.is_empty() {
            true => format!("member {id}"),
            false => format!("the member at {address}"),
        };
        let differs = match mine.0 >> 64 == theirs.0 >> 64 {
            true => {
                "they were started with different lists of founding members, or from different backups"
            }
            false => "they were started with different cluster tokens",
        };
        write!(f, "{own} belongs to cluster {mine}, {other} to cluster {theirs}: {differs}")?;
        if names.is_empty() { Ok(()) } else { write!(f, "; {own}{LISTS}{}", list(names)) }
    }
}

/// The findings about members of other clusters.
#[derive(Default)]
pub(super) struct OtherClusters {
    /// The explanation for each other cluster. The key is the part of the cluster's id that is
    /// displayed.
    explained: Mutex<BTreeMap<u64, String>>,
}

impl OtherClusters {
    /// Explains the rejection `why` of a member of another cluster. Returns its text, with the
    /// difference between its list of names and the list of this member, whose cluster is `mine`.
    /// Returns `None` if the rejection has another reason.
    pub(super) fn explain(
        &self,
        why: &str,
        mine: ClusterId,
        own: &str,
        names: &[String],
    ) -> Option<String> {
        let (before, theirs) = why.rsplit_once(LISTS)?;
        let theirs = listed(theirs)?;
        let (_, other) = before.rsplit_once("; ")?;
        let own_id = mine.to_string();
        let words = before.split([' ', ',', ':']);
        let mut ids = words.filter(|word| word.len() == own_id.len() && *word != own_id);
        let cluster = u64::from_str_radix(ids.next()?, 16).ok()?;
        let only = |here: &[String], there: &[String]| {
            let only: Vec<_> = here.iter().filter(|name| !there.contains(name)).collect();
            only.iter().map(|name| name.as_str()).collect::<Vec<_>>().join(", ")
        };
        let (only_here, only_there) = (only(names, &theirs), only(&theirs, names));
        let mut explained = format!("{why}, {own}{LISTS}{}", list(names));
        match (only_here.is_empty(), only_there.is_empty()) {
            (true, true) => explained += ": the lists are equal",
            (false, true) => explained += &format!(": only {own} lists {only_here}"),
            (true, false) => explained += &format!(": only {other} lists {only_there}"),
            (false, false) => {
                explained +=
                    &format!(": only {own} lists {only_here}, only {other} lists {only_there}");
            }
        }
        let mut all = self.explained.lock().unwrap_or_else(PoisonError::into_inner);
        if all.len() >= CLUSTERS_MAX {
            all.clear();
        }
        all.insert(cluster, explained.clone());
        Some(explained)
    }

    /// Returns the findings about members of `cluster`.
    pub(super) fn explained(&self, cluster: ClusterId) -> Option<String> {
        let all = self.explained.lock().unwrap_or_else(PoisonError::into_inner);
        all.get(&(cluster.0 as u64)).cloned()
    }
}

fn list(names: &[String]) -> String {
    format!("[{}]", names.join(", "))
}

/// Returns the names in a list. A name that contains a comma is split, which is good enough for a
/// text that only people read.
fn listed(list: &str) -> Option<Vec<String>> {
    let names = list.strip_prefix('[')?.strip_suffix(']')?;
    Some(names.split(", ").map(str::to_owned).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{ClusterVersion, DiskId, FoundingState, Incarnation, LogIndex};

    fn hello(cluster: u128, from: u64, to: u64, address: &str) -> Hello {
        Hello {
            cluster: ClusterId(cluster),
            from: NodeId::new(from).unwrap(),
            to: NodeId::new(to).unwrap(),
            disk: DiskId(1),
            incarnation: Incarnation(1),
            standing: FoundingState::Blank,
            since: LogIndex(1),
            address: address.to_owned(),
            supported_version: ClusterVersion::NEWEST,
        }
    }

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    /// Returns what n1 finds when it dials n2.
    fn explained(clusters: [u128; 2], lists: [&[&str]; 2]) -> String {
        let [own, other] = clusters;
        let rejection = OtherCluster::new(&hello(other, 2, 1, "h:2"), &hello(own, 1, 2, "h:1"));
        let rejection = rejection.of("n2".to_owned(), names(lists[1])).to_string();
        let all = OtherClusters::default();
        let found = all.explain(&rejection, ClusterId(own), "n1", &names(lists[0])).unwrap();
        assert_eq!(all.explained(ClusterId(other)), Some(found.clone()));
        found
    }

    #[test]
    fn different_founding_lists_are_explained() {
        const TOKEN: u128 = 0x794d_1ba9 << 96;
        let cases: [(u128, [&[&str]; 2], &str, &str); 4] = [
            (
                TOKEN + 2,
                [&["n1", "n2", "n3"], &["n1", "n2", "n4"]],
                "different lists of founding members",
                "; n2 lists [n1, n2, n4], n1 lists [n1, n2, n3]: only n1 lists n3, only n2 lists n4",
            ),
            (TOKEN + 2, [&["n1", "n2"], &["n1"]], "founding members", ": only n1 lists n2"),
            (TOKEN + 2, [&["n2"], &["n2", "n4", "n5"]], "founding", ": only n2 lists n4, n5"),
            (9 << 64, [&["n1"], &["n1"]], "different cluster tokens", ": the lists are equal"),
        ];
        for (other, lists, what, end) in cases {
            let found = explained([TOKEN + 1, other], lists);
            assert!(found.contains(what) && found.ends_with(end), "{found}");
            let ids = [TOKEN + 1, other].map(|id| ClusterId(id).to_string());
            assert!(ids.iter().all(|id| found.contains(id.as_str())), "{found}");
            assert!(found.contains("the member at h:1"), "{found}");
        }
    }

    #[test]
    fn other_rejections_are_unchanged() {
        let all = OtherClusters::default();
        let explain = |why: &str| all.explain(why, ClusterId(1), "n1", &[]);
        for why in [
            "member 4 is unknown to member 1",
            "x lists [a]",
            "x; y lists a",
            "x; y lists [a",
            "x; y lists [a]",
            "x 0000000000000001; y lists [a]",
        ] {
            assert_eq!(explain(why), None, "{why}");
        }
    }
}
