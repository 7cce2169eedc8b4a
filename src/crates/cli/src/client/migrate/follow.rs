//! Mirrors the source's changes to the target after the copy. Each revision is applied in one transaction, in order,
//! until the import is stopped.
//!
//! ```text
//!   watch from the last applied revision
//!     │  whole revisions; fragmented responses are reassembled
//!     ▼
//!   one transaction ── response ── next revision
//!     │ response lost
//!     └── was it applied? ── no: retry, protected by the fence      `target`, `fence`
//! ```
//!
//! When a watch breaks, a new watch is opened at the next server. The new watch starts at the last applied revision
//! rather than the one after it. Otherwise a delete could be missed: if the source was compacted exactly at the
//! revision of a delete, etcd opens a watch at that revision but omits the delete. A watch from an earlier revision is
//! rejected instead, so the missing delete is noticed.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::watch;
use tokio::time::Instant;
use tonic::{Code, Status};

use super::change::Change;
use super::copy::Import;
use super::pieces::Pieces;
use super::report::{Copied, InSync, Live, Mirrored};
use super::side::Away;
use super::source::Watch;
use super::target::Made;
use crate::client::connect::{CallKind, Link};
use crate::client::failure::{Failure, passes};
use crate::client::print::Output;
use crate::client::quote;
use bowline_proto::etcdserverpb as pb;
use bowline_proto::mvccpb::Event;
use bowline_proto::mvccpb::event::EventType;

/// Interval between queries of the source's current revision.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Pause before a broken watch is reopened.
const REOPEN_PAUSE: Duration = Duration::from_millis(200);

/// Maximum time for which a watch may deliver nothing while the source's revision advances.
const SILENCE_MAX: Duration = Duration::from_secs(10);

/// Maximum time that a write in progress may take after a stop was requested.
const GRACE: Duration = Duration::from_secs(5);

/// Receives the stop request, which is the exit code for the signal that was received.
pub(crate) type Stop = watch::Receiver<Option<u8>>;

/// Reason for which a mirror ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum End {
    /// A signal stopped the mirror.
    Stopped,
    /// The mirror has caught up, and the user requested that it end then.
    CaughtUp,
    /// The source has compacted the next revision.
    Forgotten,
}

/// Reason for which a watch is abandoned.
enum Received {
    Lost,
    End(End),
}

/// A mirror of the source's changes to the target.
pub(crate) struct Follower<'a> {
    import: &'a Import,
    output: Output,
    live: Live,
    /// Last applied revision of the source.
    position: i64,
    /// Revision of the target after which no other client has written.
    known: i64,
    /// Target names of keys with leases, which are not copied.
    left_out: BTreeSet<Bytes>,
    mirrored: u64,
    left_out_changes: u64,
    /// Newest revision of the source seen so far.
    head: i64,
    /// Source revision for which "in sync" was last reported.
    reported: Option<i64>,
    /// While the mirror is behind the source: its position, and the time since which the position has not changed.
    behind: Option<(i64, Instant)>,
    until_caught_up: bool,
}

impl<'a> Follower<'a> {
    /// Returns a mirror that continues after a copy.
    pub(crate) fn new(
        import: &'a Import,
        output: Output,
        copied: &Copied,
        until_caught_up: bool,
    ) -> Self {
        Self {
            import,
            output,
            live: Live::begin(import.is_quiet),
            position: copied.revision,
            known: copied.target_revision,
            left_out: copied.left_out_there.iter().cloned().collect(),
            mirrored: 0,
            left_out_changes: 0,
            head: 0,
            reported: None,
            behind: None,
            until_caught_up,
        }
    }

    /// Returns the progress so far.
    pub(crate) fn progress(&self) -> Mirrored {
        Mirrored {
            revision: self.position,
            source_revision: self.head.max(self.position),
            count: self.mirrored,
            left_out: self.left_out_changes,
        }
    }

    /// Mirrors until stopped, caught up, or failed.
    pub(crate) async fn run(&mut self, stop: &Stop) -> Result<End, Failure> {
        let import = self.import;
        let (head_sender, heads) = watch::channel(0);
        let ended = tokio::select! {
            ended = self.follow(heads, stop.clone()) => ended,
            failure = poll_source_revision(import, &head_sender) => Err(failure),
            () = stopped_long_ago(stop.clone()) => Ok(End::Stopped),
        };
        self.live.end();
        ended
    }

