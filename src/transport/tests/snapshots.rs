//! Tests of the connections for snapshots: they are open only while they are used, and they do not
//! delay other messages.

use super::*;
use std::time::Instant;

/// Returns the incoming connections with their lanes.
fn lanes_of(listener: &TcpListener, count: usize) -> Vec<(u8, TcpStream)> {
    (0..count)
        .map(|_| {
            let (mut stream, _) = listener.accept().expect("dialed");
            stream.set_read_timeout(Some(DEADLINE)).expect("a timeout");
            let mut preface = [0; 16];
            stream.read_exact(&mut preface).expect("a preface");
            assert_eq!(read_frame(&mut stream, 0).0, 1, "a hello");
            stream
                .write_all(&[&preface[..], &hello_frame(&hello(2, 1))].concat())
                .expect("written");
            assert_eq!(read_frame(&mut stream, 0).0, 4, "a sign of life");
            (preface[12], stream)
        })
        .collect()
}

#[test]
fn snapshot_lane_is_dialed_on_use_and_closed_when_idle() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let peers = [(2, listener.local_addr().expect("bound"))];
    let (idle_timeout, alive_every) = (Duration::from_secs(3), Duration::from_secs(1));
    let settings = TcpSettings { idle_timeout, alive_every, ..settings() };
    let mut one = Member::start(bind(settings), hello(1, 2), &peers, &Arc::default());
    let mut others = lanes_of(&listener, 2);
    others.sort_by_key(|(lane, _)| *lane);
    assert_eq!(others.iter().map(|(lane, _)| *lane).collect::<Vec<_>>(), [0, 1]);
    // The peers echo keepalives on these connections, so the connections stay open.
    for (_, stream) in others {
        std::thread::spawn(move || echo(stream));
    }
    for use_of_it in 0..2 {
        let parts: Vec<_> = (0..5).map(|part| load(1 << 20, use_of_it * 10 + part)).collect();
        for part in &parts {
            one.send(2, Lane::Snapshot, part);
        }
        let (lane, mut stream) = lanes_of(&listener, 1).remove(0);
        assert_eq!(lane, 2);
        for part in &parts {
            assert!(read_frame(&mut stream, 0) == (3, encoded(part)), "out of order");
        }
        // No more messages are sent. The snapshot connection ends long before those of the other
        // lanes, whether keepalives are echoed or not.
        let mut frames = Vec::new();
        while let Ok(len) = stream.read(&mut [0; 100]) {
            if len == 0 {
                break;
            }
            frames.push(len);
            let _ = stream.write_all(&framed(FrameKind::Alive, b""));
        }
        assert!(frames.len() < 10, "kept open by signs of life alone: {frames:?}");
    }
    assert!(!one.inbox.has(|received| matches!(received, Received::Disconnected(_))));
}

/// Echoes keepalives until the connection ends.
fn echo(mut stream: TcpStream) {
    while let Ok(len) = stream.read(&mut [0; 100]) {
        if len == 0 || stream.write_all(&framed(FrameKind::Alive, b"")).is_err() {
            return;
        }
    }
}

#[test]
fn queue_before_a_connection_is_bounded_and_dropped_on_failure() {
    let unused = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let peers = [(2, unused.local_addr().expect("bound"))];
    let snapshot_queue = pipe::QueueLimit { bytes: 4 << 20, messages: 100 };
    let settings =
        TcpSettings { snapshot_queue, handshake_timeout: Duration::from_millis(500), ..settings() };
    let mut one = Member::start(bind(settings), hello(1, 2), &peers, &Arc::default());
    let part = load(1 << 20, 1);
    one.send(2, Lane::Snapshot, &part);
    let mut queued = 1;
    while one.network.send(node(2), Lane::Snapshot, part.clone()) == SendOutcome::Queued {
        queued += 1;
        assert!(queued <= 4, "more than the limit");
    }
    // The dial has failed.
    let began = Instant::now();
    while one.network.send(node(2), Lane::Snapshot, part.clone()) != SendOutcome::Unreachable {
        assert!(began.elapsed() < DEADLINE, "nobody has noticed");
        std::thread::yield_now();
    }
}

#[test]
#[allow(clippy::print_stdout, reason = "the figures are worth reading")]
fn snapshot_transfer_does_not_delay_control() {
    let [mut one, mut two] = two(settings(), [hello(1, 2), hello(2, 1)]);
    one.send(2, Lane::Control, &ping(0));
    two.send(1, Lane::Control, &ping(0));
    two.inbox.wait_for_message(node(1), &ping(0));
    let part = load(1 << 20, 7);
    let (mut sent, mut arrived, mut overtaken) = (0, 0, 0);
    let (mut worst, mut all) = (Duration::ZERO, Duration::ZERO);
    let mut round_trip = |one: &mut Member, two: &mut Member, number: u64| {
        let began = Instant::now();
        one.send(2, Lane::Control, &ping(number));
        two.inbox.wait_for_message(node(1), &ping(number));
        two.send(1, Lane::Control, &ping(number));
        one.inbox.wait_for_message(node(2), &ping(number));
        worst = worst.max(began.elapsed());
        all += began.elapsed();
    };
    for number in 1..=200 {
        while one.network.send(node(2), Lane::Snapshot, part.clone()) == SendOutcome::Queued {
            sent += 1;
        }
        round_trip(&mut one, &mut two, number);
        arrived += two.inbox.forget(|message| matches!(message, PeerMessage::Raft(_)));
        overtaken += usize::from(arrived < sent);
    }
    println!(
        "{sent} MiB of snapshot; round trips on control: mean {:?}, worst {worst:?}",
        all / 200
    );
    assert!(sent > 20, "nothing was sent: nothing was tested");
    // If control messages were queued after the snapshot, they would never overtake it.
    assert!(overtaken > 0, "control waited for a snapshot: {worst:?}");
}
