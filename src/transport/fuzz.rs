//! Fuzz targets for frames and for the handshake, in both roles. The handshake must accept a peer
//! only after all checks, and must not read any byte of a message before that.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, mpsc};
use tokio::sync::watch;

use bytes::BytesMut;

use super::context::Context;
use super::exchange::{self, Broken, Met, Preface};
use super::frame::{self, Frame, FrameKind, FrameReader, HEADER_BYTES};
use super::handshake::{Admission, check_hello};
use super::join;
use super::script::Script;
use super::security::Security;
use super::wire::Wire;
use super::*;
use crate::codec;
use crate::codec::sample::Sample;
use crate::env::{BootClock, Entropy as _, Env, NoPoints, RealDisk};
use crate::fuzz::{Came, Feed};
use crate::model::{
    ClusterId, ClusterVersion, DiskId, FoundingState, Incarnation, Lane, LogIndex, MemberChange,
};
use crate::sim::Rng;

// ---- frames -------------------------------------------------------------------------------

/// Maximum size of a body here.
const BODY_BYTES_MAX: usize = 20 << 10;

/// Checks that a stream is split into the same frames however it is fragmented on arrival, and that
/// the frames add up to the stream.
pub(crate) fn frames(data: &[u8]) -> Came {
    let mut feed = Feed::new(data);
    let (way, step) = (feed.byte(), 1 + usize::from(feed.byte()));
    let stream = match way % 4 {
        0 => feed.rest().to_vec(),
        _ => stream(&mut feed),
    };
    let (whole, end) = cut(&stream, stream.len().max(1));
    assert_eq!((&whole, &end), (&cut(&stream, step).0, &cut(&stream, step).1));
    let mut again = Vec::new();
    for frame in &whole {
        frame::put_frame(&mut again, frame.kind, |out| out.extend_from_slice(&frame.body));
        if frame.kind == FrameKind::Message
            && let Ok(message) = codec::decode_message(frame.body.clone())
        {
            let mut bytes = Vec::new();
            codec::encode_message(&message, &mut bytes);
            assert_eq!(bytes, frame.body);
        }
    }
    assert!(stream.starts_with(&again), "the frames are not what came");
    if whole.is_empty() { Came::Refused } else { Came::Through }
}

fn cut(stream: &[u8], step: usize) -> (Vec<Frame>, Result<(), frame::FrameError>) {
    let (mut reader, mut frames) = (FrameReader::new(BODY_BYTES_MAX), Vec::new());
    for piece in stream.chunks(step) {
        reader.buffer().extend_from_slice(piece);
        loop {
            match reader.next() {
                Ok(Some(frame)) => frames.push(frame),
                Ok(None) => break,
                Err(error) => return (frames, Err(error)),
            }
        }
    }
    (frames, Ok(()))
}

/// Returns frames, most of them with correct checksums.
fn stream(feed: &mut Feed<'_>) -> Vec<u8> {
    let mut stream = Vec::new();
    while !feed.is_empty() {
        let body = match feed.byte() % 8 {
            0 => vec![feed.byte(); usize::from(feed.byte()) * 100],
            _ => feed.bytes(1000).to_vec(),
        };
        put(&mut stream, feed, None, &body);
    }
    stream
}

fn put(stream: &mut Vec<u8>, feed: &mut Feed<'_>, kind: Option<FrameKind>, body: &[u8]) {
    let start = stream.len();
    frame::put_frame(stream, kind.unwrap_or(FrameKind::Message), |out| {
        out.extend_from_slice(body);
    });
    let header = &mut stream[start..];
    match feed.byte() {
        0..208 => {}
        208..240 if kind.is_none() => {
            // Changes the kind of the frame, possibly to an unknown kind.
            header[HEADER_BYTES] = feed.byte() % 10;
            let crc = crc32fast::hash(&header[HEADER_BYTES..]);
            header[8..HEADER_BYTES].copy_from_slice(&crc.to_le_bytes());
        }
        240..248 => {
            let length = (feed.near(body.len() as u64 + 1) as u32).to_le_bytes();
            header[..4].copy_from_slice(&length);
            header[4..8].copy_from_slice(&crc32fast::hash(&length).to_le_bytes());
        }
        _ => {
            let at = usize::from(feed.byte()) % header.len();
            header[at] ^= 1 << (feed.byte() % 8);
        }
    }
}

