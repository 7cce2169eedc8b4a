//! A transport inside one process: clusters for tests, without sockets.
//!
//! This transport uses the same checks and limits as the TCP transport, and makes the same calls to
//! the receiver. A message is passed as a value, on the sender's own thread. Debug builds also
//! encode and decode each message, to test the codec. Links can be cut in each direction
//! separately: a message sent over a cut link is lost silently, as on a real network.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::time::Duration;

use super::handshake::{Admission, HelloRejection};
use super::tcp::fits;
use super::{Introducer, JoinError, JoinReply, Receiver, Refused};
use crate::codec;
use crate::env::{Network, SendOutcome};
use crate::model::{Hello, JoinAnswer, JoinAsk, Joined, Lane, NodeId, PeerMessage};

/// Pause before a joiner tries all members again.
const ASK_INTERVAL: Duration = Duration::from_millis(50);

/// Connects the members of a cluster inside one process. Clones refer to the same hub.
#[derive(Clone, Default)]
pub(crate) struct MemoryHub {
    // This lock is held while a receiver is called. Therefore no receiver is called after its
    // member has left, and all receivers see the events in the same order. Holding the lock is safe
    // because receivers neither block nor call back.
    state: Arc<Mutex<MemoryState>>,
}

#[derive(Default)]
struct MemoryState {
    /// Number of the last join. Each gets a unique number.
    last_number: u64,
    seats: BTreeMap<NodeId, MemorySeat>,
    /// Cut links, as (from, to).
    cut: BTreeSet<(NodeId, NodeId)>,
    /// Pairs of members that have admitted each other, the lower id first.
    linked: BTreeSet<(NodeId, NodeId)>,
    /// Pairs of members that have rejected each other, with the last reported reason.
    refused: BTreeMap<(NodeId, NodeId), Refused>,
}

struct MemorySeat {
    number: u64,
    admission: Admission,
    receiver: Arc<dyn Receiver>,
    /// The peers that the member wants to connect to. `None` means all members.
    peers: Option<BTreeSet<NodeId>>,
}

impl MemorySeat {
    /// Checks that both members accept each other.
    fn check(
        &self,
        mine: &Hello,
        other: &MemorySeat,
        theirs: &Hello,
    ) -> Result<(), HelloRejection> {
        self.admission.admit(mine, theirs, None)?;
        other.admission.admit(theirs, mine, None)
    }

    fn wants(&self, peer: NodeId) -> bool {
        self.peers.as_ref().is_none_or(|peers| peers.contains(&peer))
    }
}

impl MemoryHub {
    fn state(&self) -> MutexGuard<'_, MemoryState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds member `me` and connects it to all present and future members, until it restricts its
    /// peers. An earlier instance of this member is removed. Dropping the returned network removes
    /// the member.
    pub(crate) fn join(
        &self,
        me: NodeId,
        introducer: Arc<dyn Introducer>,
        receiver: Arc<dyn Receiver>,
    ) -> MemoryNetwork {
        let mut state = self.state();
        state.leave(me);
        state.last_number += 1;
        let number = state.last_number;
        let admission = Admission::new(me, introducer);
        state.seats.insert(me, MemorySeat { number, admission, receiver, peers: None });
        for other in state.others(me) {
            state.meet(me, other);
        }
        MemoryNetwork { hub: self.clone(), me, number }
    }

    /// Asks the present members one after the other until one of them replies with a result, or
    /// until `given_up` is set. Blocks the calling thread.
    pub(crate) fn ask_to_join(
        &self,
        ask: &JoinAsk,
        limit: Duration,
        given_up: &dyn Fn() -> bool,
    ) -> Result<Joined, JoinError> {
        let mut last = "no member is running".to_owned();
        let pauses = limit.as_millis() / ASK_INTERVAL.as_millis();
        let (_silent, pause) = mpsc::channel::<()>();
        for _ in 0..pauses.max(1) {
            let receivers: Vec<_> =
                self.state().seats.values().map(|seat| Arc::clone(&seat.receiver)).collect();
            for receiver in receivers {
                let (reply, answered) = JoinReply::new();
                receiver.join(ask.clone(), reply);
                match answered.blocking_recv() {
                    Ok(JoinAnswer::Joined(joined)) => return Ok(joined),
                    Ok(JoinAnswer::Refused(why)) => return Err(JoinError::Refused(why)),
                    Ok(JoinAnswer::Later(why)) => last = why,
                    Ok(JoinAnswer::NotLeader(_)) | Err(_) => {}
                }
            }
            if given_up() {
                return Err(JoinError::GivenUp);
            }
            // Pause for `ASK_INTERVAL`: nothing is sent on this channel.
            let _ = pause.recv_timeout(ASK_INTERVAL);
        }
        Err(JoinError::TooLate(last))
    }

    /// Removes a member as if it had crashed. Sends from and to the member report `Unreachable`.
    /// Does nothing if a later instance of the member has joined with another seat.
    pub(crate) fn leave(&self, node: NodeId, seat: u64) {
        let mut state = self.state();
        if state.seats.get(&node).is_some_and(|found| found.number == seat) {
            state.leave(node);
        }
    }

    /// Drops everything that is sent from `from` to `to` until [`heal_all`](Self::heal_all).
    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn cut(&self, from: NodeId, to: NodeId) {
        self.state().cut.insert((from, to));
    }

    /// Restores all links. Lost messages stay lost.
    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn heal_all(&self) {
        let mut state = self.state();
        for (from, to) in std::mem::take(&mut state.cut) {
            state.meet(from, to);
        }
    }
}

