//! Tests of members with valid certificates, and of peers without a valid certificate.

use super::*;
use crate::testing::{DevAuthority, Revocable};
use crate::transport::exchange::Broken;
use crate::transport::handshake::Admission;
use crate::transport::peers::LANES;
use crate::transport::security::Security;
use std::path::Path;
use std::time::Instant;
use tempfile::TempDir;

/// A certificate authority and the directory of its files.
struct Office {
    authority: DevAuthority,
    dir: TempDir,
}

impl Office {
    fn new(cluster: &str) -> Self {
        let dir = TempDir::new().expect("a directory");
        let authority = DevAuthority::new(dir.path(), cluster).expect("an authority");
        Self { authority, dir }
    }

    fn right(&self, id: u64) -> PeerTls {
        self.authority.issue(&format!("m{id}")).expect("a certificate")
    }

    /// Returns a certificate that does not identify its owner as member 2.
    fn wrong(&mut self, how: Wrong) -> PeerTls {
        let foreign = self.dir.path().join("foreign");
        let authority = &mut self.authority;
        match how {
            Wrong::Expired => authority.issue_expired("m2"),
            Wrong::Revoked => authority.issue_revoked("m2"),
            Wrong::AnotherMember => authority.issue("m3"),
            Wrong::Foreign => std::fs::create_dir(&foreign)
                .and_then(|()| DevAuthority::new(foreign, "shop"))
                .and_then(|foreign| {
                    let theirs = foreign.issue("m2")?;
                    // The peer trusts the right authority, but another authority has issued its
                    // certificate.
                    let ours = authority.issue("m1")?;
                    Ok(PeerTls::new(ours.ca, theirs.cert, theirs.key))
                }),
            Wrong::OtherCluster => authority.issue_for_cluster("mill", "m2"),
        }
        .expect("a certificate")
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Wrong {
    Expired,
    Revoked,
    AnotherMember,
    Foreign,
    OtherCluster,
}

impl Wrong {
    const ALL: [Wrong; 5] =
        [Wrong::Expired, Wrong::Revoked, Wrong::AnotherMember, Wrong::Foreign, Wrong::OtherCluster];

    /// Returns the expected error text.
    fn words(self) -> &'static str {
        match self {
            Wrong::Expired => "certificate has expired",
            Wrong::Revoked => "certificate was revoked",
            Wrong::AnotherMember => "is named \"m2\", but its certificate is for \"m3\"",
            Wrong::Foreign => "is not signed by a trusted authority",
            Wrong::OtherCluster => "is for a member of cluster \"mill\", not of cluster \"shop\"",
        }
    }
}

fn with(files: PeerTls) -> TcpSettings {
    TcpSettings {
        tls: Some(files),
        tls_reload_every: Duration::from_millis(20),
        token: "t".to_owned(),
        ..settings()
    }
}

/// Starts member `id`. A member with the certificate of `m3` does not know its own name.
fn start(id: u64, settings: TcpSettings, peers: &[(u64, SocketAddr)]) -> Member {
    let called = match &settings.tls {
        Some(files) if files.cert.ends_with("m3.cert.pem") => None,
        _ => Some(id),
    };
    let inbox = Arc::default();
    let me = hello(id, 3 - id);
    Member::start_as(bind(settings), me, called, peers, &inbox)
}

/// Returns members 1 and 2, which dial each other.
fn pair(one: TcpSettings, two: TcpSettings) -> [Member; 2] {
    let mut one = start(1, one, &[]);
    let two = start(2, two, &[(1, one.handle.address())]);
    one.network.set_peers(&[(node(2), vec![two.handle.address().to_string()])].into());
    [one, two]
}

fn talk(one: &mut Member, two: &mut Member, number: u64) {
    for lane in LANES {
        let number = number * 10 + lane as u64;
        one.send(2, lane, &ping(number));
        two.inbox.wait_for_message(node(1), &ping(number));
        two.send(1, lane, &ping(number));
        one.inbox.wait_for_message(node(2), &ping(number));
    }
}

#[test]
fn members_with_valid_certificates_connect_on_every_lane() {
    let office = Office::new("shop");
    // Send no keepalives during the test, because a keepalive would flush data that is stuck.
    let idle_timeout = Duration::from_secs(3600);
    let alive_every = idle_timeout;
    let settings = |id| TcpSettings { idle_timeout, alive_every, ..with(office.right(id)) };
    let [mut one, mut two] = pair(settings(1), settings(2));
    talk(&mut one, &mut two, 1);
    let large = load(3 << 20, 5);
    for number in 0..2000 {
        one.send(2, Lane::Control, &ping(100 + number));
        if number % 200 == 0 {
            one.send(2, Lane::Bulk, &large);
            one.send(2, Lane::Snapshot, &large);
        }
    }
    one.send(2, Lane::Bulk, &ping(9000));
    one.send(2, Lane::Snapshot, &ping(9001));
    for last in [2099, 9000, 9001] {
        two.inbox.wait_for_message(node(1), &ping(last));
    }
    let messages = two.inbox.messages();
    let control: Vec<_> = messages
        .iter()
        .filter(|message| matches!(message, PeerMessage::Digest { digest: 100..9000, .. }))
        .cloned()
        .collect();
    assert!(control == (100..2100).map(ping).collect::<Vec<_>>(), "out of order");
    assert_eq!(messages.iter().filter(|message| **message == large).count(), 20);
}

/// Dials member 1 on one lane with these files, as member 2.
fn dial_once(files: &PeerTls, lane: Lane, to: SocketAddr) -> Result<Hello, Broken> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime").block_on(async {
        let security = with(files.clone()).security(&Env::real(), None).expect("good files");
        assert!(matches!(security, Security::Tls(_)));
        let tcp = tokio::net::TcpStream::connect(to).await?;
        let mut wire = security.dial(tcp, std::future::pending()).await?;
        let admission = Admission::new(node(2), TestIntroducer::new(hello(2, 1)));
        exchange::dial(&mut wire, node(1), lane, &admission).await
    })
}

