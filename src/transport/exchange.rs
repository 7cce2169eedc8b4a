//! The handshake on a connection: the code of the dialer and of the acceptor.
//!
//! ```text
//!   dialer                                     acceptor
//!     preface | hello  ────────────────────►     checks it
//!                      ◄────────────────────     preface | hello       or    preface | refused
//!     checks it
//!     alive            ────────────────────►     up                    or    refused
//!
//!   preface = "bowline\0" | least version u16 | greatest version u16 | lane u8 | 0 0 0
//! ```
//!
//! The preface and the `refused` frame are the same in every version of the protocol, so that
//! members with incompatible versions can still report the mismatch. A dialer whose first bytes are
//! neither the magic `bowline\0` nor TLS gets no reply. The handshake reads only the exact lengths
//! that it expects, so that no byte of a message is read before both sides have accepted each
//! other. The caller of this module sets a timeout.

use bytes::{Bytes, BytesMut};
use std::io;
use std::time::Duration;
use thiserror::Error;

use super::Refused;
use super::context::Context;
use super::frame::{
    self, Frame, FrameError, FrameKind, HEADER_BYTES, HELLO_BODY_BYTES_MAX, REFUSED_BODY_BYTES_MAX,
};
use super::handshake::Admission;
use super::join;
use super::pipe::is_transient;
use super::wire::Wire;
use crate::codec;
use crate::model::{Hello, JoinAsk, Lane, NodeId, PeerMessage};

const MAGIC: [u8; 8] = *b"bowline\0";
const PREFACE_BYTES: usize = 16;
/// The value in place of a lane in the preface of a process that wants to join.
pub(super) const JOIN_LANE: u8 = 255;
/// The first bytes of a TLS alert.
const TLS_ALERT: [u8; 2] = [21, 3];
/// The first bytes of a TLS handshake message.
const TLS_HANDSHAKE: [u8; 2] = [22, 3];
/// The versions of the protocol that this build supports.
const VERSIONS: Versions = Versions { least: 1, greatest: 1 };
/// Time for which a rejected connection is kept open so that the reason arrives. Closing a socket
/// with unread bytes in it destroys the data sent last.
const LINGER_MAX: Duration = Duration::from_millis(500);
/// Number of bytes from a rejected peer that are discarded in that time.
const LINGER_BYTES_MAX: usize = 64 << 10;
/// Number of bytes discarded in one read.
const LINGER_READ_BYTES: usize = 4 << 10;

/// The reason why a connection was not established.
#[derive(Debug, Error)]
pub(super) enum Broken {
    /// The socket failed or was closed.
    #[error("connection error: {0}")]
    Socket(io::Error),
    /// One side uses TLS and the other does not, or one side does not accept the other's
    /// certificate.
    #[error("TLS authentication failed: {0}")]
    Untrusted(String),
    /// The data does not follow the protocol.
    #[error("received invalid data: {0}")]
    Garbage(String),
    /// One side has rejected the other.
    #[error("connection rejected: {why}")]
    Refused {
        /// The id that the other side claims.
        peer: NodeId,
        /// The reason.
        why: Refused,
    },
}

impl From<io::Error> for Broken {
    fn from(error: io::Error) -> Self {
        #[cfg(feature = "tls")]
        if let Some(super::tls::Untrusted { why, .. }) =
            error.get_ref().and_then(|why| why.downcast_ref())
        {
            return Broken::Untrusted(why.clone());
        }
        Broken::Socket(error)
    }
}

