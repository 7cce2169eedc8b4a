//! Tests of connections that break, some silently, and of peers that return.

use super::talking::{be_dialed, be_dialed_as};
use super::*;
use crate::transport::peers::LANES;
use crate::transport::security::Security;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

/// A timeout longer than any test.
const NEVER: Duration = Duration::from_secs(3600);

/// A firewall between a member and its peers that can forget connections and drop their packets.
struct Firewall {
    address: SocketAddr,
    /// Data on connections with lower numbers is dropped.
    forgotten: Arc<AtomicUsize>,
    seen: Arc<AtomicUsize>,
}

impl Firewall {
    fn before(peer: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("bound");
        let (forgotten, seen) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let firewall = Self { address, forgotten: forgotten.clone(), seen: seen.clone() };
        std::thread::spawn(move || {
            while let Ok((near, _)) = listener.accept() {
                let number = seen.fetch_add(1, Ordering::SeqCst);
                let Ok(far) = TcpStream::connect(peer) else { continue };
                let both = [(near.try_clone(), far.try_clone()), (Ok(far), Ok(near))];
                for (from, to) in both {
                    let (mut from, mut to) = (from.expect("a socket"), to.expect("a socket"));
                    let forgotten = forgotten.clone();
                    std::thread::spawn(move || {
                        let mut piece = [0; 4096];
                        while let Ok(len @ 1..) = from.read(&mut piece) {
                            let is_known = forgotten.load(Ordering::SeqCst) <= number;
                            if is_known && to.write_all(&piece[..len]).is_err() {
                                break;
                            }
                        }
                        let _ = to.shutdown(std::net::Shutdown::Both);
                    });
                }
            }
        });
        firewall
    }

    /// Drops everything until [`Self::open`], including the data on new connections.
    fn close(&self) {
        self.forgotten.store(usize::MAX, Ordering::SeqCst);
    }

    /// Lets new connections through. Earlier ones stay blocked.
    fn open(&self) {
        self.forget_all();
    }

    /// Waits for this number of new connections.
    fn wait_for_attempts(&self, attempts: usize) {
        let (began, before) = (Instant::now(), self.seen.load(Ordering::SeqCst));
        while self.seen.load(Ordering::SeqCst) < before + attempts {
            assert!(began.elapsed() < DEADLINE, "not dialed again");
            std::thread::yield_now();
        }
    }

    /// Silently drops all data on the connections made so far.
    fn forget_all(&self) {
        self.forgotten.store(self.seen.load(Ordering::SeqCst), Ordering::SeqCst);
    }
}

#[test]
fn silently_dead_connections_are_replaced_before_sessions_end() {
    let settings = TcpSettings::with_election_timeout(Duration::from_millis(500));
    let two = Member::start(bind(settings.clone()), hello(2, 1), &[], &Arc::default());
    let firewall = Firewall::before(two.handle.address());
    let peers = [(2, firewall.address)];
    let mut one = Member::start(bind(settings), hello(1, 2), &peers, &Arc::default());
    for lane in LANES {
        one.send(2, lane, &ping(lane as u64));
        two.inbox.wait_for_message(node(1), &ping(lane as u64));
    }
    firewall.forget_all();
    let (began, mut number) = (Instant::now(), 100);
    let mut missing = LANES.to_vec();
    while !missing.is_empty() {
        // While the old connections still count as alive, all these messages are lost, although the
        // operating system accepts them.
        number += 10;
        for lane in &missing {
            let _ = one.network.send(node(2), *lane, ping(number + *lane as u64));
        }
        let came = |lane: Lane| {
            two.inbox.messages().iter().any(|message| {
                matches!(message, PeerMessage::Digest { digest, .. }
                    if *digest > 100 && digest % 10 == lane as u64)
            })
        };
        two.inbox.wait_a_little(Duration::from_millis(20));
        missing.retain(|lane| !came(*lane));
        // Without further attempts, recovery would take the idle timeout of ten seconds.
        assert!(began.elapsed() < Duration::from_secs(8), "still mute: {missing:?}");
    }
}

/// Sends on both permanent lanes until messages on both have arrived.
fn until_through(one: &mut Member, two: &Member) {
    let began = Instant::now();
    for lane in [Lane::Control, Lane::Bulk] {
        let message = ping(700 + lane as u64);
        while !two.inbox.messages().contains(&message) {
            let _ = one.network.send(node(2), lane, message.clone());
            two.inbox.wait_a_little(Duration::from_millis(20));
            assert!(began.elapsed() < DEADLINE, "{lane:?} is still mute");
        }
    }
}