    async fn follow(
        &mut self,
        mut heads: watch::Receiver<i64>,
        mut stop: Stop,
    ) -> Result<End, Failure> {
        let mut away = Away::default();
        loop {
            let source = &self.import.source;
            let watch = tokio::select! {
                watch = source.watch(self.position) => watch,
                _ = stopped(&mut stop) => return Ok(End::Stopped),
            };
            let watch = match watch {
                Ok(watch) => watch,
                Err(failure) => {
                    tokio::select! {
                        waited = away.wait(&source.side, failure) => waited?,
                        _ = stopped(&mut stop) => return Ok(End::Stopped),
                    }
                    continue;
                }
            };
            let link = watch.link.clone();
            match self.listen(watch, &mut heads, &mut stop, &mut away).await? {
                Received::End(end) => return Ok(end),
                Received::Lost => {
                    self.behind = None;
                    self.import.source.side.client.leave(&link).await;
                    tokio::time::sleep(REOPEN_PAUSE).await;
                }
            }
        }
    }

    async fn listen(
        &mut self,
        mut watch: Watch,
        heads: &mut watch::Receiver<i64>,
        stop: &mut Stop,
        away: &mut Away,
    ) -> Result<Received, Failure> {
        let mut pieces = Pieces::default();
        loop {
            tokio::select! {
                _ = stopped(stop) => return Ok(Received::End(End::Stopped)),
                answer = watch.answers.message() => {
                    let answer = match answer {
                        Ok(Some(answer)) => answer,
                        Ok(None) => return Ok(Received::Lost),
                        Err(status) => return lost(self.import, status),
                    };
                    away.is_over(&self.import.source.side);
                    *away = Away::default();
                    if !answer.events.is_empty() {
                        // Received data counts as progress, because a single revision may arrive in many fragments.
                        self.behind = None;
                    }
                    if let Some(end) = self.received(answer, &mut pieces, watch.covers_all_keys, stop).await? {
                        return Ok(Received::End(end));
                    }
                }
                Ok(()) = heads.changed() => {
                    self.head = self.head.max(*heads.borrow_and_update());
                    if !watch.covers_all_keys && self.position < self.head {
                        let request = pb::WatchProgressRequest {}.into();
                        // Errors are ignored: the end of the stream is reported elsewhere, and a full queue is retried
                        // at the next tick.
                        drop(watch.requests.try_send(request));
                    }
                    let target = &self.import.target;
                    target.fence.take_down(&target.side, false).await?;
                    if self.is_silent() {
                        return Ok(Received::Lost);
                    }
                    self.report()?;
                }
            }
            if self.until_caught_up && self.is_in_sync() {
                return Ok(Received::End(End::CaughtUp));
            }
        }
    }

    fn is_in_sync(&self) -> bool {
        self.head > 0 && self.position >= self.head && !self.import.target.fence.stands()
    }

    /// Returns whether the watch has delivered nothing for too long although the source has advanced.
    fn is_silent(&mut self) -> bool {
        if self.position >= self.head {
            self.behind = None;
            return false;
        }
        match self.behind {
            Some((position, since)) if position == self.position => since.elapsed() > SILENCE_MAX,
            _ => {
                self.behind = Some((self.position, Instant::now()));
                false
            }
        }
    }

    /// Reports the progress. At a terminal, each call reports; otherwise only when the mirror is in sync.
    fn report(&mut self) -> Result<(), Failure> {
        self.live.at(self.position, self.head);
        if self.is_in_sync() && self.reported != Some(self.head) {
            self.reported = Some(self.head);
            let output = self.output;
            let in_sync = InSync { revision: self.head };
            self.live.aside(|| output.show(&in_sync))?;
        }
        Ok(())
    }

    async fn received(
        &mut self,
        answer: pb::WatchResponse,
        pieces: &mut Pieces,
        covers_all_keys: bool,
        stop: &Stop,
    ) -> Result<Option<End>, Failure> {
        if answer.canceled {
            if answer.compact_revision != 0 {
                return Ok(Some(End::Forgotten));
            }
            let why = format!("the source ended the watch: {}", answer.cancel_reason);
            return Err(Failure::Failed(why));
        }
        // A server may lag behind others, so only its cluster id is checked, not its revision.
        let header = answer.header.unwrap_or_default();
        self.import.source.side.recognise(&header, 0)?;
        if answer.created {
            return Ok(None);
        }
        let is_progress = answer.events.is_empty() && !answer.fragment;
        let Some(events) = pieces.add(answer) else { return Ok(None) };
        for events in events.chunk_by(|one, two| revision_of(one) == revision_of(two)) {
            if stop.borrow().is_some() {
                return Ok(Some(End::Stopped));
            }
            let revision = revision_of(&events[0]);
            if revision > self.position {
                self.make(revision, events).await?;
            }
        }
        if is_progress && !covers_all_keys {
            // The response is a progress notification: every change up to this revision has been delivered.
            self.position = self.position.max(header.revision);
        }
        Ok(None)
    }

