//! Tests of peers that send garbage, claim a false identity, or stay silent.

use super::*;

/// Sends garbage to member 1 instead of a handshake, and checks its reply.
#[test]
fn garbage_before_the_handshake_closes_the_connection() {
    let one = alone(settings());
    let right = hello_frame(&hello(2, 1));
    let damaged = |at: usize| {
        let mut bytes = right.clone();
        bytes[at] ^= 1;
        bytes
    };
    let trailing = [&encoded(&PeerMessage::Hello(hello(2, 1)))[..], b"\0"].concat();
    let after_preface = |bytes: Vec<u8>| [preface(0), bytes].concat();
    let cases: [(&str, Vec<u8>); 16] = [
        ("nothing", vec![]),
        ("HTTP", b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n".to_vec()),
        ("zeroes", vec![0; 5000]),
        ("wrong magic", [b"bowlinx\0", &preface(0)[8..], &right].concat()),
        ("half a preface", preface(0)[..9].to_vec()),
        ("a preface and nothing", preface(0)),
        ("an oversized length", after_preface(vec![0xff; 100])),
        ("a length of nothing", after_preface(vec![0; 100])),
        ("a damaged length", after_preface(damaged(1))),
        ("a damaged checksum of the length", after_preface(damaged(5))),
        ("a damaged checksum", after_preface(damaged(9))),
        ("a damaged body", after_preface(damaged(20))),
        ("half a hello", after_preface(right[..20].to_vec())),
        ("a hello with bytes after it", after_preface(framed(FrameKind::Hello, &trailing))),
        (
            "a hello that is another message",
            after_preface(framed(FrameKind::Hello, &encoded(&ping(1)))),
        ),
        ("a message without a hello", after_preface(message_frame(&ping(1)))),
    ];
    for (what, bytes) in cases {
        let mut stream = connect(one.handle.address());
        // The other end may close the connection before everything is written.
        let _ = stream.write_all(&bytes);
        let _ = stream.shutdown(std::net::Shutdown::Write);
        assert_eq!(read_to_close(&mut stream), b"", "{what}");
    }
    // No message has reached the node, and the port still accepts connections.
    let _peer = introduce(one.handle.address(), 0, &hello(2, 1));
    one.inbox.wait_for_connection(node(2));
    assert_eq!(one.inbox.received.lock().unwrap_or_else(PoisonError::into_inner).len(), 1);
}

#[test]
fn garbage_after_the_handshake_closes_the_connection_undelivered() {
    let newer = framed(FrameKind::Message, b"\x63\x01");
    let mut damaged = message_frame(&ping(2));
    damaged[16] ^= 4;
    // The corrupted length is the longest that the lane allows. A reader that trusted this length
    // would wait for half a megabyte of data, and take keepalives for a part of the body.
    let mut longer = message_frame(&ping(2));
    longer[2] ^= 8;
    let oversized = [&0x7fff_ffff_u32.to_le_bytes()[..], &[0; 100]].concat();
    let as_other = PeerMessage::Hello(hello(3, 1));
    let later = PeerMessage::Hello(Hello { incarnation: Incarnation(9), ..hello(2, 1) });
    let cases: [(&str, Vec<u8>); 10] = [
        ("a damaged frame", damaged),
        ("a damaged length", longer),
        ("an oversized length", oversized),
        ("random bytes", (0..2000_u32).map(|at| ((at * 7919) >> 3) as u8).collect()),
        ("a message of a newer version", newer),
        ("a message cut short", framed(FrameKind::Message, &encoded(&ping(2))[..5])),
        ("an unknown kind", {
            let checked = b"\x09body";
            let (length, crc) = (5u32.to_le_bytes(), crc32fast::hash(checked).to_le_bytes());
            [&length[..], &crc32fast::hash(&length).to_le_bytes(), &crc, checked].concat()
        }),
        ("a second hello as a frame", hello_frame(&hello(2, 1))),
        ("a message in somebody else's name", message_frame(&as_other)),
        ("a hello of another life", message_frame(&later)),
    ];
    for (what, bytes) in cases {
        let one = alone(settings());
        let mut peer = introduce(one.handle.address(), 0, &hello(2, 1));
        peer.write_all(&message_frame(&ping(1))).expect("written");
        one.inbox.wait_for_message(node(2), &ping(1));
        let _ = peer.write_all(&bytes);
        let _ = peer.write_all(&message_frame(&ping(3)));
        read_to_close(&mut peer);
        one.inbox.wait(what, |received| received.contains(&Received::Disconnected(node(2))));
        assert_eq!(one.inbox.messages(), [ping(1)], "{what}");
    }
}

#[test]
fn message_of_a_newer_version_is_rejected_with_a_reason() {
    let one = alone(settings());
    let mut peer = introduce(one.handle.address(), 0, &hello(2, 1));
    peer.write_all(&framed(FrameKind::Message, b"\x63\x01")).expect("written");
    while read_frame(&mut peer, 0).0 != 2 {}
    read_to_close(&mut peer);
    one.inbox.wait_for_rejection(node(2), "newer than this build supports");
}

#[test]
fn peer_without_a_common_version_is_informed() {
    let one = alone(settings());
    let mut stream = connect(one.handle.address());
    let mut newer = preface(0);
    newer[8..12].copy_from_slice(&[7, 0, 9, 0]);
    stream.write_all(&[newer, hello_frame(&hello(2, 1))].concat()).expect("written");
    let (kind, why) = read_frame(&mut stream, 16);
    let why = String::from_utf8(why).expect("text");
    assert!(kind == 2 && why.contains("1 to 1") && why.contains("7 to 9"), "{kind} {why}");
    read_to_close(&mut stream);
    let mut stream = connect(one.handle.address());
    stream.write_all(&[preface(5), hello_frame(&hello(2, 1))].concat()).expect("written");
    assert_eq!(read_frame(&mut stream, 16), (2, b"unknown lane 5".to_vec()));
}

#[test]
fn both_ends_learn_the_reason_of_a_rejection() {
    let lost = |hello: Hello| Hello { disk: DiskId(0xdead << 112), ..hello };
    let founded = |hello: Hello| Hello { standing: founding(), ..hello };
    let other = Hello { cluster: ClusterId(8 << 96), ..hello(2, 1) };
    let cases = [
        ("different cluster tokens", hello(1, 2), other),
        ("but reached member 1", hello(1, 2), hello(2, 3)),
        ("member 9 is unknown to member", hello(1, 2), hello(9, 1)),
        ("both ends claim", hello(1, 2), hello(1, 1)),
        ("now has disk dead0000..", founded(hello(1, 2)), lost(hello(2, 1))),
        ("now has disk dead0000..", lost(hello(1, 2)), founded(hello(2, 1))),
    ];
    for (words, mine, theirs) in cases {
        let unused = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let peers = [(2, unused.local_addr().expect("bound"))];
        drop(unused);
        let one = Member::start(bind(settings()), mine, &peers, &Arc::default());
        let mut stream = connect(one.handle.address());
        let bytes = [preface(0), hello_frame(&theirs), message_frame(&ping(1))].concat();
        stream.write_all(&bytes).expect("written");
        let (kind, why) = read_frame(&mut stream, 16);
        let why = String::from_utf8(why).expect("text");
        assert!(kind == 2 && why.contains(words), "{kind} {why}");
        drop(stream);
        one.inbox.wait_for_rejection(theirs.from, words);
        assert!(!one.inbox.has(|received| !matches!(received, Received::Refused(..))), "{words}");
    }
}

#[test]
fn members_of_two_connected_clusters_report_it() {
    let other = Hello { cluster: ClusterId(8 << 96), ..hello(2, 1) };
    let [mut one, mut two] = two(settings(), [hello(1, 2), other]);
    one.inbox.wait_for_rejection(node(2), "cluster");
    two.inbox.wait_for_rejection(node(1), "cluster");
    assert_eq!(one.network.send(node(2), Lane::Control, ping(1)), SendOutcome::Unreachable);
    assert_eq!(two.network.send(node(1), Lane::Control, ping(1)), SendOutcome::Unreachable);
    for member in [&one, &two] {
        assert!(!member.inbox.has(|received| !matches!(received, Received::Refused(..))));
    }
}

#[test]
fn address_of_another_member_is_reported() {
    let bound = [bind(settings()), bind(settings())];
    // In the configuration of member 1, member 2 has the address of member 3.
    let peers = [(2, bound[1].address())];
    let [first, third] = bound;
    let one = Member::start(first, hello(1, 2), &peers, &Arc::default());
    let address = one.handle.address();
    let three = Member::start(third, hello(3, 1), &[(1, address)], &Arc::default());
    one.inbox.wait_for_rejection(node(2), "dialed member 2 but reached member 3");
    three.inbox.wait_for_rejection(node(1), "dialed member 2 but reached member 3");
}

#[test]
fn earlier_incarnation_is_rejected_while_a_later_one_is_connected() {
    let one = alone(settings());
    let life = |incarnation| Hello { incarnation: Incarnation(incarnation), ..hello(2, 1) };
    let later = introduce(one.handle.address(), 0, &life(5));
    one.inbox.wait_for_connection(node(2));
    let mut stream = connect(one.handle.address());
    stream.write_all(&[preface(0), hello_frame(&life(4))].concat()).expect("written");
    let (kind, why) = read_frame(&mut stream, 16);
    let why = String::from_utf8(why).expect("text");
    assert!(kind == 2 && why.contains("from incarnation 5 to"), "{kind} {why}");
    drop(later);
    drop(stream);
    one.inbox.wait_for_rejection(node(2), "from incarnation 5 to");
    let mut stream = connect(one.handle.address());
    stream.write_all(&[preface(0), hello_frame(&life(4))].concat()).expect("written");
    assert_eq!(read_frame(&mut stream, 16).0, 2, "forgotten with the connection");
}

#[test]
fn delayed_handshake_of_an_earlier_incarnation_is_rejected() {
    let one = alone(settings());
    let life = |incarnation| Hello { incarnation: Incarnation(incarnation), ..hello(2, 1) };
    let mut dawdler = connect(one.handle.address());
    dawdler.write_all(&[preface(0), hello_frame(&life(1))].concat()).expect("written");
    assert_eq!(read_frame(&mut dawdler, 16).0, 1, "a hello");
    let mut later = introduce(one.handle.address(), 0, &life(2));
    one.inbox.wait_for_connection(node(2));
    dawdler.write_all(&framed(FrameKind::Alive, b"")).expect("written");
    assert_eq!(read_frame(&mut dawdler, 0).0, 2, "not refused");
    later.write_all(&message_frame(&ping(1))).expect("written");
    one.inbox.wait_for_message(node(2), &ping(1));
}

#[test]
fn later_incarnation_closes_connections_of_the_earlier_one() {
    let one = alone(settings());
    let life = |incarnation| Hello { incarnation: Incarnation(incarnation), ..hello(2, 1) };
    let mut control = introduce(one.handle.address(), 0, &life(1));
    let mut bulk = introduce(one.handle.address(), 1, &life(1));
    for (stream, number) in [(&mut control, 1), (&mut bulk, 2)] {
        stream.write_all(&message_frame(&ping(number))).expect("written");
        one.inbox.wait_for_message(node(2), &ping(number));
    }
    let mut newer = introduce(one.handle.address(), 0, &life(2));
    newer.write_all(&message_frame(&ping(3))).expect("written");
    one.inbox.wait_for_message(node(2), &ping(3));
    read_to_close(&mut control);
    read_to_close(&mut bulk);
}

#[test]
fn a_second_connection_replaces_the_first() {
    let one = alone(settings());
    let mut streams = Vec::new();
    for number in 0..20 {
        let mut stream = introduce(one.handle.address(), 0, &hello(2, 1));
        stream.write_all(&message_frame(&ping(number))).expect("written");
        one.inbox.wait_for_message(node(2), &ping(number));
        streams.push(stream);
    }
    let last = streams.pop().expect("twenty");
    for mut stream in streams {
        read_to_close(&mut stream);
    }
    drop(last);
    one.inbox.wait("gone", |received| has_disconnected(received, node(2)));
}

#[test]
fn silent_connection_is_closed_at_the_handshake_timeout() {
    let one = alone(TcpSettings { handshake_timeout: Duration::from_millis(100), ..settings() });
    let mut silent = connect(one.handle.address());
    let mut slow = connect(one.handle.address());
    slow.write_all(&preface(0)).expect("written");
    let mut undecided = connect(one.handle.address());
    undecided.write_all(&[preface(0), hello_frame(&hello(2, 1))].concat()).expect("written");
    for stream in [&mut silent, &mut slow, &mut undecided] {
        read_to_close(stream);
    }
    assert!(!one.inbox.has(|_| true), "somebody was let in");
}

#[test]
fn non_bowline_server_is_not_connected() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let peers = [(2, listener.local_addr().expect("bound"))];
    let mut one = Member::start(bind(settings()), hello(1, 2), &peers, &Arc::default());
    let answers: [&[u8]; 3] = [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"", &[0xff; 9000]];
    for answer in answers.iter().cycle().take(12) {
        let (mut stream, _) = listener.accept().expect("dialed again and again");
        let _ = stream.write_all(answer);
    }
    assert_eq!(one.network.send(node(2), Lane::Control, ping(1)), SendOutcome::Unreachable);
    assert!(!one.inbox.has(|_| true));
}