fn pair(a: NodeId, b: NodeId) -> (NodeId, NodeId) {
    (a.min(b), a.max(b))
}

impl MemoryState {
    fn others(&self, me: NodeId) -> Vec<NodeId> {
        self.seats.keys().copied().filter(|id| *id != me).collect()
    }

    /// If two members can communicate and have not checked each other yet, makes them check each
    /// other. Returns whether the two are connected afterwards.
    fn meet(&mut self, a: NodeId, b: NodeId) -> bool {
        let pair = pair(a, b);
        if self.linked.contains(&pair) {
            return true;
        }
        if self.cut.contains(&(a, b)) || self.cut.contains(&(b, a)) {
            return false;
        }
        let (Some(seat_a), Some(seat_b)) = (self.seats.get(&a), self.seats.get(&b)) else {
            return false;
        };
        if !seat_a.wants(b) && !seat_b.wants(a) {
            return false;
        }
        let (hello_a, hello_b) = (seat_a.admission.hello(b), seat_b.admission.hello(a));
        match seat_a.check(&hello_a, seat_b, &hello_b) {
            Ok(()) => {
                seat_a.receiver.connected(b, hello_b);
                seat_b.receiver.connected(a, hello_a);
                self.refused.remove(&pair);
                self.linked.insert(pair);
                true
            }
            Err(rejection) => {
                self.refuse(a, b, rejection.into());
                false
            }
        }
    }

    /// Reports a rejection to both members, unless it was the last one reported.
    fn refuse(&mut self, a: NodeId, b: NodeId, why: Refused) {
        if self.refused.get(&pair(a, b)) == Some(&why) {
            return;
        }
        for (me, them) in [(a, b), (b, a)] {
            if let Some(seat) = self.seats.get(&me) {
                seat.receiver.refused(them, why.clone());
            }
        }
        self.refused.insert(pair(a, b), why);
    }

    /// Repeats the checks between `me`, which has changed, and each other member.
    fn recheck(&mut self, me: NodeId) {
        for other in self.others(me) {
            if !self.linked.contains(&pair(me, other)) {
                self.meet(me, other);
                continue;
            }
            let (mine, theirs) = (&self.seats[&me], &self.seats[&other]);
            if !mine.wants(other) && !theirs.wants(me) {
                self.part(me, other);
                continue;
            }
            let hellos = (mine.admission.hello(other), theirs.admission.hello(me));
            if let Err(rejection) = mine.check(&hellos.0, theirs, &hellos.1) {
                self.part(me, other);
                self.refuse(me, other, rejection.into());
            }
        }
    }

    /// Disconnects two members if they are connected.
    fn part(&mut self, a: NodeId, b: NodeId) {
        if !self.linked.remove(&pair(a, b)) {
            return;
        }
        for (me, them) in [(a, b), (b, a)] {
            if let Some(seat) = self.seats.get(&me) {
                seat.receiver.disconnected(them);
            }
        }
    }

    fn leave(&mut self, node: NodeId) {
        for other in self.others(node) {
            self.part(node, other);
            self.refused.remove(&pair(node, other));
        }
        self.seats.remove(&node);
    }
}

/// Sends messages to members in the same process. Dropping the network removes its member from the
/// hub.
pub(crate) struct MemoryNetwork {
    hub: MemoryHub,
    me: NodeId,
    number: u64,
}

impl MemoryNetwork {
    /// Returns the number of this join, which distinguishes it from later joins of the member.
    pub(crate) fn seat(&self) -> u64 {
        self.number
    }

    fn is_seated(&self, state: &MemoryState) -> bool {
        state.seats.get(&self.me).is_some_and(|seat| seat.number == self.number)
    }
}

impl Network for MemoryNetwork {
    fn send(&mut self, to: NodeId, lane: Lane, message: PeerMessage) -> SendOutcome {
        if !fits(self.me, to, lane, &message) {
            return SendOutcome::Full;
        }
        let message = if cfg!(debug_assertions) { through_codec(&message) } else { message };
        let mut state = self.hub.state();
        if to == self.me || !self.is_seated(&state) {
            return SendOutcome::Unreachable;
        }
        if !state.seats.contains_key(&to) || !state.meet(self.me, to) {
            return SendOutcome::Unreachable;
        }
        if state.cut.contains(&(self.me, to)) {
            return SendOutcome::Queued;
        }
        let seat = &state.seats[&to];
        if let PeerMessage::Hello(hello) = &message
            && let Err(rejection) =
                seat.admission.admit(&seat.admission.hello(self.me), hello, None)
        {
            state.part(self.me, to);
            state.refuse(self.me, to, rejection.into());
            return SendOutcome::Queued;
        }
        seat.receiver.deliver(self.me, message);
        SendOutcome::Queued
    }

    fn set_peers(&mut self, peers: &BTreeMap<NodeId, Vec<String>>) {
        let mut state = self.hub.state();
        if !self.is_seated(&state) {
            return;
        }
        let seat = state.seats.get_mut(&self.me).expect("just looked");
        seat.peers = Some(peers.keys().copied().collect());
        state.recheck(self.me);
    }
}

impl Drop for MemoryNetwork {
    fn drop(&mut self) {
        let mut state = self.hub.state();
        if self.is_seated(&state) {
            state.leave(self.me);
        }
    }
}

/// Returns the message after encoding and decoding.
fn through_codec(message: &PeerMessage) -> PeerMessage {
    let mut bytes = Vec::new();
    codec::encode_message(message, &mut bytes);
    let arrived = codec::decode_message(bytes.into()).expect("what was encoded is decoded");
    assert_eq!(arrived, *message, "the codec changed a message");
    arrived
}
