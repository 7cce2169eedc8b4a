//! The state of the log, except for the contents of its entries.
//!
//! The writer updates the state with each group, and recovery rebuilds the state from the groups.
//! The writer and recovery change the state only through this module. Each segment begins with an
//! encoded copy of the state. Therefore truncating the log discards nothing but entries, and
//! recovery detects a segment that was moved or reverted to an old version.

use super::format::{RecordKind, decode_founding, encode_founding};
use super::index::{IndexChange, SegmentIndex};
use super::{Base, Founding, HardState};
use crate::model::{LogIndex, NodeId, Term};

/// The state of the log. See the module page.
#[derive(Clone, Debug)]
pub(super) struct LogState {
    pub(super) index: SegmentIndex,
    pub(super) hard_state: HardState,
    pub(super) founding: Option<Founding>,
    pub(super) incarnation: u64,
    /// The point at which the index begins. While recovery reads a truncated log, the base may be
    /// older than the start of the index.
    pub(super) base: Base,
    /// The first segment that is needed. Earlier ones may or may not exist.
    pub(super) needed_from: u32,
}

/// Upper bound (exclusive) of indexes, terms and incarnations, as in messages of peers. With this
/// bound, incrementing them never overflows.
const NUMBER_MAX: u64 = 1 << 62;

/// Description of a rule of the log that was broken.
pub(super) type Broken = &'static str;

impl LogState {
    /// Returns the state of an empty log.
    pub(super) fn new() -> Self {
        Self {
            index: SegmentIndex::new(Base::default()),
            hard_state: HardState::default(),
            founding: None,
            incarnation: 0,
            base: Base::default(),
            needed_from: 1,
        }
    }

    /// Adds an entry, which must follow the existing entries and replace no committed entry.
    pub(super) fn take_entry(&mut self, change: IndexChange) -> Result<(), Broken> {
        if let IndexChange::Entry(sample, term) = change {
            self.index.follows(sample.index, term, self.hard_state.commit)?;
        }
        self.index.apply(change);
        Ok(())
    }

    /// Sets the term, the vote and the commit index.
    pub(super) fn take_hard_state(&mut self, next: HardState) -> Result<(), Broken> {
        next.follows(&self.hard_state, self.index.last())?;
        self.hard_state = next;
        Ok(())
    }

    pub(super) fn take_founding(&mut self, founding: Founding) -> Result<(), Broken> {
        if founding.is_empty() {
            return Err("the list of founders is empty");
        }
        self.founding = Some(founding);
        Ok(())
    }

    pub(super) fn take_incarnation(&mut self, number: u64) -> Result<(), Broken> {
        if number <= self.incarnation {
            return Err("the incarnation is not greater than the previous one");
        }
        if number >= NUMBER_MAX {
            return Err("the incarnation is too large");
        }
        self.incarnation = number;
        Ok(())
    }

    /// Returns the kind of record for a new base, or `None` if the current base is at or after it.
    pub(super) fn kind_of(&self, base: Base) -> Option<RecordKind> {
        if base.index <= self.base.index {
            None
        } else if self.index.term(base.index) == Some(base.term) {
            Some(RecordKind::Keep)
        } else {
            Some(RecordKind::Reset)
        }
    }

    /// Sets a base that was recorded with this kind. Returns the resulting change of the index.
    pub(super) fn take_base(
        &mut self,
        kind: RecordKind,
        base: Base,
        needed_from: u32,
    ) -> Result<Option<IndexChange>, Broken> {
        if base.index < self.base.index || base.term < self.base.term {
            return Err("the base goes backwards");
        }
        if base.index.get() >= NUMBER_MAX || base.term.get() >= NUMBER_MAX {
            return Err("the index or the term of the base is too large");
        }
        if needed_from < self.needed_from {
            return Err("the first needed segment goes backwards");
        }
        let floor = self.index.floor();
        let change = if kind == RecordKind::Reset {
            if base.index <= self.hard_state.commit {
                return Err("the base contradicts committed entries");
            }
            Some(IndexChange::Reset(base))
        } else if base.index >= floor.index {
            if self.index.term(base.index) != Some(base.term) {
                return Err("the base is not an entry of the log");
            }
            Some(IndexChange::Keep(base))
        } else {
            // The index may already begin after this base, because entries were truncated after the
            // base was recorded.
            None
        };
        if let Some(change) = change {
            self.index.apply(change);
        }
        self.base = base;
        self.needed_from = needed_from;
        self.hard_state.commit = self.hard_state.commit.max(base.index);
        Ok(change)
    }

