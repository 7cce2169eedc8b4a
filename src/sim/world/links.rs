//! Makes and breaks connections between nodes, and delivers messages.

use super::resets::CONNECTIONS;
use super::{DIAL_INTERVAL, Happening, SILENCE_MAX, World, place};
use crate::sim::net::{Arrival, Flight};
use crate::sim::plan::{between, one_in};
use crate::transport::{ConnectionEnd, ConnectionEvent};

impl World {
    pub(super) fn arrive(&mut self, flight: Flight) {
        let now = self.timeline.now();
        let numbers = [flight.from.get(), flight.to.get()];
        self.trace.event(now, 9, &numbers, &flight.frame);
        let at = place(flight.to);
        let Some(process) = &self.nodes[at].process else { return };
        let (from, to) = (flight.from, flight.to);
        match self.net.arrive(flight) {
            Arrival::Message(message) => {
                self.judge.borrow_mut().arrives(from, to, &message);
                process.deliver(from, message);
            }
            Arrival::Late => {}
            Arrival::Broken => {
                self.judge.borrow_mut().count("damaged message refused");
                self.disconnect(at, place(from), ConnectionEnd::Here);
            }
        }
    }

    pub(super) fn dial(&mut self) {
        for a in 0..self.nodes.len() {
            for b in a + 1..self.nodes.len() {
                self.dial_pair(a, b);
            }
        }
        let wait = between(&self.rng, DIAL_INTERVAL / 2, DIAL_INTERVAL * 3 / 2);
        self.schedule_in(wait, Happening::Dial);
    }

    pub(super) fn dial_pair(&mut self, a: usize, b: usize) {
        let (id_a, id_b) = (self.nodes[a].id, self.nodes[b].id);
        let now = self.timeline.now();
        if !self.net.wanted(id_a, id_b) {
            self.disconnect(a, b, ConnectionEnd::Here);
            return;
        }
        if self.net.connected(id_a, id_b).is_some() {
            let dead = self.nodes[a].running().is_none() || self.nodes[b].running().is_none();
            if !dead && !self.net.silent(id_a, id_b) {
                self.connections.silent_since.remove(&(a, b));
                if !self.judge_pair(a, b) {
                    self.disconnect(a, b, ConnectionEnd::Here);
                }
                return;
            }
            let since = *self.connections.silent_since.entry((a, b)).or_insert(now);
            // Keep-alive timers differ, so that some sides notice a broken connection early.
            if now - since > SILENCE_MAX || one_in(&self.rng, 40) {
                self.disconnect(a, b, ConnectionEnd::Lost);
            }
            return;
        }
        let (a_refused, b_refused) = (self.dial_result(a, b), self.dial_result(b, a));
        let (Some(process_a), Some(process_b)) = (self.nodes[a].running(), self.nodes[b].running())
        else {
            return;
        };
        if self.nodes[a].paused || self.nodes[b].paused || !self.net.is_passable(id_a, id_b) {
            return;
        }
        // Each side dials, so one accepted dial is enough.
        if a_refused && b_refused {
            return;
        }
        if self.judge_pair(a, b) {
            self.net.connect(id_a, id_b);
            process_a.connected(id_b, process_b.hello(id_a));
            process_b.connected(id_a, process_a.hello(id_b));
            for (one, other) in [(a, b), (b, a)] {
                (0..CONNECTIONS).for_each(|_| self.observe(one, other, ConnectionEvent::Opened));
            }
        }
        self.note(10, &[id_a.get(), id_b.get()], || format!("{id_a:?} and {id_b:?} meet"));
    }

    /// Returns whether two processes accept each other's handshake. If not, notifies them.
    pub(super) fn judge_pair(&self, a: usize, b: usize) -> bool {
        let mut accepted = true;
        for (mine, theirs) in [(a, b), (b, a)] {
            let (id_mine, id_theirs) = (self.nodes[mine].id, self.nodes[theirs].id);
            let (Some(process), Some(other)) =
                (self.nodes[mine].running(), self.nodes[theirs].running())
            else {
                return accepted;
            };
            if let Err(why) = process.judge_hello(&other.hello(id_mine)) {
                if why.removed.is_some() {
                    other.refused(id_mine, why.clone());
                }
                process.refused(id_theirs, why);
                accepted = false;
            }
        }
        accepted
    }

    /// Closes the connections between two nodes. `end` is the end that both see.
    pub(super) fn disconnect(&mut self, a: usize, b: usize, end: ConnectionEnd) {
        self.connections.silent_since.remove(&(a.min(b), a.max(b)));
        if !self.net.disconnect(self.nodes[a].id, self.nodes[b].id) {
            return;
        }
        for (side, other) in [(a, b), (b, a)] {
            if let Some(process) = &self.nodes[side].process {
                process.disconnected(self.nodes[other].id);
            }
            (0..CONNECTIONS).for_each(|_| self.observe(side, other, ConnectionEvent::Ended(end)));
        }
    }
}
