//! The members, as known to this node: the replicated list of members or, until that list is
//! available, the configuration and the introductions of peers.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::model::{Members, NodeId, addresses};

use crate::node::settings::Contact;

/// The members, as known to this node.
#[derive(Debug)]
pub(crate) struct Roster {
    me: NodeId,
    members: Arc<Members>,
    /// Members from the configuration, or from peers that this replica does not know yet.
    hints: BTreeMap<NodeId, Contact>,
    /// The addresses that members gave in their introduction. A member that has moved can announce
    /// its new address only after the leader has contacted it.
    introduced: BTreeMap<NodeId, String>,
}

impl Roster {
    /// Returns a roster that knows only the configuration.
    pub(crate) fn new(me: NodeId, hints: BTreeMap<NodeId, Contact>) -> Self {
        Self { me, members: Arc::default(), hints, introduced: BTreeMap::new() }
    }

    pub(crate) fn members(&self) -> &Arc<Members> {
        &self.members
    }

    /// Updates the members after this replica has applied a change.
    pub(crate) fn update(&mut self, members: &Members) {
        let before = std::mem::replace(&mut self.members, Arc::new(members.clone()));
        let members = &self.members;
        // A newly announced address is newer than the address in any introduction.
        let address = |members: &Members, id| members.get(id).map(|member| member.address.clone());
        self.introduced.retain(|id, _| address(&before, *id) == address(members, *id));
        self.hints.retain(|id, _| !members.is_removed(*id));
    }

    /// Records the address from a member's introduction. Returns whether the address is new.
    pub(crate) fn hear(&mut self, id: NodeId, address: &str) -> bool {
        if address.is_empty() || self.members.is_removed(id) {
            return false;
        }
        if self.members.get(id).is_none() {
            self.hints.entry(id).or_default();
        }
        let news = self.address_of(id) != Some(address);
        self.introduced.insert(id, address.to_owned());
        news
    }

    /// Returns the other members, in the order of their ids.
    pub(crate) fn peers(&self) -> Vec<NodeId> {
        let known = self.members.rows().keys().chain(self.members.outgoing());
        let mut peers: Vec<NodeId> = if self.members.rows().is_empty() {
            self.hints.keys().copied().collect()
        } else {
            known.copied().collect()
        };
        peers.sort_unstable();
        peers.dedup();
        peers.retain(|peer| *peer != self.me);
        peers
    }

    /// Returns the name of a member, for log lines and errors.
    pub(crate) fn name_of(&self, id: NodeId) -> String {
        let announced = self.members.get(id).map(|member| member.name.as_str());
        let hint = || self.hints.get(&id).map(|hint| hint.name.as_str());
        match announced.filter(|name| !name.is_empty()).or_else(hint) {
            Some(name) if !name.is_empty() => name.to_owned(),
            _ => format!("member {id}"),
        }
    }

    /// Returns the name of the member with this address, for log lines and errors. Its id need not
    /// be known.
    pub(crate) fn name_at(&self, address: &str) -> String {
        let known = self.members.rows().keys().chain(self.hints.keys());
        let found = known.copied().find(|id| self.address_of(*id) == Some(address));
        found.map_or_else(|| format!("the member at {address}"), |id| self.name_of(id))
    }

    /// Returns the names and addresses of members, for log lines and errors: `m2 (10.0.0.2:7400)`.
    pub(crate) fn places(&self, members: &[NodeId]) -> Vec<String> {
        let place = |id: &NodeId| match self.address_of(*id) {
            Some(address) => format!("{} ({address})", self.name_of(*id)),
            None => self.name_of(*id),
        };
        members.iter().map(place).collect()
    }

    /// Returns the address of a member, if it is known.
    pub(crate) fn address_of(&self, id: NodeId) -> Option<&str> {
        let announced = self.members.get(id).map(|member| member.address.as_str());
        let hint = || self.hints.get(&id).map(|hint| hint.address.as_str());
        let known = announced.filter(|address| !address.is_empty()).or_else(hint);
        self.introduced.get(&id).map(String::as_str).or(known).filter(|address| !address.is_empty())
    }

