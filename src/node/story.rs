//! The story of one request: when it was asked for and when it was handed over, so that its end can say
//! where its time went. Costs two clock readings and, while nobody traces, nothing else.

use std::time::Duration;

use tracing::Span;

use crate::metrics::{Ending, RequestKind, Stage};
use crate::model::{Command, Moment};

use super::answer::{CallError, CallResult};

/// See the module.
pub(crate) struct Story {
    /// What was asked for.
    pub(crate) kind: RequestKind,
    /// When.
    pub(crate) asked: Moment,
    /// When it was first handed over: to the leader, or into this leader's own log.
    pub(crate) sent: Option<Moment>,
    /// What traces of the request belong to.
    pub(crate) span: Span,
}

impl Story {
    /// A request begins now.
    pub(crate) fn begin(command: &Command, now: Moment) -> Self {
        let kind = RequestKind::of(command);
        let span = tracing::trace_span!("write", kind = kind.word());
        Self { kind, asked: now, sent: None, span }
    }

    /// It is handed over; if it was before, the first time counts.
    pub(crate) fn handed_over(&mut self, now: Moment) {
        self.sent.get_or_insert(now);
    }

    /// It reached nobody after all.
    pub(crate) fn came_back(&mut self) {
        self.sent = None;
    }

    /// Where the time went of a request that was decided, made visible and told.
    pub(crate) fn stages(&self, times: BatchTimes, told: Moment) -> [(Stage, Duration); 4] {
        let BatchTimes { came, visible } = times;
        // Decided without having been sent: an answer to an earlier attempt.
        let sent = self.sent.unwrap_or(came);
        [
            (Stage::Waiting, sent.since(self.asked)),
            (Stage::Deciding, came.since(sent)),
            (Stage::Applying, visible.since(came)),
            (Stage::Telling, told.since(visible)),
        ]
    }
}

/// When a batch of committed entries went through this node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct BatchTimes {
    /// The driver had it.
    pub(crate) came: Moment,
    /// Readers could see it.
    pub(crate) visible: Moment,
}

/// What the end of a request is counted as.
pub(crate) fn ending<T>(result: &CallResult<T>) -> Ending {
    match result {
        Ok(_) => Ending::Done,
        Err(
            CallError::Refused(_)
            | CallError::NoTransferee
            | CallError::Members(_)
            | CallError::NotResumed(_)
            | CallError::Backup(_),
        ) => Ending::Refused,
        // The change is made, as asked.
        Err(CallError::AnswerLost { .. }) => Ending::Done,
        Err(CallError::Busy) => Ending::Busy,
        Err(CallError::Diverged) => Ending::Diverged,
        Err(CallError::QuotaExceeded { .. }) => Ending::Quota,
        Err(CallError::NoSpace) => Ending::NoSpace,
        Err(CallError::Deadline { maybe_applied: false }) => Ending::Late,
        Err(CallError::Stopped { maybe_applied: false, .. }) => Ending::Stopped,
        Err(CallError::Deadline { .. } | CallError::Stopped { .. }) => Ending::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Put;

    fn at(ms: u64) -> Moment {
        Moment::since_boot(Duration::from_millis(ms))
    }

    #[test]
    fn the_stages_add_up_to_the_whole_time() {
        let mut story = Story::begin(&Command::Put(Put::new("k", "v")), at(100));
        let times = BatchTimes { came: at(180), visible: at(190) };
        let ms = |story: &Story| story.stages(times, at(195)).map(|(_, took)| took.as_millis());
        assert_eq!(ms(&story), [80, 0, 10, 5], "never handed over, and decided all the same");
        story.handed_over(at(120));
        story.handed_over(at(150));
        assert_eq!(ms(&story), [20, 60, 10, 5], "the first time counts");
        story.came_back();
        story.handed_over(at(150));
        assert_eq!(ms(&story), [50, 30, 10, 5], "an attempt that reached nobody does not");
    }
}
