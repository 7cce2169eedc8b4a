//! Requests of clients about keys of their own: each key is put, deleted and perhaps put again by one client alone,
//! with one request at a time. The key thus shows whether, and how often, each request was applied.

use bytes::Bytes;

use super::super::caller::Fate;
use super::super::judge::{CallId, Sign};
use super::super::plan::one_in;
use super::WorkloadClient;
use crate::model::Revision;
use crate::recipes::{CasOutcome, Expected};

/// Maximum number of keys that were put again and stay. A seed rarely has more.
const KEPT_MAX: usize = 128;

impl WorkloadClient {
    /// Puts a key of the client's own, or deletes the existing one and perhaps puts it again.
    pub(super) async fn come_or_go(&mut self) {
        match self.own.take() {
            Some((key, put)) => self.go(key, put).await,
            None => self.own = self.come().await,
        }
    }

    async fn come(&mut self) -> Option<(Bytes, Revision)> {
        let name = self.scene.value("own");
        let key = Bytes::from([b"own/", &name[..]].concat());
        let put = match one_in(&self.rng, 2) {
            true => self.put_at(key.clone()).await,
            false => self.put_if_absent(key.clone()).await,
        };
        Some((key, put?))
    }

    async fn go(&mut self, key: Bytes, put: Revision) {
        let is_gone = match one_in(&self.rng, 2) {
            true => self.delete(key.clone(), true).await,
            false => self.delete_if_unchanged(key.clone(), put).await,
        };
        if is_gone {
            self.scene.judge.borrow_mut().deleted_once(&key);
            if one_in(&self.rng, 2) && self.put_at(key.clone()).await.is_some() {
                self.keep(key).await;
            }
        }
    }

    /// Keeps the key for a long time. Deletes the oldest such key if there are too many.
    async fn keep(&mut self, key: Bytes) {
        let oldest = {
            let mut kept = self.scene.kept.borrow_mut();
            kept.push_back(key);
            (kept.len() > KEPT_MAX).then(|| kept.pop_front()).flatten()
        };
        if let Some(oldest) = oldest {
            self.scene.judge.borrow_mut().expect_deletion(&oldest);
            self.delete(oldest, false).await;
        }
    }

    /// Puts the key, which does not exist. If the condition fails, an earlier attempt was applied as well.
    async fn put_if_absent(&mut self, key: Bytes) -> Option<Revision> {
        let puts = [(key.clone(), self.scene.value("put if absent"))];
        let floor = self.scene.judge.borrow().floor();
        let what = "put if absent";
        let call = self.scene.judge.borrow_mut().call(self.node, what, self.caller.deadline());
        let client = self.caller.client().clone();
        let answer = client.put_if_absent(key, puts[0].1.clone()).await;
        self.swapped(what, call, floor, Sign::Puts(&puts), &puts, answer.map_err(Fate::from))
    }

    /// Deletes the key as this client has put it. If the condition fails, an earlier attempt was applied as well.
    async fn delete_if_unchanged(&mut self, key: Bytes, put: Revision) -> bool {
        let floor = self.scene.judge.borrow().floor();
        let what = "compare and delete";
        let call = self.scene.judge.borrow_mut().call(self.node, what, self.caller.deadline());
        let client = self.caller.client().clone();
        let answer = client.compare_and_delete(key.clone(), Expected::Revision(put)).await;
        let answer = answer.map_err(Fate::from);
        let gone = self.swapped(what, call, floor, Sign::Deletes(&key), &[], answer);
        let Some(gone) = gone else { return false };
        let mut judge = self.scene.judge.borrow_mut();
        let last = judge.truth().changes(&key).next_back();
        let is_so = last.is_some_and(|(at, row)| at == gone && row.is_none());
        judge.expect(is_so, "X-LIN", || format!("{key:?} is said to be deleted at {gone:?}"));
        true
    }

    /// Reports the outcome of a conditional change whose condition is true, since only this client uses the key.
    fn swapped(
        &mut self,
        what: &'static str,
        call: CallId,
        floor: Revision,
        sign: Sign<'_>,
        puts: &[(Bytes, Bytes)],
        answer: Result<CasOutcome, Fate>,
    ) -> Option<Revision> {
        match answer {
            Ok(CasOutcome::Done { revision }) => {
                let mut judge = self.scene.judge.borrow_mut();
                judge.returned(call);
                judge.wrote(what, floor, revision, puts);
                drop(judge);
                self.saw(revision);
                Some(revision)
            }
            Ok(CasOutcome::Lost { row }) => {
                let mut judge = self.scene.judge.borrow_mut();
                judge.returned(call);
                judge.expect(false, "X-ONCE", || {
                    format!("{what} of {sign:?} finds {row:?} in its way, which is nobody else's")
                });
                None
            }
            Err(fate) => {
                self.record_failure(call, sign, &fate);
                None
            }
        }
    }
}
