//! The election: a mutex with a value. Who holds it leads, and the key's value says what it wants to be
//! known by.

use std::collections::{BTreeMap, VecDeque};
use std::future::IntoFuture;
use std::ops::Deref;
use std::time::Duration;

use bytes::Bytes;

use crate::api::{Client, Error, Session, Watch};
use crate::model::{EventKind, KeyRange, KeyValue, Op, Put, PutLease, PutValue, Revision};
use crate::watch::WatchError;

use super::error::LockError;
use super::hold::{GuardError, Hold, Released};
use super::line::is_place;
use super::lock_call::deadline_of;
use super::stance::MARK;
use super::wish::{Enters, Locking, Wish};

/// An election: at most one leader in the whole cluster. Made by [`Session::election`].
#[derive(Clone, Debug)]
pub struct Election {
    session: Session,
    name: Bytes,
}

/// Who leads.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Leader {
    /// Its key.
    pub key: Bytes,
    /// What it wants to be known by.
    pub value: Bytes,
    /// The revision of its candidacy: tells two terms of one leader apart.
    pub since: Revision,
}

/// What an observer sees.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum LeaderEvent {
    /// Somebody leads, or says something new.
    Leads(Leader),
    /// Nobody leads.
    Vacant,
}

impl Session {
    /// The election of this name. Keys below `name/` are its candidates.
    ///
    /// ```
    /// # use bowline::{Config, Node, Wait};
    /// # let dir = tempfile::tempdir()?;
    /// # let node = Node::start(Config::new(dir.path(), "solo")).wait()?;
    /// let election = node.session().wait()?.election("jobs/leader");
    /// let leadership = election.campaign("10.0.0.7:9000").wait()?;
    /// assert_eq!(election.leader().wait()?.unwrap().value, "10.0.0.7:9000");
    /// leadership.resign().wait()?;
    /// # node.shutdown().wait();
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn election(&self, name: impl Into<Bytes>) -> Election {
        Election { session: self.clone(), name: name.into() }
    }
}

impl Election {
    /// Stands for election until it leads. Ends when the session does; dropping the future withdraws
    /// the candidacy.
    pub fn campaign(&self, value: impl Into<Bytes>) -> Campaign {
        Campaign { election: self.clone(), value: value.into(), deadline: None }
    }

    /// Who leads. Linearizable.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn leader(&self) -> Result<Option<Leader>, Error> {
        let rows = self.client().range(KeyRange::prefix(self.prefix())).await?.kvs;
        let candidates = candidates(rows, &self.prefix());
        Ok(candidates.into_iter().next().map(Candidate::into_leader))
    }

    /// Follows who leads, from now on: first what is the case, then every change of it.
    pub fn observe(&self) -> Observe {
        Observe {
            client: self.client(),
            prefix: self.prefix(),
            watch: None,
            candidates: BTreeMap::new(),
            told: None,
            to_tell: VecDeque::new(),
        }
    }

    fn client(&self) -> Client {
        Client::new(std::sync::Arc::clone(self.session.shared()))
    }

    fn prefix(&self) -> Bytes {
        [&self.name[..], b"/"].concat().into()
    }
}

/// Stands for election; see [`Election::campaign`].
#[derive(Debug)]
#[must_use = "a campaign does nothing until it is awaited"]
pub struct Campaign {
    election: Election,
    value: Bytes,
    deadline: Option<Duration>,
}

impl Campaign {
    /// Gives up after this long. Without it, waits as long as the session lives.
    pub fn deadline(mut self, timeout: Duration) -> Self {
        self.deadline = Some(timeout);
        self
    }
}

impl Enters for Campaign {
    type Guard = Leadership;

    fn enter(self) -> Result<Wish<Leadership>, LockError> {
        let Campaign { election: Election { session, name }, value, deadline } = self;
        if value.starts_with(MARK) {
            return Err(LockError::ReservedValue);
        }
        let deadline = deadline_of(&session, deadline, false);
        Wish::enter_with(&session, vec![name], value, None, |ask| ask.deadline = deadline)
    }
}

impl IntoFuture for Campaign {
    type Output = Result<Leadership, LockError>;
    type IntoFuture = Locking<Campaign>;

    fn into_future(self) -> Self::IntoFuture {
        Locking::of(self)
    }
}

/// Being the leader. Dropping it resigns, in the background; [`Leadership::resign`] waits for that.
/// Everything else is in [`Hold`].
#[derive(Debug)]
#[must_use = "leadership ends when this is dropped"]
pub struct Leadership(Hold);

impl Leadership {
    /// Whether this leads, in one word. Never says so after [`Hold::valid_until`].
    pub fn is_leader(&self) -> bool {
        self.0.is_held()
    }

