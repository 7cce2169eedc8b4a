//! Checks the streams one after the other, message by message, against the known changes.

use std::collections::BTreeMap;

use super::calls::{
    Keys, Received, RecordedEvent, RecordedEventKind, RecordedWatchCall, WatchReply, kind,
};
use super::truth::{Reason, StreamTruth, TruthStep, events, format_value, reason};
use crate::history::{Index, Outcome};

/// Checks every stream. `members` must be sorted by time.
pub(super) fn judge<'t>(truth: &'t StreamTruth<'t>, members: &'t [Index]) -> Result<(), Reason> {
    let history = truth.history;
    let mut streams: BTreeMap<&str, Option<StreamSession<'t>>> = BTreeMap::new();
    // The highest compaction called so far.
    let mut compacted = None;
    for &index in members {
        let operation = &history[index];
        if matches!(operation.outcome, Outcome::Failed { .. }) {
            continue;
        }
        let reply = match &operation.outcome {
            Outcome::Ok { reply, .. } => Some(reply),
            _ => None,
        };
        match (&operation.call, reply) {
            (RecordedWatchCall::Compact { revision }, _) => {
                compacted = compacted.max(Some(*revision))
            }
            (RecordedWatchCall::Watch { stream, keys, start, only }, reply) => {
                let at = match reply {
                    Some(WatchReply::Watching { at }) => *at,
                    _ => None,
                };
                let start = start.or(at.map(|at| at.saturating_add(1)));
                let mut session = StreamSession::new(truth, members, index, keys, *only);
                match (start, &operation.outcome) {
                    (Some(start), _) => session.begin(start),
                    (None, Outcome::Ok { at, .. }) => session.latest = truth.first_after(*at),
                    (None, _) => {}
                }
                streams.insert(stream, Some(session));
            }
            (RecordedWatchCall::Receive { stream }, Some(WatchReply::Received(received))) => {
                let Some(session) = streams.get_mut(&**stream) else {
                    let why = format!(
                        "#{index} is a message of stream {stream:?}, which was never requested"
                    );
                    return Err(reason("filters", truth.object, [index], why));
                };
                let Some(session) = session else {
                    let why =
                        format!("#{index} is a message of stream {stream:?}, which had ended");
                    return Err(reason("compacted", truth.object, [index], why));
                };
                session.compacted = compacted;
                session.receive(index, received)?;
                if let Received::Compacted(revision) = received {
                    session.is_compacted(index, *revision)?;
                    streams.insert(stream, None);
                }
            }
            _ => {}
        }
    }
    Ok(())
}

struct StreamSession<'t> {
    truth: &'t StreamTruth<'t>,
    members: &'t [Index],
    watch: Index,
    keys: &'t Keys,
    only: Option<RecordedEventKind>,
    /// The first revision that may be reported. Unknown until the first message if the watch did not state it.
    start: Option<u64>,
    /// If the start is unknown, its upper bound: changes called after the stream had begun must be reported.
    latest: Option<u64>,
    /// The last reported revision, its message, and whether the next message continues it.
    last: Option<(u64, Index, bool)>,
    /// Keys reported at that revision.
    told: Vec<&'t str>,
    /// The highest reported progress.
    progress: Option<u64>,
    /// The highest compaction called so far.
    compacted: Option<u64>,
    /// Index of the next step to report.
    cursor: usize,
}

impl<'t> StreamSession<'t> {
    fn new(
        truth: &'t StreamTruth<'t>,
        members: &'t [Index],
        watch: Index,
        keys: &'t Keys,
        only: Option<RecordedEventKind>,
    ) -> Self {
        Self {
            truth,
            members,
            watch,
            keys,
            only,
            start: None,
            latest: None,
            last: None,
            told: Vec::new(),
            progress: None,
            compacted: None,
            cursor: 0,
        }
    }

    fn begin(&mut self, start: u64) {
        if self.start.is_none() {
            let start = self.latest.map_or(start, |latest| start.min(latest));
            self.start = Some(start);
            self.cursor = self.truth.steps.partition_point(|step| step.revision < start);
        }
    }

    fn fails(
        &self,
        rule: &'static str,
        operations: impl Into<Vec<Index>>,
        why: String,
    ) -> Result<(), Reason> {
        Err(reason(rule, self.truth.object, operations, why))
    }

