//! Tests of correct members that exchange messages.

use super::*;
use std::time::Instant;

#[test]
fn messages_arrive_in_order_on_each_lane() {
    let [mut one, two] = two(settings(), [hello(1, 2), hello(2, 1)]);
    for number in 0..5000 {
        one.send(2, Lane::Control, &ping(number));
        if number % 10 == 0 {
            one.send(2, Lane::Bulk, &load(number as usize * 10, number as u8));
        }
    }
    one.send(2, Lane::Bulk, &ping(5000));
    two.inbox.wait_for_message(node(1), &ping(4999));
    two.inbox.wait_for_message(node(1), &ping(5000));
    let (control, bulk): (Vec<_>, Vec<_>) = two.inbox.messages().into_iter().partition(
        |message| matches!(message, PeerMessage::Digest { index, .. } if index.get() < 5000),
    );
    assert!(control == (0..5000).map(ping).collect::<Vec<_>>(), "control out of order");
    let loads = (0..500).map(|ten: usize| load(ten * 100, (ten * 10) as u8));
    assert!(bulk == loads.chain([ping(5000)]).collect::<Vec<_>>(), "bulk out of order");
}

#[test]
fn every_message_kind_arrives_unchanged() {
    let [mut one, two] = two(settings(), [hello(1, 2), hello(2, 1)]);
    let sent: Vec<_> = (0..300)
        .map(|seed| codec::sample::Sample::new(seed).draw())
        .filter(|message| !matches!(message, PeerMessage::Hello(_)))
        .collect();
    for message in &sent {
        one.send(2, Lane::Bulk, message);
    }
    two.inbox.wait("all", |received| {
        received.iter().filter(|one| matches!(one, Received::Message(..))).count() == sent.len()
    });
    assert!(two.inbox.messages() == sent);
}

#[test]
fn receiver_is_notified_of_connects_and_disconnects() {
    let [one, two] = two(settings(), [hello(1, 2), hello(2, 1)]);
    one.inbox.wait_for_connection(node(2));
    two.inbox.wait_for_connection(node(1));
    assert!(one.inbox.has(|received| *received == Received::Connected(node(2), hello(2, 1))));
    two.handle.stop();
    let received = two.inbox.received.lock().unwrap_or_else(PoisonError::into_inner).len();
    one.inbox.wait("gone", |received| has_disconnected(received, node(2)));
    let after = two.inbox.received.lock().unwrap_or_else(PoisonError::into_inner);
    assert_eq!(after.len(), received, "called after it was stopped");
    assert_eq!(after.last(), Some(&Received::Disconnected(node(1))));
}

#[test]
fn absent_peer_is_unreachable() {
    let mut one = alone(settings());
    for to in [1, 2, 9] {
        assert_eq!(one.network.send(node(to), Lane::Control, ping(1)), SendOutcome::Unreachable);
    }
}

#[test]
fn peer_is_resolved_by_name() {
    let bound = [bind(settings()), bind(settings())];
    let ports = [(2, bound[1].address().port()), (1, bound[0].address().port())];
    let mut members = bound.into_iter().zip([hello(1, 2), hello(2, 1)]).zip(ports).map(
        |((bound, of), (peer, port))| {
            let mut member = Member::start(bound, of, &[], &Arc::default());
            member.network.set_peers(&[(node(peer), vec![format!("localhost:{port}")])].into());
            member
        },
    );
    let (mut one, two) = (members.next().expect("one"), members.next().expect("two"));
    one.send(2, Lane::Control, &ping(1));
    two.inbox.wait_for_message(node(1), &ping(1));
}

#[test]
fn restarted_peer_is_reconnected() {
    let [mut one, mut two] = two(settings(), [hello(1, 2), hello(2, 1)]);
    for life in 1..4 {
        one.send(2, Lane::Control, &ping(life));
        two.inbox.wait_for_message(node(1), &ping(life));
        let (address, peer) = (two.handle.address(), one.handle.address());
        two.handle.stop();
        one.inbox.wait("gone", |received| has_disconnected(received, node(2)));
        assert_eq!(one.network.send(node(2), Lane::Control, ping(0)), SendOutcome::Unreachable);
        let bound = TcpBound::bind(&address.to_string(), settings()).expect("the port is free");
        let of = Hello { incarnation: Incarnation(life + 1), ..hello(2, 1) };
        two = Member::start(bound, of, &[(1, peer)], &Arc::default());
        two.send(1, Lane::Bulk, &ping(100 + life));
        one.inbox.wait_for_message(node(2), &ping(100 + life));
    }
}

