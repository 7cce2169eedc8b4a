//! How far have all watches of a stream come? A question to each of them, answered once, by the least.
//!
//! One question is open at a time, and what is asked meanwhile is asked when it is answered: however often a client
//! asks, and however long a watch takes, each watch has one question to answer, and nothing piles up.
//!
//! A client takes the answer for a bookmark of all its watches. So one that begins while a question is open is part of
//! it: it may have much to tell of the past. And where one waits for a revision that is still to come, there is no answer, as
//! in etcd: the client would take it for that watch's as well, and later go on from there.

use std::collections::HashSet;

use bowline::Revision;

/// Which of the watches that have begun on a stream. Their ids are used again, these are not.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub(super) struct Serial(u64);

impl Serial {
    /// This one, of which the next is left.
    pub(super) fn take(&mut self) -> Serial {
        let taken = *self;
        self.0 += 1;
        taken
    }
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Progress {
    open: Option<Question>,
    /// Whether it was asked again since.
    again: bool,
}

#[derive(Debug)]
struct Question {
    /// Who has not answered yet.
    left: HashSet<Serial>,
    /// The least that was answered.
    least: Option<Revision>,
}

impl Progress {
    /// A client asks. Whether all watches, which are these, are to be asked now.
    pub(super) fn ask(&mut self, all: impl Iterator<Item = Serial>) -> bool {
        if self.open.is_some() {
            self.again = true;
            return false;
        }
        let left: HashSet<_> = all.collect();
        let is_open = !left.is_empty();
        self.open = is_open.then_some(Question { left, least: None });
        is_open
    }

    /// A watch has begun. Whether it is to be asked.
    pub(super) fn begun(&mut self, serial: Serial) -> bool {
        self.open.as_mut().is_some_and(|question| question.left.insert(serial))
    }

    /// A watch has answered. The answer of all, if it was the last.
    pub(super) fn told(&mut self, serial: Serial, revision: Revision) -> Option<Revision> {
        if let Some(question) = &mut self.open
            && question.left.remove(&serial)
        {
            let least = question.least.map_or(revision, |least| least.min(revision));
            question.least = Some(least);
        }
        self.conclude()
    }

    /// A watch has ended: it need not be waited for. The answer of all others, if they were waiting for this one.
    pub(super) fn ended(&mut self, serial: Serial) -> Option<Revision> {
        if let Some(question) = &mut self.open {
            question.left.remove(&serial);
        }
        self.conclude()
    }

    /// A watch waits for a revision that is still to come: nothing can be said of all.
    pub(super) fn has_no_answer(&mut self, serial: Serial) {
        self.open.take_if(|question| question.left.contains(&serial));
    }

    /// The question is not open any more, to be asked anew.
    pub(super) fn withdraw(&mut self) {
        self.open = None;
    }

    /// Whether some have not answered yet.
    pub(super) fn is_open(&self) -> bool {
        self.open.is_some()
    }

    /// Whether a client has asked while the last question was open, which it is not any more; said once.
    pub(super) fn wants_again(&mut self) -> bool {
        self.open.is_none() && std::mem::take(&mut self.again)
    }

    /// There is nothing to say if all that were asked have ended.
    fn conclude(&mut self) -> Option<Revision> {
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
    fn the_answer_is_the_least_of_all_answers() {
        let mut progress = asked(&[A, B, C]);
        assert_eq!(progress.told(B, Revision(7)), None);
        assert_eq!(progress.told(B, Revision(1)), None, "it has answered");
        assert_eq!(progress.told(A, Revision(5)), None);
        assert_eq!(progress.told(C, Revision(6)), Some(Revision(5)));
        assert_eq!(progress.told(C, Revision(9)), None, "nobody asks");
    }

    #[test]
    fn who_begins_while_a_question_is_open_is_part_of_it() {
        let mut progress = asked(&[A]);
        assert!(progress.begun(B));
        assert_eq!(progress.told(A, Revision(7)), None);
        assert_eq!(progress.told(B, Revision(6)), Some(Revision(6)));
        assert!(!progress.begun(C), "nobody asks");
    }

    #[test]
    fn who_ends_is_not_waited_for_and_its_heir_is() {
        let mut progress = asked(&[A, B]);
        assert_eq!(progress.ended(C), None, "it had the id that B has now");
        assert_eq!(progress.told(A, Revision(7)), None);
        assert_eq!(progress.ended(B), Some(Revision(7)));
        let mut progress = asked(&[A]);
        assert_eq!(progress.ended(A), None, "there is nobody left to speak of");
        assert!(!progress.wants_again());
    }

    #[test]
    fn there_is_no_answer_while_one_waits_for_what_is_still_to_come() {
        let mut progress = asked(&[A, B]);
        progress.has_no_answer(C);
        assert!(progress.is_open(), "it was not asked");
        assert!(!progress.ask([A, B].into_iter()));
        progress.has_no_answer(B);
        assert!(!progress.is_open() && progress.wants_again());
        assert_eq!(progress.told(A, Revision(7)), None);
    }

    #[test]
    fn what_is_asked_meanwhile_is_asked_once_when_all_have_answered() {
        let mut progress = asked(&[A]);
        for _ in 0..1000 {
            assert!(!progress.ask([A, B].into_iter()));
            assert!(!progress.wants_again());
        }
        assert_eq!(progress.told(A, Revision(7)), Some(Revision(7)));
        assert!(progress.wants_again() && !progress.wants_again());
        assert!(progress.ask([A, B].into_iter()));
        assert!(!Progress::default().ask([].into_iter()), "there is nobody to ask");
    }
}