#[test]
fn data_arriving_with_the_end_of_the_handshake_is_read() {
    let office = Office::new("shop");
    let idle_timeout = Duration::from_secs(3600);
    let alive_every = idle_timeout;
    let one = start(1, TcpSettings { idle_timeout, alive_every, ..with(office.right(1)) }, &[]);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime").block_on(async {
        let settings = with(office.right(2));
        let security = settings.security(&Env::real(), None).expect("good files");
        let tcp = tokio::net::TcpStream::connect(one.handle.address()).await.expect("open");
        let wire = security.dial(tcp, std::future::pending()).await.expect("right certificates");
        let bytes = [preface(0), hello_frame(&hello(2, 1))].concat();
        wire.write_all(&bytes).await.expect("written");
        let answer = hello_frame(&hello(1, 2)).len() + 16;
        wire.read_exact(&mut vec![0; answer]).await.expect("a hello");
        let bytes = [framed(FrameKind::Alive, b""), message_frame(&ping(1))].concat();
        wire.write_all(&bytes).await.expect("written");
        one.inbox.wait_for_message(node(2), &ping(1));
    });
}

#[test]
fn unwritten_bytes_are_pending_until_flushed() {
    let office = Office::new("shop");
    let security = |id| with(office.right(id)).security(&Env::real(), None).expect("good files");
    let (one, two) = (security(1), security(2));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime").block_on(async {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("bound");
        let accepted = async { one.accept(listener.accept().await.expect("dialed").0).await };
        let dialed = async {
            let tcp = tokio::net::TcpStream::connect(address).await?;
            two.dial(tcp, std::future::pending()).await
        };
        let (far, near) = tokio::join!(accepted, dialed);
        let (far, near) = (far.expect("right"), near.expect("right"));
        let mut taken = 0;
        // The other side reads nothing, so the socket becomes full.
        near.writable().await.expect("open");
        loop {
            match near.try_write(&[7; 100_000]) {
                Ok(len) => taken += len,
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => break,
                Err(error) => panic!("{error}"),
            }
        }
        assert!(near.is_pending(), "{taken} bytes were taken");
        let mut arrived = vec![0; taken];
        let (flushed, read) = tokio::join!(near.write_all(&[]), far.read_exact(&mut arrived));
        flushed.and(read).expect("all of it");
        assert!(!near.is_pending() && arrived.iter().all(|byte| *byte == 7));
    });
}