/// No timeout expires within this test, so no message that arrives has waited for a timeout.
#[test]
fn healed_black_hole_costs_no_timeout() {
    let settings = TcpSettings { handshake_timeout: NEVER, idle_timeout: NEVER, ..settings() };
    let settings = TcpSettings { alive_every: Duration::from_millis(50), ..settings };
    let two = Member::start(bind(settings.clone()), hello(2, 1), &[], &Arc::default());
    let firewall = Firewall::before(two.handle.address());
    // In the first part of the test, the first attempts to connect hang in their handshakes.
    firewall.close();
    let peers = [(2, firewall.address)];
    let mut one = Member::start(bind(settings), hello(1, 2), &peers, &Arc::default());
    firewall.wait_for_attempts(2);
    firewall.open();
    until_through(&mut one, &two);
    // In the second part of the test, the connections are open, and the attempts to replace them
    // hang.
    two.inbox.forget(|_| true);
    firewall.close();
    firewall.wait_for_attempts(2);
    firewall.open();
    until_through(&mut one, &two);
    let gone = |received: &Received| matches!(received, Received::Disconnected(_));
    assert!(!one.inbox.has(gone), "a connection that is replaced is no absence");
}

#[test]
fn slow_handshake_is_not_abandoned_for_newer_attempts() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let peers = [(2, listener.local_addr().expect("bound"))];
    let redial_every = Duration::from_millis(5);
    let settings = TcpSettings { handshake_timeout: NEVER, redial_every, ..settings() };
    let one = Member::start(bind(settings), hello(1, 2), &peers, &Arc::default());
    // The first connection is answered after many others have been opened and closed.
    let (mut first, _) = listener.accept().expect("dialed");
    for _ in 0..20 {
        drop(listener.accept().expect("dialed again"));
    }
    let mut preface_and_hello = [0; 17];
    first.read_exact(&mut preface_and_hello).expect("its first bytes");
    let answer = [preface(preface_and_hello[12]), hello_frame(&hello(2, 1))].concat();
    first.write_all(&answer).expect("answered");
    one.inbox.wait_for_connection(node(2));
}

#[test]
fn received_data_is_answered_with_a_keepalive() {
    let one = alone(settings());
    let mut peer = introduce(one.handle.address(), 1, &hello(2, 1));
    for number in 0..2 {
        peer.write_all(&message_frame(&ping(number))).expect("written");
        assert_eq!(read_frame(&mut peer, 0).0, 4, "a sign of life");
    }
}

#[test]
fn connections_to_an_earlier_incarnation_are_closed_for_a_later_one() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let peers = [(2, listener.local_addr().expect("bound"))];
    // With this timeout, the connection of the earlier incarnation still seems alive.
    let settings = TcpSettings { idle_timeout: NEVER, alive_every: NEVER, ..settings() };
    let mut one = Member::start(bind(settings), hello(1, 2), &peers, &Arc::default());
    let mut earlier = be_dialed(&listener);
    one.inbox.wait_for_connection(node(2));
    let later = Hello { incarnation: Incarnation(2), ..hello(2, 1) };
    let _dialed = introduce(one.handle.address(), 0, &later);
    for lane in &mut earlier {
        read_to_close(lane);
    }
    let [mut control, _bulk] = be_dialed_as(&listener, &later);
    one.send(2, Lane::Control, &ping(1));
    while read_frame(&mut control, 0) != (3, encoded(&ping(1))) {}
}

#[test]
fn member_with_a_dropped_network_has_ended_until_it_is_back() {
    let [one, two] = two(settings(), [hello(1, 2), hello(2, 1)]);
    one.inbox.wait_for_connection(node(2));
    two.inbox.wait_for_connection(node(1));
    let Member { network, handle, .. } = two;
    drop(network);
    one.inbox.wait("gone", |received| received.contains(&Received::Disconnected(node(2))));
    let (began, address) = (Instant::now(), handle.address().to_string());
    let bound = loop {
        match TcpBound::bind(&address, settings()) {
            Ok(bound) => break bound,
            Err(error) => assert!(began.elapsed() < DEADLINE, "{error}"),
        }
        std::thread::yield_now();
    };
    // While the port is free, dials are refused.
    drop(bound);
    one.inbox.wait("ended", |received| received.contains(&Received::ProcessEnded(node(2), true)));
    let bound = TcpBound::bind(&address, settings()).expect("a free port");
    let again = Hello { incarnation: Incarnation(2), ..hello(2, 1) };
    let _two = Member::start(bound, again, &[], &Arc::default());
    one.inbox
        .wait("withdrawn", |received| received.contains(&Received::ProcessEnded(node(2), false)));
}

