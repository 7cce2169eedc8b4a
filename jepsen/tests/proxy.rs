//! Tests that the proxy between members applies exactly the faults that its rules demand. Some tests use plain sockets
//! in place of members, and some use real members and check that they notice the faults.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::num::NonZeroU32;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use bowline_fleet::ports::free_addresses;
use bowline_jepsen::links::{Cut, Links, Rule, Traffic};
use bowline_jepsen::process::LIMIT;
use bowline_jepsen::proxy::Proxy;

/// Two members that the test itself plays.
struct Pair {
    links: Links,
    addresses: Vec<String>,
    listeners: Vec<TcpListener>,
    _proxy: Proxy,
}

fn listener() -> TcpListener {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap()
}

fn address(listener: &TcpListener) -> String {
    listener.local_addr().unwrap().to_string()
}

/// Returns the beginning of the connection of a member: a preface, and a handshake with its own address.
fn greeting(address: &str) -> Vec<u8> {
    let mut preface = b"bowline\0".to_vec();
    preface.extend([1, 0, 1, 0, 0, 0, 0, 0]);
    [preface, frame(format!("greetings from {address}, to you").as_bytes())].concat()
}

/// Returns a frame: a body with its length and dummy checksums.
fn frame(body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(body.len()).unwrap().to_le_bytes();
    [&length[..], &[0; 8], body].concat()
}

/// Returns distinct frames of equal length.
fn numbered(many: u32) -> Vec<Vec<u8>> {
    (0..many).map(|number| frame(format!("{number:08}").as_bytes())).collect()
}

impl Pair {
    fn new() -> Self {
        let listeners: Vec<TcpListener> = (0..2).map(|_| listener()).collect();
        let listens: Vec<String> = listeners.iter().map(address).collect();
        let addresses = free_addresses(2).unwrap();
        let links = Links::default();
        let proxy = Proxy::start(&addresses, &listens, links.clone()).unwrap();
        Self { links, addresses, listeners, _proxy: proxy }
    }

    /// Returns both ends of a connection from one member to the other, after the handshake.
    fn connect(&self, from: usize, to: usize) -> (TcpStream, TcpStream) {
        let mut near = TcpStream::connect(&self.addresses[to]).unwrap();
        let said = greeting(&self.addresses[from]);
        near.write_all(&said).unwrap();
        let (mut far, _) = self.listeners[to].accept().unwrap();
        for socket in [&near, &far] {
            socket.set_read_timeout(Some(LIMIT)).unwrap();
        }
        let mut received = vec![0; said.len()];
        far.read_exact(&mut received).unwrap();
        assert_eq!(received, said);
        // One more frame belongs to the handshake.
        near.write_all(&frame(b"alive")).unwrap();
        far.read_exact(&mut [0; 17]).unwrap();
        (near, far)
    }

    /// Sends bytes, closes the connection, and returns everything that arrives.
    fn sent(&self, rule: Rule, bytes: &[u8]) -> Vec<u8> {
        let (mut near, mut far) = self.connect(0, 1);
        self.links.set(0, 1, rule);
        near.write_all(bytes).unwrap();
        // The proxy may have ended the connection by itself.
        drop(near.shutdown(std::net::Shutdown::Write));
        let mut arrived = Vec::new();
        drop(far.read_to_end(&mut arrived));
        self.links.heal();
        arrived
    }
}

/// Returns whether nothing arrives within a short time.
fn is_silent(socket: &mut TcpStream) -> bool {
    socket.set_read_timeout(Some(Duration::from_millis(150))).unwrap();
    let received = socket.read(&mut [0; 1]);
    socket.set_read_timeout(Some(LIMIT)).unwrap();
    // Only a timeout counts as silence, and not the end or the failure of the connection.
    received.is_err_and(|error| matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut))
}