#[test]
fn dialer_with_a_wrong_certificate_is_rejected_on_every_lane() {
    for wrong in Wrong::ALL {
        let mut office = Office::new("shop");
        let bad = office.wrong(wrong);
        let one = start(1, with(office.right(1)), &[]);
        for lane in LANES {
            let error = dial_once(&bad, lane, one.handle.address());
            let error = error.expect_err("let in with a wrong certificate").to_string();
            let is_reported = match wrong {
                Wrong::AnotherMember => error.contains(wrong.words()),
                // The dialer itself detects that it has reached the wrong cluster.
                Wrong::OtherCluster => error.contains("not of cluster \"mill\""),
                // The dialer receives a TLS alert.
                _ => error.contains("does not accept this member's certificate"),
            };
            assert!(is_reported, "{wrong:?} on {lane:?}: {error}");
        }
        assert!(
            !one.inbox.has(|received| matches!(received, Received::Connected(..))),
            "{wrong:?}"
        );
        let good = dial_once(&office.right(2), Lane::Bulk, one.handle.address());
        assert!(good.is_ok(), "{wrong:?}: {good:?}");
    }
}

#[test]
fn acceptor_with_a_wrong_certificate_is_rejected_on_every_lane() {
    for wrong in Wrong::ALL {
        let mut office = Office::new("shop");
        let bad = with(office.wrong(wrong));
        let two = start(2, bad, &[]);
        let mut one = start(1, with(office.right(1)), &[(2, two.handle.address())]);
        one.inbox.wait_for_rejection(node(2), wrong.words());
        // The snapshot lane, which is dialed on demand, must be rejected too.
        assert_eq!(one.network.send(node(2), Lane::Snapshot, ping(1)), SendOutcome::Queued);
        let began = Instant::now();
        for lane in LANES {
            while one.network.send(node(2), lane, ping(1)) != SendOutcome::Unreachable {
                assert!(began.elapsed() < DEADLINE, "{wrong:?} on {lane:?}");
                std::thread::yield_now();
            }
        }
        let connected = |received: &Received| {
            matches!(received, Received::Connected(..) | Received::Message(..))
        };
        assert!(!one.inbox.has(connected) && !two.inbox.has(connected), "{wrong:?}");
    }
}

#[test]
fn tls_and_plaintext_members_report_the_mismatch() {
    let office = Office::new("shop");
    let [mut one, mut two] = pair(with(office.right(1)), settings());
    // Only member 1 has certificates. Both members must report the mismatch.
    one.inbox.wait_for_rejection(node(2), "does not use TLS, but this member does");
    two.inbox.wait_for_rejection(node(1), "uses TLS, but this member does not");
    for (member, other) in [(&mut one, 2), (&mut two, 1)] {
        let outcome = member.network.send(node(other), Lane::Control, ping(1));
        assert_eq!(outcome, SendOutcome::Unreachable);
        assert!(!member.inbox.has(|received| !matches!(received, Received::Refused(..))));
    }
}

#[test]
fn migrating_member_connects_with_and_without_tls() {
    let office = Office::new("shop");
    // The peers are: one that does not use TLS yet, one that is migrating, and one that has
    // migrated.
    let others = [settings(), with(office.right(1).migrating()), with(office.right(1))];
    for (number, other) in (1..).zip(others) {
        let [mut one, mut two] = pair(other, with(office.right(2).migrating()));
        talk(&mut one, &mut two, number);
    }
}

/// The fallback to plain connections is for members without TLS. A rejected certificate must not
/// trigger the fallback.
#[test]
fn only_a_migrating_member_falls_back_and_never_for_a_wrong_certificate() {
    let mut office = Office::new("shop");
    // A member that replies without TLS is dialed again. A plain connection to this member would
    // succeed.
    let plain = start(2, settings(), &[]);
    let strict = start(1, with(office.right(1)), &[(2, plain.handle.address())]);
    strict.inbox.wait_for_rejection(node(2), "does not use TLS");
    drop(strict);
    // This peer has a revoked certificate, but also accepts connections without TLS.
    let bad = with(office.wrong(Wrong::Revoked).migrating());
    let bad = start(2, bad, &[]);
    let moving = with(office.right(1).migrating());
    let moving = start(1, moving, &[(2, bad.handle.address())]);
    for _ in 0..3 {
        moving.inbox.wait_for_rejection(node(2), Wrong::Revoked.words());
        moving.inbox.forget_rejections();
    }
    let connected = |received: &Received| matches!(received, Received::Connected(..));
    for member in [&plain, &bad, &moving] {
        assert!(!member.inbox.has(connected));
    }
}