    /// Applies the changes of one revision.
    async fn make(&mut self, revision: i64, events: &[Event]) -> Result<(), Failure> {
        let changes = self.changes(events)?;
        if !changes.is_empty() {
            let overwrite = self.import.rules.overwrite;
            let position = self.position;
            let stops = |why: String| {
                Err(Failure::Failed(format!("{why}. Mirrored up to revision {position}")))
            };
            let count = changes.len();
            match self.import.target.make(&changes, self.known, overwrite).await? {
                Made::At(at) => {
                    self.known = self.known.max(at);
                    self.mirrored += 1;
                }
                Made::Foreign(row) => {
                    return stops(format!(
                        "another client has written {} at the target, at its revision {}. Until the switch, only the \
                         mirror may write there. Use --overwrite to continue anyway",
                        quote::go(&row.key),
                        row.mod_revision
                    ));
                }
                Made::Disturbed => {
                    return stops(format!(
                        "another client keeps writing to the target the {count} keys that the source changed together \
                         at revision {revision}. Until the switch, only the mirror may write there"
                    ));
                }
                Made::TooMany => {
                    return stops(format!(
                        "the source changed {count} keys together at revision {revision}, more than the target's \
                         limit for a transaction: increase --max-txn-ops of the target's servers"
                    ));
                }
                Made::TooLarge => {
                    return stops(format!(
                        "the {count} keys that the source changed together at revision {revision} exceed the target's \
                         limit for a request: increase --max-request-bytes of the target's servers"
                    ));
                }
            }
        }
        self.position = revision;
        self.import.source.side.has_reached(revision);
        self.head = self.head.max(revision);
        Ok(())
    }

    /// Converts events to changes of the target.
    fn changes(&mut self, events: &[Event]) -> Result<BTreeMap<Bytes, Change>, Failure> {
        let import = self.import;
        let mut changes = BTreeMap::new();
        for event in events {
            let Some(row) = &event.kv else { continue };
            let Some(key) = import.source.rename(&row.key) else { continue };
            if key.is_empty() {
                let why = format!(
                    "the key {} would have an empty name at the target",
                    quote::go(&row.key)
                );
                return Err(Failure::Failed(why));
            }
            let is_put = event.r#type == i32::from(EventType::Put);
            let change = if !is_put {
                if self.left_out.remove(&key) {
                    self.left_out_changes += 1;
                    continue;
                }
                Change::Delete(key.clone())
            } else if row.lease != 0 {
                self.left_out_changes += 1;
                let is_new = row.create_revision == row.mod_revision;
                if !self.left_out.insert(key.clone()) || is_new {
                    // The key was never copied, so a key of that name at the target belongs to another client.
                    continue;
                }
                // The key was copied before it was attached to a lease.
                Change::Delete(key.clone())
            } else {
                self.left_out.remove(&key);
                let mut row = row.clone();
                row.key = key.clone();
                Change::Put(row)
            };
            changes.insert(key, change);
        }
        Ok(changes)
    }
}

fn revision_of(event: &Event) -> i64 {
    event.kv.as_ref().map(|row| row.mod_revision).unwrap_or_default()
}

fn lost(import: &Import, status: Status) -> Result<Received, Failure> {
    let failure = Failure::Refused(status);
    match &failure {
        Failure::Refused(status) if status.code() == Code::Ok => Ok(Received::Lost),
        // The token has expired. A retry helps, because the next login obtains a new token.
        Failure::Refused(status) if status.code() == Code::Unauthenticated => Ok(Received::Lost),
        _ if passes(&failure) => Ok(Received::Lost),
        _ => Err(import.source.side.named(failure)),
    }
}

/// Polls the source's revision. Returns if the source turns out to be another cluster, or if its revision has
/// decreased.
async fn poll_source_revision(import: &Import, head_sender: &watch::Sender<i64>) -> Failure {
    let (key, side) = (import.source.first_key(), &import.source.side);
    loop {
        let had = side.reached();
        let request = pb::RangeRequest { key: key.clone(), count_only: true, ..Default::default() };
        let call = async |link: Link| link.kv().range(request.clone()).await;
        if let Ok(answer) = side.client.ask(CallKind::Repeatable, call).await {
            let header = answer.header.unwrap_or_default();
            if let Err(failure) = side.recognise(&header, had) {
                return failure;
            }
            head_sender.send_replace(header.revision);
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

/// Waits for a stop request and returns its exit code.
pub(crate) async fn stopped(stop: &mut Stop) -> u8 {
    match stop.wait_for(Option::is_some).await.map(|code| *code) {
        Ok(Some(code)) => code,
        _ => std::future::pending().await,
    }
}

async fn stopped_long_ago(mut stop: Stop) {
    stopped(&mut stop).await;
    tokio::time::sleep(GRACE).await;
}
