//! Connections that are reset and refused, by the end of a process or by a proxy between two nodes that run.
//!
//! The library decides what a node concludes from them ([`ProcessEvidence`]). Two connected nodes have four
//! connections: one in each direction on the control lane and on the bulk lane.

use std::time::Duration;

use super::{Happening, World};
use crate::model::{Lane, Term};
use crate::node::Look;
use crate::sim::judge::Before;
use crate::sim::plan::{ResetReach, Who, between, index, one_in};
use crate::transport::{ConnectionEnd, ConnectionEvent};

/// Number of connections between two connected nodes.
pub(super) const CONNECTIONS: usize = 4;

/// Maximum time from the end of a connection to the next dial.
const REDIAL_MAX: Duration = Duration::from_millis(3);

/// The address at which each node is dialed. The world has no other addresses.
const ADDRESS: &str = "it";

impl World {
    /// Processes an event on the connections of node `at` with node `peer`, and notifies the process of its result.
    pub(super) fn observe(&mut self, at: usize, peer: usize, event: ConnectionEvent<'_>) {
        if self.nodes[at].running().is_none() {
            self.connections.evidence.remove(&(at, peer));
            return;
        }
        let evidence = self.connections.evidence.entry((at, peer)).or_default();
        let had_ended = evidence.has_ended();
        evidence.apply(event);
        let has_ended = evidence.has_ended();
        if had_ended == has_ended {
            return;
        }
        let (id, id_peer) = (self.nodes[at].id, self.nodes[peer].id);
        self.note(39, &[id.get(), id_peer.get(), u64::from(has_ended)], || {
            format!("{id:?} has evidence that {id_peer:?} has ended: {has_ended}")
        });
        if let Some(process) = self.nodes[at].running() {
            process.process_ended(id_peer, has_ended);
        }
    }

    /// Records the result of a dial from `at` to `peer`. Returns whether the dial is refused.
    pub(super) fn dial_result(&mut self, at: usize, peer: usize) -> bool {
        let (id, id_peer) = (self.nodes[at].id, self.nodes[peer].id);
        if self.nodes[at].paused || !self.net.is_passable(id, id_peer) {
            return false;
        }
        let node = &self.nodes[peer];
        let is_dead = node.running().is_none();
        let is_refused = match is_dead {
            true => self.connections.killed.contains(&peer) || node.process.is_some(),
            false => self.net.refuses(id, id_peer),
        };
        if is_refused {
            let addresses = [ADDRESS.to_owned()];
            let event = ConnectionEvent::DialRefused { address: ADDRESS, addresses: &addresses };
            self.observe(at, peer, event);
        } else if !is_dead {
            self.observe(at, peer, ConnectionEvent::DialNotRefused);
        }
        is_refused
    }

    pub(super) fn redial_soon(&mut self, a: usize, b: usize) {
        let wait = between(&self.rng, Duration::ZERO, REDIAL_MAX);
        self.schedule_in(wait, Happening::Redial { a: a.min(b), b: a.max(b) });
    }

    /// Resets connections of a node and refuses new ones for a while.
    pub(super) fn reset(&mut self, who: Who, reach: ResetReach, time: Duration) {
        let Some(at) = self.find(who) else { return };
        let mut others: Vec<usize> = (0..self.nodes.len()).filter(|other| *other != at).collect();
        if reach != ResetReach::Node {
            let other = index(&self.rng, others.len().max(1));
            others = others.get(other).copied().into_iter().collect();
        }
        let peers = self.ids(&others);
        self.explain(|| format!("connections of {:?} with {peers:?} are reset", self.nodes[at].id));
        for other in others {
            let time = between(&self.rng, Duration::ZERO, time);
            let (a, b) = (at.min(other), at.max(other));
            if reach == ResetReach::Lane {
                self.reset_lane(a, b, time);
                continue;
            }
            let (id_a, id_b) = (self.nodes[a].id, self.nodes[b].id);
            let until = self.timeline.now() + time;
            // Sometimes only the dials of one side pass a proxy that refuses them.
            let both = !one_in(&self.rng, 3);
            let first = one_in(&self.rng, 2);
            for (from, to, is_first) in [(id_a, id_b, true), (id_b, id_a, false)] {
                if both || is_first == first {
                    self.net.refuse(from, to, until);
                }
            }
            self.disconnect(a, b, ConnectionEnd::ByPeer);
            self.redial_soon(a, b);
        }
    }

    /// Resets one lane between two nodes and refuses it for a while. The other lane stays.
    fn reset_lane(&mut self, a: usize, b: usize, time: Duration) {
        let (id_a, id_b) = (self.nodes[a].id, self.nodes[b].id);
        let Some(connection) = self.net.connected(id_a, id_b) else { return };
        let lane = [Lane::Control, Lane::Bulk][index(&self.rng, 2)];
        if !self.net.close_lane(id_a, id_b, lane) {
            return;
        }
        let addresses = [ADDRESS.to_owned()];
        for (at, peer) in [(a, b), (b, a)] {
            for _ in 0..CONNECTIONS / 2 {
                self.observe(at, peer, ConnectionEvent::Ended(ConnectionEnd::ByPeer));
            }
            let event = ConnectionEvent::DialRefused { address: ADDRESS, addresses: &addresses };
            self.observe(at, peer, event);
        }
        self.schedule_in(time, Happening::LaneOpens { a, b, connection, lane });
    }

    pub(super) fn open_lane(&mut self, a: usize, b: usize, connection: u64, lane: Lane) {
        let (id_a, id_b) = (self.nodes[a].id, self.nodes[b].id);
        if self.net.connected(id_a, id_b) != Some(connection) {
            return;
        }
        self.net.open_lane(id_a, id_b, lane);
        for (at, peer) in [(a, b), (b, a)] {
            for _ in 0..CONNECTIONS / 2 {
                self.observe(at, peer, ConnectionEvent::Opened);
            }
        }
    }

    /// Checks that a node that receives messages from its leader abandons the leader only if it has evidence.
    pub(super) fn check_early(&self, at: usize, before: Before, look: &Look) {
        if before.term == Term(0) {
            return;
        }
        let id = self.nodes[at].id;
        let connected = |leader| self.net.connected_since(id, leader);
        self.judge.borrow_mut().check_early(id, look, before.term, connected);
    }
}
