//! What happens at the source after the copy, done at the target: revision by revision, each in one transaction, in
//! their order, until somebody says that it is enough.
//!
//! ```text
//!   watch from the last revision that is done
//!     │  whole revisions; fragments are put together
//!     ▼
//!   one transaction ── answered ── the next
//!     │ the answer was lost
//!     └── is it there? ── no: once more, fenced        `target`, `fence`
//! ```
//!
//! A watch that breaks is opened again at the next server: at the last revision that is done, not behind it. Where a
//! cluster has compacted up to a delete, etcd opens a watch at that delete without it; one before it is refused.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::watch;
use tokio::time::Instant;
use tonic::{Code, Status};

use super::change::Change;
use super::copy::Import;
use super::pieces::Pieces;
use super::side::Away;
use super::source::Watch;
use super::target::Made;
use super::told::{Copied, InSync, Live, Mirrored};
use crate::client::connect::{Effect, Link};
use crate::client::failure::{Failure, passes};
use crate::client::print::Output;
use crate::client::quote;
use crate::generated::etcdserverpb as pb;
use crate::generated::mvccpb::Event;
use crate::generated::mvccpb::event::EventType;
use pb::watch_request::RequestUnion;

/// How often the source is asked how far it is.
const LOOK: Duration = Duration::from_secs(1);

/// How long to wait before a watch that broke is opened again.
const REOPEN_PAUSE: Duration = Duration::from_millis(200);

/// How long a watch may be silent while the source goes on.
const SILENCE_MAX: Duration = Duration::from_secs(10);

/// How long what is being written may take when the mirror is to end.
const GRACE: Duration = Duration::from_secs(5);

/// Says when it is enough, by the exit code that follows from that.
pub(crate) type Stop = watch::Receiver<Option<u8>>;

/// Why a mirror ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum End {
    /// Somebody said so.
    Stopped,
    /// It has caught up, and should go on until then.
    CaughtUp,
    /// The source has forgotten what comes next.
    Forgotten,
}

/// Why a watch is not listened to any more.
enum Heard {
    /// It broke.
    Lost,
    End(End),
}

/// See the module.
pub(crate) struct Follower<'a> {
    import: &'a Import,
    output: Output,
    live: Live,
    /// The last revision of the source that is done.
    position: i64,
    /// A revision of the target since which nobody else has written.
    known: i64,
    /// What hangs on leases, and is not at the target: by its name there.
    left_out: BTreeSet<Bytes>,
    mirrored: u64,
    left_out_changes: u64,
    /// The newest revision of the source that was heard of.
    head: i64,
    /// At which revision it was said that all is in sync.
    said: Option<i64>,
    /// Since when it has not come nearer.
    behind: Option<(i64, Instant)>,
    until_caught_up: bool,
}