#[test]
fn changed_hello_is_checked_again() {
    let [mut one, two] = two(settings(), [hello(1, 2), hello(2, 1)]);
    let founded = Hello { standing: founding(), ..hello(1, 2) };
    one.send(2, Lane::Control, &PeerMessage::Hello(founded.clone()));
    two.inbox.wait_for_message(node(1), &PeerMessage::Hello(founded.clone()));
    // The peer has founded the cluster with another disk of member 2.
    let other = [(node(1), DiskId(1)), (node(2), DiskId(9 << 100))].into();
    let other = Hello { standing: FoundingState::Founded(other), ..founded };
    one.send(2, Lane::Control, &PeerMessage::Hello(other.clone()));
    two.inbox.wait_for_rejection(node(1), "member 2 belongs to the cluster with disk 00000090..");
    one.inbox.wait_for_rejection(node(2), "member 2 belongs to the cluster with disk 00000090..");
    assert!(
        !two.inbox
            .has(|received| *received
                == Received::Message(node(1), PeerMessage::Hello(other.clone())))
    );
}

#[test]
fn oversized_message_is_dropped() {
    let [mut one, two] = two(settings(), [hello(1, 2), hello(2, 1)]);
    one.send(2, Lane::Control, &ping(1));
    let (control, bulk) = (frame::CONTROL_BODY_BYTES_MAX, frame::BULK_BODY_BYTES_MAX);
    assert_eq!(one.network.send(node(2), Lane::Control, load(control, 0)), SendOutcome::Full);
    assert_eq!(one.network.send(node(2), Lane::Bulk, load(bulk, 0)), SendOutcome::Full);
    // The version and kind of a message take two bytes, so a load of this size just fits.
    one.send(2, Lane::Control, &load(control - 2, 1));
    one.send(2, Lane::Bulk, &load(bulk - 2, 2));
    two.inbox.wait_for_message(node(1), &load(control - 2, 1));
    two.inbox.wait_for_message(node(1), &load(bulk - 2, 2));
}

/// Acts as member 2, which member 1 dials: completes both handshakes and returns the connections,
/// control first.
pub(super) fn be_dialed(listener: &TcpListener) -> [TcpStream; 2] {
    be_dialed_as(listener, &hello(2, 1))
}

/// Does the same with another hello.
pub(super) fn be_dialed_as(listener: &TcpListener, mine: &Hello) -> [TcpStream; 2] {
    let mut lanes = [None, None];
    while lanes.iter().any(Option::is_none) {
        let (mut stream, _) = listener.accept().expect("dialed");
        stream.set_read_timeout(Some(DEADLINE)).expect("a timeout");
        let mut preface = [0; 16];
        stream.read_exact(&mut preface).expect("a preface");
        assert_eq!(read_frame(&mut stream, 0).0, 1, "a hello");
        stream.write_all(&[&preface[..], &hello_frame(mine)].concat()).expect("written");
        assert_eq!(read_frame(&mut stream, 0).0, 4, "a sign of life");
        lanes[usize::from(preface[12])] = Some(stream);
    }
    lanes.map(|lane| lane.expect("both"))
}