pub(crate) fn frame_seeds() -> Vec<Vec<u8>> {
    let mut sample = Sample::new(3);
    let mut seeds = Vec::new();
    while seeds.len() < 30 {
        let mut seed = vec![0, sample.below(256) as u8];
        for _ in 0..1 + sample.below(3) {
            seed.extend(inspect::framed(&sample.draw()));
        }
        if seed.len() < 1500 {
            seeds.push(seed);
        }
        let orders = (0..80).map(|_| sample.next() as u8);
        seeds.push(std::iter::once(1).chain(orders).collect());
    }
    seeds
}

// ---- the handshake ------------------------------------------------------------------------

const TOKEN: &str = "token";

fn node(id: u64) -> NodeId {
    NodeId::new(id).expect("not 0")
}

fn disk(id: u64) -> DiskId {
    DiskId(u128::from(id) << 96)
}

fn hello(from: u64, to: u64) -> Hello {
    Hello {
        cluster: ClusterId(7),
        from: node(from),
        to: node(to),
        disk: disk(from),
        incarnation: Incarnation(2),
        standing: FoundingState::Blank,
        since: LogIndex(1),
        address: String::new(),
        supported_version: ClusterVersion::NEWEST,
    }
}

fn founding() -> BTreeMap<NodeId, DiskId> {
    [1, 2, 3].map(|id| (node(id), disk(id))).into()
}

/// Member 1, with the peers that it knows.
struct Myself {
    standing: FoundingState,
    known: Known,
}

impl Myself {
    fn draw(feed: &mut Feed<'_>) -> Self {
        let founders = || Known::Founders(BTreeSet::from([1, 2, 3].map(node)));
        let mut members = Members::founded(&founding());
        let add = |id: u64, replaces: Option<u64>| MemberChange::Add {
            id: node(id),
            disk: disk(id),
            name: format!("m{id}"),
            address: String::new(),
            replaces: replaces.map(node),
        };
        let replace = MemberChange::Replace { old: node(2), new: node(4) };
        let changes = [add(4, Some(2)), replace, MemberChange::LeaveJoint];
        match feed.byte() % 5 {
            0 => return Self { standing: FoundingState::Blank, known: founders() },
            steps => {
                for (at, change) in changes.iter().take(usize::from(steps) - 1).enumerate() {
                    members.apply(LogIndex(50 + at as u64), change);
                }
            }
        }
        Self {
            standing: FoundingState::Founded(founding()),
            known: Known::Members(Arc::new(members)),
        }
    }
}

impl Introducer for Myself {
    fn hello(&self, to: NodeId) -> Hello {
        Hello { standing: self.standing.clone(), ..hello(1, to.get()) }
    }

    fn known(&self) -> Known {
        self.known.clone()
    }

    fn name(&self, of: NodeId) -> Option<String> {
        Some(format!("m{of}"))
    }
}

/// A receiver that is never called: only handshakes happen here.
struct NullReceiver;

impl Receiver for NullReceiver {
    fn deliver(&self, _: NodeId, _: PeerMessage) {}
    fn connected(&self, _: NodeId, _: Hello) {}
    fn disconnected(&self, _: NodeId) {}
    fn process_ended(&self, _: NodeId, _: bool) {}
    fn refused(&self, _: NodeId, _: Refused) {}
    fn join(&self, _: JoinAsk, _: JoinReply) {}
}

