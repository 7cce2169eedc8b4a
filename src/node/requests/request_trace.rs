//! The trace of one request: when it was made, when it was sent, and the times of its entry in this
//! node's log. At the end of the request, the duration of each stage can be reported. If tracing is
//! off, a trace costs two clock readings.
//!
//! ```text
//!   asked ──waiting──▶ sent ──forwarding──▶ queued ──logging──▶ durable ──replicating──▶ came ──applying──▶ visible ──notifying──▶ answered
//!                       to the leader        in this node's log               a quorum has it      readers see it
//! ```

use std::time::Duration;

use tracing::{Span, field};

use crate::metrics::{Ending, RequestKind, Stage};
use crate::model::{Command, Moment};

use crate::node::health::log_times::InLog;
use crate::node::requests::answer::{CallError, CallResult};

pub(crate) struct RequestTrace {
    pub(crate) kind: RequestKind,
    /// Time at which the caller made the request.
    pub(crate) asked: Moment,
    /// Number of the request in this incarnation of the node. 0 if it has no number yet.
    pub(crate) number: u64,
    /// Time at which the request was first sent to the leader or, on the leader, appended to the
    /// log.
    pub(crate) sent: Option<Moment>,
    /// Number of times the request was sent: more than one if the leader changed or did not answer.
    pub(crate) attempts: u32,
    /// The times, in this node's log, of the entry that decided the request.
    pub(crate) in_log: Option<InLog>,
    /// The tracing span of the request.
    pub(crate) span: Span,
}

impl RequestTrace {
    /// Starts the trace of a request that is made now.
    pub(crate) fn begin(command: &Command, now: Moment) -> Self {
        let kind = RequestKind::of(command);
        let span = tracing::debug_span!("write", kind = kind.as_str(), request = field::Empty);
        Self { kind, asked: now, number: 0, sent: None, attempts: 0, in_log: None, span }
    }

    pub(crate) fn numbered(&mut self, number: u64) {
        self.number = number;
        self.span.record("request", number);
        tracing::trace!(parent: &self.span, "request numbered");
    }

    /// Records that the request is sent. Later attempts do not change the time.
    pub(crate) fn record_sent(&mut self, now: Moment) {
        // The clock is read at the start of a turn, before its inputs are taken, so the request may
        // be newer than this time.
        self.sent.get_or_insert(now.max(self.asked));
        self.attempts += 1;
    }

    /// Undoes [`RequestTrace::record_sent`] for a batch that was not sent.
    pub(crate) fn undo_sent(&mut self) {
        (self.sent, self.attempts) = (None, 0);
    }

    /// Describes a stage, for log lines.
    pub(crate) fn place(&self, stage: Stage) -> &'static str {
        match stage {
            Stage::Waiting => "waiting for a leader",
            Stage::Forwarding | Stage::Replicating if self.attempts > 1 => {
                "in transit: sent more than once, because leaders changed or did not answer"
            }
            Stage::Forwarding => "in transit to the leader and back",
            Stage::Logging => "writing this node's log",
            Stage::Replicating => "replicating to the logs of the other members",
            Stage::Applying => "applying this entry and those before it",
            Stage::Notifying => "notifying watchers, locks and earlier callers",
        }
    }

    /// Splits the duration of an answered request into its stages.
    pub(crate) fn stages(&self, times: BatchTimes, answered: Moment) -> Stages {
        let BatchTimes { received_at, visible } = times;
        // `sent` is empty if an earlier attempt was answered.
        let sent = self.sent.unwrap_or(received_at).min(received_at);
        // The request may be sent again while the entry of the first attempt is already in the log.
        let queued = self.in_log.map_or(received_at, |times| times.queued).clamp(sent, received_at);
        let durable =
            self.in_log.map_or(received_at, |times| times.durable).clamp(queued, received_at);
        Stages([
            (Stage::Waiting, sent.since(self.asked)),
            (Stage::Forwarding, queued.since(sent)),
            (Stage::Logging, durable.since(queued)),
            (Stage::Replicating, received_at.since(durable)),
            (Stage::Applying, visible.since(received_at)),
            (Stage::Notifying, answered.since(visible)),
        ])
    }
}

/// The durations of the stages of a request, in order. Their sum is the total.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Stages(pub(crate) [(Stage, Duration); 6]);

impl Stages {
    /// Returns the stage that took the longest. Of several equally long stages, returns the last.
    pub(crate) fn longest(&self) -> Stage {
        let longest = self.0.iter().max_by_key(|(_, took)| *took);
        longest.expect("there are six").0
    }
}

/// The times of a batch of committed entries on this node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct BatchTimes {
    /// Time at which the driver received the batch.
    pub(crate) received_at: Moment,
    /// Time at which the changes of the batch became visible to readers.
    pub(crate) visible: Moment,
}

/// Returns the metric label for the end of a request.
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
        // The change was made as requested.
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
    use crate::model::samples::at;

    #[test]
    fn the_stages_add_up_to_the_whole_time() {
        let mut trace = RequestTrace::begin(&Command::Put(Put::new("k", "v")), at(100));
        let times = BatchTimes { received_at: at(180), visible: at(190) };
        let ms =
            |trace: &RequestTrace| trace.stages(times, at(195)).0.map(|(_, took)| took.as_millis());
        assert_eq!(ms(&trace), [80, 0, 0, 0, 10, 5], "never handed over, and decided all the same");
        trace.record_sent(at(120));
        trace.record_sent(at(150));
        assert_eq!(ms(&trace), [20, 60, 0, 0, 10, 5], "the first time counts");
        assert!(trace.place(Stage::Forwarding).contains("more than once"));
        trace.undo_sent();
        trace.record_sent(at(150));
        assert_eq!(ms(&trace), [50, 30, 0, 0, 10, 5], "an attempt that reached nobody does not");
        assert!(trace.place(Stage::Forwarding).contains("to the leader and back"));
        trace.in_log = Some(InLog { queued: at(152), durable: at(175) });
        assert_eq!(ms(&trace), [50, 2, 23, 5, 10, 5]);
        assert_eq!(trace.stages(times, at(195)).longest(), Stage::Waiting);
        trace.in_log = Some(InLog { queued: at(130), durable: at(140) });
        assert_eq!(ms(&trace), [50, 0, 0, 30, 10, 5], "it was sent once more meanwhile");
    }
}
