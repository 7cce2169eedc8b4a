//! The simulated network. Every message is encoded and decoded as on a real connection. In the network, messages
//! can be lost, duplicated, delayed and reordered, and a link can be cut in one or both directions.
//!
//! The world ([`super::world`]) makes connections and detects broken ones; this file decides which messages arrive
//! when. Like TCP, the network never delivers a message of an old connection on a newer one.

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

/// Maximum number of messages in flight on one lane of a link. Further messages are rejected, as if the socket buffer
/// were full.
const IN_FLIGHT_MAX: usize = 4096;

/// Initial capacity of a frame in bytes. Most messages fit.
const FRAME_BYTES: usize = 256;

/// The conditions of the network.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct NetConditions {
    /// Minimum delay of a message.
    pub(crate) delay_min: Duration,
    /// Maximum delay of a message that is not held up.
    pub(crate) delay_max: Duration,
    /// Probability of losing a message, per million.
    pub(crate) loss_ppm: u64,
    /// Probability of delivering a message twice, per million.
    pub(crate) duplicate_ppm: u64,
    /// Probability of holding up a message by up to `hold_up_max`, per million.
    pub(crate) hold_up_ppm: u64,
    /// Maximum time that a message is held up.
    pub(crate) hold_up_max: Duration,
    /// Probability of damaging a message, per million.
    pub(crate) damage_ppm: u64,
    /// Whether messages of one lane may overtake each other. Messages of different lanes always may.
    pub(crate) reorder: bool,
}

impl Default for NetConditions {
    fn default() -> Self {
        Self {
            delay_min: Duration::from_micros(100),
            delay_max: Duration::from_millis(2),
            loss_ppm: 0,
            duplicate_ppm: 0,
            hold_up_ppm: 0,
            hold_up_max: Duration::ZERO,
            damage_ppm: 0,
            reorder: false,
        }
    }
}

/// A rule that loses some of the messages that a node sends or receives from now on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct LossRule {
    /// Number of messages that pass first.
    pub(crate) pass: u64,
    /// Number of messages that are then lost.
    pub(crate) lose: u64,
}

/// A message in flight.
pub(crate) struct Flight {
    pub(crate) at: Duration,
    pub(crate) from: NodeId,
    pub(crate) to: NodeId,
    pub(crate) lane: Lane,
    /// The connection on which the message was sent.
    pub(crate) connection: u64,
    /// The bytes on the wire: the message, or the whole frame if it was damaged.
    pub(crate) frame: Bytes,
    pub(crate) damaged: bool,
}

/// The result of an arrival.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Arrival {
    /// A message.
    Message(PeerMessage),
    /// The message belongs to a closed connection.
    Late,
    /// The message cannot be decoded, so its connection is closed.
    Broken,
}

/// One direction between two nodes.
#[derive(Default)]
struct NetLink {
    /// Whether messages sent now are lost.
    cut: bool,
    /// No message arrives before this time.
    delayed_until: Duration,
    /// New connections are refused until this time, and messages are not sent.
    refused_until: Duration,
    /// State of each lane.
    lanes: [LaneState; transport::inspect::LANES.len()],
}

/// The connection between two nodes.
#[derive(Clone, Copy)]
struct SimConnection {
    number: u64,
    /// Time at which the connection was made.
    since: Duration,
}

/// The state of one lane of a link.
#[derive(Default)]
struct LaneState {
    /// Arrival time of the last message. The next one arrives later.
    last: Duration,
    in_flight: usize,
    is_closed: bool,
}

impl NetLink {
    fn lane(&mut self, lane: Lane) -> &mut LaneState {
        &mut self.lanes[lane as usize]
    }
}

struct NetState {
    conditions: NetConditions,
    rng: Rng,
    links: BTreeMap<(NodeId, NodeId), NetLink>,
    /// The number of the connection between two connected nodes, the smaller id first.
    connections: BTreeMap<(NodeId, NodeId), SimConnection>,
    next_connection: u64,
    /// The peers that each node wants to be connected to. All peers if the node has not set any.
    wanted: BTreeMap<NodeId, BTreeSet<NodeId>>,
    outgoing: Vec<Flight>,
    sent: u64,
    losses: BTreeMap<NodeId, LossRule>,
}

