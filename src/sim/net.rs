//! The simulated network. Every message is encoded and decoded as on a real wire; between the two it
//! can be lost, doubled, delayed and overtaken, and a link can be cut in one direction or both.
//!
//! Connections are made and noticed broken by the world ([`super::world`]); this file says which
//! messages arrive when. What the network never does, as TCP never does: deliver a message of an
//! older connection on a newer one.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::{Bytes, BytesMut};

use super::clock::Timeline;
use super::rng::Rng;
use crate::codec;
use crate::env::{Entropy, Network, SendOutcome};
use crate::model::{Lane, NodeId, PeerMessage};
use crate::transport;

/// Messages under way on one lane of one link; more are refused, as a full socket buffer does.
const IN_FLIGHT_MAX: usize = 4096;

/// Most messages are no larger: a frame begins with so much room, in bytes.
const FRAME_BYTES: usize = 256;

/// How the network treats messages.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct NetConditions {
    /// The least time a message travels.
    pub(crate) delay_min: Duration,
    /// The most time a message travels, unless something holds it up.
    pub(crate) delay_max: Duration,
    /// Of a million messages, so many are lost.
    pub(crate) loss_ppm: u64,
    /// Of a million messages, so many arrive twice.
    pub(crate) duplicate_ppm: u64,
    /// Of a million messages, so many are held up, by up to `straggle_max`.
    pub(crate) straggle_ppm: u64,
    /// How long a message may be held up.
    pub(crate) straggle_max: Duration,
    /// Of a million messages, so many are damaged on the way.
    pub(crate) damage_ppm: u64,
    /// Whether messages of one lane may overtake each other. Across lanes they always may.
    pub(crate) reorder: bool,
}

impl Default for NetConditions {
    fn default() -> Self {
        Self {
            delay_min: Duration::from_micros(100),
            delay_max: Duration::from_millis(2),
            loss_ppm: 0,
            duplicate_ppm: 0,
            straggle_ppm: 0,
            straggle_max: Duration::ZERO,
            damage_ppm: 0,
            reorder: false,
        }
    }
}

/// Some of the messages that a node sends or gets from now on are lost.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct LostReason {
    /// So many pass first.
    pub(crate) pass: u64,
    /// Then so many are lost.
    pub(crate) lose: u64,
}

/// A message on its way.
pub(crate) struct Flight {
    pub(crate) at: Duration,
    pub(crate) from: NodeId,
    pub(crate) to: NodeId,
    pub(crate) lane: Lane,
    /// The connection it was sent on.
    pub(crate) connection: u64,
    /// What is on the wire: the message, or, where that was damaged, the frame that it was in.
    pub(crate) frame: Bytes,
    pub(crate) damaged: bool,
}

/// What becomes of what arrives.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Arrival {
    /// It is a message.
    Message(PeerMessage),
    /// It is of a connection that does not stand any more.
    Late,
    /// It makes no sense: its connection is closed.
    Broken,
}

/// One direction between two nodes.
#[derive(Default)]
struct Link {
    /// Nothing that is sent now arrives.
    cut: bool,
    /// Nothing arrives before this time.
    clogged_until: Duration,
    /// By lane.
    lanes: [LaneState; transport::LANES.len()],
}

/// Of one lane of a link.
#[derive(Default)]
struct LaneState {
    /// When the last message arrives: the next one comes after it.
    last: Duration,
    in_flight: usize,
}

impl Link {
    fn lane(&mut self, lane: Lane) -> &mut LaneState {
        &mut self.lanes[lane as usize]
    }
}

struct State {
    conditions: NetConditions,
    rng: Rng,
    links: BTreeMap<(NodeId, NodeId), Link>,
    /// The number of the connection between two nodes that are connected, the smaller id first.
    connections: BTreeMap<(NodeId, NodeId), u64>,
    next_connection: u64,
    /// Whom each node wants to be connected with: everybody, until it has said.
    wanted: BTreeMap<NodeId, BTreeSet<NodeId>>,
    outgoing: Vec<Flight>,
    sent: u64,
    losses: BTreeMap<NodeId, LostReason>,
}

