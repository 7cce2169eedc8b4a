//! Determines how far all watches of a stream have come: requests the progress of each watch and returns the minimum.
//!
//! One round of these requests runs at a time. Client requests that arrive during a round are combined into one
//! further round. However often a client requests progress, each watch therefore has at most one request to answer.
//!
//! A client applies the result to all watches of the stream. A watch that starts during a round therefore takes part
//! in the round, because the watch may have old events to deliver. If a watch waits for a future revision, the round
//! has no result, as in etcd. Otherwise the client would later resume that watch from a revision that is too low.

use std::collections::HashSet;

use bowline::Revision;

/// Sequence number of a watch on its stream. Unlike watch ids, it is never reused.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub(crate) struct Serial(u64);

impl Serial {
    /// Returns this number and advances to the next.
    pub(crate) fn take(&mut self) -> Serial {
        let taken = *self;
        self.0 += 1;
        taken
    }
}

/// Progress requests of a stream.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    open: Option<Question>,
    /// Whether another request arrived during the round.
    again: bool,
}

#[derive(Debug)]
struct Question {
    /// Watches that have not answered yet.
    left: HashSet<Serial>,
    /// Smallest revision answered so far.
    least: Option<Revision>,
}

impl Progress {
    /// Handles a client's request. Returns whether to ask the watches `all` now.
    pub(crate) fn ask(&mut self, all: impl Iterator<Item = Serial>) -> bool {
        if self.open.is_some() {
            self.again = true;
            return false;
        }
        let left: HashSet<_> = all.collect();
        let is_open = !left.is_empty();
        self.open = is_open.then_some(Question { left, least: None });
        is_open
    }

    /// Adds a new watch. Returns whether to request the progress of the watch.
    pub(crate) fn begun(&mut self, serial: Serial) -> bool {
        self.open.as_mut().is_some_and(|question| question.left.insert(serial))
    }

    /// Records the answer of a watch. If it was the last missing answer, returns the result of the round.
    pub(crate) fn answered(&mut self, serial: Serial, revision: Revision) -> Option<Revision> {
        if let Some(question) = &mut self.open
            && question.left.remove(&serial)
        {
            let least = question.least.map_or(revision, |least| least.min(revision));
            question.least = Some(least);
        }
        self.take_result()
    }

    /// Removes a watch that has ended. If all other watches have answered, returns the result of the round.
    pub(crate) fn ended(&mut self, serial: Serial) -> Option<Revision> {
        if let Some(question) = &mut self.open {
            question.left.remove(&serial);
        }
        self.take_result()
    }

    /// Aborts the round if it includes this watch, which waits for a future revision.
    pub(crate) fn has_no_answer(&mut self, serial: Serial) {
        self.open.take_if(|question| question.left.contains(&serial));
    }

    /// Aborts the round so that it can be repeated.
    pub(crate) fn withdraw(&mut self) {
        self.open = None;
    }

    /// Returns whether a round is open.
    pub(crate) fn is_open(&self) -> bool {
        self.open.is_some()
    }

    /// Returns whether a request arrived during the last round, and resets that flag.
    pub(crate) fn wants_again(&mut self) -> bool {
        self.open.is_none() && std::mem::take(&mut self.again)
    }

    /// Returns the result of a completed round, or `None` if all watches of the round have ended.
    fn take_result(&mut self) -> Option<Revision> {
        self.open.take_if(|question| question.left.is_empty())?.least
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: Serial = Serial(0);
    const B: Serial = Serial(1);
    const C: Serial = Serial(2);

    fn asked(of: &[Serial]) -> Progress {
        let mut progress = Progress::default();
        assert!(progress.ask(of.iter().copied()));
        progress
    }

    #[test]
    fn progress_is_the_minimum_over_all_watches() {
        let mut progress = asked(&[A, B, C]);
        assert_eq!(progress.answered(B, Revision(7)), None);
        assert_eq!(progress.answered(B, Revision(1)), None, "the watch has answered");
        assert_eq!(progress.answered(A, Revision(5)), None);
        assert_eq!(progress.answered(C, Revision(6)), Some(Revision(5)));
        assert_eq!(progress.answered(C, Revision(9)), None, "no request is pending");
    }

    #[test]
    fn watch_that_starts_during_a_progress_query_takes_part() {
        let mut progress = asked(&[A]);
        assert!(progress.begun(B));
        assert_eq!(progress.answered(A, Revision(7)), None);
        assert_eq!(progress.answered(B, Revision(6)), Some(Revision(6)));
        assert!(!progress.begun(C), "no request is pending");
    }

    #[test]
    fn ended_watch_is_not_awaited_by_a_progress_query() {
        let mut progress = asked(&[A, B]);
        assert_eq!(progress.ended(C), None, "the ID now belongs to B");
        assert_eq!(progress.answered(A, Revision(7)), None);
        assert_eq!(progress.ended(B), Some(Revision(7)));
        let mut progress = asked(&[A]);
        assert_eq!(progress.ended(A), None, "no watch is left");
        assert!(!progress.wants_again());
    }

    #[test]
    fn unanswerable_progress_query_is_dropped_and_repeated() {
        let mut progress = asked(&[A, B]);
        progress.has_no_answer(C);
        assert!(progress.is_open(), "the watch was not asked");
        assert!(!progress.ask([A, B].into_iter()));
        progress.has_no_answer(B);
        assert!(!progress.is_open() && progress.wants_again());
        assert_eq!(progress.answered(A, Revision(7)), None);
    }

    #[test]
    fn progress_requests_during_a_query_are_merged_into_one() {
        let mut progress = asked(&[A]);
        for _ in 0..1000 {
            assert!(!progress.ask([A, B].into_iter()));
            assert!(!progress.wants_again());
        }
        assert_eq!(progress.answered(A, Revision(7)), Some(Revision(7)));
        assert!(progress.wants_again() && !progress.wants_again());
        assert!(progress.ask([A, B].into_iter()));
        assert!(!Progress::default().ask([].into_iter()), "there is no watch to ask");
    }
}