/// The network of a world. Clones are handles to the same network.
#[derive(Clone)]
pub(crate) struct SimNet {
    timeline: Arc<Timeline>,
    state: Arc<Mutex<NetState>>,
    /// Whether messages may have been sent since the last check. Most checks find none.
    news: Arc<AtomicBool>,
}

impl SimNet {
    pub(crate) fn new(timeline: Arc<Timeline>, conditions: NetConditions, rng: Rng) -> Self {
        let state = NetState {
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

    /// Returns the network interface of a node for a new process.
    pub(crate) fn network_of(&self, from: NodeId) -> SimNetwork {
        self.state().wanted.remove(&from);
        SimNetwork { from, net: self.clone() }
    }

    pub(crate) fn set_conditions(&self, conditions: NetConditions) {
        self.state().conditions = conditions;
    }

    /// Loses all messages from `from` to `to` from now on.
    pub(crate) fn cut(&self, from: NodeId, to: NodeId) {
        self.state().link(from, to).cut = true;
    }

    /// Sets the rule that loses messages of a node, or removes it if `None`.
    pub(crate) fn lose(&self, node: NodeId, loss: Option<LossRule>) {
        let mut state = self.state();
        match loss {
            Some(loss) => state.losses.insert(node, loss),
            None => state.losses.remove(&node),
        };
    }

    /// Removes all cuts and delays of links.
    pub(crate) fn heal(&self) {
        for link in self.state().links.values_mut() {
            link.cut = false;
            link.delayed_until = Duration::ZERO;
            link.refused_until = Duration::ZERO;
        }
    }

    /// Holds up all messages from `from` to `to` until that time.
    pub(crate) fn delay_messages(&self, from: NodeId, to: NodeId, until: Duration) {
        self.state().link(from, to).delayed_until = until;
    }

    /// Returns whether messages pass in both directions, as a handshake requires.
    pub(crate) fn is_passable(&self, a: NodeId, b: NodeId) -> bool {
        let mut state = self.state();
        !state.link(a, b).cut && !state.link(b, a).cut
    }

    /// Returns whether messages pass in neither direction, so that the connection must time out.
    pub(crate) fn silent(&self, a: NodeId, b: NodeId) -> bool {
        let mut state = self.state();
        state.link(a, b).cut && state.link(b, a).cut
    }

    /// Returns whether one of two nodes wants a connection with the other.
    pub(crate) fn wanted(&self, a: NodeId, b: NodeId) -> bool {
        let state = self.state();
        let wants = |who, whom| state.wanted.get(&who).is_none_or(|peers| peers.contains(&whom));
        wants(a, b) || wants(b, a)
    }

    pub(crate) fn connected(&self, a: NodeId, b: NodeId) -> Option<u64> {
        self.state().connections.get(&pair(a, b)).map(|connection| connection.number)
    }

    /// Returns since when two nodes are connected.
    pub(crate) fn connected_since(&self, a: NodeId, b: NodeId) -> Option<Duration> {
        self.state().connections.get(&pair(a, b)).map(|connection| connection.since)
    }

    /// Refuses connections from `from` to `to` until that time.
    pub(crate) fn refuse(&self, from: NodeId, to: NodeId, until: Duration) {
        self.state().link(from, to).refused_until = until;
    }

    /// Returns whether connections from `from` to `to` are refused.
    pub(crate) fn refuses(&self, from: NodeId, to: NodeId) -> bool {
        self.state().link(from, to).refused_until > self.timeline.now()
    }

    /// Closes one lane between two connected nodes. Returns `false` if a lane is closed already.
    pub(crate) fn close_lane(&self, a: NodeId, b: NodeId, lane: Lane) -> bool {
        let mut state = self.state();
        let is_open = |state: &LaneState| !state.is_closed;
        if !state.link(a, b).lanes.iter().all(is_open) {
            return false;
        }
        state.link(a, b).lane(lane).is_closed = true;
        state.link(b, a).lane(lane).is_closed = true;
        true
    }

    /// Opens a closed lane.
    pub(crate) fn open_lane(&self, a: NodeId, b: NodeId, lane: Lane) {
        let mut state = self.state();
        state.link(a, b).lane(lane).is_closed = false;
        state.link(b, a).lane(lane).is_closed = false;
    }

    pub(crate) fn connect(&self, a: NodeId, b: NodeId) {
        let mut state = self.state();
        let number = state.next_connection;
        state.next_connection += 1;
        let connection = SimConnection { number, since: self.timeline.now() };
        let before = state.connections.insert(pair(a, b), connection);
        assert!(before.is_none(), "{a:?} and {b:?} were connected already");
        // Messages of a new connection need no order relative to those of the old one.
        for (from, to) in [(a, b), (b, a)] {
            state.link(from, to).lanes = Default::default();
        }
    }

    /// Closes the connection between two nodes. Returns whether there was one.
    pub(crate) fn disconnect(&self, a: NodeId, b: NodeId) -> bool {
        self.state().connections.remove(&pair(a, b)).is_some()
    }

    /// Returns the messages sent since the last call.
    pub(crate) fn take_outgoing(&self) -> Vec<Flight> {
        if !self.news.load(Ordering::Relaxed) {
            return Vec::new();
        }
        self.news.store(false, Ordering::Relaxed);
        std::mem::take(&mut self.state().outgoing)
    }

    /// Returns the message if its connection is still open.
    ///
    /// # Panics
    /// Panics if an undamaged message cannot be decoded, which is a bug of the codec.
    pub(crate) fn arrive(&self, flight: Flight) -> Arrival {
        let mut state = self.state();
        let connection = state.connections.get(&pair(flight.from, flight.to));
        if connection.map(|connection| connection.number) != Some(flight.connection) {
            return Arrival::Late;
        }
        let lane = state.link(flight.from, flight.to).lane(flight.lane);
        lane.in_flight = lane.in_flight.saturating_sub(1);
        if flight.damaged {
            let body = transport::inspect::unframed(&flight.frame, flight.lane);
            let message = body.and_then(|body| codec::decode_message(body).ok());
            return message.map_or(Arrival::Broken, Arrival::Message);
        }
        let message = codec::decode_message(flight.frame);
        Arrival::Message(message.expect("what one node encoded another can decode"))
    }

    /// Returns the total number of messages sent.
    pub(crate) fn sent(&self) -> u64 {
        self.state().sent
    }

    fn state(&self) -> MutexGuard<'_, NetState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl NetState {
    fn link(&mut self, from: NodeId, to: NodeId) -> &mut NetLink {
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
        let Some(SimConnection { number: connection, .. }) =
            self.connections.get(&pair(from, to)).copied()
        else {
            return SendOutcome::Unreachable;
        };
        let link = self.link(from, to);
        if link.refused_until > now || link.lane(lane).is_closed {
            return SendOutcome::Unreachable;
        }
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
            true => self.damage(transport::inspect::framed(message)),
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

    /// Flips one to three bits, or cuts off the end.
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
        if self.chance(self.conditions.hold_up_ppm) {
            travel += self.between(Duration::ZERO, self.conditions.hold_up_max);
        }
        let keeps_order = !self.conditions.reorder;
        let link = self.link(from, to);
        let mut at = (now + travel).max(link.delayed_until);
        let lane = link.lane(lane);
        lane.in_flight += 1;
        if keeps_order {
            at = at.max(lane.last);
            lane.last = at;
        }
        at
    }

    /// Counts a message of this node and returns whether it is lost.
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

/// The network interface of one node.
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
    use crate::model::samples::node;

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
        // Two flips of the same bit leave a message intact.
        assert!(arrived.len() < 20, "{}", arrived.len());
    }
}
