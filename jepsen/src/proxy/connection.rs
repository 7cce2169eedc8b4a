//! One connection through the proxy. The proxy first identifies the member that dialed, and then forwards both
//! directions subject to the rule of the link.

use std::collections::VecDeque;
use std::io;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep_until, timeout};

use super::frames::{Caller, Frames};
use crate::dice::Dice;
use crate::links::{Cut, Link, Rule};

/// Maximum number of bytes in flight in one direction. Beyond it, the proxy reads no more from that direction.
const UNDER_WAY_BYTES_MAX: usize = 256 << 10;

/// Buffer size of each read.
const READ_BYTES: usize = 64 << 10;

/// Number of bytes that a link with a limited rate forwards at a time.
const PIECE_BYTES: usize = 4 << 10;

/// Maximum time for a dialing member to identify itself.
const GREETING_WITHIN: Duration = Duration::from_secs(5);

/// How long one direction continues after the other has ended.
const LINGER: Duration = Duration::from_millis(500);

/// Reads until the dialing member is identified. Returns the bytes that were read.
pub(super) async fn caller(
    socket: &mut TcpStream,
    members: &[String],
) -> io::Result<(Caller, Vec<u8>)> {
    let mut bytes = Vec::new();
    let ended = || io::Error::from(io::ErrorKind::UnexpectedEof);
    let hear = async {
        loop {
            if let Some(caller) = Caller::of(&bytes, members) {
                return Ok((caller, bytes));
            }
            if socket.read_buf(&mut bytes).await? == 0 {
                return Err(ended());
            }
        }
    };
    timeout(GREETING_WITHIN, hear).await.unwrap_or_else(|_| Err(ended()))
}

/// Forwards a connection to the member that listens at `listen`. The dialing member has sent the bytes `said` so far.
/// Returns when either end closes the connection, or when the rule of the link ends it.
pub(super) async fn serve(socket: TcpStream, said: Vec<u8>, listen: &str, link: &Link) {
    let mut rule = link.rule();
    let cut = rule.borrow().cut;
    match cut {
        None => {}
        Some(Cut::Refused) => return link.count(|traffic| traffic.refused += 1),
        // The connection gets no response. The connection is not served even after the link is restored.
        Some(Cut::Silent) => {
            link.count(|traffic| traffic.silenced += 1);
            return drop(rule.wait_for(|rule| rule.cut != Some(Cut::Silent)).await);
        }
    }
    let Ok(onward) = TcpStream::connect(listen).await else { return };
    // Small messages must not wait for more data. If a socket rejects this option, the socket is already closed.
    if socket.set_nodelay(true).and(onward.set_nodelay(true)).is_err() {
        return;
    }
    let (near_reads, near_writes) = socket.into_split();
    let (far_reads, far_writes) = onward.into_split();
    let mut there = pin!(Way::new(link, said).run(near_reads, far_writes));
    let mut back = pin!(Way::new(link, Vec::new()).run(far_reads, near_writes));
    let refused = async {
        drop(rule.wait_for(|rule| rule.cut == Some(Cut::Refused)).await);
        link.count(|traffic| traffic.refused += 1);
    };
    // A connection with only one direction is useless, but the last data of the other direction must arrive.
    tokio::select! {
        _ = &mut there => drop(timeout(LINGER, back).await),
        _ = &mut back => drop(timeout(LINGER, there).await),
        () = refused => {}
    }
}

/// One direction of a connection.
struct Way<'a> {
    link: &'a Link,
    dice: Dice,
    frames: Frames,
    /// The data in flight with its arrival times, in ascending order.
    in_progress: VecDeque<(Instant, Vec<u8>)>,
    under_way_bytes: usize,
    /// Time at which all data that was sent so far has left the link.
    free_at: Instant,
    last_due: Instant,
    /// Whether no more data is sent.
    ending: bool,
}

/// The effect of the link's rule on a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fate {
    Passes,
    Lost,
    Doubled,
    Flipped,
    Stuttered,
    Breaks,
}

impl<'a> Way<'a> {
    fn new(link: &'a Link, said: Vec<u8>) -> Self {
        // Each direction has its own random numbers. The run is not deterministic anyway, because the machine decides
        // when frames arrive.
        static WAYS: AtomicU64 = AtomicU64::new(0);
        let mut frames = Frames::default();
        frames.buffer().extend(said);
        let now = Instant::now();
        Self {
            link,
            dice: Dice::new(WAYS.fetch_add(1, Ordering::Relaxed)),
            frames,
            in_progress: VecDeque::new(),
            under_way_bytes: 0,
            free_at: now,
            last_due: now,
            ending: false,
        }
    }