/// A proxy whose member is down accepts connections and closes them. Such a peer must not be
/// reported as one without TLS.
#[test]
fn peer_that_hangs_up_is_not_reported_as_plaintext() {
    let office = Office::new("shop");
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("bound").to_string();
    std::thread::spawn(move || while listener.accept().is_ok() {});
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let (inbox, warnings): (Arc<Inbox>, Warnings) = Default::default();
    let (_stop, stopping) = tokio::sync::watch::channel(false);
    let settings = with(office.right(1));
    let security = settings.security(&Env::real(), None).expect("good files");
    let admission = Admission::new(node(1), TestIntroducer::new(hello(1, 2)));
    let ended = std::sync::mpsc::channel().0;
    let context = context::Context::new(
        Env::real(),
        settings,
        security,
        admission,
        inbox.clone(),
        stopping,
        ended,
    );
    let (new, _) = context.peers.set(&[(node(2), vec![address.clone()])].into(), &context.settings);
    tracing::subscriber::with_default(warnings.clone(), || {
        let keep = dialer::keep(Arc::new(context), new[0].clone(), Lane::Control);
        let warned = async {
            while warnings.0.lock().expect("no fall").is_empty() {
                tokio::task::yield_now().await;
            }
        };
        runtime.expect("a runtime").block_on(async {
            tokio::select! {
                () = keep => {}
                warned = tokio::time::timeout(DEADLINE, warned) => warned.expect("a warning"),
            }
        });
    });
    let lines = warnings.0.lock().expect("no fall").join("; ");
    let seen = ["closed", "reset"]
        .map(|how| format!("the other end {how} the connection during the TLS handshake"));
    assert!(seen.iter().any(|seen| lines.contains(seen)) && lines.contains(&address), "{lines}");
    assert!(!lines.contains("certificate") && !inbox.has(|_| true), "{lines}");
}

#[test]
fn new_certificates_need_no_restart() {
    let office = Office::new("shop");
    let expired = office.authority.issue_expired("m2").expect("a certificate");
    let [mut one, mut two] = pair(with(office.right(1)), with(expired.clone()));
    one.inbox.wait_for_rejection(node(2), "has expired");
    // The files at the same paths now have valid contents.
    assert_eq!(office.right(2), expired);
    talk(&mut one, &mut two, 1);
    // Invalid contents change nothing, neither for open nor for new connections.
    std::fs::write(&expired.cert, "-----BEGIN NONSENSE-----").expect("written");
    std::thread::sleep(Duration::from_millis(100));
    talk(&mut one, &mut two, 2);
    two.network.set_peers(&BTreeMap::new());
    two.network.set_peers(&[(node(1), vec![one.handle.address().to_string()])].into());
    talk(&mut one, &mut two, 3);
    // A certificate for another member's name is not loaded, so new connections in both directions
    // use the previous certificate.
    let other = office.right(3);
    std::fs::copy(&other.key, &expired.key).expect("copied");
    std::fs::copy(&other.cert, &expired.cert).expect("copied");
    std::thread::sleep(Duration::from_millis(100));
    let at = [one.handle.address(), two.handle.address()];
    for (member, other, address) in [(&mut one, 2, at[1]), (&mut two, 1, at[0])] {
        member.network.set_peers(&BTreeMap::new());
        member.network.set_peers(&[(node(other), vec![address.to_string()])].into());
    }
    talk(&mut one, &mut two, 4);
}

#[test]
fn revoked_certificate_ends_its_connections() {
    let mut office = Office::new("shop");
    let (files, revocable): (PeerTls, Revocable) =
        office.authority.issue_revocable("m2").expect("a certificate");
    let [mut one, mut two] = pair(with(office.right(1)), with(files));
    talk(&mut one, &mut two, 1);
    office.authority.revoke(revocable).expect("a list");
    one.inbox.wait_for_rejection(node(2), "was revoked");
    one.inbox.wait("all gone", |received| received.contains(&Received::Disconnected(node(2))));
    let began = Instant::now();
    for lane in LANES {
        while one.network.send(node(2), lane, ping(9)) != SendOutcome::Unreachable {
            assert!(began.elapsed() < DEADLINE, "still up on {lane:?}");
        }
    }
    // With a new certificate, connections work again.
    drop(office.right(2));
    talk(&mut one, &mut two, 2);
}

/// Returns the contents of these files, without the revocation list.
fn pem(files: &PeerTls) -> PeerPem {
    let read = |path: &Path| std::fs::read(path).expect("read");
    PeerPem::new(read(&files.ca), read(&files.cert), read(&files.key))
}