    /// Says something new to the observers.
    ///
    /// # Errors
    /// [`GuardError::NotHeld`] if this does not lead any more.
    pub async fn proclaim(&self, value: impl Into<Bytes>) -> Result<(), GuardError> {
        let put = Put {
            key: self.0.key().clone(),
            value: PutValue::Set(value.into()),
            lease: PutLease::Keep,
            prev_kv: false,
        };
        self.0.txn().then(Op::Put(put)).commit().await.map(drop)
    }

    /// Leads no more, and waits until that is durable.
    ///
    /// # Errors
    /// [`Error::Deadline`] if it could not be confirmed in time; the node goes on trying.
    pub async fn resign(self) -> Result<Released, Error> {
        self.0.release().await
    }
}

impl Deref for Leadership {
    type Target = Hold;

    fn deref(&self) -> &Hold {
        &self.0
    }
}

impl From<Hold> for Leadership {
    fn from(hold: Hold) -> Self {
        Leadership(hold)
    }
}

impl From<Leadership> for Hold {
    fn from(leadership: Leadership) -> Self {
        leadership.0
    }
}

/// Follows an election; see [`Election::observe`].
#[derive(Debug)]
pub struct Observe {
    client: Client,
    prefix: Bytes,
    watch: Option<Watch>,
    /// By the revision of their candidacy.
    candidates: BTreeMap<(Revision, Bytes), Bytes>,
    told: Option<LeaderEvent>,
    to_tell: VecDeque<LeaderEvent>,
}

impl Observe {
    /// The next thing to know. Cancel-safe.
    ///
    /// # Errors
    /// If the node has stopped, or cannot say what is the case; it may be asked again.
    pub async fn next(&mut self) -> Result<LeaderEvent, Error> {
        loop {
            if let Some(event) = self.to_tell.pop_front() {
                return Ok(event);
            }
            let Some(watch) = &mut self.watch else {
                self.look().await?;
                continue;
            };
            match watch.next().await {
                Some(Ok(batch)) => {
                    // Revision by revision: however many come at once, each change is told.
                    for change in batch.events.chunk_by(|a, b| a.revision() == b.revision()) {
                        for event in change.iter().cloned() {
                            self.follow(event.kind, event.kv, event.prev);
                        }
                        self.tell();
                    }
                }
                // Compacted, or the node has stopped: look again, and hear which.
                Some(Err(WatchError::Compacted { .. })) | None => self.watch = None,
                Some(Err(_)) => self.watch = None,
            }
        }
    }

    /// Reads what is the case, and watches from there.
    async fn look(&mut self) -> Result<(), Error> {
        let range = KeyRange::prefix(self.prefix.clone());
        let reply = self.client.range(range.clone()).await?;
        let next = Revision(reply.revision.get() + 1);
        let watch = self.client.watch(range).from(next).prev_kv().await?;
        self.candidates = candidates(reply.kvs, &self.prefix)
            .into_iter()
            .map(|candidate| ((candidate.since, candidate.key), candidate.value))
            .collect();
        self.watch = Some(watch);
        self.tell();
        Ok(())
    }

    fn follow(&mut self, kind: EventKind, row: KeyValue, prev: Option<KeyValue>) {
        if let Some(prev) = prev {
            self.candidates.remove(&(prev.create_revision, prev.key));
        }
        if kind == EventKind::Put && is_place(&row, &self.prefix) {
            self.candidates.insert((row.create_revision, row.key), row.value);
        }
    }

    fn tell(&mut self) {
        let now = match self.candidates.first_key_value() {
            Some(((since, key), value)) => {
                LeaderEvent::Leads(Leader { key: key.clone(), value: value.clone(), since: *since })
            }
            None => LeaderEvent::Vacant,
        };
        if self.told.as_ref() != Some(&now) {
            self.told = Some(now.clone());
            self.to_tell.push_back(now);
        }
    }
}

struct Candidate {
    since: Revision,
    key: Bytes,
    value: Bytes,
}

impl Candidate {
    fn into_leader(self) -> Leader {
        Leader { key: self.key, value: self.value, since: self.since }
    }
}

/// The candidates among the rows below an election's prefix, the leader first.
fn candidates(rows: Vec<KeyValue>, prefix: &[u8]) -> Vec<Candidate> {
    let mut candidates: Vec<Candidate> = rows
        .into_iter()
        .filter(|row| is_place(row, prefix))
        .map(|row| Candidate { since: row.create_revision, key: row.key, value: row.value })
        .collect();
    candidates.sort_by(|a, b| (a.since, &a.key).cmp(&(b.since, &b.key)));
    candidates
}
