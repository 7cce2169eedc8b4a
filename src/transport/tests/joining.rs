//! Tests of processes that request to join.

use super::*;
use crate::transport::exchange::JOIN_LANE;
use std::thread::{self, JoinHandle};

fn with_token(token: &str) -> TcpSettings {
    TcpSettings { token: token.to_owned(), ..settings() }
}

fn ask() -> JoinAsk {
    JoinAsk {
        disk: DiskId(44),
        name: "m4".to_owned(),
        address: "127.0.0.1:4444".to_owned(),
        replaces: Some("m2".to_owned()),
    }
}

fn joined() -> Joined {
    let FoundingState::Founded(founding) = founding() else { unreachable!("it says so") };
    Joined { cluster: ClusterId(7), node: node(4), founding, members: members(&[4]) }
}

/// Returns a member of a cluster with the token "t".
fn member() -> Member {
    Member::start(bind(with_token("t")), hello(1, 2), &[], &Arc::default())
}

/// Requests to join at `addresses`, on a thread of its own.
fn start_join(
    settings: TcpSettings,
    addresses: &[SocketAddr],
    limit: Duration,
) -> JoinHandle<Result<Joined, JoinError>> {
    let addresses: Vec<String> = addresses.iter().map(SocketAddr::to_string).collect();
    thread::spawn(move || join(&Env::real(), &settings, &addresses, &ask(), limit, &|| false))
}

fn end(joining: JoinHandle<Result<Joined, JoinError>>) -> Result<Joined, JoinError> {
    joining.join().expect("it did not fall")
}

#[test]
fn joiner_with_the_token_is_accepted_and_may_ask_twice() {
    let one = member();
    let at = [one.handle.address()];
    for _ in 0..2 {
        let joining = start_join(with_token("t"), &at, DEADLINE);
        let (asked, reply) = one.inbox.wait_for_ask();
        assert_eq!(asked, ask());
        reply.send(JoinAnswer::Joined(joined()));
        assert_eq!(end(joining).expect("taken in"), joined());
    }
    assert!(!one.inbox.has(|_| true), "a joiner is no peer");
}

#[test]
fn joiner_with_a_wrong_token_never_reaches_the_node() {
    let one = member();
    for token in ["", "T", "tt", "another"] {
        let joining = start_join(with_token(token), &[one.handle.address()], DEADLINE);
        let error = end(joining).expect_err("refused").to_string();
        assert_eq!(error, "the token does not match this cluster");
    }
    assert!(one.inbox.asked.lock().unwrap_or_else(PoisonError::into_inner).is_empty());
}

#[test]
fn joiner_is_redirected_from_a_follower_to_the_leader() {
    let (one, two) = (member(), member());
    let unused = TcpListener::bind("127.0.0.1:0").expect("a free port").local_addr();
    let at = [unused.expect("bound"), one.handle.address()];
    let joining = start_join(with_token("t"), &at, DEADLINE);
    let leader = two.handle.address().to_string();
    one.inbox.wait_for_ask().1.send(JoinAnswer::NotLeader(Some(leader)));
    // The second member has just lost the leadership and does not know the new leader.
    two.inbox.wait_for_ask().1.send(JoinAnswer::NotLeader(None));
    one.inbox.wait_for_ask().1.send(JoinAnswer::Later("an election is under way".to_owned()));
    one.inbox.wait_for_ask().1.send(JoinAnswer::Joined(joined()));
    assert_eq!(end(joining).expect("taken in"), joined());
}

#[test]
fn join_ends_on_rejection_or_timeout() {
    let one = member();
    let at = [one.handle.address()];
    let joining = start_join(with_token("t"), &at, DEADLINE);
    one.inbox.wait_for_ask().1.send(JoinAnswer::Refused("there is no room".to_owned()));
    assert!(matches!(end(joining), Err(JoinError::Refused(why)) if why == "there is no room"));
    // A node that stops drops the reply channel, which does not count as a reply.
    let joining = start_join(with_token("t"), &at, Duration::from_secs(5));
    drop(one.inbox.wait_for_ask());
    one.handle.stop();
    let error = end(joining).expect_err("no member is there").to_string();
    assert!(error.contains("before the deadline; last failure: "), "{error}");
}