/// Runs some connections, one after the other, each with its own input.
pub(crate) fn handshake(data: &[u8]) -> Came {
    let mut feed = Feed::new(data);
    let introducer: Arc<dyn Introducer> = Arc::new(Myself::draw(&mut feed));
    let env = Env {
        clock: Arc::new(BootClock),
        entropy: Arc::new(Rng::new(9)),
        disk: Arc::new(RealDisk),
        points: Arc::new(NoPoints),
    };
    // The challenges are known, so that some proofs are correct.
    let challenges = Rng::new(9);
    let settings = TcpSettings { token: TOKEN.to_owned(), ..TcpSettings::default() };
    let ((_stop, stopping), (ended, _)) = (watch::channel(false), mpsc::channel());
    let admission = Admission::new(node(1), introducer.clone());
    let receiver: Arc<dyn Receiver> = Arc::new(NullReceiver);
    let security = Security::None;
    let context = Context::new(env, settings, security, admission, receiver, stopping, ended);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
    let runtime = runtime.expect("a runtime without sockets");
    // The last seen disk and incarnation of each member. Incarnations are counted for each disk.
    let mut met: BTreeMap<NodeId, (DiskId, Incarnation)> = BTreeMap::new();
    let mut came = Came::Refused;
    for _ in 0..1 + feed.below(4) {
        let dials = feed.once_in(3);
        let mut hears_challenge = false;
        let words = match feed.byte() % 4 {
            0 => feed.bytes(1000).to_vec(),
            _ => words(&mut feed, dials, &challenges, &mut hears_challenge),
        };
        let peer = node(2 + feed.below(3));
        let mut wire = Wire::Script(Box::new(Script::new(words.clone())));
        let result = runtime.block_on(async {
            if dials {
                let lane = Lane::Control;
                let theirs = exchange::dial(&mut wire, peer, lane, &context.admission).await?;
                return Ok((Met::Member(theirs, lane), None));
            }
            let preface = Preface::read(&mut wire).await?;
            let met = exchange::accept(&mut wire, preface, &context).await?;
            Ok::<_, Broken>((met, Some(())))
        });
        let Wire::Script(script) = wire else { unreachable!("as made above") };
        let (sent, unread) = (script.sent().clone(), script.unread().clone());
        check_exchange(&sent, &words, dials);
        let Ok((who, _)) = result else { continue };
        came = Came::Through;
        match who {
            Met::Member(theirs, _) => {
                let mine = introducer.hello(theirs.from);
                assert_eq!(check_hello(&mine, &theirs, &introducer.known()), Ok(()));
                assert!(!dials || theirs.from == peer, "another than was dialed");
                let before = met.insert(theirs.from, (theirs.disk, theirs.incarnation));
                assert!(
                    before.is_none_or(|(disk, life)| {
                        disk != theirs.disk || life <= theirs.incarnation
                    }),
                    "an earlier life was let in"
                );
                // No byte of a message was read.
                let mut read = BytesMut::from(&words[16..words.len() - unread.len()]);
                let hello = next(&mut read).expect("a hello");
                assert_eq!(hello.kind, FrameKind::Hello);
                assert_eq!(
                    next(&mut read).map(|last| last.kind),
                    (!dials).then_some(FrameKind::Alive)
                );
                assert!(read.is_empty(), "{} bytes too many were read", read.len());
            }
            Met::Joiner(ask) => {
                assert!(hears_challenge, "nobody can have answered this challenge");
                assert!(ask.name.len() <= JoinAsk::TEXT_BYTES_MAX);
            }
        }
    }
    came
}

fn next(bytes: &mut BytesMut) -> Option<Frame> {
    let mut reader = FrameReader::new(BODY_BYTES_MAX);
    reader.buffer().extend_from_slice(bytes);
    let frame = reader.next().expect("it was read before")?;
    let _read = bytes.split_to(HEADER_BYTES + 1 + frame.body.len());
    Some(frame)
}

/// Checks the output: a dialer that does not begin with the magic gets no reply, and all others get
/// complete frames.
fn check_exchange(sent: &[u8], received: &[u8], dials: bool) {
    const MAGIC: &[u8] = b"bowline\0";
    if !dials && !received.starts_with(MAGIC) {
        assert!(sent.is_empty(), "a stranger was answered");
    }
    if sent.is_empty() {
        return;
    }
    assert!(sent.starts_with(MAGIC) && sent.len() >= 16);
    let mut rest = BytesMut::from(&sent[16..]);
    let mut kinds = Vec::new();
    while !rest.is_empty() {
        kinds.push(next(&mut rest).expect("whole frames").kind);
    }
    assert!((1..=2).contains(&kinds.len()), "{kinds:?}");
    assert!(kinds[..kinds.len() - 1].iter().all(|kind| !kind.refuses()), "{kinds:?}");
}