    /// Encodes the payload of a State record.
    pub(super) fn encode(&self) -> Vec<u8> {
        let HardState { term, vote, commit } = self.hard_state;
        let runs = self.index.terms_from(commit);
        let mut bytes = Vec::with_capacity(256);
        for number in [
            self.incarnation,
            term.get(),
            vote.map_or(0, NodeId::get),
            commit.get(),
            self.base.index.get(),
            self.base.term.get(),
            self.index.last().get(),
        ] {
            bytes.extend_from_slice(&number.to_le_bytes());
        }
        bytes.extend_from_slice(&self.needed_from.to_le_bytes());
        let count = u32::try_from(runs.len()).expect("a run is an entry, and those are in memory");
        bytes.extend_from_slice(&count.to_le_bytes());
        for (first, term) in runs {
            bytes.extend_from_slice(&first.get().to_le_bytes());
            bytes.extend_from_slice(&term.get().to_le_bytes());
        }
        bytes.extend(self.founding.iter().flat_map(encode_founding));
        bytes
    }

    /// Decodes the payload of a State record. The result lacks the positions of entries. Returns
    /// `None` if the payload is invalid.
    pub(super) fn decode(payload: &[u8]) -> Option<Self> {
        let mut rest = payload;
        let mut numbers = [0; 7];
        for number in &mut numbers {
            *number = take_u64(&mut rest)?;
        }
        let [incarnation, term, vote, commit, base_index, base_term, last] = numbers;
        if [incarnation, term, commit, base_term, last].iter().any(|number| *number >= NUMBER_MAX) {
            return None;
        }
        let counts = take_u64(&mut rest)?;
        let (needed_from, count) = (counts as u32, (counts >> 32) as usize);
        if count > rest.len() / 16 {
            return None;
        }
        let runs = (0..count).map(|_| {
            let first = take_u64(&mut rest)?;
            Some((LogIndex(first), Term(take_u64(&mut rest)?)))
        });
        let runs: Vec<_> = runs.collect::<Option<_>>()?;
        let founding = if rest.is_empty() { None } else { Some(decode_founding(rest)?) };
        let base = Base { index: LogIndex(base_index), term: Term(base_term) };
        let hard_state =
            HardState { term: Term(term), vote: NodeId::new(vote), commit: LogIndex(commit) };
        let begins = runs.first()?.0;
        if begins != hard_state.commit || base.index > begins || needed_from == 0 {
            return None;
        }
        let index = SegmentIndex::of_terms(runs, LogIndex(last))?;
        Some(Self { index, hard_state, founding, incarnation, base, needed_from })
    }
}

impl HardState {
    /// Checks that this state may follow `before`, in a log that ends with `last`.
    fn follows(&self, before: &Self, last: LogIndex) -> Result<(), Broken> {
        if self.term < before.term {
            return Err("the term decreases");
        }
        if self.term.get() >= NUMBER_MAX {
            return Err("the term is too large");
        }
        if self.term == before.term && before.vote.is_some() && self.vote != before.vote {
            return Err("there are two different votes in one term");
        }
        if self.commit < before.commit {
            return Err("the commit index decreases");
        }
        if self.commit > last {
            return Err("the commit index is greater than the last index");
        }
        Ok(())
    }
}

fn take_u64(bytes: &mut &[u8]) -> Option<u64> {
    let (head, rest) = bytes.split_first_chunk()?;
    *bytes = rest;
    Some(u64::from_le_bytes(*head))
}

#[cfg(test)]
mod tests {
    use super::super::format::Position;
    use super::super::index::IndexSample;
    use super::*;
    use crate::model::DiskId;

    fn base(index: u64, term: u64) -> Base {
        Base { index: LogIndex(index), term: Term(term) }
    }

