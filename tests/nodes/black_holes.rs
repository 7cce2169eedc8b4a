//! A test with a network that loses all traffic of one member for a while.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bowline::{Blocking, Config, Node};

use crate::loopback;

/// Duration of the loss: long enough that open connections are closed and new attempts to connect
/// are in progress.
const SWALLOWED_FOR: Duration = Duration::from_secs(4);

/// A relay in front of a member. Peers dial the relay.
struct Relay {
    /// The address that peers dial, and the one on which the member listens.
    address: String,
    listens: String,
}

/// Determines which connections of the relays lose their traffic.
#[derive(Clone)]
struct Hole {
    /// Address of the member that is cut off.
    around: Arc<String>,
    is_open: Arc<AtomicBool>,
}

impl Relay {
    fn new() -> Self {
        Self { address: loopback::address(), listens: loopback::address() }
    }

    fn run(&self, hole: &Hole) {
        let (to, hole) = (self.listens.clone(), hole.clone());
        let is_around = self.address == *hole.around;
        let listener = TcpListener::bind(&self.address).unwrap();
        std::thread::spawn(move || {
            while let Ok((near, _)) = listener.accept() {
                let (to, hole) = (to.clone(), hole.clone());
                std::thread::spawn(move || hole.relay(near, &to, is_around));
            }
        });
    }
}

impl Hole {
    /// Forwards traffic until one end closes. The first bytes of a caller contain its own address.
    fn relay(&self, mut near: TcpStream, to: &str, is_around: bool) {
        let mut first = vec![0; 16 << 10];
        let Ok(len @ 1..) = near.read(&mut first) else { return };
        first.truncate(len);
        let caller = self.around.as_bytes();
        let is_around = is_around || first.windows(caller.len()).any(|part| part == caller);
        let Ok(mut far) = TcpStream::connect(to) else { return };
        let back = (far.try_clone().unwrap(), near.try_clone().unwrap(), self.clone());
        std::thread::spawn(move || back.2.pass(back.0, back.1, is_around));
        if self.swallows(is_around) || far.write_all(&first).is_ok() {
            self.pass(near, far, is_around);
        }
    }

    fn swallows(&self, is_around: bool) -> bool {
        is_around && self.is_open.load(Ordering::SeqCst)
    }

    fn pass(&self, mut from: TcpStream, mut to: TcpStream, is_around: bool) {
        let mut piece = vec![0; 16 << 10];
        while let Ok(len @ 1..) = from.read(&mut piece) {
            if !self.swallows(is_around) && to.write_all(&piece[..len]).is_err() {
                break;
            }
        }
        let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
    }
}

/// Uses the default timeouts. Earlier versions waited four seconds for a handshake that had started before the
/// network was back.
#[test]
fn partitioned_member_reads_again_soon_after_healing() {
    let dir = tempfile::tempdir().unwrap();
    let relays: [Relay; 3] = std::array::from_fn(|_| Relay::new());
    let around = Arc::new(relays[2].address.clone());
    let hole = Hole { around, is_open: Arc::default() };
    let name = |at: usize| format!("m{at}");
    let members: Vec<_> =
        relays.iter().enumerate().map(|(at, relay)| (name(at), relay.address.clone())).collect();
    let start = |at: usize| {
        relays[at].run(&hole);
        let config = Config::new(dir.path().join(name(at)), name(at))
            .members(members.clone())
            .listen(&relays[at].listens);
        Node::start(config).block().unwrap()
    };
    let nodes = [0, 1, 2].map(start);
    nodes[0].client().put("k", "v").deadline(Duration::from_secs(60)).block().unwrap();
    let mut took: Vec<Duration> = (0..3)
        .map(|_| {
            hole.is_open.store(true, Ordering::SeqCst);
            std::thread::sleep(SWALLOWED_FOR);
            hole.is_open.store(false, Ordering::SeqCst);
            let ended = Instant::now();
            let read = nodes[2].client().get("k").deadline(Duration::from_secs(60)).block();
            assert!(read.unwrap().is_some());
            ended.elapsed()
        })
        .collect();
    took.sort();
    assert!(took[1] < Duration::from_secs(2), "{took:?}");
    for node in nodes {
        node.shutdown().block();
    }
}