/// Returns whether the other end closes the connection in any way within the limit.
fn is_closed(socket: &mut TcpStream) -> bool {
    socket.set_read_timeout(Some(LIMIT)).unwrap();
    match socket.read(&mut [0; 1]) {
        Ok(bytes) => bytes == 0,
        Err(error) => matches!(
            error.kind(),
            ErrorKind::ConnectionReset | ErrorKind::ConnectionAborted | ErrorKind::BrokenPipe
        ),
    }
}

#[test]
fn proxy_without_rules_forwards_both_directions() {
    let pair = Pair::new();
    let bytes = numbered(5000).concat();
    assert_eq!(pair.sent(Rule::default(), &bytes), bytes);
    let (mut near, mut far) = pair.connect(1, 0);
    far.write_all(b"bowline\0 and so on, to the end of it").unwrap();
    drop(far);
    let mut received = String::new();
    near.read_to_string(&mut received).unwrap();
    assert_eq!(received, "bowline\0 and so on, to the end of it");
    let Traffic { frames, lost, doubled, spoiled, .. } = pair.links.traffic(0, 1);
    assert_eq!((frames, lost, doubled, spoiled), (5003, 0, 0, 0));
    assert_eq!(pair.links.strangers(), 0);
}

#[test]
fn silent_cut_delays_one_direction_until_it_is_healed() {
    let pair = Pair::new();
    let (mut near, mut far) = pair.connect(0, 1);
    let (mut other_near, mut other_far) = pair.connect(1, 0);
    pair.links.cut(0, 1);
    near.write_all(&frame(b"held")).unwrap();
    other_near.write_all(&frame(b"pass")).unwrap();
    let mut received = [0; 16];
    other_far.read_exact(&mut received).unwrap();
    assert_eq!(received.to_vec(), frame(b"pass"));
    assert!(is_silent(&mut far));
    pair.links.heal();
    far.read_exact(&mut received).unwrap();
    assert_eq!(received.to_vec(), frame(b"held"));
}

#[test]
fn connection_dialed_during_a_silent_cut_is_never_forwarded() {
    let pair = Pair::new();
    pair.links.cut(0, 1);
    let mut near = TcpStream::connect(&pair.addresses[1]).unwrap();
    near.write_all(&greeting(&pair.addresses[0])).unwrap();
    assert!(is_silent(&mut near));
    // The proxy may be slower than that short time. A connection that is accepted only after the link is restored was
    // never cut off.
    let begun = Instant::now();
    while pair.links.traffic(0, 1).silenced == 0 {
        assert!(begun.elapsed() < LIMIT, "the proxy does not see who is calling");
        thread::sleep(Duration::from_millis(5));
    }
    pair.links.heal();
    assert!(is_closed(&mut near));
    drop(pair.connect(0, 1));
}

#[test]
fn refusing_cut_closes_existing_and_new_connections() {
    let pair = Pair::new();
    let (mut near, mut far) = pair.connect(0, 1);
    let (mut other_near, mut other_far) = pair.connect(1, 0);
    pair.links.cut_so(0, 1, Cut::Refused);
    assert!(is_closed(&mut near) && is_closed(&mut far));
    let mut again = TcpStream::connect(&pair.addresses[1]).unwrap();
    again.write_all(&greeting(&pair.addresses[0])).unwrap();
    assert!(is_closed(&mut again));
    assert_eq!(pair.links.traffic(0, 1).refused, 2);
    other_near.write_all(&frame(b"pass")).unwrap();
    other_far.read_exact(&mut [0; 16]).unwrap();
}

#[test]
fn delayed_link_keeps_the_order() {
    let pair = Pair::new();
    let (mut near, mut far) = pair.connect(0, 1);
    let [delay, jitter] = [Duration::from_millis(80), Duration::from_millis(40)];
    pair.links.set(0, 1, Rule { delay, jitter, ..Rule::default() });
    let frames = numbered(50);
    let begun = Instant::now();
    near.write_all(&frames.concat()).unwrap();
    for frame in frames {
        let mut received = vec![0; frame.len()];
        far.read_exact(&mut received).unwrap();
        assert!(begun.elapsed() >= delay);
        assert_eq!(received, frame);
    }
}