    fn with_entries(terms: &[u64]) -> LogState {
        let mut state = LogState::new();
        for (index, term) in (2..).zip(terms) {
            let position = Position { segment: 1, offset: index as u32 * 100 };
            let sample = IndexSample { index: LogIndex(index), position, chain: 0 };
            state.take_entry(IndexChange::Entry(sample, Term(*term))).unwrap();
        }
        state
    }

    #[test]
    fn numbers_at_the_maximum_are_rejected() {
        for last in [NUMBER_MAX, u64::MAX] {
            let mut state = LogState::new();
            let base = Base { index: LogIndex(last), term: Term(1) };
            state.take_base(RecordKind::Reset, base, 1).unwrap_err();
            state.take_incarnation(last).unwrap_err();
            let hard_state = HardState { term: Term(last), ..HardState::default() };
            state.take_hard_state(hard_state).unwrap_err();
            for place in [0, 1, 5, 6] {
                let mut bytes = state.encode();
                assert!(LogState::decode(&bytes).is_some());
                bytes[place * 8..][..8].copy_from_slice(&last.to_le_bytes());
                assert!(LogState::decode(&bytes).is_none(), "number {place}");
            }
        }
        let highest = Base { index: LogIndex(NUMBER_MAX - 1), term: Term(1) };
        LogState::new().take_base(RecordKind::Reset, highest, 1).unwrap();
    }

    #[test]
    fn state_round_trips_and_truncated_bytes_are_rejected() {
        let mut state = with_entries(&[1, 1, 2, 2, 4, 7]);
        let vote = NodeId::new(3);
        state.take_hard_state(HardState { term: Term(7), vote, commit: LogIndex(4) }).unwrap();
        state.take_base(RecordKind::Keep, base(3, 1), 2).unwrap();
        state.take_incarnation(9).unwrap();
        for founded in [false, true] {
            if founded {
                state.take_founding([(NodeId::new(1).unwrap(), DiskId(7))].into()).unwrap();
            }
            let bytes = state.encode();
            let again = LogState::decode(&bytes).unwrap();
            assert_eq!(again.encode(), bytes);
            assert_eq!(again.index.floor(), base(4, 2));
            assert_eq!(again.index.last(), LogIndex(7));
            assert_eq!(
                (
                    &again.hard_state,
                    &again.founding,
                    again.incarnation,
                    again.base,
                    again.needed_from
                ),
                (&state.hard_state, &state.founding, 9, base(3, 1), 2)
            );
            for length in 0..bytes.len() {
                let shorter = LogState::decode(&bytes[..length]);
                assert!(shorter.is_none_or(|state| state.founding.is_none() && founded));
            }
        }
    }

    #[test]
    fn base_is_kept_reset_or_rejected() {
        let mut state = with_entries(&[1, 1, 2, 2]);
        let vote = None;
        state.take_hard_state(HardState { term: Term(5), vote, commit: LogIndex(3) }).unwrap();
        assert_eq!(state.kind_of(base(1, 1)), None);
        assert_eq!(state.kind_of(base(4, 2)), Some(RecordKind::Keep));
        assert_eq!(state.kind_of(base(4, 3)), Some(RecordKind::Reset));
        assert_eq!(state.kind_of(base(9, 3)), Some(RecordKind::Reset));
        let refused = [
            (RecordKind::Reset, base(3, 2), 1, "committed"),
            (RecordKind::Keep, base(4, 1), 1, "not an entry"),
            (RecordKind::Keep, base(9, 2), 1, "not an entry"),
        ];
        for (kind, base, needed, why) in refused {
            let broken = state.clone().take_base(kind, base, needed).unwrap_err();
            assert!(broken.contains(why), "{broken}");
        }
        state.take_base(RecordKind::Keep, base(4, 2), 3).unwrap();
        assert_eq!(state.hard_state.commit, LogIndex(4));
        let cases = [
            (base(3, 2), 3, "the base goes backwards"),
            (base(4, 2), 2, "the first needed segment goes backwards"),
        ];
        for (base, needed, why) in cases {
            let broken = state.clone().take_base(RecordKind::Keep, base, needed).unwrap_err();
            assert!(broken.contains(why), "{broken}");
        }
        state.take_base(RecordKind::Reset, base(9, 3), 3).unwrap();
        assert_eq!((state.index.last(), state.hard_state.commit), (LogIndex(9), LogIndex(9)));
    }
}