    fn receive(&mut self, index: Index, received: &'t Received) -> Result<(), Reason> {
        match received {
            Received::Events { events, more } => {
                if let Some(first) = events.first() {
                    self.begin(first.revision);
                }
                let before = self.last;
                for event in events {
                    self.event(index, event, before)?;
                }
                if let Some((_, _, open)) = &mut self.last {
                    *open = *more;
                }
                self.reached(index)
            }
            Received::Progress(revision) => {
                let next = revision.saturating_add(1);
                self.begin(next);
                self.truth.check_visibility(*revision, index)?;
                self.progress = self.progress.max(Some(*revision));
                self.pass(next, index, "bookmarkable")
            }
            Received::Compacted(_) => Ok(()),
        }
    }

    /// Ends a message: its last revision is complete unless `more` is set.
    fn reached(&mut self, index: Index) -> Result<(), Reason> {
        match self.last {
            Some((revision, _, false)) => {
                self.truth.check_visibility(revision, index)?;
                self.pass(revision.saturating_add(1), index, "reliable")
            }
            _ => Ok(()),
        }
    }

    fn event(
        &mut self,
        index: Index,
        event: &'t RecordedEvent,
        before: Option<(u64, Index, bool)>,
    ) -> Result<(), Reason> {
        let RecordedEvent { revision, key, value, .. } = event;
        let (revision, watch) = (*revision, self.watch);
        let what = format!("#{index} reports row {key:?} at revision {revision}");
        let start = self.start.expect("the first event begins it");
        if !self.keys.contains(key) {
            return self.fails(
                "filters",
                [watch, index],
                format!("{what}, which #{watch} did not request"),
            );
        }
        if self.only.is_some_and(|only| only != kind(value.as_ref())) {
            let why = format!(
                "{what} as {}, a kind of change that #{watch} excluded",
                format_value(value.as_ref())
            );
            return self.fails("filters", [watch, index], why);
        }
        if revision < start {
            let why = format!("{what}, but #{watch} starts at {start}");
            return self.fails("resumable", [watch, index], why);
        }
        if let Some((last, by, _)) = self.last {
            let is_same = last == revision;
            if is_same && self.told.contains(&&**key) {
                let why = format!("{what}, which #{by} had already reported");
                let all = if by == index { vec![index] } else { vec![by, index] };
                return self.fails("unique", all, why);
            }
            if revision < last {
                let why = format!("{what} after #{by} reported revision {last}");
                let all = if by == index { vec![index] } else { vec![by, index] };
                return self.fails("ordered", all, why);
            }
            if let Some((open, by, false)) = before
                && open == revision
            {
                let why = format!("{what}, but #{by} reported that the revision was complete");
                return self.fails("atomic", [by, index], why);
            }
        }
        self.pass(revision, index, "reliable")?;
        if self.last.is_none_or(|(last, ..)| last < revision) {
            self.told.clear();
        }
        self.told.push(key);
        self.last = Some((revision, index, true));
        self.compare(index, event)
    }

    /// Checks that all steps below a revision were reported, or were not requested.
    fn pass(&mut self, revision: u64, index: Index, rule: &'static str) -> Result<(), Reason> {
        let steps = &self.truth.steps;
        while let Some(step) = steps.get(self.cursor).filter(|step| step.revision < revision) {
            self.cursor += 1;
            let TruthStep { revision: missed, key, value, by, .. } = *step;
            let is_asked =
                self.keys.contains(key) && self.only.is_none_or(|only| only == kind(value));
            let is_begun = self.last.is_some_and(|(last, ..)| last == missed);
            if !is_asked || is_begun && self.told.contains(&key) {
                continue;
            }
            let what =
                format!("row {key:?} became {} at revision {missed} (#{by})", format_value(value));
            if let Some(later) = self.later_report(index, missed, key) {
                let rule = if rule == "reliable" { "ordered" } else { rule };
                let why = format!(
                    "{what}, but the stream of #{} reports it with #{later}, after passing that revision with #{index}",
                    self.watch
                );
                let all = if later == index { vec![index] } else { vec![index, later] };
                return self.fails(rule, all, why);
            }
            return if is_begun {
                let torn = self.last.map_or(index, |(_, by, _)| by);
                let why = format!(
                    "{what}, but the stream of #{} reports only other changes of that revision, with #{torn}",
                    self.watch
                );
                self.fails("atomic", dedup([self.watch, by, torn]), why)
            } else {
                let why = format!(
                    "{what}, but the stream of #{} passed that revision with #{index} without reporting it",
                    self.watch
                );
                self.fails(rule, dedup([self.watch, by, index]), why)
            };
        }
        Ok(())
    }