/// The network of a world. A handle: clones are the same network.
#[derive(Clone)]
pub(crate) struct SimNet {
    timeline: Arc<Timeline>,
    state: Arc<Mutex<State>>,
    /// Whether something may have been sent since the last look: most looks find nothing.
    news: Arc<AtomicBool>,
}

impl SimNet {
    pub(crate) fn new(timeline: Arc<Timeline>, conditions: NetConditions, rng: Rng) -> Self {
        let state = State {
            conditions,
            rng,
            links: BTreeMap::new(),
            connections: BTreeMap::new(),
            next_connection: 1,
            wanted: BTreeMap::new(),
            outgoing: Vec::new(),
            sent: 0,
            losses: BTreeMap::new(),
        };
        Self { timeline, state: Arc::new(Mutex::new(state)), news: Arc::default() }
    }

    /// A node's way out, from the start of its process.
    pub(crate) fn network_of(&self, from: NodeId) -> SimNetwork {
        self.state().wanted.remove(&from);
        SimNetwork { from, net: self.clone() }
    }

    pub(crate) fn set_conditions(&self, conditions: NetConditions) {
        self.state().conditions = conditions;
    }

    /// From now on nothing that `from` sends reaches `to`.
    pub(crate) fn cut(&self, from: NodeId, to: NodeId) {
        self.state().link(from, to).cut = true;
    }

    /// From now on these messages of a node are lost; `None`: none are.
    pub(crate) fn lose(&self, node: NodeId, loss: Option<LostReason>) {
        let mut state = self.state();
        match loss {
            Some(loss) => state.losses.insert(node, loss),
            None => state.losses.remove(&node),
        };
    }

    /// Everything that was cut or clogged passes again.
    pub(crate) fn heal(&self) {
        for link in self.state().links.values_mut() {
            link.cut = false;
            link.clogged_until = Duration::ZERO;
        }
    }

    /// Holds up everything from `from` to `to` until then.
    pub(crate) fn clog(&self, from: NodeId, to: NodeId, until: Duration) {
        self.state().link(from, to).clogged_until = until;
    }

    /// Whether messages pass in both directions, as a handshake needs it.
    pub(crate) fn passable(&self, a: NodeId, b: NodeId) -> bool {
        let mut state = self.state();
        !state.link(a, b).cut && !state.link(b, a).cut
    }

    /// Whether messages pass in neither direction, so that a connection must die of silence.
    pub(crate) fn silent(&self, a: NodeId, b: NodeId) -> bool {
        let mut state = self.state();
        state.link(a, b).cut && state.link(b, a).cut
    }

    /// Whether one of two wants a connection with the other.
    pub(crate) fn wanted(&self, a: NodeId, b: NodeId) -> bool {
        let state = self.state();
        let wants = |who, whom| state.wanted.get(&who).is_none_or(|peers| peers.contains(&whom));
        wants(a, b) || wants(b, a)
    }

    pub(crate) fn connected(&self, a: NodeId, b: NodeId) -> Option<u64> {
        self.state().connections.get(&pair(a, b)).copied()
    }

    pub(crate) fn connect(&self, a: NodeId, b: NodeId) {
        let mut state = self.state();
        let number = state.next_connection;
        state.next_connection += 1;
        let before = state.connections.insert(pair(a, b), number);
        assert!(before.is_none(), "{a:?} and {b:?} were connected already");
        // A new connection owes no order to an older one.
        for (from, to) in [(a, b), (b, a)] {
            state.link(from, to).lanes = Default::default();
        }
    }

    /// Whether there was a connection.
    pub(crate) fn disconnect(&self, a: NodeId, b: NodeId) -> bool {
        self.state().connections.remove(&pair(a, b)).is_some()
    }

    /// What was sent since the last call.
    pub(crate) fn take_outgoing(&self) -> Vec<Flight> {
        if !self.news.load(Ordering::Relaxed) {
            return Vec::new();
        }
        self.news.store(false, Ordering::Relaxed);
        std::mem::take(&mut self.state().outgoing)
    }

