//! Alarms in etcd's protocol. An alarm that was raised belongs to the whole cluster, and the state machine rejects
//! requests while the alarm is active. In addition, each member reports its own problems as alarms. Such alarms reject
//! no requests, and clear when the problem ends.

use std::sync::Arc;

use bowline::{
    NodeId,
    cluster::{Alarm, AlarmChange, AlarmKind},
};

use crate::member::Member;
use crate::no_space::NoSpace;
use bowline_proto::etcdserverpb as pb;

/// The alarms that a member reports.
pub(crate) struct Alarms {
    member: Arc<Member>,
    no_space: NoSpace,
}

impl Alarms {
    pub(crate) fn new(member: &Arc<Member>) -> Self {
        Self { member: Arc::clone(member), no_space: NoSpace::default() }
    }

    /// Returns the active alarms that this member knows. The raised alarms come first, sorted by member, then this
    /// member's own.
    pub(crate) fn active(&self) -> Vec<pb::AlarmMember> {
        let raised = self.member.client().alarms();
        let own = self.own().into_iter().filter(|alarm| !raised.contains(alarm));
        raised.iter().copied().chain(own).map(to_alarm_member).collect()
    }

    /// Returns this member's own alarms. They are not stored, but computed from the member's health.
    fn own(&self) -> Vec<Alarm> {
        let health = self.member.node().health();
        let full = health.disk_full || self.no_space.is_raised(self.member.state_bytes());
        let kinds = [(AlarmKind::NoSpace, full), (AlarmKind::Corrupt, health.diverged)];
        let are = kinds.into_iter().filter(|(_, is)| *is);
        are.map(|(kind, _)| Alarm { member: Some(self.member.id()), kind }).collect()
    }

    /// Returns whether the member is unhealthy because of this kind of alarm: either the alarm was raised for the
    /// cluster, or a local problem keeps the member from serving.
    pub(crate) fn is_unhealthy(&self, kind: AlarmKind) -> bool {
        let health = self.member.node().health();
        let is_local = match kind {
            AlarmKind::NoSpace => health.disk_full,
            AlarmKind::Corrupt => health.diverged,
        };
        is_local || self.member.client().alarms().stands(kind)
    }

    /// Raises this member's own alarm that the quota has rejected a request.
    pub(crate) fn raise_no_space(&self) {
        self.no_space.refused(self.member.state_bytes());
    }

    /// Clears this member's own alarm that the quota has rejected a request, if the change selects it.
    pub(crate) fn clear_no_space(&self, change: &AlarmChange) -> Option<pb::AlarmMember> {
        let alarm = Alarm { member: Some(self.member.id()), kind: AlarmKind::NoSpace };
        let is_meant = match change {
            AlarmChange::Raise(_) => false,
            AlarmChange::End(Alarm { member, kind }) => {
                *kind == alarm.kind && [None, alarm.member].contains(member)
            }
            AlarmChange::EndAllOf(member) => alarm.member == Some(*member),
            AlarmChange::EndAll => true,
        };
        (is_meant && self.no_space.end()).then(|| to_alarm_member(alarm))
    }
}

/// Converts a request to disarm alarms. Unlike in etcd, a request without a kind selects all kinds; in etcd it selects
/// none.
pub(crate) fn ending(member_id: u64, kind: Option<AlarmKind>) -> AlarmChange {
    match (NodeId::new(member_id), kind) {
        (member, Some(kind)) => AlarmChange::End(Alarm { member, kind }),
        (Some(member), None) => AlarmChange::EndAllOf(member),
        (None, None) => AlarmChange::EndAll,
    }
}

/// Converts an alarm type; `NONE` becomes `None`.
pub(crate) fn kind(alarm: pb::AlarmType) -> Option<AlarmKind> {
    match alarm {
        pb::AlarmType::None => None,
        pb::AlarmType::Nospace => Some(AlarmKind::NoSpace),
        pb::AlarmType::Corrupt => Some(AlarmKind::Corrupt),
    }
}

/// Converts an alarm to the protocol.
pub(crate) fn to_alarm_member(alarm: Alarm) -> pb::AlarmMember {
    let kind = match alarm.kind {
        AlarmKind::NoSpace => pb::AlarmType::Nospace,
        AlarmKind::Corrupt => pb::AlarmType::Corrupt,
    };
    pb::AlarmMember { member_id: alarm.member.map_or(0, NodeId::get), alarm: kind.into() }
}