#[test]
fn full_bulk_queue_does_not_delay_control() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let peers = [(2, listener.local_addr().expect("bound"))];
    let bulk_queue = pipe::QueueLimit { bytes: 64 << 20, messages: 1000 };
    // The peer sends no keepalives.
    let idle_timeout = Duration::from_secs(3600);
    let settings = TcpSettings { bulk_queue, idle_timeout, ..settings() };
    let mut one = Member::start(bind(settings), hello(1, 2), &peers, &Arc::default());
    let [mut control, mut bulk] = be_dialed(&listener);
    one.send(2, Lane::Bulk, &load(1 << 20, 1));
    let mut queued = 1;
    while one.network.send(node(2), Lane::Bulk, load(1 << 20, 1)) == SendOutcome::Queued {
        queued += 1;
        assert!(queued < 200, "nothing is ever full");
    }
    assert!(queued >= 64, "only {queued} MiB were queued");
    assert_eq!(
        one.network.send(node(2), Lane::Bulk, ping(0)),
        SendOutcome::Queued,
        "room for less"
    );
    // If control messages were queued after bulk messages, they would never arrive.
    for number in 0..100 {
        one.send(2, Lane::Control, &ping(number));
        loop {
            let (kind, body) = read_frame(&mut control, 0);
            if kind == 3 {
                assert_eq!(body, encoded(&ping(number)));
                break;
            }
        }
    }
    // When the peer reads again, everything arrives.
    for _ in 0..queued {
        while read_frame(&mut bulk, 0).0 != 3 {}
    }
    while read_frame(&mut bulk, 0).1 != encoded(&ping(0)) {}
    one.send(2, Lane::Bulk, &ping(1));
}

#[test]
fn queue_is_bounded_in_messages_and_dropped_with_the_connection() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let peers = [(2, listener.local_addr().expect("bound"))];
    let bulk_queue = pipe::QueueLimit { bytes: 64 << 20, messages: 100 };
    let settings = TcpSettings { bulk_queue, ..settings() };
    let mut one = Member::start(bind(settings), hello(1, 2), &peers, &Arc::default());
    let lanes = be_dialed(&listener);
    one.send(2, Lane::Bulk, &load(8 << 20, 1));
    let mut queued = 0;
    while one.network.send(node(2), Lane::Bulk, ping(1)) == SendOutcome::Queued {
        queued += 1;
        assert!(queued <= 100, "more than the limit");
    }
    assert_eq!(one.network.send(node(2), Lane::Bulk, ping(1)), SendOutcome::Full);
    drop(lanes);
    let [_control, mut bulk] = be_dialed(&listener);
    one.send(2, Lane::Bulk, &ping(7));
    while read_frame(&mut bulk, 0) != (3, encoded(&ping(7))) {}
}

#[test]
fn dialer_closes_a_silent_connection() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let peers = [(2, listener.local_addr().expect("bound"))];
    let settings = TcpSettings { idle_timeout: Duration::from_millis(100), ..settings() };
    let mut one = Member::start(bind(settings), hello(1, 2), &peers, &Arc::default());
    let mut lanes = be_dialed(&listener);
    one.inbox.wait_for_connection(node(2));
    for lane in &mut lanes {
        read_to_close(lane);
    }
    one.inbox.wait("gone", |received| received.contains(&Received::Disconnected(node(2))));
    let _ = one.network.send(node(2), Lane::Control, ping(1));
}

#[test]
fn acceptor_closes_a_silent_connection() {
    let one = alone(TcpSettings { idle_timeout: Duration::from_millis(100), ..settings() });
    let mut peer = introduce(one.handle.address(), 0, &hello(2, 1));
    read_to_close(&mut peer);
    one.inbox.wait("gone", |received| received.contains(&Received::Disconnected(node(2))));
}

#[test]
fn idle_members_stay_connected() {
    let idle = Duration::from_secs(2);
    let settings = TcpSettings { idle_timeout: idle, ..settings() };
    let [mut one, mut two] = two(settings, [hello(1, 2), hello(2, 1)]);
    one.send(2, Lane::Control, &ping(1));
    two.send(1, Lane::Control, &ping(1));
    one.inbox.wait_for_message(node(2), &ping(1));
    two.inbox.wait_for_message(node(1), &ping(1));
    // This test is about the passing of time, so it sleeps.
    std::thread::sleep(idle * 2);
    for member in [&one, &two] {
        assert!(!member.inbox.has(|received| matches!(received, Received::Disconnected(_))));
    }
}