#[test]
fn answer_from_an_unexpected_member_is_rejected() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let peers = [(2, listener.local_addr().expect("bound"))];
    let one = Member::start(bind(settings()), hello(1, 2), &peers, &Arc::default());
    let (mut stream, _) = listener.accept().expect("dialed");
    let mut asked = [0; 16];
    stream.read_exact(&mut asked).expect("a preface");
    assert_eq!(read_frame(&mut stream, 0).0, 1);
    stream.write_all(&[&asked[..], &hello_frame(&hello(3, 1))].concat()).expect("written");
    let (kind, why) = read_frame(&mut stream, 0);
    let why = String::from_utf8(why).expect("text");
    assert!(kind == 2 && why.contains("dialed member 2 but reached member 3"), "{why}");
    drop(stream);
    one.inbox.wait_for_rejection(node(2), "but reached member 3");
}

#[test]
fn damaged_stream_delivers_only_sent_messages() {
    let one = alone(settings());
    let sent: Vec<_> = (0..3).map(ping).collect();
    let mut whole = [preface(0), hello_frame(&hello(2, 1)), framed(FrameKind::Alive, b"")].concat();
    sent.iter().for_each(|message| whole.extend(message_frame(message)));
    let mut sample = codec::sample::Sample::new(1);
    for _ in 0..400 {
        let mut damaged = whole.clone();
        match sample.below(3) {
            0 => damaged.truncate(sample.below(whole.len() as u64) as usize),
            1 => {
                let from = sample.below(whole.len() as u64) as usize;
                damaged.drain(from..(from + 5).min(whole.len()));
            }
            _ => damaged[sample.below(whole.len() as u64) as usize] ^= 1 << sample.below(8),
        }
        let mut stream = connect(one.handle.address());
        let _ = stream.write_all(&damaged);
        let _ = stream.shutdown(std::net::Shutdown::Write);
        read_to_close(&mut stream);
    }
    let mut last = introduce(one.handle.address(), 0, &hello(2, 1));
    last.write_all(&message_frame(&ping(9))).expect("written");
    one.inbox.wait_for_message(node(2), &ping(9));
    let received = one.inbox.messages();
    assert!(received.len() > 100, "hardly anything got through: nothing was tested");
    assert!(received.iter().all(|message| sent.contains(message) || *message == ping(9)));
}