    /// Returns the current address of a member and the address to which it moves, without
    /// duplicates.
    fn places_of(&self, id: NodeId) -> Vec<String> {
        let moves_to = self.members.get(id).and_then(|member| member.moves_to.as_deref());
        let mut places: Vec<String> = Vec::new();
        for place in self.address_of(id).into_iter().chain(moves_to).flat_map(addresses) {
            if !places.iter().any(|known| known == place) {
                places.push(place.to_owned());
            }
        }
        places
    }

    /// Returns the members that this node keeps connections to, each with the addresses to try in
    /// turn. A learner connects to voters, and to unknown members that have contacted it. Such an
    /// unknown member may be a leader whose joining the learner has not applied yet.
    pub(crate) fn contacts(&self) -> BTreeMap<NodeId, Vec<String>> {
        let learns = self.members.get(self.me).is_some() && !self.members.is_voter(self.me);
        let stranger = |id: &NodeId| self.members.get(*id).is_none();
        let wanted = |id: &NodeId| !learns || self.members.is_voter(*id) || stranger(id);
        let mut ids = self.peers();
        ids.extend(self.hints.keys().copied().filter(|id| *id != self.me && stranger(id)));
        ids.into_iter()
            .filter(wanted)
            .map(|id| (id, self.places_of(id)))
            .filter(|(_, places)| !places.is_empty())
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::samples::node;
    use crate::model::{DiskId, LogIndex, MemberAttributes, MemberChange};

    fn attributes(name: &str, address: &str) -> MemberAttributes {
        MemberAttributes {
            name: name.to_owned(),
            address: address.to_owned(),
            ..MemberAttributes::default()
        }
    }

    fn contact(name: &str, address: &str) -> Contact {
        Contact { name: name.to_owned(), address: address.to_owned() }
    }

    fn hints() -> BTreeMap<NodeId, Contact> {
        let names = [("a", "a:1"), ("b", "b:1"), ("c", "c:1")];
        (1..).map(node).zip(names.map(|(name, address)| contact(name, address))).collect()
    }

    #[test]
    fn announced_address_overrides_the_configured_one() {
        let mut roster = Roster::new(node(1), hints());
        assert_eq!(roster.peers(), [node(2), node(3)]);
        let mut members = Members::founded(&(1..=3).map(|n| (node(n), DiskId(n.into()))).collect());
        members.announce(node(2), &attributes("bee", "bee:2"));
        roster.update(&members);
        assert_eq!((roster.name_of(node(2)), roster.name_of(node(3))), ("bee".into(), "c".into()));
        let contacts: BTreeMap<_, _> =
            [(node(2), vec!["bee:2".to_owned()]), (node(3), vec!["c:1".to_owned()])].into();
        assert_eq!(roster.contacts(), contacts);
        assert!(!roster.hear(node(2), "bee:2") && roster.hear(node(3), "sea:3"));
        assert_eq!(roster.address_of(node(3)), Some("sea:3"));
        assert!(roster.hear(node(2), "moved:2"), "before it could announce it");
        assert_eq!(roster.address_of(node(2)), Some("moved:2"));
        members.announce(node(2), &attributes("bee", "again:2"));
        roster.update(&members);
        assert_eq!(roster.address_of(node(2)), Some("again:2"));
        members.move_to(node(2), "far:2").unwrap();
        roster.update(&members);
        assert_eq!(roster.contacts()[&node(2)], ["again:2", "far:2"]);
        roster.hear(node(2), "far:2");
        assert_eq!(roster.contacts()[&node(2)], ["far:2"], "it is there");
    }

    #[test]
    fn learner_contacts_voters_and_removed_members_get_no_contact() {
        let mut members = Members::founded(&(1..=3).map(|n| (node(n), DiskId(n.into()))).collect());
        for number in [4, 5] {
            let (name, address) = (format!("m{number}"), format!("m{number}:1"));
            let (id, disk) = (node(number), DiskId(number.into()));
            let add = MemberChange::Add { id, disk, name, address, replaces: None };
            members.apply(LogIndex(number), &add);
        }
        members.apply(LogIndex(6), &MemberChange::Remove(node(3)));
        let mut roster = Roster::new(node(5), hints());
        roster.update(&members);
        roster.hear(node(9), "m9:1");
        assert_eq!(roster.contacts().keys().map(|id| id.get()).collect::<Vec<_>>(), [1, 2, 9]);
        assert!(!roster.hear(node(3), "c:1"));
        assert_eq!(roster.name_of(node(77)), "member 77");
    }
}