#[test]
fn waiting_joiners_are_bounded() {
    let settings = TcpSettings { joiners_max: 2, ..with_token("t") };
    let one = Member::start(bind(settings), hello(1, 2), &[], &Arc::default());
    let at = [one.handle.address()];
    let waiting: Vec<_> = (0..2)
        .map(|_| {
            let joining = start_join(with_token("t"), &at, DEADLINE);
            (joining, one.inbox.wait_for_ask().1)
        })
        .collect();
    let third = start_join(with_token("t"), &at, Duration::from_secs(5));
    let error = end(third).expect_err("no place").to_string();
    assert!(error.contains("too many join requests"), "{error}");
    for (joining, reply) in waiting {
        reply.send(JoinAnswer::Joined(joined()));
        assert!(end(joining).is_ok());
    }
    let after = start_join(with_token("t"), &at, DEADLINE);
    one.inbox.wait_for_ask().1.send(JoinAnswer::Joined(joined()));
    assert!(end(after).is_ok());
}

/// Dials to join, and returns the connection and the challenge.
fn challenged(to: SocketAddr) -> (TcpStream, Vec<u8>) {
    let mut stream = connect(to);
    stream.write_all(&preface(JOIN_LANE)).expect("written");
    let (kind, challenge) = read_frame(&mut stream, 16);
    assert_eq!((kind, challenge.len()), (6, 16));
    (stream, challenge)
}

fn question(token: &str, challenge: &[u8]) -> Vec<u8> {
    let challenge = challenge.try_into().expect("sixteen bytes");
    let mut body = join::proof(token, challenge).to_vec();
    codec::encode_join_ask(&ask(), &mut body);
    framed(FrameKind::JoinAsk, &body)
}

#[test]
fn token_proof_is_valid_for_one_challenge() {
    let one = member();
    let (mut first, challenge) = challenged(one.handle.address());
    let right = question("t", &challenge);
    assert!(!right.windows(3).any(|part| part == b"ttt"));
    first.write_all(&right).expect("written");
    let (_, reply) = one.inbox.wait_for_ask();
    reply.send(JoinAnswer::Later(String::new()));
    assert_eq!(read_frame(&mut first, 0).0, 8);
    // A replayed proof is rejected.
    let (mut second, other) = challenged(one.handle.address());
    assert_ne!(challenge, other);
    second.write_all(&right).expect("written");
    assert_eq!(read_frame(&mut second, 0), (2, b"the token does not match this cluster".to_vec()));
}

#[test]
fn garbage_from_a_joiner_closes_the_connection() {
    let one = member();
    let right = |challenge: &[u8]| question("t", challenge);
    type Make<'a> = Box<dyn Fn(&[u8]) -> Vec<u8> + 'a>;
    let cases: [(&str, Make<'_>); 5] = [
        ("a hello", Box::new(|_| hello_frame(&hello(2, 1)))),
        ("an oversized question", Box::new(|_| framed(FrameKind::JoinAsk, &[0; 5000]))),
        ("half a proof", Box::new(|_| framed(FrameKind::JoinAsk, &[0; 15]))),
        (
            "a damaged question",
            Box::new(|challenge| {
                let mut bytes = right(challenge);
                bytes[30] ^= 1;
                bytes
            }),
        ),
        (
            "a question cut short",
            Box::new(|challenge| {
                let proof = join::proof("t", challenge.try_into().expect("sixteen"));
                framed(FrameKind::JoinAsk, &[&proof[..], &[1, 2, 3]].concat())
            }),
        ),
    ];
    for (what, make) in cases {
        let (mut stream, challenge) = challenged(one.handle.address());
        let _ = stream.write_all(&make(&challenge));
        assert_eq!(read_to_close(&mut stream), b"", "{what}");
    }
    assert!(one.inbox.asked.lock().unwrap_or_else(PoisonError::into_inner).is_empty());
}