#[test]
fn certificate_in_memory_is_renewed_without_delay() {
    let mut office = Office::new("shop");
    let (files, revocable) = office.authority.issue_revocable("m2").expect("a certificate");
    let certificates = PeerCertificates::new(pem(&files));
    // Files would be read again only after an hour.
    let slow = TcpSettings {
        tls_reload_every: Duration::from_secs(3600),
        ..with(PeerTls::in_memory(&certificates))
    };
    let [mut one, mut two] = pair(with(office.right(1)), slow);
    talk(&mut one, &mut two, 1);
    office.authority.revoke(revocable).expect("a list");
    one.inbox.wait_for_rejection(node(2), "was revoked");
    one.inbox.wait("all gone", |received| received.contains(&Received::Disconnected(node(2))));
    certificates.renew(pem(&office.right(2))).expect("usable");
    talk(&mut one, &mut two, 2);
}

#[test]
fn unusable_certificate_in_memory_changes_nothing() {
    let office = Office::new("shop");
    let (good, other) = (pem(&office.right(2)), pem(&office.right(3)));
    let certificates = PeerCertificates::new(good.clone());
    let [mut one, mut two] = pair(with(office.right(1)), with(PeerTls::in_memory(&certificates)));
    talk(&mut one, &mut two, 1);
    let cases = [
        (
            PeerPem { cert: b"no PEM".to_vec(), ..good.clone() },
            "the certificate in memory: it contains no certificate",
        ),
        (
            PeerPem { ca: b"no PEM".to_vec(), ..good.clone() },
            "the certificates of the authorities in memory",
        ),
        (PeerPem { key: Vec::new(), ..good.clone() }, "the private key in memory: no private key"),
        (
            PeerPem { key: other.key.clone(), ..good.clone() },
            "the private key in memory: keys may not be consistent",
        ),
        (
            good.clone().crl("no PEM"),
            "the revocation lists in memory: it contains no revocation list",
        ),
        (
            other,
            "the new certificate is for bowline://shop/m3, but the current one is for bowline://shop/m2",
        ),
    ];
    for (pem, words) in cases {
        let error = certificates.renew(pem).expect_err(words).to_string();
        assert!(error.contains(words), "{error:?} lacks {words:?}");
    }
    assert_eq!(certificates.pem(), good);
    assert!(!format!("{:?}", (&certificates, &good)).contains("PRIVATE"));
    two.network.set_peers(&BTreeMap::new());
    two.network.set_peers(&[(node(1), vec![one.handle.address().to_string()])].into());
    talk(&mut one, &mut two, 2);
    // A node that is configured with empty certificates in memory does not start.
    let none = PeerTls::in_memory(&PeerCertificates::new(PeerPem::new("", "", "")));
    let error = with(none).security(&Env::real(), None).err().expect("no certificate").to_string();
    assert!(error.contains("certificates of the authorities in memory"), "{error}");
}

#[test]
fn certificate_revoked_during_a_handshake_is_rejected_at_its_end() {
    let mut office = Office::new("shop");
    let (files, revocable) = office.authority.issue_revocable("m2").expect("a certificate");
    let (handshake_timeout, idle_timeout) = (Duration::from_secs(600), Duration::from_secs(600));
    let settings = TcpSettings { handshake_timeout, idle_timeout, ..with(office.right(1)) };
    let one = start(1, settings, &[]);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime").block_on(async {
        let security = with(files.clone()).security(&Env::real(), None).expect("good files");
        let dial = async || {
            let tcp = tokio::net::TcpStream::connect(one.handle.address()).await?;
            security.dial(tcp, std::future::pending()).await
        };
        let admission = Admission::new(node(2), TestIntroducer::new(hello(2, 1)));
        // This peer proves its identity and then stalls.
        let dawdler = dial().await.expect("a right certificate");
        dawdler.write_all(&preface(0)[..8]).await.expect("written");
        office.authority.revoke(revocable).expect("a list");
        let began = Instant::now();
        let refused = async || {
            let mut wire = dial().await?;
            exchange::dial(&mut wire, node(1), Lane::Bulk, &admission).await
        };
        while refused().await.is_ok() {
            assert!(began.elapsed() < DEADLINE, "the list was not read");
        }
        let bytes = [&preface(0)[8..], &hello_frame(&hello(2, 1))].concat();
        dawdler.write_all(&bytes).await.expect("written");
        let answer = hello_frame(&hello(1, 2)).len() + 16;
        dawdler.read_exact(&mut vec![0; answer]).await.expect("a hello");
        dawdler.write_all(&framed(FrameKind::Alive, b"")).await.expect("written");
        let mut byte = [0];
        let end = async { while dawdler.read_exact(&mut byte).await.is_ok() {} };
        tokio::time::timeout(DEADLINE, end).await.expect("a revoked member stays connected");
    });
}

