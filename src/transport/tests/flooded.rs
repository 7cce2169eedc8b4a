//! Tests of many silent connections.

use super::*;
use std::time::Instant;

#[test]
fn thousand_silent_connections_do_not_lock_members_out() {
    let one = alone(TcpSettings { handshake_timeout: Duration::from_secs(600), ..settings() });
    let kept = settings().handshakes_max;
    let mut silent: Vec<TcpStream> = Vec::new();
    for number in 0..1000 {
        silent.push(connect(one.handle.address()));
        // Each connection above the limit closes the oldest connection, long before the timeout.
        if number >= kept {
            read_to_close(&mut silent[number - kept]);
        }
    }
    let peer = introduce(one.handle.address(), 0, &hello(2, 1));
    one.inbox.wait_for_connection(node(2));
    let mut byte = [0];
    let newest = silent.last_mut().expect("a thousand");
    newest.set_nonblocking(true).expect("a mode");
    let error = newest.read(&mut byte).expect_err("still open");
    assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock);
    drop(peer);
}

/// Connects from the given source address.
#[cfg(target_os = "linux")]
fn connect_from(from: [u8; 4], to: SocketAddr) -> TcpStream {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build();
    runtime.expect("a runtime").block_on(async {
        let socket = tokio::net::TcpSocket::new_v4().expect("a socket");
        socket.bind(SocketAddr::from((from, 0))).expect("all of 127.0.0.0/8 is this machine");
        let stream = socket.connect(to).await.expect("the port is open").into_std();
        let stream = stream.expect("a socket");
        stream.set_nonblocking(false).expect("a mode");
        stream.set_read_timeout(Some(DEADLINE)).expect("a timeout");
        stream
    })
}

#[cfg(target_os = "linux")]
#[test]
fn crowd_from_one_address_does_not_lock_others_out() {
    let handshake_timeout = Duration::from_secs(600);
    for words in [vec![], preface(0)] {
        let one = alone(TcpSettings { handshake_timeout, ..settings() });
        let address = one.handle.address();
        // Between the connect and the preface of this member, more connections arrive than the
        // limit allows.
        let mut member = connect(address);
        let mut crowd = Vec::new();
        for number in 0..settings().handshakes_max * 2 {
            crowd.push(connect_from([127, 0, 0, 2], address));
            let _ = crowd[number].write_all(&words);
        }
        read_to_close(&mut crowd[0]);
        let bytes = [preface(0), hello_frame(&hello(2, 1)), framed(FrameKind::Alive, b"")].concat();
        member.write_all(&bytes).expect("written");
        one.inbox.wait_for_connection(node(2));
    }
}

#[cfg(target_os = "linux")]
#[test]
fn two_connections_of_a_member_survive_many_silent_addresses() {
    let (handshakes_max, handshake_timeout) = (16, Duration::from_secs(600));
    let one = alone(TcpSettings { handshakes_max, handshake_timeout, ..settings() });
    let address = one.handle.address();
    // These two connections are in the middle of their handshakes.
    let mut member: Vec<_> = (0..2).map(|_| connect(address)).collect();
    for stream in &mut member {
        stream.write_all(&[preface(0), hello_frame(&hello(2, 1))].concat()).expect("written");
        assert_eq!(read_frame(stream, 16).0, 1, "a hello");
    }
    let silent = |number: u8| connect_from([127, 0, 1, number], address);
    let mut silent: Vec<_> = (1..=40).map(silent).collect();
    read_to_close(&mut silent[0]);
    read_to_close(&mut silent[20]);
    let stream = &mut member[1];
    stream.write_all(&framed(FrameKind::Alive, b"")).expect("written");
    stream.write_all(&message_frame(&ping(1))).expect("written");
    one.inbox.wait_for_message(node(2), &ping(1));
}

