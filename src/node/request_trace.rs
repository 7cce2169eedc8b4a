//! The story of one request: when it was asked for, when it was handed over, and how its entry went through this node's
//! log, so that its end can say where its time went. Costs two clock readings and, while nobody traces, nothing else.
//!
//! ```text
//!   asked ──waiting──▶ sent ──forwarding──▶ queued ──logging──▶ durable ──replicating──▶ came ──applying──▶ visible ──notifying──▶ told
//!                       to the leader        in this node's log               a quorum has it      readers see it
//! ```

use std::time::Duration;

use tracing::{Span, field};

use crate::metrics::{Ending, RequestKind, Stage};
use crate::model::{Command, Moment};

use super::answer::{CallError, CallResult};
use super::log_times::InLog;

/// See the module.
pub(crate) struct RequestTrace {
    /// What was asked for.
    pub(crate) kind: RequestKind,
    /// When.
    pub(crate) asked: Moment,
    /// Its number among the requests of this node's life; 0 until it has one.
    pub(crate) number: u64,
    /// When it was first handed over: to the leader, or into this leader's own log.
    pub(crate) sent: Option<Moment>,
    /// How often it was: more than once where the leader changed, or did not answer.
    pub(crate) attempts: u32,
    /// How the entry that decided it went through this node's log.
    pub(crate) in_log: Option<InLog>,
    /// What traces of the request belong to.
    pub(crate) span: Span,
}

impl RequestTrace {
    /// A request begins now.
    pub(crate) fn begin(command: &Command, now: Moment) -> Self {
        let kind = RequestKind::of(command);
        let span = tracing::debug_span!("write", kind = kind.as_str(), request = field::Empty);
        Self { kind, asked: now, number: 0, sent: None, attempts: 0, in_log: None, span }
    }

    /// It has a number.
    pub(crate) fn numbered(&mut self, number: u64) {
        self.number = number;
        self.span.record("request", number);
        tracing::trace!(parent: &self.span, "numbered");
    }

    /// It is handed over; if it was before, the first time counts.
    pub(crate) fn handed_over(&mut self, now: Moment) {
        // A turn begins before it looks what has come.
        self.sent.get_or_insert(now.max(self.asked));
        self.attempts += 1;
    }

    /// It reached nobody after all.
    pub(crate) fn came_back(&mut self) {
        (self.sent, self.attempts) = (None, 0);
    }

    /// Where it was for most of its time, for people.
    pub(crate) fn place(&self, stage: Stage) -> &'static str {
        match stage {
            Stage::Waiting => "before it could be handed to a leader",
            Stage::Forwarding | Stage::Replicating if self.attempts > 1 => {
                "on its way: it was handed over more than once, as leaders changed or did not answer"
            }
            Stage::Forwarding => "on its way to the leader and, as an entry, back to this node",
            Stage::Logging => "in this node's log: on its disk",
            Stage::Replicating => "in the logs of the others, and on the way there and back",
            Stage::Applying => "in being applied, with what stood before it",
            Stage::Notifying => "behind the watchers, locks and callers that were told before it",
        }
    }

    /// Where the time went of a request that was decided, made visible and told.
    pub(crate) fn stages(&self, times: BatchTimes, told: Moment) -> Stages {
        let BatchTimes { came, visible } = times;
        // Decided without having been sent: an answer to an earlier attempt.
        let sent = self.sent.unwrap_or(came).min(came);
        // A repetition may be sent while the first attempt is in the log.
        let queued = self.in_log.map_or(came, |times| times.queued).clamp(sent, came);
        let durable = self.in_log.map_or(came, |times| times.durable).clamp(queued, came);
        Stages([
            (Stage::Waiting, sent.since(self.asked)),
            (Stage::Forwarding, queued.since(sent)),
            (Stage::Logging, durable.since(queued)),
            (Stage::Replicating, came.since(durable)),
            (Stage::Applying, visible.since(came)),
            (Stage::Notifying, told.since(visible)),
        ])
    }
}

/// Where the time of a request went, in the order of its way. They add up to the whole.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Stages(pub(crate) [(Stage, Duration); 6]);

impl Stages {
    /// The one that took the longest; of equals, the last.
    pub(crate) fn longest(&self) -> Stage {
        let longest = self.0.iter().max_by_key(|(_, took)| *took);
        longest.expect("there are six").0
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
        Ok(_) => Ending::Ok,
        Err(
            CallError::Rejected(_)
            | CallError::NoTransferee
            | CallError::Members(_)
            | CallError::NotResumed(_)
            | CallError::Backup(_),
        ) => Ending::Refused,
        // The change is made, as asked.
        Err(CallError::AnswerLost { .. }) => Ending::Ok,
        Err(CallError::Busy) => Ending::Busy,
        Err(CallError::Diverged) => Ending::Diverged,
        Err(CallError::QuotaExceeded { .. }) => Ending::Quota,
        Err(CallError::NoSpace) => Ending::NoSpace,
        Err(CallError::Deadline { maybe_applied: false } | CallError::NotFounded { .. }) => {
            Ending::DeadlineExceeded
        }
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
        let mut trace = RequestTrace::begin(&Command::Put(Put::new("k", "v")), at(100));
        let times = BatchTimes { came: at(180), visible: at(190) };
        let ms =
            |trace: &RequestTrace| trace.stages(times, at(195)).0.map(|(_, took)| took.as_millis());
        assert_eq!(ms(&trace), [80, 0, 0, 0, 10, 5], "never handed over, and decided all the same");
        trace.handed_over(at(120));
        trace.handed_over(at(150));
        assert_eq!(ms(&trace), [20, 60, 0, 0, 10, 5], "the first time counts");
        assert!(trace.place(Stage::Forwarding).contains("more than once"));
        trace.came_back();
        trace.handed_over(at(150));
        assert_eq!(ms(&trace), [50, 30, 0, 0, 10, 5], "an attempt that reached nobody does not");
        assert!(trace.place(Stage::Forwarding).contains("back to this node"));
        trace.in_log = Some(InLog { queued: at(152), durable: at(175) });
        assert_eq!(ms(&trace), [50, 2, 23, 5, 10, 5]);
        assert_eq!(trace.stages(times, at(195)).longest(), Stage::Waiting);
        trace.in_log = Some(InLog { queued: at(130), durable: at(140) });
        assert_eq!(ms(&trace), [50, 0, 0, 30, 10, 5], "it was sent once more meanwhile");
    }
}