/// Collects every warning as a line: the message, then the fields.
#[derive(Clone, Default)]
struct Warnings(Arc<Mutex<Vec<String>>>);

#[derive(Default)]
struct EventText(String);

impl tracing::field::Visit for EventText {
    fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn std::fmt::Debug) {
        self.0.push_str(&format!("{}={value:?} ", field.name()));
    }
}

impl tracing::Subscriber for Warnings {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        *metadata.level() <= tracing::Level::WARN && metadata.target().starts_with("bowline")
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}

    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        let mut text = EventText::default();
        event.record(&mut text);
        self.0.lock().expect("no fall").push(text.0);
    }

    fn enter(&self, _: &tracing::span::Id) {}

    fn exit(&self, _: &tracing::span::Id) {}
}

#[test]
fn invalid_reloaded_files_are_logged_once_per_change() {
    let office = Office::new("shop");
    let (files, warnings) = (office.right(2), Warnings::default());
    let unaccepted = "other members will reject this member: its own certificate";
    tracing::subscriber::with_default(warnings.clone(), || {
        let take = || std::mem::take(&mut *warnings.0.lock().expect("no fall"));
        let tls = tls::Tls::load(&Env::real(), files.clone(), Some("m2")).expect("good files");
        let refreshed = || {
            (0..3).for_each(|_| tls.refresh());
            take()
        };
        assert_eq!(take().len() + refreshed().len(), 0);
        drop(office.authority.issue_expired("m2").expect("a certificate"));
        let lines = refreshed();
        assert!(lines.len() == 1 && lines[0].contains(unaccepted), "{lines:?}");
        assert!(lines[0].contains("has expired"), "{lines:?}");
        // In each of two rounds, the file is first missing and then invalid.
        for _ in 0..2 {
            std::fs::remove_file(&files.cert).expect("removed");
            let lines = refreshed();
            assert!(lines.len() == 1 && lines[0].contains("cannot read"), "{lines:?}");
            std::fs::write(&files.cert, "-----BEGIN NONSENSE-----").expect("written");
            let _ = refreshed();
        }
        drop(office.right(2));
        assert_eq!(refreshed(), [""; 0]);
    });
}

#[test]
fn unproven_members_connect_only_with_unproven_peers() {
    let (shop, mill) = (Office::new("shop"), Office::new("mill"));
    let (one, two) = (shop.right(1), mill.right(2));
    let [one, two] = [one, two].map(|files| with(PeerTls::unproven(files.cert, files.key)));
    // Encryption without authentication does not protect against processes that reach the port.
    let error = TcpBound::bind("0.0.0.0:0", one.clone()).err().expect("refused");
    assert!(error.to_string().contains("insecure_peers"), "{error}");
    let [mut one, mut two] = pair(one, two.clone());
    talk(&mut one, &mut two, 1);
    let files = mill.right(2);
    let unproven = with(PeerTls::unproven(files.cert, files.key));
    let [strict, _two] = pair(with(shop.right(1)), unproven);
    strict.inbox.wait_for_rejection(node(2), "is not signed by a trusted authority");
}

/// etcd expects revocation lists in DER format.
#[test]
fn der_revocation_list_is_accepted() {
    use rustls::pki_types::CertificateRevocationListDer;
    use rustls::pki_types::pem::PemObject;
    let mut office = Office::new("shop");
    let (one, two) = (office.right(1), office.wrong(Wrong::Revoked));
    let pem = std::fs::read(one.crl.as_deref().expect("a list")).expect("read");
    let der = CertificateRevocationListDer::from_pem_slice(&pem).expect("a list");
    let path = office.dir.path().join("list.der");
    std::fs::write(&path, &der).expect("written");
    let [one, _two] = pair(with(one.crl(path)), with(two));
    one.inbox.wait_for_rejection(node(2), "was revoked");
}

