//! Tests of members that talk over loopback sockets or in memory, and of peers that misbehave.
//!
//! No test sleeps for a fixed time. Each test waits for the expected event, and fails if the event
//! takes too long.

#[cfg(feature = "testing-tls")]
mod certified;
mod changing;
mod dying;
mod flooded;
mod in_memory;
mod joining;
mod misbehaving;
mod snapshots;
mod talking;

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use super::frame::{self, FrameKind};
use super::memory::MemoryNetwork;
use super::tcp::TcpNetwork;
use super::*;
use crate::codec;
use crate::env::{Env, Network, SendOutcome};
use crate::model::samples::node;
use crate::model::*;

/// Time limit of any event on a busy machine.
const DEADLINE: Duration = Duration::from_secs(20);

/// An event that a receiver has seen.
#[derive(Clone, PartialEq, Debug)]
enum Received {
    Message(NodeId, PeerMessage),
    Connected(NodeId, Hello),
    Disconnected(NodeId),
    ProcessEnded(NodeId, bool),
    Refused(NodeId, Refused),
}

/// Returns whether the last event is that `peer` has disconnected. The evidence about its process may follow.
fn has_disconnected(received: &[Received], peer: NodeId) -> bool {
    let last = received.iter().rfind(|one| !matches!(one, Received::ProcessEnded(..)));
    last == Some(&Received::Disconnected(peer))
}

/// A receiver that records its events.
#[derive(Default)]
struct Inbox {
    received: Mutex<Vec<Received>>,
    asked: Mutex<Vec<(JoinAsk, JoinReply)>>,
    more_asked: Condvar,
    more: Condvar,
}

impl Inbox {
    fn push(&self, received: Received) {
        self.received.lock().unwrap_or_else(PoisonError::into_inner).push(received);
        self.more.notify_all();
    }

    /// Waits until `found` accepts the recorded events.
    fn wait(&self, what: &str, found: impl Fn(&[Received]) -> bool) {
        let received = self.received.lock().unwrap_or_else(PoisonError::into_inner);
        let (received, _) = self
            .more
            .wait_timeout_while(received, DEADLINE, |received| !found(received))
            .unwrap_or_else(PoisonError::into_inner);
        let last = &received[received.len().saturating_sub(10)..];
        assert!(
            found(&received),
            "waited in vain until {what}; heard {} events, the last: {last:?}",
            received.len()
        );
    }

    /// Waits until another event is recorded, or this time has passed.
    fn wait_a_little(&self, time: Duration) {
        let received = self.received.lock().unwrap_or_else(PoisonError::into_inner);
        drop(self.more.wait_timeout(received, time).unwrap_or_else(PoisonError::into_inner));
    }

    /// Returns the next join request.
    fn wait_for_ask(&self) -> (JoinAsk, JoinReply) {
        let asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        let (mut asked, _) = self
            .more_asked
            .wait_timeout_while(asked, DEADLINE, |asked| asked.is_empty())
            .unwrap_or_else(PoisonError::into_inner);
        assert!(!asked.is_empty(), "nobody has asked");
        asked.remove(0)
    }

    fn wait_for_message(&self, from: NodeId, message: &PeerMessage) {
        let wanted = Received::Message(from, message.clone());
        self.wait("a message", |received| received.contains(&wanted));
    }

    fn wait_for_rejection(&self, peer: NodeId, words: &str) {
        self.wait(words, |received| {
            received.iter().any(
                |one| matches!(one, Received::Refused(who, why) if *who == peer && why.why.contains(words)),
            )
        });
    }

    fn wait_for_connection(&self, peer: NodeId) {
        self.wait("connected", |received| {
            received.iter().any(|one| matches!(one, Received::Connected(who, _) if *who == peer))
        });
    }

    fn has(&self, found: impl Fn(&Received) -> bool) -> bool {
        self.received.lock().unwrap_or_else(PoisonError::into_inner).iter().any(found)
    }

    /// Frees the memory of messages that the test does not need any more, and returns their number.
    fn forget(&self, what: impl Fn(&PeerMessage) -> bool) -> usize {
        let mut received = self.received.lock().unwrap_or_else(PoisonError::into_inner);
        let before = received.len();
        received.retain(|one| !matches!(one, Received::Message(_, message) if what(message)));
        before - received.len()
    }

    /// Forgets the recorded rejections, so that the test can wait for new ones.
    fn forget_rejections(&self) {
        let mut received = self.received.lock().unwrap_or_else(PoisonError::into_inner);
        received.retain(|one| !matches!(one, Received::Refused(..)));
    }

    fn messages(&self) -> Vec<PeerMessage> {
        let received = self.received.lock().unwrap_or_else(PoisonError::into_inner);
        let message = |one: &Received| match one {
            Received::Message(_, message) => Some(message.clone()),
            _ => None,
        };
        received.iter().filter_map(message).collect()
    }
}