/// Returns input that mostly follows the protocol.
fn words(
    feed: &mut Feed<'_>,
    answers: bool,
    challenges: &Rng,
    hears_challenge: &mut bool,
) -> Vec<u8> {
    let lane = match feed.byte() % 8 {
        lane @ 0..4 => lane,
        4 | 5 => exchange::JOIN_LANE,
        _ => 0,
    };
    let mut words = Preface::new(lane).bytes().to_vec();
    if feed.once_in(16) {
        let at = usize::from(feed.byte()) % words.len();
        words[at] = feed.byte();
    }
    if !answers && words.get(12) == Some(&exchange::JOIN_LANE) {
        let challenge = challenges.next_u128().to_le_bytes();
        *hears_challenge = true;
        let mut body = join::proof(TOKEN, challenge).to_vec();
        if feed.once_in(4) {
            body[usize::from(feed.byte()) % 16] ^= 1;
            *hears_challenge = false;
        }
        let text = |feed: &mut Feed<'_>| String::from_utf8_lossy(feed.bytes(20)).into_owned();
        let replaces = feed.once_in(2).then(|| text(feed));
        let (name, address) = (text(feed), text(feed));
        codec::encode_join_ask(&JoinAsk { disk: disk(5), name, address, replaces }, &mut body);
        put(&mut words, feed, Some(FrameKind::JoinAsk), &body);
        return words;
    }
    for _ in 0..1 + feed.below(3) {
        let (kind, body) = match feed.byte() % 16 {
            0 => (FrameKind::Refused, feed.bytes(30).to_vec()),
            1 => (FrameKind::Removed, feed.bytes(30).to_vec()),
            2 => (FrameKind::Message, feed.bytes(30).to_vec()),
            3 => (FrameKind::Hello, feed.bytes(60).to_vec()),
            4..8 => (FrameKind::Alive, Vec::new()),
            _ => (FrameKind::Hello, a_hello(feed)),
        };
        put(&mut words, feed, Some(kind), &body);
        if kind == FrameKind::Hello && !feed.once_in(8) {
            put(&mut words, feed, Some(FrameKind::Alive), &[]);
        }
    }
    words.extend(feed.bytes(20));
    words
}

fn a_hello(feed: &mut Feed<'_>) -> Vec<u8> {
    let from = if feed.once_in(8) { feed.near(5).max(1) } else { 2 + feed.below(3) };
    let to = if feed.once_in(16) { feed.near(1).max(1) } else { 1 };
    let mut theirs = hello(from, to);
    theirs.incarnation = Incarnation(feed.near(2));
    theirs.since = LogIndex(if feed.once_in(2) { feed.near(51) } else { 1 });
    if !feed.once_in(4) {
        let mut founding = founding();
        if feed.once_in(8) {
            founding.insert(node(feed.near(3).max(1)), disk(feed.near(3)));
        }
        theirs.standing = FoundingState::Founded(founding);
    }
    if feed.once_in(16) {
        theirs.disk = disk(feed.near(from));
    }
    if feed.once_in(16) {
        theirs.cluster = ClusterId(u128::from(feed.number()));
    }
    let mut body = Vec::new();
    codec::encode_message(&PeerMessage::Hello(theirs), &mut body);
    body
}

pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let mut sample = Sample::new(4);
    let mut seeds = Vec::new();
    // The exact bytes that real members send: to a founder, and to a member of a founded cluster.
    for (known, standing) in [(0, FoundingState::Blank), (1, FoundingState::Founded(founding()))] {
        for lane in 0..3 {
            let mut words = Preface::new(lane).bytes().to_vec();
            let theirs = Hello { standing: standing.clone(), ..hello(2, 1) };
            frame::put_frame(&mut words, FrameKind::Hello, |out| {
                codec::encode_message(&PeerMessage::Hello(theirs), out);
            });
            frame::put_frame(&mut words, FrameKind::Alive, |_| {});
            let len = (words.len() as u16).to_le_bytes();
            // In the first run, this member accepts a connection with these bytes; in the second
            // run, it dials the connection.
            for dials in [0, 2] {
                seeds.push([&[known, 0, dials, 0], &len[..], &words].concat());
            }
        }
    }
    for _ in 0..50 {
        let len = 30 + sample.below(100);
        seeds.push((0..len).map(|_| sample.next() as u8).collect());
    }
    seeds
}