#[test]
fn active_handshake_is_not_cut_for_silent_ones() {
    let handshakes_max = 4;
    // No connection is closed because of the handshake timeout.
    let handshake_timeout = Duration::from_secs(600);
    let one = alone(TcpSettings { handshakes_max, handshake_timeout, ..settings() });
    let address = one.handle.address();
    // This connection is in the middle of its handshake: it has not sent its last frame.
    let mut slow = connect(address);
    slow.write_all(&[preface(0), hello_frame(&hello(2, 1))].concat()).expect("written");
    assert_eq!(read_frame(&mut slow, 16).0, 1, "a hello");
    let mut silent: Vec<_> = (0..handshakes_max * 3).map(|_| connect(address)).collect();
    for cut in &mut silent[..handshakes_max * 2] {
        read_to_close(cut);
    }
    slow.write_all(&framed(FrameKind::Alive, b"")).expect("written");
    slow.write_all(&message_frame(&ping(1))).expect("written");
    one.inbox.wait_for_message(node(2), &ping(1));
    // Connections that send a preface and then stall are limited too.
    let mut with_preface: Vec<_> = (0..handshakes_max * 3).map(|_| connect(address)).collect();
    // Writing to connections that are already closed fails.
    with_preface.iter_mut().for_each(|stream| drop(stream.write_all(&preface(0))));
    let began = Instant::now();
    let mut closed = vec![false; handshakes_max * 2];
    while closed.iter().filter(|closed| **closed).count() < handshakes_max {
        for (stream, closed) in with_preface.iter_mut().zip(&mut closed) {
            stream.set_nonblocking(true).expect("a mode");
            *closed |= match stream.read(&mut [0]) {
                Ok(read) => read == 0,
                Err(error) => error.kind() != std::io::ErrorKind::WouldBlock,
            };
        }
        assert!(began.elapsed() < DEADLINE, "of those that waited longest were cut: {closed:?}");
        std::thread::yield_now();
    }
}

/// Returns the numbers of silent connections to make, with the settings to use.
#[cfg(target_os = "linux")]
fn floods(dir: &std::path::Path) -> Vec<(usize, TcpSettings)> {
    let _ = dir;
    vec![
        (10_000, settings()),
        #[cfg(feature = "testing-tls")]
        (1_000, {
            let authority = crate::testing::DevAuthority::new(dir, "shop").expect("an authority");
            TcpSettings { tls: Some(authority.issue("m1").expect("files")), ..settings() }
        }),
    ]
}

/// Returns the memory that this process uses, in bytes.
#[cfg(target_os = "linux")]
fn memory() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux");
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).expect("a size");
    let kib: u64 =
        line.split_whitespace().nth(1).and_then(|kib| kib.parse().ok()).expect("a number");
    kib << 10
}

/// Returns the maximum number of open files of this process.
#[cfg(target_os = "linux")]
fn files_max() -> usize {
    let limits = std::fs::read_to_string("/proc/self/limits").expect("Linux");
    let line = limits.lines().find(|line| line.starts_with("Max open files")).expect("a limit");
    line.split_whitespace().nth(3).and_then(|max| max.parse().ok()).expect("a number")
}

#[cfg(target_os = "linux")]
#[test]
#[allow(clippy::print_stdout, reason = "the figures are worth reading")]
fn ten_thousand_silent_connections_are_cheap() {
    // The test runs in a process of its own, with as many open files as possible.
    const CHILD: &str = "BOWLINE_TEST_FLOOD_CHILD";
    const FILES: &str =
        "ulimit -n 20000 2>/dev/null || ulimit -n $(ulimit -Hn); exec \"$0\" \"$@\"";
    if std::env::var_os(CHILD).is_none() {
        let name = "transport::tests::flooded::ten_thousand_silent_connections_are_cheap";
        let program = std::env::current_exe().expect("this test");
        let child = std::process::Command::new("sh")
            .args(["-c", FILES])
            .arg(program)
            .args(["--exact", name, "--test-threads=1", "--nocapture"])
            .env(CHILD, "1")
            .output()
            .expect("started");
        let printed = String::from_utf8_lossy(&child.stdout).into_owned();
        assert!(child.status.success(), "{printed}{}", String::from_utf8_lossy(&child.stderr));
        print!("{printed}");
        return;
    }
    let dir = tempfile::tempdir().expect("a directory");
    for (count, settings) in floods(dir.path()) {
        let count = count.min(files_max() - 300);
        #[cfg(feature = "testing-tls")]
        let open = settings.tls.is_none();
        #[cfg(not(feature = "testing-tls"))]
        let open = true;
        let one = alone(TcpSettings { handshake_timeout: Duration::from_secs(600), ..settings });
        let address = one.handle.address();
        // One-time allocations are not counted.
        drop((0..200).map(|_| connect(address)).collect::<Vec<_>>());
        let before = memory();
        let mut silent = Vec::with_capacity(count);
        let mut worst = Duration::ZERO;
        for number in 0..count {
            silent.push(connect(address));
            if number % 500 == 0 && open {
                let began = Instant::now();
                drop(introduce(address, 0, &hello(2, 1)));
                worst = worst.max(began.elapsed());
            }
        }
        let grown = memory().saturating_sub(before) >> 10;
        println!(
            "{count} silent connections cost {grown} KiB; a member among them waited {worst:?}"
        );
        assert!(grown < 8 << 10, "{grown} KiB");
        assert!(worst < DEADLINE, "a member waited {worst:?}");
    }
}