    /// The message, if its connection still stands.
    ///
    /// # Panics
    /// If what was encoded cannot be decoded: the codec is broken.
    pub(crate) fn arrive(&self, flight: Flight) -> Arrival {
        let mut state = self.state();
        if state.connections.get(&pair(flight.from, flight.to)) != Some(&flight.connection) {
            return Arrival::Late;
        }
        let lane = state.link(flight.from, flight.to).lane(flight.lane);
        lane.in_flight = lane.in_flight.saturating_sub(1);
        if flight.damaged {
            let body = transport::unframed(&flight.frame, flight.lane);
            let message = body.and_then(|body| codec::decode_message(body).ok());
            return message.map_or(Arrival::Broken, Arrival::Message);
        }
        let message = codec::decode_message(flight.frame);
        Arrival::Message(message.expect("what one node encoded another can decode"))
    }

    /// How many messages were ever sent.
    pub(crate) fn sent(&self) -> u64 {
        self.state().sent
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn link(&mut self, from: NodeId, to: NodeId) -> &mut Link {
        self.links.entry((from, to)).or_default()
    }

    fn send(
        &mut self,
        now: Duration,
        from: NodeId,
        to: NodeId,
        lane: Lane,
        message: &PeerMessage,
    ) -> SendOutcome {
        let Some(connection) = self.connections.get(&pair(from, to)).copied() else {
            return SendOutcome::Unreachable;
        };
        if self.link(from, to).lane(lane).in_flight >= IN_FLIGHT_MAX {
            return SendOutcome::Full;
        }
        self.sent += 1;
        let lost = self.is_lost(from) | self.is_lost(to);
        if lost || self.link(from, to).cut || self.chance(self.conditions.loss_ppm) {
            return SendOutcome::Queued;
        }
        let damaged = self.chance(self.conditions.damage_ppm);
        let frame = match damaged {
            true => self.damage(transport::framed(message)),
            false => {
                let mut frame = BytesMut::with_capacity(FRAME_BYTES);
                codec::encode_message(message, &mut frame);
                frame.freeze()
            }
        };
        let is_doubled = self.chance(self.conditions.duplicate_ppm);
        let mut queue = |frame| {
            let at = self.arrival(now, from, to, lane);
            self.outgoing.push(Flight { at, from, to, lane, connection, frame, damaged });
        };
        if is_doubled {
            queue(frame.clone());
        }
        queue(frame);
        SendOutcome::Queued
    }

    /// Flips one to three bits, or cuts the end off.
    fn damage(&self, mut frame: Vec<u8>) -> Bytes {
        let any = |length: usize| self.rng.below(length as u64) as usize;
        if any(8) == 0 {
            frame.truncate(any(frame.len()));
            return frame.into();
        }
        for _ in 0..=any(3) {
            let bit = any(frame.len() * 8);
            frame[bit / 8] ^= 1 << (bit % 8);
        }
        frame.into()
    }

    fn arrival(&mut self, now: Duration, from: NodeId, to: NodeId, lane: Lane) -> Duration {
        let mut travel = self.between(self.conditions.delay_min, self.conditions.delay_max);
        if self.chance(self.conditions.straggle_ppm) {
            travel += self.between(Duration::ZERO, self.conditions.straggle_max);
        }
        let keeps_order = !self.conditions.reorder;
        let link = self.link(from, to);
        let mut at = (now + travel).max(link.clogged_until);
        let lane = link.lane(lane);
        lane.in_flight += 1;
        if keeps_order {
            at = at.max(lane.last);
            lane.last = at;
        }
        at
    }

    /// Counts a message of this node.
    fn is_lost(&mut self, node: NodeId) -> bool {
        let Some(loss) = self.losses.get_mut(&node) else { return false };
        if loss.pass > 0 {
            loss.pass -= 1;
            return false;
        }
        let lost = loss.lose > 0;
        loss.lose = loss.lose.saturating_sub(1);
        lost
    }

    fn chance(&self, ppm: u64) -> bool {
        ppm > 0 && self.rng.below(1_000_000) < ppm
    }

    fn between(&self, least: Duration, most: Duration) -> Duration {
        let span = u64::try_from(most.saturating_sub(least).as_nanos()).expect("a short delay");
        least + Duration::from_nanos(self.rng.below(span + 1))
    }
}

/// See [`SimNet::network_of`].
pub(crate) struct SimNetwork {
    from: NodeId,
    net: SimNet,
}

impl Network for SimNetwork {
    fn send(&mut self, to: NodeId, lane: Lane, message: PeerMessage) -> SendOutcome {
        let now = self.net.timeline.now();
        self.net.news.store(true, Ordering::Relaxed);
        self.net.state().send(now, self.from, to, lane, &message)
    }