#[test]
fn held_frame_delays_all_later_frames() {
    let pair = Pair::new();
    let hold = Duration::from_millis(120);
    let begun = Instant::now();
    let bytes = numbered(20).concat();
    assert_eq!(pair.sent(Rule { hold_permille: 1000, hold, ..Rule::default() }, &bytes), bytes);
    assert!(begun.elapsed() >= hold);
}

#[test]
fn frames_are_lost_and_duplicated_whole() {
    let pair = Pair::new();
    let frames = numbered(2000);
    let length = frames[0].len();
    let arrived = pair.sent(Rule { lose_permille: 100, ..Rule::default() }, &frames.concat());
    let lost = usize::try_from(pair.links.traffic(0, 1).lost).unwrap();
    assert!((100..400).contains(&lost), "{lost} of 2000");
    assert_eq!(arrived.len(), (2000 - lost) * length);
    assert!(
        arrived.chunks(length).is_sorted()
            && arrived.chunks(length).all(|f| frames.contains(&f.to_vec()))
    );

    let arrived = pair.sent(Rule { double_permille: 100, ..Rule::default() }, &frames.concat());
    let doubled = usize::try_from(pair.links.traffic(0, 1).doubled).unwrap();
    assert!((100..400).contains(&doubled), "{doubled} of 2000");
    let mut received: Vec<Vec<u8>> = arrived.chunks(length).map(<[u8]>::to_vec).collect();
    assert_eq!(received.len(), 2000 + doubled);
    received.dedup();
    assert_eq!(received, frames);
}

#[test]
fn corruption_flips_one_bit_per_frame_and_repeats_bytes() {
    let pair = Pair::new();
    let bytes = numbered(2000).concat();
    let arrived = pair.sent(Rule { flip_permille: 50, ..Rule::default() }, &bytes);
    let flipped = u32::try_from(pair.links.traffic(0, 1).spoiled).unwrap();
    assert!((40..200).contains(&flipped), "{flipped} of 2000");
    assert_eq!(arrived.len(), bytes.len());
    let bits: u32 = arrived.iter().zip(&bytes).map(|(a, b)| (a ^ b).count_ones()).sum();
    assert_eq!(bits, flipped);

    let arrived = pair.sent(Rule { stutter_permille: 1000, ..Rule::default() }, &bytes);
    assert!(arrived.len() > bytes.len() + 2000);
}

#[test]
fn a_connection_breaks_in_the_middle_of_a_frame() {
    let pair = Pair::new();
    let frame = frame(&[b'x'; 988]);
    let arrived = pair.sent(Rule { break_permille: 1000, ..Rule::default() }, &frame);
    assert_eq!(arrived, frame[..500]);
    assert_eq!(pair.links.traffic(0, 1).broken, 1);
}

#[test]
fn bandwidth_limit_slows_the_link() {
    let pair = Pair::new();
    let bytes = frame(&vec![b'x'; 40_000]);
    let rule = Rule { bytes_per_second: NonZeroU32::new(200_000), ..Rule::default() };
    let (begun, (sender, receiver)) = (Instant::now(), mpsc::channel());
    thread::scope(|scope| {
        scope.spawn(|| sender.send(pair.sent(rule, &bytes)));
        assert_eq!(receiver.recv_timeout(LIMIT).unwrap(), bytes);
    });
    assert!(begun.elapsed() >= Duration::from_millis(200));
}

#[test]
fn rules_do_not_affect_non_members() {
    let pair = Pair::new();
    pair.links.part(&[0], &[1]);
    let mut near = TcpStream::connect(&pair.addresses[1]).unwrap();
    // A machine that wants to join at first sends only the preface.
    let mut preface = greeting(&pair.addresses[0]);
    preface.truncate(16);
    preface[12] = 255;
    near.write_all(&preface).unwrap();
    let (mut far, _) = pair.listeners[1].accept().unwrap();
    far.read_exact(&mut [0; 16]).unwrap();
    assert_eq!(pair.links.strangers(), 1);
}