impl From<FrameError> for Broken {
    fn from(error: FrameError) -> Self {
        Broken::Garbage(error.to_string())
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Versions {
    least: u16,
    greatest: u16,
}

impl Versions {
    /// Checks that both ends support a common version. The greatest one is used.
    fn check(self, theirs: Versions) -> Result<(), String> {
        if self.least.max(theirs.least) <= self.greatest.min(theirs.greatest) {
            return Ok(());
        }
        Err(format!(
            "no common protocol version: one end supports {} to {}, the other {} to {}; upgrade the older one",
            self.least, self.greatest, theirs.least, theirs.greatest
        ))
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Preface {
    versions: Versions,
    lane: u8,
}

impl Preface {
    pub(super) fn new(lane: u8) -> Self {
        Self { versions: VERSIONS, lane }
    }

    pub(super) fn bytes(self) -> [u8; PREFACE_BYTES] {
        let mut bytes = [0; PREFACE_BYTES];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..10].copy_from_slice(&self.versions.least.to_le_bytes());
        bytes[10..12].copy_from_slice(&self.versions.greatest.to_le_bytes());
        bytes[12] = self.lane;
        bytes
    }

    fn of(bytes: [u8; PREFACE_BYTES]) -> Result<Self, Broken> {
        let [magic @ .., a, b, c, d, lane, _, _, _] = bytes;
        if magic != MAGIC {
            return Err(Broken::Garbage("the other end does not speak this protocol".to_owned()));
        }
        let (least, greatest) = (u16::from_le_bytes([a, b]), u16::from_le_bytes([c, d]));
        Ok(Self { versions: Versions { least, greatest }, lane })
    }

    /// Reads the preface of the other end and checks that it supports a common version.
    pub(super) async fn read_answer(stream: &mut Wire) -> Result<(), Result<String, Broken>> {
        let preface = Self::read(stream).await.map_err(Err)?;
        VERSIONS.check(preface.versions).map_err(Ok)
    }

    pub(super) async fn read(stream: &mut Wire) -> Result<Self, Broken> {
        let mut bytes = [0; PREFACE_BYTES];
        let (first, rest) = bytes.split_at_mut(TLS_ALERT.len());
        stream.read_exact(first).await?;
        // A TLS alert is shorter than a preface.
        if [TLS_ALERT, TLS_HANDSHAKE].iter().any(|tls| first == tls) {
            let why =
                "the other end uses TLS, but this member does not: configure certificates on both";
            return Err(Broken::Untrusted(why.to_owned()));
        }
        stream.read_exact(rest).await?;
        Self::of(bytes)
    }
}

const fn lane_byte(lane: Lane) -> u8 {
    match lane {
        Lane::Control => 0,
        Lane::Bulk => 1,
        Lane::Snapshot => 2,
    }
}

/// Performs the handshake with `peer`, which this member has dialed.
pub(super) async fn dial(
    stream: &mut Wire,
    peer: NodeId,
    lane: Lane,
    admission: &Admission,
) -> Result<Hello, Broken> {
    let mine = admission.hello(peer);
    let mut words = Preface::new(lane_byte(lane)).bytes().to_vec();
    put_hello(&mut words, &mine);
    stream.write_all(&words).await?;
    match Preface::read_answer(stream).await {
        Ok(()) => {}
        Err(Ok(why)) => return Err(Broken::Refused { peer, why: why.into() }),
        Err(Err(broken)) => return Err(broken),
    }
    let theirs = match read_frame(stream, HELLO_BODY_BYTES_MAX).await? {
        Frame { kind: FrameKind::Hello, body } => hello_of(body)?,
        last if last.kind.refuses() => {
            let why = admission.explained(peer, rejection_of(&last, mine.from));
            return Err(Broken::Refused { peer, why });
        }
        Frame { kind, .. } => {
            return Err(Broken::Garbage(format!("unexpected frame {kind:?} instead of a hello")));
        }
    };
    if let Err(rejection) = admission.admit(&mine, &theirs, stream.proven_name()) {
        return Err(reject_peer(stream, &[], peer, rejection.into()).await);
    }
    let mut words = Vec::new();
    frame::put_frame(&mut words, FrameKind::Alive, |_| {});
    stream.write_all(&words).await?;
    Ok(theirs)
}

/// Reads the preface of a dialer. If the dialer uses TLS and this member does not, replies with a
/// TLS error, because the dialer would otherwise only see a closed connection.
pub(super) async fn hear(stream: &mut Wire) -> Result<Preface, Broken> {
    let received = Preface::read(stream).await;
    if let Err(Broken::Untrusted(_)) = &received {
        let answer = Preface::new(lane_byte(Lane::Control)).bytes();
        refuse(stream, &answer, FrameKind::Refused, "this member does not use TLS").await;
    }
    received
}

/// The other end of an accepted connection.
pub(super) enum Met {
    /// A member, which sends messages on this lane.
    Member(Hello, Lane),
    /// A process that wants to become a member.
    Joiner(JoinAsk),
}

/// Performs the handshake with a dialer that has sent this preface, and returns its identity and
/// lane.
pub(super) async fn accept(
    stream: &mut Wire,
    preface: Preface,
    context: &Context,
) -> Result<Met, Broken> {
    let admission = &context.admission;
    let answer = Preface::new(preface.lane).bytes();
    if let Err(why) = VERSIONS.check(preface.versions) {
        refuse(stream, &answer, FrameKind::Refused, &why).await;
        return Err(Broken::Garbage(why));
    }
    let lane = match preface.lane {
        0 => Lane::Control,
        1 => Lane::Bulk,
        2 => Lane::Snapshot,
        JOIN_LANE => {
            return Ok(Met::Joiner(join::hear(stream, &answer, context).await?));
        }
        lane => {
            let why = format!("unknown lane {lane}");
            refuse(stream, &answer, FrameKind::Refused, &why).await;
            return Err(Broken::Garbage(why));
        }
    };
    let theirs = match read_frame(stream, HELLO_BODY_BYTES_MAX).await? {
        Frame { kind: FrameKind::Hello, body } => hello_of(body)?,
        Frame { kind, .. } => {
            return Err(Broken::Garbage(format!("unexpected frame {kind:?} instead of a hello")));
        }
    };
    let peer = theirs.from;
    let mine = admission.hello(peer);
    if let Err(rejection) = admission.admit(&mine, &theirs, stream.proven_name()) {
        let sent = reject_peer(stream, &answer, peer, rejection.clone().into()).await;
        return Err(match sent {
            Broken::Refused { .. } => Broken::Refused { peer, why: admission.rejection(rejection) },
            other => other,
        });
    }
    let mut words = answer.to_vec();
    put_hello(&mut words, &mine);
    stream.write_all(&words).await?;
    match read_frame(stream, HELLO_BODY_BYTES_MAX).await? {
        Frame { kind: FrameKind::Alive, .. } => {}
        last if last.kind.refuses() => {
            return Err(Broken::Refused { peer, why: rejection_of(&last, mine.from) });
        }
        Frame { kind, .. } => {
            return Err(Broken::Garbage(format!("unexpected frame {kind:?} in reply to a hello")));
        }
    }
    // The check is repeated, because the dialer may have delayed its last frame. Meanwhile, a later
    // incarnation of the dialer may have connected, or the cluster may have been founded without
    // the dialer's disk.
    if let Err(rejection) = admission.admit(&admission.hello(peer), &theirs, stream.proven_name()) {
        return Err(reject_peer(stream, &[], peer, rejection.into()).await);
    }
    Ok(Met::Member(theirs, lane))
}

fn put_hello(words: &mut Vec<u8>, hello: &Hello) {
    let message = PeerMessage::Hello(hello.clone());
    frame::put_frame(words, FrameKind::Hello, |words| codec::encode_message(&message, words));
}

/// Rejects `peer`, after sending `preface` if none was sent yet, and closes the connection.
pub(super) async fn reject_peer(
    stream: &mut Wire,
    preface: &[u8],
    peer: NodeId,
    why: Refused,
) -> Broken {
    let kind = if why.removed == Some(peer) { FrameKind::Removed } else { FrameKind::Refused };
    refuse(stream, preface, kind, &why.why).await;
    Broken::Refused { peer, why }
}

/// Sends the reason, after `preface` if none was sent yet, and closes the connection.
pub(super) async fn refuse(stream: &mut Wire, preface: &[u8], kind: FrameKind, why: &str) {
    let mut words = preface.to_vec();
    // The text may be cut in the middle of a character. The other side replaces an incomplete
    // character.
    let why = &why.as_bytes()[..why.len().min(REFUSED_BODY_BYTES_MAX)];
    frame::put_frame(&mut words, kind, |words| words.extend_from_slice(why));
    send_last(stream, &words).await;
}

/// Sends the last bytes and closes the connection.
pub(super) async fn send_last(stream: &mut Wire, words: &[u8]) {
    // Waits a moment until the other side has closed the connection, so that the reason arrives.
    // Errors end the wait and are ignored, because delivery of the reason is not guaranteed.
    let last = async {
        stream.write_all(words).await?;
        stream.finish().await?;
        let mut thrown_away = 0;
        while thrown_away < LINGER_BYTES_MAX {
            stream.readable().await?;
            match stream.try_read_buf(&mut BytesMut::with_capacity(LINGER_READ_BYTES)) {
                Ok(0) => break,
                Ok(len) => thrown_away += len,
                Err(error) if is_transient(&error) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    };
    let _ = tokio::time::timeout(LINGER_MAX, last).await;
}

/// Reads exactly one frame.
pub(super) async fn read_frame(stream: &mut Wire, bytes_max: usize) -> Result<Frame, Broken> {
    let mut header = [0; HEADER_BYTES];
    stream.read_exact(&mut header).await?;
    let len = frame::announced(header, bytes_max)?;
    let mut checked = vec![0; len];
    stream.read_exact(&mut checked).await?;
    let kind = frame::check(header, &checked)?;
    Ok(Frame { kind, body: Bytes::from(checked).slice(1..) })
}

fn hello_of(body: Bytes) -> Result<Hello, Broken> {
    match codec::decode_message(body) {
        Ok(PeerMessage::Hello(hello)) => Ok(hello),
        Ok(_) => Err(Broken::Garbage("unexpected message instead of a hello".to_owned())),
        Err(error) => Err(Broken::Garbage(error.to_string())),
    }
}

/// Decodes the rejection in the last frame that the other end sent to `me`.
pub(super) fn rejection_of(last: &Frame, me: NodeId) -> Refused {
    let removed = (last.kind == FrameKind::Removed).then_some(me);
    Refused { removed, ..reason_of(&last.body).into() }
}

/// Makes a text from the other side safe to print: limits its length, and replaces control
/// characters.
pub(super) fn reason_of(body: &[u8]) -> String {
    String::from_utf8_lossy(&body[..body.len().min(REFUSED_BODY_BYTES_MAX)])
        .chars()
        .map(|c| if c.is_control() { char::REPLACEMENT_CHARACTER } else { c })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_preface_is_frozen() {
        let preface = Preface { versions: Versions { least: 1, greatest: 0x102 }, lane: 1 };
        assert_eq!(&preface.bytes(), b"bowline\0\x01\x00\x02\x01\x01\x00\x00\x00");
        assert_eq!(Preface::of(preface.bytes()).ok(), Some(preface));
        assert!(Preface::of(*b"GET / HTTP/1.1\r\n").is_err());
    }

    #[test]
    fn peers_need_a_common_version() {
        let of = |least, greatest| Versions { least, greatest };
        assert_eq!(of(1, 3).check(of(3, 5)), Ok(()));
        assert_eq!(of(3, 5).check(of(1, 3)), Ok(()));
        let rejection = of(1, 2).check(of(3, 5)).expect_err("too far apart");
        assert!(rejection.contains("1 to 2") && rejection.contains("3 to 5"), "{rejection}");
        assert!(of(3, 5).check(of(1, 2)).is_err());
        assert!(of(3, 5).check(of(9, 0)).is_err());
    }

    #[test]
    fn foreign_text_is_sanitized_for_printing() {
        assert_eq!(reason_of(b"a\x1b[31m\n\xff"), "a\u{fffd}[31m\u{fffd}\u{fffd}");
        assert!(reason_of(&[b'x'; 5000]).len() <= REFUSED_BODY_BYTES_MAX);
    }
}