    /// Returns the message, from `from` on, in which the stream reports a change of a row.
    fn later_report(&self, from: Index, revision: u64, key: &str) -> Option<Index> {
        let history = self.truth.history;
        let RecordedWatchCall::Watch { stream: name, .. } = &history[self.watch].call else {
            return None;
        };
        let from = self.members.iter().position(|member| *member == from)?;
        for &index in &self.members[from..] {
            match &history[index].call {
                RecordedWatchCall::Watch { stream, .. } if stream == name => break,
                RecordedWatchCall::Receive { stream } if stream == name => {
                    let mut told = events(history, index).iter();
                    if told.any(|event| event.revision == revision && *event.key == *key) {
                        return Some(index);
                    }
                }
                _ => {}
            }
        }
        None
    }

    /// Checks the previous value and the revision of creation.
    fn compare(&self, index: Index, event: &RecordedEvent) -> Result<(), Reason> {
        let RecordedEvent { revision, key, value, previous, created } = event;
        let truth = self.truth;
        let place = truth.steps.partition_point(|step| step.revision < *revision);
        let Some(step) = truth.steps[place..].iter().find(|step| *step.key == **key) else {
            return Ok(());
        };
        let besides = truth.besides.get(&**key).map_or(&[][..], |all| all);
        let before = step.before.map(|(value, _)| value);
        let is_gone = truth.rules.others || self.compacted >= Some(*revision);
        let is_others = truth.rules.others && !self.saw_since(step.since);
        if let Some(previous) = previous.as_ref().map(Option::as_ref)
            && previous != before
            && !besides.contains(&previous)
            && !(previous.is_none() && is_gone)
            && !is_others
        {
            let why = format!(
                "#{index} reports that row {key:?} held {} before revision {revision}, but it held {}",
                format_value(previous),
                format_value(before)
            );
            let by = step.before.map(|(_, by)| by);
            let all: Vec<Index> = by.into_iter().filter(|by| *by != index).chain([index]).collect();
            return self.fails("previous", all, why);
        }
        let is_unsure = truth.rules.others || !besides.is_empty();
        if let Some(created) = created
            && value.is_some()
            && *created != step.created
            && !is_unsure
        {
            let why = format!(
                "#{index} reports that row {key:?} was created at revision {created}, but it was created at {}",
                step.created
            );
            return self.fails("previous", [index], why);
        }
        Ok(())
    }

    /// Returns whether the stream must report all changes of its rows since a revision.
    fn saw_since(&self, revision: u64) -> bool {
        self.only.is_none() && self.start.is_some_and(|start| start <= revision)
    }

    fn is_compacted(&self, index: Index, revision: u64) -> Result<(), Reason> {
        if !self.truth.rules.others && self.compacted < Some(revision) {
            let why = format!(
                "#{index} reports that revision {revision} was compacted, but no compaction had been called"
            );
            return self.fails("compacted", [index], why);
        }
        let told = self.last.map(|(last, _, open)| last.saturating_add(u64::from(!open)));
        let passed = self.progress.map(|progress| progress.saturating_add(1));
        let next = self.start.max(told).max(passed);
        // The compacted revision itself is still available.
        if let Some(next) = next
            && next >= revision
        {
            let why = format!(
                "#{index} ends the stream of #{} because revision {revision} was compacted, but its next revision is {next}",
                self.watch
            );
            return self.fails("compacted", [self.watch, index], why);
        }
        Ok(())
    }
}

/// Removes duplicates and keeps the order.
fn dedup(operations: [Index; 3]) -> Vec<Index> {
    let mut all = Vec::new();
    for operation in operations {
        if !all.contains(&operation) {
            all.push(operation);
        }
    }
    all
}