impl<'a> Follower<'a> {
    /// One that begins behind a copy.
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
            said: None,
            behind: None,
            until_caught_up,
        }
    }

    /// How far it has come.
    pub(crate) fn so_far(&self) -> Mirrored {
        Mirrored {
            revision: self.position,
            source_revision: self.head.max(self.position),
            count: self.mirrored,
            left_out: self.left_out_changes,
        }
    }

    /// Goes on until something ends it.
    pub(crate) async fn run(&mut self, stop: &Stop) -> Result<End, Failure> {
        let import = self.import;
        let (tell, heads) = watch::channel(0);
        let ended = tokio::select! {
            ended = self.follow(heads, stop.clone()) => ended,
            failure = ask_heads(import, &tell) => Err(failure),
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
                Heard::End(end) => return Ok(end),
                Heard::Lost => {
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
    ) -> Result<Heard, Failure> {
        let mut pieces = Pieces::default();
        loop {
            tokio::select! {
                _ = stopped(stop) => return Ok(Heard::End(End::Stopped)),
                answer = watch.answers.message() => {
                    let answer = match answer {
                        Ok(Some(answer)) => answer,
                        Ok(None) => return Ok(Heard::Lost),
                        Err(status) => return lost(self.import, status),
                    };
                    away.is_over(&self.import.source.side);
                    *away = Away::default();
                    if !answer.events.is_empty() {
                        // What is done at once may come in many pieces.
                        self.behind = None;
                    }
                    if let Some(end) = self.heard(answer, &mut pieces, watch.sees_all, stop).await? {
                        return Ok(Heard::End(end));
                    }
                }
                Ok(()) = heads.changed() => {
                    self.head = self.head.max(*heads.borrow_and_update());
                    if !watch.sees_all && self.position < self.head {
                        let union = RequestUnion::ProgressRequest(pb::WatchProgressRequest {});
                        let request = pb::WatchRequest { request_union: Some(union) };
                        // If the stream has ended that is heard of; if it is busy there is another time.
                        drop(watch.requests.try_send(request));
                    }
                    let target = &self.import.target;
                    target.fence.take_down(&target.side, false).await?;
                    if self.is_silent() {
                        return Ok(Heard::Lost);
                    }
                    self.tell()?;
                }
            }
            if self.until_caught_up && self.is_in_sync() {
                return Ok(Heard::End(End::CaughtUp));
            }
        }
    }

    fn is_in_sync(&self) -> bool {
        self.head > 0 && self.position >= self.head && !self.import.target.fence.stands()
    }

    /// Whether nothing is heard though the source has gone on.
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

    /// Says how far it has come: at a terminal each time, elsewhere when it has come to rest.
    fn tell(&mut self) -> Result<(), Failure> {
        self.live.at(self.position, self.head);
        if self.is_in_sync() && self.said != Some(self.head) {
            self.said = Some(self.head);
            let output = self.output;
            let in_sync = InSync { revision: self.head };
            self.live.aside(|| output.show(&in_sync))?;
        }
        Ok(())
    }

    async fn heard(
        &mut self,
        answer: pb::WatchResponse,
        pieces: &mut Pieces,
        sees_all: bool,
        stop: &Stop,
    ) -> Result<Option<End>, Failure> {
        if answer.canceled {
            if answer.compact_revision != 0 {
                return Ok(Some(End::Forgotten));
            }
            let why = format!("the source ended the watch: {}", answer.cancel_reason);
            return Err(Failure::Failed(why));
        }
        // A server may be behind others, so only whose it is tells something.
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
        if is_progress && !sees_all {
            // All up to here has been told.
            self.position = self.position.max(header.revision);
        }
        Ok(None)
    }

    /// What has happened at one revision.
    async fn make(&mut self, revision: i64, events: &[Event]) -> Result<(), Failure> {
        let changes = self.changes(events)?;
        if !changes.is_empty() {
            let overwrite = self.import.rules.overwrite;
            let position = self.position;
            let stops = |why: String| {
                Err(Failure::Failed(format!("{why}. It is mirrored up to revision {position}")))
            };
            let count = changes.len();
            match self.import.target.make(&changes, self.known, overwrite).await? {
                Made::At(at) => {
                    self.known = self.known.max(at);
                    self.mirrored += 1;
                }
                Made::Foreign(row) => {
                    return stops(format!(
                        "somebody else has written {} at the target, at its revision {}: until the switch nobody but \
                         the mirror may write there. --overwrite goes on all the same",
                        quote::go(&row.key),
                        row.mod_revision
                    ));
                }
                Made::Disturbed => {
                    return stops(format!(
                        "somebody else writes to the target all the time, between the {count} keys that the source has \
                         changed at once at revision {revision}: until the switch nobody but the mirror may write there"
                    ));
                }
                Made::TooMany => {
                    return stops(format!(
                        "the source has changed {count} keys at once, at revision {revision}, and the target does not \
                         take so many: a larger --max-txn-ops of its servers helps"
                    ));
                }
                Made::TooLarge => {
                    return stops(format!(
                        "what the source has changed at once at revision {revision}, {count} keys, is more than the \
                         target takes: a larger --max-request-bytes of its servers helps"
                    ));
                }
            }
        }
        self.position = revision;
        self.import.source.side.has_reached(revision);
        self.head = self.head.max(revision);
        Ok(())
    }

    /// What is to be done at the target.
    fn changes(&mut self, events: &[Event]) -> Result<BTreeMap<Bytes, Change>, Failure> {
        let import = self.import;
        let mut changes = BTreeMap::new();
        for event in events {
            let Some(row) = &event.kv else { continue };
            let Some(key) = import.source.rename(&row.key) else { continue };
            if key.is_empty() {
                let why =
                    format!("the key {} would have no name at the target", quote::go(&row.key));
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
                    // It never came from here: what the target has of that name is somebody else's.
                    continue;
                }
                // It was there, and was brought over, before it was put on a lease.
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

fn lost(import: &Import, status: Status) -> Result<Heard, Failure> {
    let failure = Failure::Refused(status);
    match &failure {
        Failure::Refused(status) if status.code() == Code::Ok => Ok(Heard::Lost),
        // A token that has ended: the next login gives another.
        Failure::Refused(status) if status.code() == Code::Unauthenticated => Ok(Heard::Lost),
        _ if passes(&failure) => Ok(Heard::Lost),
        _ => Err(import.source.side.named(failure)),
    }
}

/// Asks the source from time to time how far it is, until it is another one, or has gone back.
async fn ask_heads(import: &Import, tell: &watch::Sender<i64>) -> Failure {
    let (key, side) = (import.source.first_key(), &import.source.side);
    loop {
        let had = side.reached();
        let request = pb::RangeRequest { key: key.clone(), count_only: true, ..Default::default() };
        let call = async |link: Link| link.kv().range(request.clone()).await;
        if let Ok(answer) = side.client.ask(Effect::Repeatable, call).await {
            let header = answer.header.unwrap_or_default();
            if let Err(failure) = side.recognise(&header, had) {
                return failure;
            }
            tell.send_replace(header.revision);
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// Waits until it is said that it is enough, and with which exit code.
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