#[test]
fn connections_that_the_network_loses_are_no_evidence_that_the_peer_has_ended() {
    let settings = TcpSettings::with_election_timeout(Duration::from_millis(500));
    let two = Member::start(bind(settings.clone()), hello(2, 1), &[], &Arc::default());
    let firewall = Firewall::before(two.handle.address());
    let one = Member::start(bind(settings), hello(1, 2), &[(2, firewall.address)], &Arc::default());
    one.inbox.wait_for_connection(node(2));
    firewall.close();
    one.inbox.wait("gone", |received| received.contains(&Received::Disconnected(node(2))));
    firewall.wait_for_attempts(2);
    assert!(!one.inbox.has(|received| matches!(received, Received::ProcessEnded(..))));
}

#[test]
fn short_lived_connections_are_redialed_with_backoff() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let peers = [(2, listener.local_addr().expect("bound"))];
    let _one = Member::start(bind(settings()), hello(1, 2), &peers, &Arc::default());
    // The peer is dialed on two lanes. With pauses of 20 ms there would be a hundred attempts per
    // second.
    let (began, mut dialed) = (Instant::now(), 0);
    while began.elapsed() < Duration::from_secs(3) {
        drop(be_dialed(&listener));
        dialed += 2;
    }
    assert!(dialed < 60, "dialed {dialed} times in three seconds");
}

#[test]
fn hanging_attempt_is_replaced_when_the_peer_is_heard() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let peers = [(2, listener.local_addr().expect("bound"))];
    let settings = TcpSettings { handshake_timeout: NEVER, ..settings() };
    let one = Member::start(bind(settings), hello(1, 2), &peers, &Arc::default());
    // Both lanes are dialed, and the handshakes hang.
    let _hanging: Vec<_> = (0..2).map(|_| listener.accept().expect("dialed")).collect();
    listener.set_nonblocking(true).expect("a mode");
    let (began, mut again) = (Instant::now(), Vec::new());
    while again.len() < 2 {
        let _dialed = introduce(one.handle.address(), 0, &hello(2, 1));
        again.extend(std::iter::from_fn(|| listener.accept().ok()));
        assert!(began.elapsed() < DEADLINE, "dialed again {} times", again.len());
    }
}

#[test]
fn failed_handshake_tries_the_next_address_of_the_name() {
    // The name has two addresses, and another program listens at the first.
    let [other, right] = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").expect("a free port"));
    let name = [&other, &right].map(|at| at.local_addr().expect("bound").to_string()).join("+");
    std::thread::spawn(move || {
        while let Ok((mut stream, _)) = other.accept() {
            let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n");
        }
    });
    let found = std::thread::spawn(move || be_dialed(&right));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime").block_on(async {
        let inbox: Arc<Inbox> = Arc::default();
        let (stop, stopping) = tokio::sync::watch::channel(false);
        let mut context = context::Context::new(
            Env::real(),
            settings(),
            Security::None,
            handshake::Admission::new(node(1), TestIntroducer::new(hello(1, 2))),
            inbox.clone(),
            stopping,
            std::sync::mpsc::channel().0,
        );
        context.names = names::Names::by(|name| {
            let addresses = name.split('+').map(|one| one.parse().expect("an address")).collect();
            Box::pin(async move { Ok(addresses) })
        });
        let context = Arc::new(context);
        let (new, _) = context.peers.set(&[(node(2), vec![name])].into(), &context.settings);
        for lane in [Lane::Control, Lane::Bulk] {
            let (context, peer) = (context.clone(), new[0].clone());
            tokio::spawn(async move { dialer::keep(context, peer, lane).await });
        }
        let both = |received: &Received| matches!(received, Received::Connected(..));
        let began = Instant::now();
        while !(inbox.has(both) && found.is_finished()) {
            assert!(began.elapsed() < DEADLINE, "it stays with the first address");
            tokio::task::yield_now().await;
        }
        drop(stop);
    });
}