    fn set_peers(&mut self, peers: &BTreeMap<NodeId, Vec<String>>) {
        self.net.state().wanted.insert(self.from, peers.keys().copied().collect());
    }
}

fn pair(a: NodeId, b: NodeId) -> (NodeId, NodeId) {
    (a.min(b), a.max(b))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::LogIndex;

    fn node(id: u64) -> NodeId {
        NodeId::new(id).expect("not zero")
    }

    fn sent(conditions: NetConditions, count: u64) -> (SimNet, Vec<u64>) {
        let timeline = Arc::new(Timeline::default());
        let net = SimNet::new(timeline, conditions, Rng::new(1));
        net.connect(node(1), node(2));
        let mut network = net.network_of(node(1));
        for number in 0..count {
            let message = PeerMessage::Digest { index: LogIndex(1), digest: number };
            assert_eq!(network.send(node(2), Lane::Control, message), SendOutcome::Queued);
        }
        let mut flights = net.take_outgoing();
        flights.sort_by_key(|flight| flight.at);
        let arrived = flights.into_iter().filter_map(|flight| match net.arrive(flight) {
            Arrival::Message(PeerMessage::Digest { digest, .. }) => Some(digest),
            _ => None,
        });
        let arrived = arrived.collect();
        (net, arrived)
    }

    #[test]
    fn a_lane_keeps_its_order_unless_reordering_is_on() {
        let wide = NetConditions { delay_max: Duration::from_secs(1), ..NetConditions::default() };
        let (_, arrived) = sent(wide.clone(), 100);
        assert!(arrived.is_sorted() && arrived.len() == 100);
        let (_, arrived) = sent(NetConditions { reorder: true, ..wide }, 100);
        assert!(!arrived.is_sorted() && arrived.len() == 100);
    }

    #[test]
    fn messages_are_lost_and_duplicated_at_the_configured_rates() {
        let lossy = NetConditions { loss_ppm: 300_000, ..NetConditions::default() };
        let (_, arrived) = sent(lossy, 1000);
        assert!((600..800).contains(&arrived.len()), "{}", arrived.len());
        let doubling = NetConditions { duplicate_ppm: 300_000, ..NetConditions::default() };
        let (_, arrived) = sent(doubling, 1000);
        assert!((1200..1400).contains(&arrived.len()), "{}", arrived.len());
    }

    #[test]
    fn a_message_of_an_older_connection_never_arrives() {
        let (net, _) = sent(NetConditions::default(), 0);
        let mut network = net.network_of(node(1));
        let message = PeerMessage::Digest { index: LogIndex(1), digest: 1 };
        network.send(node(2), Lane::Control, message.clone());
        assert!(net.disconnect(node(2), node(1)));
        assert_eq!(network.send(node(2), Lane::Control, message), SendOutcome::Unreachable);
        net.connect(node(1), node(2));
        let mut flights = net.take_outgoing();
        assert_eq!(flights.len(), 1);
        assert_eq!(net.arrive(flights.remove(0)), Arrival::Late);
    }

    #[test]
    fn damaged_message_is_never_decoded_as_another() {
        let damaging = NetConditions { damage_ppm: 1_000_000, ..NetConditions::default() };
        let (_, arrived) = sent(damaging, 1000);
        // Two flips of one bit leave it whole.
        assert!(arrived.len() < 20, "{}", arrived.len());
    }
}