impl Receiver for Inbox {
    fn deliver(&self, from: NodeId, message: PeerMessage) {
        self.push(Received::Message(from, message));
    }

    fn connected(&self, peer: NodeId, hello: Hello) {
        self.push(Received::Connected(peer, hello));
    }

    fn disconnected(&self, peer: NodeId) {
        self.push(Received::Disconnected(peer));
    }

    fn process_ended(&self, peer: NodeId, ended: bool) {
        self.push(Received::ProcessEnded(peer, ended));
    }

    fn refused(&self, peer: NodeId, why: Refused) {
        self.push(Received::Refused(peer, why));
    }

    fn join(&self, ask: JoinAsk, reply: JoinReply) {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner).push((ask, reply));
        self.more_asked.notify_all();
    }
}

fn hello(from: u64, to: u64) -> Hello {
    Hello {
        cluster: ClusterId(7),
        from: node(from),
        to: node(to),
        disk: DiskId(from.into()),
        incarnation: Incarnation(1),
        standing: FoundingState::Blank,
        since: LogIndex(1),
        address: String::new(),
        supported_version: ClusterVersion::NEWEST,
    }
}

fn founding() -> FoundingState {
    FoundingState::Founded([1, 2, 3].map(|id| (node(id), DiskId(id.into()))).into())
}

/// An introducer with configurable replies.
struct TestIntroducer {
    /// The number in the name of this member, if the member knows its name.
    called: Option<u64>,
    hello: Mutex<Hello>,
    known: Mutex<Known>,
}

impl TestIntroducer {
    /// Creates an introducer that sends `of` to all peers and knows members 1 to 3 with their
    /// founding disks.
    fn new(of: Hello) -> Arc<Self> {
        let known = match &of.standing {
            FoundingState::Blank => Known::Founders([1, 2, 3].map(node).into()),
            FoundingState::Founded(founding) => known(Members::founded(founding)),
        };
        let called = Some(of.from.get());
        Arc::new(Self { called, hello: Mutex::new(of), known: Mutex::new(known) })
    }

    /// Sets the index of the log entry that added this member.
    fn since(&self, index: u64) {
        self.hello.lock().unwrap_or_else(PoisonError::into_inner).since = LogIndex(index);
    }

    fn knows(&self, members: Members) {
        *self.known.lock().unwrap_or_else(PoisonError::into_inner) = known(members);
    }
}

impl Introducer for TestIntroducer {
    fn hello(&self, to: NodeId) -> Hello {
        let hello = self.hello.lock().unwrap_or_else(PoisonError::into_inner);
        Hello { to, ..hello.clone() }
    }

    fn known(&self) -> Known {
        self.known.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn name(&self, of: NodeId) -> Option<String> {
        let me = self.hello.lock().unwrap_or_else(PoisonError::into_inner).from;
        let number = if of == me { self.called } else { Some(of.get()) };
        number.map(|number| format!("m{number}"))
    }
}

fn known(members: Members) -> Known {
    Known::Members(Arc::new(members))
}

/// Returns members 1 to 3 of a cluster, and later ones.
fn members(later: &[u64]) -> Members {
    let FoundingState::Founded(founding) = founding() else { unreachable!("it says so") };
    let mut members = Members::founded(&founding);
    for id in later {
        let add = MemberChange::Add {
            id: node(*id),
            disk: DiskId(u128::from(*id)),
            name: format!("m{id}"),
            address: String::new(),
            replaces: None,
        };
        members.apply(LogIndex(10 + id), &add);
    }
    members
}

/// Returns settings with which tests end soon.
fn settings() -> TcpSettings {
    TcpSettings { handshake_timeout: Duration::from_secs(5), ..TcpSettings::default() }
}

struct Member {
    inbox: Arc<Inbox>,
    peer_versions: Arc<TestIntroducer>,
    network: TcpNetwork,
    handle: TcpHandle,
}

impl Member {
    fn start(bound: TcpBound, of: Hello, peers: &[(u64, SocketAddr)], inbox: &Arc<Inbox>) -> Self {
        let called = Some(of.from.get());
        Self::start_as(bound, of, called, peers, inbox)
    }

    /// Starts a member whose name differs from its id, or that does not know its name.
    fn start_as(
        bound: TcpBound,
        of: Hello,
        called: Option<u64>,
        peers: &[(u64, SocketAddr)],
        inbox: &Arc<Inbox>,
    ) -> Self {
        let me = of.from;
        let mut peer_versions = TestIntroducer::new(of);
        Arc::get_mut(&mut peer_versions).expect("nobody else has it").called = called;
        let peers: BTreeMap<NodeId, Vec<String>> =
            peers.iter().map(|(id, address)| (node(*id), vec![address.to_string()])).collect();
        let (network, handle) = bound
            .start(&Env::real(), me, &peers, peer_versions.clone(), inbox.clone())
            .expect("a transport on loopback");
        Self { inbox: inbox.clone(), peer_versions, network, handle }
    }

