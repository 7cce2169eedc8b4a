//! How far the client of a stream has been told, whichever watch told it, and where all are to stop for a moment.
//!
//! A client takes a bookmark for where all its watches go on, those too that have told it more. So behind a bookmark
//! comes nothing that it covers, and before it nothing that it does not:
//!
//! ```text
//!   all have come to 5 ── nothing newer was told ──────────────────▶ bookmark 5
//!                     └── somebody has told 8: nobody passes 8 now,
//!                         until all have come there ────────────────▶ bookmark 8, and on
//! ```

use bowline::Revision;
use tokio::sync::watch;
use tonic::Status;

use super::super::driven::Room;
use crate::generated::etcdserverpb as pb;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Course(watch::Sender<State>);

#[derive(Debug, Default)]
struct State {
    /// The newest revision that was told, or said to be reached.
    newest: Revision,
    /// Nothing newer is told meanwhile.
    stop: Option<Revision>,
}

type Answer = Result<pb::WatchResponse, Status>;

impl Course {
    /// Tells, in `row`, what speaks of everything up to `revision`.
    ///
    /// # Errors
    /// All are to stop before that, there; and what was to be told.
    pub(super) fn tell(
        &self,
        room: Room<'_, pb::WatchResponse>,
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
                    room.send(row(whole));
                }
            }
            false
        });
        outcome
    }

    /// A watch is there from this revision on, wherever the others stop.
    pub(super) fn begin(&self, revision: Revision) {
        self.0.send_if_modified(|state| {
            state.newest = state.newest.max(revision);
            false
        });
    }

    /// Says that all have come to `revision`, and lets them go on; or, if something newer was told, has them stop there.
    /// Whether it was said.
    pub(super) fn bookmark(
        &self,
        room: Room<'_, pb::WatchResponse>,
        revision: Revision,
        bookmark: pb::WatchResponse,
    ) -> bool {
        let mut is_said = false;
        self.0.send_if_modified(|state| {
            is_said = state.newest <= revision;
            state.stop = (!is_said).then_some(state.newest);
            if is_said {
                state.newest = revision;
                room.send(vec![Ok(bookmark)]);
            }
            true
        });
        is_said
    }

    /// Nobody is waited for any more. Whether anybody was.
    pub(super) fn go_on(&self) -> bool {
        self.0.send_if_modified(|state| state.stop.take().is_some())
    }

    /// Waits until more may be told than what is up to `told`.
    pub(super) async fn leads_beyond(&self, told: Revision) {
        let is_open = |state: &State| state.stop.is_none_or(|stop| told < stop);
        drop(self.0.subscribe().wait_for(is_open).await);
    }
}

#[cfg(test)]
mod tests {
    use tokio_stream::StreamExt;

    use super::super::super::driven::{Answers, Driven};
    use super::*;

    #[tokio::test]
    async fn a_bookmark_covers_all_that_was_told_and_nothing_that_comes() {
        let told: Vec<_> = Driven::by(|answers: Answers<pb::WatchResponse>| async move {
            let course = Course::default();
            let (answers, course) = (&answers, &course);
            let tell = async |revision: i64| {
                let room = answers.room().await.unwrap();
                let whole = pb::WatchResponse { watch_id: revision, ..Default::default() };
                let told = course.tell(room, Revision(revision as u64), whole, |all| vec![Ok(all)]);
                told.map_err(|(stop, _)| stop)
            };
            let bookmark = async |revision: u64| {
                let mark = pb::WatchResponse { watch_id: -1, ..Default::default() };
                course.bookmark(answers.room().await.unwrap(), Revision(revision), mark)
            };
            assert_eq!(tell(5).await, Ok(()));
            assert!(bookmark(5).await);
            assert_eq!(tell(8).await, Ok(()));
            assert!(!bookmark(6).await, "it would come behind what it does not cover");
            assert_eq!(tell(9).await, Err(Revision(8)));
            assert_eq!(tell(7).await, Ok(()), "that is on the way there");
            tokio::select! {
                biased;
                () = course.leads_beyond(Revision(8)) => panic!("all are to stop there"),
                () = course.leads_beyond(Revision(7)) => {}
            }
            course.begin(Revision(10));
            assert!(!bookmark(8).await, "one began at 10");
            assert_eq!(tell(11).await, Err(Revision(10)));
            let ((), said) = tokio::join!(course.leads_beyond(Revision(10)), bookmark(10));
            assert!(said);
            assert_eq!(tell(11).await, Ok(()));
            assert!(!bookmark(10).await);
            assert!(course.go_on() && !course.go_on());
            assert_eq!(tell(12).await, Ok(()), "nobody waits for a bookmark any more");
            Ok(())
        })
        .map(|answer| answer.unwrap().watch_id)
        .collect()
        .await;
        assert_eq!(told, [5, -1, 8, 7, -1, 11, 12]);
    }
}