#[test]
fn unusable_tls_files_fail_the_start() {
    let office = Office::new("shop");
    let (one, two) = (office.right(1), office.right(2));
    let path = |name: &str| office.dir.path().join(name);
    std::fs::write(path("empty"), "").expect("written");
    let cases = [
        (PeerTls { cert: path("nowhere"), ..one.clone() }, "cannot read"),
        (PeerTls { cert: path("empty"), ..one.clone() }, "it contains no certificate"),
        (PeerTls { ca: path("empty"), ..one.clone() }, "it contains no certificate"),
        (PeerTls { key: path("empty"), ..one.clone() }, "no private key"),
        (one.clone().crl(path("empty")), "it contains no revocation list"),
        (PeerTls { key: two.key.clone(), ..one.clone() }, "keys"),
        (PeerTls { cert: one.ca.clone(), ..one.clone() }, "has no URI of the form"),
        (two, "this member is named \"m1\", but its certificate is for \"m2\""),
    ];
    for (files, words) in cases {
        let started = bind(with(files)).start(
            &Env::real(),
            node(1),
            &BTreeMap::new(),
            TestIntroducer::new(hello(1, 2)),
            Arc::new(Inbox::default()),
        );
        let error = started.err().expect(words).to_string();
        assert!(error.contains(words), "{error:?} lacks {words:?}");
    }
    assert!(Path::new(&one.cert).exists());
}

#[test]
fn certificates_permit_non_loopback_addresses() {
    let office = Office::new("shop");
    assert!(TcpBound::bind("0.0.0.0:0", with(office.right(1))).is_ok());
}

#[test]
fn joiner_must_match_the_name_in_its_certificate() {
    let office = Office::new("shop");
    let one = start(1, with(office.right(1)), &[]);
    let at = [one.handle.address().to_string()];
    let ask = |name: &str| JoinAsk {
        disk: DiskId(4),
        name: name.to_owned(),
        address: String::new(),
        replaces: None,
    };
    let knock = |files: PeerTls, ask: JoinAsk, limit| {
        let (settings, at) = (with(files), at.clone());
        std::thread::spawn(move || join(&Env::real(), &settings, &at, &ask, limit, &|| false))
    };
    let joining = knock(office.right(4), ask("m4"), DEADLINE);
    let (asked, reply) = one.inbox.wait_for_ask();
    assert_eq!(asked, ask("m4"));
    reply.send(JoinAnswer::Refused("a test".to_owned()));
    assert!(joining.join().expect("no fall").is_err());
    let error = knock(office.right(4), ask("m5"), DEADLINE).join().expect("no fall");
    let error = error.expect_err("refused").to_string();
    assert!(error.contains("named \"m5\", but its certificate is for \"m4\""), "{error}");
    // If a joiner does not check its own files, the member rejects it.
    let files = Office::new("shop");
    let error = knock(files.right(4), ask("m4"), Duration::from_secs(5)).join();
    let error = error.expect("no fall").expect_err("a foreign one").to_string();
    assert!(error.contains(Wrong::Foreign.words()), "{error}");
    assert!(one.inbox.asked.lock().unwrap_or_else(PoisonError::into_inner).is_empty());
}

#[test]
#[allow(clippy::print_stdout, reason = "the figures are worth reading")]
fn encrypted_snapshot_transfer_does_not_delay_control() {
    let office = Office::new("shop");
    let [mut one, mut two] = pair(with(office.right(1)), with(office.right(2)));
    talk(&mut one, &mut two, 1);
    let part = load(1 << 20, 7);
    let (mut sent, mut arrived, mut overtaken) = (0, 0, 0);
    let (mut worst, began) = (Duration::ZERO, Instant::now());
    for number in 100.. {
        let is_enough = number >= 300 && sent > 20;
        if is_enough || began.elapsed() > Duration::from_secs(60) {
            break;
        }
        while one.network.send(node(2), Lane::Snapshot, part.clone()) == SendOutcome::Queued {
            sent += 1;
        }
        let asked = Instant::now();
        one.send(2, Lane::Control, &ping(number));
        two.inbox.wait_for_message(node(1), &ping(number));
        worst = worst.max(asked.elapsed());
        arrived += two.inbox.forget(|message| matches!(message, PeerMessage::Raft(_)));
        overtaken += usize::from(arrived < sent);
    }
    println!("{sent} MiB encrypted in {:?}; control: worst {worst:?}", began.elapsed());
    // If control messages were queued after bulk data, they would never overtake it.
    assert!(sent > 20 && overtaken > 0, "{sent} MiB, overtaken {overtaken} times, {worst:?}");
}