    /// Sends a message repeatedly until it is queued.
    fn send(&mut self, to: u64, lane: Lane, message: &PeerMessage) {
        let began = std::time::Instant::now();
        while self.network.send(node(to), lane, message.clone()) != SendOutcome::Queued {
            assert!(began.elapsed() < DEADLINE, "cannot send to member {to}");
            std::thread::yield_now();
        }
    }
}

fn bind(settings: TcpSettings) -> TcpBound {
    TcpBound::bind("127.0.0.1:0", settings).expect("a free port")
}

/// Returns members 1 and 2, which know each other.
fn two(settings: TcpSettings, hellos: [Hello; 2]) -> [Member; 2] {
    let bound = [bind(settings.clone()), bind(settings)];
    let peers = [(1, bound[0].address()), (2, bound[1].address())];
    let mut members = bound
        .into_iter()
        .zip(hellos)
        .map(|(bound, hello)| Member::start(bound, hello, &peers, &Arc::default()));
    [members.next().expect("one"), members.next().expect("two")]
}

/// Returns member 1, whose peer 2 is at an unreachable address.
fn alone(settings: TcpSettings) -> Member {
    let peers = [(2, SocketAddr::from(([127, 0, 0, 1], 1)))];
    Member::start(bind(settings), hello(1, 2), &peers, &Arc::default())
}

fn ping(number: u64) -> PeerMessage {
    PeerMessage::Digest { index: LogIndex(number), digest: number }
}

/// Returns a message of this size.
fn load(bytes: usize, fill: u8) -> PeerMessage {
    PeerMessage::Raft(vec![fill; bytes].into())
}

fn preface(lane: u8) -> Vec<u8> {
    let mut bytes = b"bowline\0\x01\x00\x01\x00".to_vec();
    bytes.extend_from_slice(&[lane, 0, 0, 0]);
    bytes
}

fn framed(kind: FrameKind, body: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    frame::put_frame(&mut bytes, kind, |out| out.extend_from_slice(body));
    bytes
}

fn encoded(message: &PeerMessage) -> Vec<u8> {
    let mut bytes = Vec::new();
    codec::encode_message(message, &mut bytes);
    bytes
}

fn hello_frame(hello: &Hello) -> Vec<u8> {
    framed(FrameKind::Hello, &encoded(&PeerMessage::Hello(hello.clone())))
}

fn message_frame(message: &PeerMessage) -> Vec<u8> {
    framed(FrameKind::Message, &encoded(message))
}

/// Connects as a hand-written peer, with a blocking socket.
fn connect(to: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(to).expect("the port is open");
    stream.set_nodelay(true).expect("an option");
    stream.set_read_timeout(Some(DEADLINE)).expect("a timeout");
    stream.set_write_timeout(Some(DEADLINE)).expect("a timeout");
    stream
}

/// Reads one frame after `skip` other bytes.
fn read_frame(stream: &mut TcpStream, skip: usize) -> (u8, Vec<u8>) {
    let mut skipped = vec![0; skip];
    stream.read_exact(&mut skipped).expect("the bytes before the frame");
    let mut header = [0; frame::HEADER_BYTES];
    stream.read_exact(&mut header).expect("a header");
    let mut checked =
        vec![0; u32::from_le_bytes([header[0], header[1], header[2], header[3]]) as usize];
    stream.read_exact(&mut checked).expect("a whole frame");
    (checked[0], checked[1..].to_vec())
}

/// Connects as a hand-written peer and completes the handshake.
fn introduce(to: SocketAddr, lane: u8, hello: &Hello) -> TcpStream {
    let mut stream = connect(to);
    stream.write_all(&[preface(lane), hello_frame(hello)].concat()).expect("written");
    let (kind, body) = read_frame(&mut stream, 16);
    assert_eq!(kind, 1, "refused: {}", String::from_utf8_lossy(&body));
    stream.write_all(&framed(FrameKind::Alive, b"")).expect("written");
    stream
}

/// Waits until the other end has closed the connection, and returns the data received before.
fn read_to_close(stream: &mut TcpStream) -> Vec<u8> {
    let mut received = Vec::new();
    let mut piece = [0; 4096];
    loop {
        match stream.read(&mut piece) {
            Ok(0) => return received,
            Ok(len) => received.extend_from_slice(&piece[..len]),
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => return received,
            Err(error) => panic!("not closed in time: {error}"),
        }
    }
}