    async fn run(
        mut self,
        mut from: impl AsyncRead + Unpin,
        mut to: impl AsyncWrite + Unpin,
    ) -> io::Result<()> {
        let mut changes = self.link.rule();
        loop {
            let rule = *changes.borrow_and_update();
            self.take(&rule);
            if self.ending && self.in_progress.is_empty() {
                return to.shutdown().await;
            }
            let is_open = rule.cut.is_none();
            let reads = is_open && !self.ending && self.under_way_bytes < UNDER_WAY_BYTES_MAX;
            let due = self.in_progress.front().map(|(due, _)| *due);
            self.frames.buffer().reserve(READ_BYTES);
            tokio::select! {
                changed = changes.changed() => {
                    if changed.is_err() {
                        return Ok(());
                    }
                    let rule = *changes.borrow();
                    self.hurry(&rule);
                }
                read = from.read_buf(self.frames.buffer()), if reads => if read? == 0 {
                    // Data that is not a whole frame is forwarded unchanged.
                    let rest = self.frames.rest();
                    self.send(&rule, &rest);
                    self.ending = true;
                },
                () = sleep_until(due.unwrap_or(self.last_due)), if is_open && due.is_some() => {
                    to.write_all(&self.arrived()).await?;
                }
            }
        }
    }

    /// Decides for each received frame what happens to it.
    fn take(&mut self, rule: &Rule) {
        while !self.ending
            && let Some(mut frame) = self.frames.next()
        {
            let fate = self.fate(rule);
            self.link.count(|traffic| {
                traffic.frames += 1;
                traffic.bytes += frame.len() as u64;
                match fate {
                    Fate::Passes => {}
                    Fate::Lost => traffic.lost += 1,
                    Fate::Doubled => traffic.doubled += 1,
                    Fate::Flipped | Fate::Stuttered => traffic.spoiled += 1,
                    Fate::Breaks => traffic.broken += 1,
                }
            });
            match fate {
                Fate::Passes => {}
                Fate::Lost => continue,
                Fate::Doubled => self.send(rule, &frame),
                Fate::Flipped => {
                    let at = self.dice.one_of(frame.len());
                    frame[at] ^= 1 << self.dice.below(8);
                }
                Fate::Stuttered => {
                    let (a, b) = (self.dice.one_of(frame.len()), self.dice.one_of(frame.len()));
                    let again = frame[a.min(b)..=a.max(b)].to_vec();
                    frame.splice(a.min(b)..a.min(b), again);
                }
                Fate::Breaks => {
                    frame.truncate(frame.len() / 2);
                    self.ending = true;
                }
            }
            self.send(rule, &frame);
        }
    }

    fn fate(&mut self, rule: &Rule) -> Fate {
        let behind_greeting = !self.frames.greets();
        let fates = [
            (rule.break_permille, Fate::Breaks),
            (rule.lose_permille * u16::from(behind_greeting), Fate::Lost),
            (rule.double_permille * u16::from(behind_greeting), Fate::Doubled),
            (rule.flip_permille, Fate::Flipped),
            (rule.stutter_permille, Fate::Stuttered),
        ];
        let struck = fates.into_iter().find(|(permille, _)| self.strikes(*permille));
        struck.map_or(Fate::Passes, |(_, fate)| fate)
    }

    fn strikes(&mut self, permille: u16) -> bool {
        permille > 0 && self.dice.below(1000) < u64::from(permille)
    }

    /// Sends bytes with the delay of the link.
    fn send(&mut self, rule: &Rule, bytes: &[u8]) {
        let mut travel = rule.delay;
        if let jitter @ 1.. = u64::try_from(rule.jitter.as_micros()).unwrap_or(u64::MAX) {
            travel += Duration::from_micros(self.dice.below(jitter));
        }
        if self.strikes(rule.hold_permille) {
            travel += rule.hold;
        }
        let piece_bytes = if rule.bytes_per_second.is_some() { PIECE_BYTES } else { usize::MAX };
        for piece in bytes.chunks(piece_bytes) {
            let takes = rule.bytes_per_second.map_or(Duration::ZERO, |rate| {
                Duration::from_secs_f64(piece.len() as f64 / f64::from(rate.get()))
            });
            self.free_at = self.free_at.max(Instant::now()) + takes;
            self.last_due = self.last_due.max(self.free_at + travel);
            self.under_way_bytes += piece.len();
            self.in_progress.push_back((self.last_due, piece.to_vec()));
        }
    }

    /// Reschedules data in flight so that it arrives no later than it would under the new rule.
    fn hurry(&mut self, rule: &Rule) {
        let now = Instant::now();
        if rule.bytes_per_second.is_none() {
            let latest = now + rule.delay + rule.jitter + rule.hold;
            self.in_progress.iter_mut().for_each(|(due, _)| *due = latest.min(*due));
            self.last_due = latest.min(self.last_due);
            self.free_at = now.min(self.free_at);
        }
    }

    /// Returns the data that has arrived by now.
    fn arrived(&mut self) -> Vec<u8> {
        let (now, mut arrived) = (Instant::now(), Vec::new());
        while self.in_progress.front().is_some_and(|(due, _)| *due <= now) {
            arrived.extend(self.in_progress.pop_front().into_iter().flat_map(|(_, piece)| piece));
        }
        self.under_way_bytes -= arrived.len();
        arrived
    }
}
