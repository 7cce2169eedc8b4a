//! Alarms in the protocol's terms: those that somebody has raised, for the whole cluster, and beside them what is so by itself
//! at this member. The first the state machine knows and enforces; the second forbid nothing here, and end by themselves.

use bowline::{
    NodeId,
    cluster::{Alarm, AlarmChange, AlarmKind},
};

use super::member::Member;
use crate::generated::etcdserverpb as pb;

/// The alarms that stand, as this member knows them: first those that were raised, by member, then what is so here.
pub(super) fn standing(member: &Member) -> Vec<pb::AlarmMember> {
    let raised = member.client().alarms();
    let own = own(member).into_iter().filter(|alarm| !raised.contains(alarm));
    raised.iter().copied().chain(own).map(said).collect()
}

/// What is wrong with this member. Nobody raises it: it is so, or it is not.
fn own(member: &Member) -> Vec<Alarm> {
    let health = member.node().health();
    let full = health.disk_full || member.no_space().is_raised(member.state_bytes());
    let kinds = [(AlarmKind::NoSpace, full), (AlarmKind::Corrupt, health.diverged)];
    let are = kinds.into_iter().filter(|(_, is)| *is);
    are.map(|(kind, _)| Alarm { member: Some(member.id()), kind }).collect()
}

/// Why a member is not well, if it is for an alarm: one that was raised for the cluster, or what is so here and keeps it
/// from serving.
pub(super) fn ails(member: &Member, kind: AlarmKind) -> bool {
    let health = member.node().health();
    let is_so = match kind {
        AlarmKind::NoSpace => health.disk_full,
        AlarmKind::Corrupt => health.diverged,
    };
    is_so || member.client().alarms().stands(kind)
}

/// Ends what is so at this member, as far as it is meant and can be ended: that something was refused for the quota.
pub(super) fn end_own(member: &Member, change: &AlarmChange) -> Option<pb::AlarmMember> {
    let alarm = Alarm { member: Some(member.id()), kind: AlarmKind::NoSpace };
    let is_meant = match change {
        AlarmChange::Raise(_) => false,
        AlarmChange::End(Alarm { member, kind }) => {
            *kind == alarm.kind && [None, alarm.member].contains(member)
        }
        AlarmChange::EndAllOf(member) => alarm.member == Some(*member),
        AlarmChange::EndAll => true,
    };
    (is_meant && member.no_space().end()).then(|| said(alarm))
}

impl pb::AlarmMember {
    /// As etcd writes it for people, whose Go leaves a zero out.
    pub(crate) fn in_words(&self) -> String {
        let member = match self.member_id {
            0 => String::new(),
            id => format!("memberID:{id} "),
        };
        format!("{member}alarm:{} ", self.alarm().as_str_name())
    }
}

/// What a request to end alarms means. One that names no kind means all of them; here, not in etcd, where it ends none.
pub(super) fn ending(member_id: u64, kind: Option<AlarmKind>) -> AlarmChange {
    match (NodeId::new(member_id), kind) {
        (member, Some(kind)) => AlarmChange::End(Alarm { member, kind }),
        (Some(member), None) => AlarmChange::EndAllOf(member),
        (None, None) => AlarmChange::EndAll,
    }
}

/// A kind, if one is named.
pub(super) fn kind(alarm: pb::AlarmType) -> Option<AlarmKind> {
    match alarm {
        pb::AlarmType::None => None,
        pb::AlarmType::Nospace => Some(AlarmKind::NoSpace),
        pb::AlarmType::Corrupt => Some(AlarmKind::Corrupt),
    }
}

/// An alarm, as it is said.
pub(super) fn said(alarm: Alarm) -> pb::AlarmMember {
    let kind = match alarm.kind {
        AlarmKind::NoSpace => pb::AlarmType::Nospace,
        AlarmKind::Corrupt => pb::AlarmType::Corrupt,
    };
    pb::AlarmMember { member_id: alarm.member.map_or(0, NodeId::get), alarm: kind.into() }
}
