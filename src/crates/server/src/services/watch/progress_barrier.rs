//! Coordinates the watches of a stream around progress notifications.
//!
//! A client applies the revision of a progress notification to all watches of the stream, even to watches that have
//! delivered newer events. Therefore an event at or below the notification's revision must be sent before the
//! notification, and an event above that revision must be sent after it:
//!
//! ```text
//!   all watches have reached revision 5
//!     ├── no watch has sent a newer event ──▶ send notification 5
//!     └── one watch has sent revision 8: no watch may send events above 8
//!         until all watches have reached 8 ──▶ send notification 8, then continue
//! ```

use bowline::Revision;
use tokio::sync::watch;
use tonic::Status;

use crate::services::response_stream::ResponseSlot;
use bowline_proto::etcdserverpb as pb;

/// Progress of a stream, shared by its watches.
#[derive(Debug, Default)]
pub(crate) struct ProgressBarrier(watch::Sender<State>);

#[derive(Debug, Default)]
struct State {
    /// Newest revision of the events and notifications that were sent.
    newest: Revision,
    /// If set, nothing newer than this revision may be sent.
    stop: Option<Revision>,
}

type Answer = Result<pb::WatchResponse, Status>;

impl ProgressBarrier {
    /// Sends a response that covers everything up to `revision`.
    ///
    /// # Errors
    /// If the watches must stop at an earlier revision, returns that revision and the response.
    pub(crate) fn send(
        &self,
        slot: ResponseSlot<'_, pb::WatchResponse>,
        revision: Revision,
        whole: pb::WatchResponse,
        row: impl FnOnce(pb::WatchResponse) -> Vec<Answer>,
    ) -> Result<(), (Revision, pb::WatchResponse)> {
        let mut outcome = Ok(());
        self.0.send_if_modified(|state| {
            match state.stop.filter(|stop| *stop < revision) {
                Some(stop) => outcome = Err((stop, whole)),
                None => {
                    state.newest = state.newest.max(revision);
                    slot.send(row(whole));
                }
            }
            false
        });
        outcome
    }

    /// Records that a watch starts at this revision, even if the other watches must stop before it.
    pub(crate) fn begin(&self, revision: Revision) {
        self.0.send_if_modified(|state| {
            state.newest = state.newest.max(revision);
            false
        });
    }

    /// Sends a notification that all watches have reached `revision`, and lets the watches continue. If a watch has
    /// sent something newer, makes all watches stop at that newer revision instead. Returns whether the notification
    /// was sent.
    pub(crate) fn bookmark(
        &self,
        slot: ResponseSlot<'_, pb::WatchResponse>,
        revision: Revision,
        bookmark: pb::WatchResponse,
    ) -> bool {
        let mut is_sent = false;
        self.0.send_if_modified(|state| {
            is_sent = state.newest <= revision;
            state.stop = (!is_sent).then_some(state.newest);
            if is_sent {
                state.newest = revision;
                slot.send(vec![Ok(bookmark)]);
            }
            true
        });
        is_sent
    }

    /// Lets all watches continue. Returns whether they were stopped before.
    pub(crate) fn resume(&self) -> bool {
        self.0.send_if_modified(|state| state.stop.take().is_some())
    }

    /// Waits until events after `sent` may be sent.
    pub(crate) async fn may_send_after(&self, sent: Revision) {
        let is_open = |state: &State| state.stop.is_none_or(|stop| sent < stop);
        drop(self.0.subscribe().wait_for(is_open).await);
    }
}

#[cfg(test)]
mod tests {
    use tokio_stream::StreamExt;

    use super::*;
    use crate::services::response_stream::{ResponseSender, ResponseStream};

    #[tokio::test]
    async fn progress_notification_covers_exactly_the_sent_events() {
        let sent: Vec<_> =
            ResponseStream::by(|answers: ResponseSender<pb::WatchResponse>| async move {
                let barrier = ProgressBarrier::default();
                let (answers, barrier) = (&answers, &barrier);
                let send = async |revision: i64| {
                    let slot = answers.slot().await.unwrap();
                    let whole = pb::WatchResponse { watch_id: revision, ..Default::default() };
                    let sent =
                        barrier.send(slot, Revision(revision as u64), whole, |all| vec![Ok(all)]);
                    sent.map_err(|(stop, _)| stop)
                };
                let bookmark = async |revision: u64| {
                    let mark = pb::WatchResponse { watch_id: -1, ..Default::default() };
                    barrier.bookmark(answers.slot().await.unwrap(), Revision(revision), mark)
                };
                assert_eq!(send(5).await, Ok(()));
                assert!(bookmark(5).await);
                assert_eq!(send(8).await, Ok(()));
                assert!(
                    !bookmark(6).await,
                    "the progress would follow an event that it does not cover"
                );
                assert_eq!(send(9).await, Err(Revision(8)));
                assert_eq!(send(7).await, Ok(()), "an event before that position");
                tokio::select! {
                    biased;
                    () = barrier.may_send_after(Revision(8)) => panic!("all are to stop there"),
                    () = barrier.may_send_after(Revision(7)) => {}
                }
                barrier.begin(Revision(10));
                assert!(!bookmark(8).await, "a watch began at 10");
                assert_eq!(send(11).await, Err(Revision(10)));
                let ((), was_sent) =
                    tokio::join!(barrier.may_send_after(Revision(10)), bookmark(10));
                assert!(was_sent);
                assert_eq!(send(11).await, Ok(()));
                assert!(!bookmark(10).await);
                assert!(barrier.resume() && !barrier.resume());
                assert_eq!(send(12).await, Ok(()), "no watch waits for progress any more");
                Ok(())
            })
            .map(|answer| answer.unwrap().watch_id)
            .collect()
            .await;
        assert_eq!(sent, [5, -1, 8, 7, -1, 11, 12]);
    }
}