#[cfg(target_os = "linux")]
#[test]
fn stop_releases_ports_and_threads() {
    // Runs in a process of its own, because the other tests have transports too.
    const CHILD: &str = "BOWLINE_TEST_STOP_CHILD";
    if std::env::var_os(CHILD).is_none() {
        let name = "transport::tests::talking::stop_releases_ports_and_threads";
        let program = std::env::current_exe().expect("this test");
        let child = std::process::Command::new(program)
            .args(["--exact", name, "--test-threads=1"])
            .env(CHILD, "1")
            .output()
            .expect("started");
        assert!(child.status.success(), "{}", String::from_utf8_lossy(&child.stdout));
        return;
    }
    // Runs on a thread of another runtime, where blocking on one's own runtime is not allowed.
    let host = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    host.block_on(async {
        for _ in 0..3 {
            let [mut one, two] = two(settings(), [hello(1, 2), hello(2, 1)]);
            one.send(2, Lane::Control, &ping(1));
            two.inbox.wait_for_message(node(1), &ping(1));
            assert!(!threads().is_empty(), "{:?}", threads());
            one.handle.stop();
            assert_eq!(one.network.send(node(2), Lane::Control, ping(1)), SendOutcome::Unreachable);
            assert!(!threads().is_empty(), "{:?}", threads());
            two.handle.stop();
            // The threads have ended, but the system may need a moment to show it.
            let began = Instant::now();
            while !threads().is_empty() {
                assert!(began.elapsed() < DEADLINE, "{:?}", threads());
                std::thread::yield_now();
            }
            for handle in [&one.handle, &two.handle] {
                let address = handle.address().to_string();
                drop(TcpBound::bind(&address, settings()).expect("the port is free"));
            }
            assert_eq!(Arc::strong_count(&one.inbox), 1, "somebody still holds the receiver");
        }
    });
}

/// Returns the names of the network's threads in this process.
#[cfg(target_os = "linux")]
fn threads() -> Vec<String> {
    let tasks = std::fs::read_dir("/proc/self/task").expect("Linux");
    tasks
        .filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok())
        .map(|name| name.trim().to_owned())
        .filter(|name| name.starts_with("bowline-net"))
        .collect()
}

#[test]
fn non_loopback_address_needs_permission() {
    let error = TcpBound::bind("0.0.0.0:0", settings()).err().expect("refused");
    assert!(error.to_string().contains("insecure_peers"), "{error}");
    let open = TcpSettings { insecure_peers: true, ..settings() };
    assert!(TcpBound::bind("0.0.0.0:0", open.clone()).is_ok());
    for address in ["192.0.2.1:7400", "n2.example:7400"] {
        let error = settings().check_peer(node(2), address).unwrap_err().to_string();
        assert!(error.contains("insecure_peers") && error.contains("member 2"), "{error}");
    }
    let taken = bind(settings());
    let error = TcpBound::bind(&taken.address().to_string(), settings()).err().expect("taken");
    assert!(error.to_string().contains("cannot listen on 127.0.0.1"), "{error}");
}

#[test]
fn member_is_reached_at_each_working_address() {
    let [listener] = [TcpListener::bind("127.0.0.1:0").expect("a free port")];
    let first = listener.local_addr().expect("bound");
    drop(listener);
    let two = TcpBound::bind("127.0.0.1:0,127.0.0.2:0", settings()).expect("two free ports");
    let both = two.addresses();
    assert_eq!(
        both.iter().map(|at| at.ip().to_string()).collect::<Vec<_>>(),
        ["127.0.0.1", "127.0.0.2"]
    );
    let two = Member::start(two, hello(2, 1), &[], &Arc::default());
    for address in both {
        // There is no listener at the first address of the peer.
        let inbox = Arc::default();
        let mut one = Member::start(bind(settings()), hello(1, 2), &[], &inbox);
        let places = [first, address].map(|at| at.to_string());
        one.network.set_peers(&[(node(2), places.into())].into());
        let number = u64::from(address.port());
        one.send(2, Lane::Control, &ping(number));
        two.inbox.wait_for_message(node(1), &ping(number));
    }
}
