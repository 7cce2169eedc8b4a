//! Programs that keep sessions. They open sessions with or without a lock delay, detach them, and resume sessions
//! that other programs have detached or still keep. They report to the judge when they rely on a session.

use std::cell::Cell;
use std::time::Duration;

use bytes::Bytes;

use super::caller::{Fate, SimCaller};
use super::plan::{between, index, one_in};
use super::rng::Rng;
use super::workload::Scene;
use crate::api::Session;
use crate::env::Entropy;
use crate::model::{Command, LeaseId, NodeId, Put, PutLease, PutValue};

/// Maximum number of checks of its session that a program makes before it gives up the session.
const CHECKS_MAX: u64 = 40;

/// Maximum number of leases that are remembered for programs that resume a session.
const KNOWN_MAX: usize = 6;

/// A program that keeps one session after the other.
struct Keeper {
    scene: Scene,
    caller: SimCaller,
    node: NodeId,
    rng: Rng,
    /// The last session that the program relied on, and when.
    believed: Cell<Option<(LeaseId, Duration)>>,
}

/// Starts a program that keeps sessions.
pub(crate) fn start(scene: &Scene, caller: &SimCaller, node: NodeId, at: usize, rng: Rng) {
    let (scene_of, caller) = (scene.clone(), caller.clone());
    let keeper = Keeper { scene: scene_of, caller, node, rng, believed: Cell::new(None) };
    scene.spawner.spawn(Some(at), keeper.live());
}

impl Keeper {
    async fn live(self) {
        while !self.scene.closing.get() {
            self.scene.think(&self.rng).await;
            let session = match one_in(&self.rng, 2) {
                true => self.resume().await,
                false => self.open().await,
            };
            let Some(session) = session else { continue };
            for _ in 0..self.rng.below(CHECKS_MAX) {
                if self.scene.closing.get() || !self.look(&session) {
                    break;
                }
                self.scene.think(&self.rng).await;
            }
            self.part(session).await;
        }
    }

    async fn open(&self) -> Option<Session> {
        let (ttl, most) = (between(&self.rng, ms(700), ms(2500)), ms(3000));
        let delay = match one_in(&self.rng, 3) {
            true => Duration::ZERO,
            false => between(&self.rng, ms(1), most),
        };
        let sent = self.scene.timeline.now();
        let call =
            self.scene.judge.borrow_mut().call(self.node, "open session", self.caller.deadline());
        let session = self.caller.session_with(ttl, delay).await;
        self.scene.judge.borrow_mut().returned(call);
        let session = session?;
        self.scene.judge.borrow_mut().session_lives(self.node, session.lease(), sent, ttl + delay);
        self.remember(&session);
        if self.bind(&session).await {
            return Some(session);
        }
        // Dropping the session closes it.
        self.scene.judge.borrow_mut().lease_may_end(session.lease());
        None
    }

    fn remember(&self, session: &Session) {
        let mut known = self.scene.known_leases.borrow_mut();
        known.push_back((session.lease(), session.lock_delay()));
        if known.len() > KNOWN_MAX {
            known.pop_front();
        }
    }

    /// Puts a key that only the end of the lease of the session deletes.
    async fn bind(&self, session: &Session) -> bool {
        let (key, value) =
            (Bytes::from(format!("lease/{}", session.lease())), self.scene.value("kept"));
        let puts = [(key.clone(), value.clone())];
        let lease = PutLease::Attach(session.lease());
        let put = Put { key, value: PutValue::Set(value), lease, prev_kv: false };
        let floor = self.scene.judge.borrow().floor();
        let call = self.scene.judge.borrow_mut().call(self.node, "bind", self.caller.deadline());
        let answer = self.caller.write(Command::Put(put)).await;
        let mut judge = self.scene.judge.borrow_mut();
        judge.returned(call);
        match answer {
            Ok(reply) => judge.wrote("bind", floor, reply.revision(), &puts),
            Err(Fate::Unknown) => judge.unknown(),
            Err(Fate::NotApplied) => {
                judge.not_applied(&puts);
                return false;
            }
            Err(Fate::Refused(why)) => {
                judge.not_applied(&puts);
                judge.lease_refused(session.lease(), &why);
                return false;
            }
        }
        true
    }

    async fn resume(&self) -> Option<Session> {
        let (lease, delay) = {
            let known = self.scene.known_leases.borrow();
            if known.is_empty() {
                return None;
            }
            known[index(&self.rng, known.len())]
        };
        self.take_up(lease, delay).await
    }

    async fn take_up(&self, lease: LeaseId, delay: Duration) -> Option<Session> {
        let call =
            self.scene.judge.borrow_mut().call(self.node, "resume session", self.caller.deadline());
        let session = self.caller.resume(lease, delay).await;
        let mut judge = self.scene.judge.borrow_mut();
        judge.returned(call);
        if session.is_some() {
            judge.count("session resumed");
        }
        session
    }

    /// Returns whether the session is active, and tells the judge if it is.
    fn look(&self, session: &Session) -> bool {
        let (lease, delay) = (session.lease(), session.lock_delay());
        let mut judge = self.scene.judge.borrow_mut();
        let Some(why) = session.end() else {
            judge.lease_believed(lease, delay);
            self.believed.set(Some((lease, self.scene.timeline.now())));
            return true;
        };
        let believed = self.believed.take().filter(|(of, _)| *of == lease);
        judge.session_ended(self.node, lease, believed.map(|(_, when)| when), why);
        false
    }

    /// Detaches a session and resumes it at about the end of its lease.
    async fn resume_late(&self, session: Session) {
        let (lease, delay) = (session.lease(), session.lock_delay());
        let lives = session.ttl() + delay;
        session.detach();
        let wait = between(&self.rng, lives * 3 / 4, lives * 5 / 4);
        self.scene.timers.sleep(wait).await;
        let Some(session) = self.take_up(lease, delay).await else { return };
        self.scene.judge.borrow_mut().count("session resumed late");
        for _ in 0..=self.rng.below(6) {
            if !self.look(&session) {
                return;
            }
            self.scene.think(&self.rng).await;
        }
        if self.look(&session) {
            self.scene.judge.borrow_mut().lease_may_end(lease);
        }
        drop(session);
    }

    async fn part(&self, session: Session) {
        let is_active = self.look(&session);
        match self.rng.below(4) {
            0 if one_in(&self.rng, 2) => self.resume_late(session).await,
            0 => drop(session.detach()),
            1 => {
                if is_active {
                    self.scene.judge.borrow_mut().lease_may_end(session.lease());
                }
                drop(session);
            }
            _ => {
                // A session that was lost with a lock delay can no longer be closed.
                if is_active || session.lock_delay().is_zero() {
                    self.scene.judge.borrow_mut().lease_may_end(session.lease());
                }
                self.scene.close(self.node, &session).await;
            }
        }
    }
}

const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}
