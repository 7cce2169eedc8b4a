//! A model of the log that stores every entry in memory, and a generator of random valid groups for
//! a log in a given state.

use super::*;

/// The contents of a log as plain data.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(super) struct Said {
    pub(super) base: Base,
    /// All entries after the base.
    pub(super) entries: Vec<Entry>,
    pub(super) hard_state: HardState,
    pub(super) founding: Option<Founding>,
}

impl Said {
    pub(super) fn of(opened: &Opened) -> Self {
        let (reader, recovered) = (&opened.reader, &opened.recovered);
        assert_eq!(reader.last(), recovered.last);
        assert_eq!(reader.first(), recovered.base.index.next());
        assert_eq!(reader.term(recovered.base.index), Some(recovered.base.term));
        Self {
            base: recovered.base,
            entries: read_all(reader),
            hard_state: recovered.hard_state.clone(),
            founding: recovered.founding.clone(),
        }
    }

    pub(super) fn last(&self) -> u64 {
        self.base.index.get() + self.entries.len() as u64
    }

    pub(super) fn term(&self, index: u64) -> Option<Term> {
        if index == self.base.index.get() {
            return Some(self.base.term);
        }
        let at = index.checked_sub(self.base.index.get() + 1)?;
        self.entries.get(at as usize).map(|entry| entry.term)
    }

    pub(super) fn after(&self, group: &Group) -> Self {
        let mut said = self.clone();
        if let Some(base) = group.base.filter(|base| base.index > said.base.index) {
            if said.term(base.index.get()) == Some(base.term) {
                said.entries.drain(..(base.index.get() - said.base.index.get()) as usize);
            } else {
                said.entries.clear();
            }
            said.base = base;
            said.hard_state.commit = said.hard_state.commit.max(base.index);
        }
        for entry in &group.entries {
            let at = entry.index.get() - said.base.index.get() - 1;
            said.entries.truncate(at as usize);
            said.entries.push(entry.clone());
        }
        said.hard_state = group.hard_state.clone().unwrap_or(said.hard_state);
        said.founding = group.founding.clone().or(said.founding);
        said
    }

    /// Returns whether `found` has the same contents, except for entries up to `cut`, which may be
    /// missing.
    pub(super) fn is_shown_by(&self, found: &Self, cut: LogIndex) -> bool {
        let most = cut.max(self.base.index);
        if found.base.index < self.base.index || found.base.index > most {
            return false;
        }
        let gone = (found.base.index.get() - self.base.index.get()) as usize;
        self.term(found.base.index.get()) == Some(found.base.term)
            && self.entries.get(gone..) == Some(&found.entries)
            && (&self.hard_state, &self.founding) == (&found.hard_state, &found.founding)
    }
}

/// Returns all entries that a reader returns.
pub(super) fn read_all(reader: &LogReader) -> Vec<Entry> {
    let mut entries: Vec<Entry> = Vec::new();
    loop {
        let next = entries.last().map_or(reader.first(), |last| last.index.next());
        if next > reader.last() {
            break;
        }
        entries.extend(reader.entries(next, reader.last().next(), 300).unwrap());
    }
    for entry in &entries {
        assert_eq!(reader.term(entry.index), Some(entry.term));
    }
    entries
}

/// Returns a random valid next group.
pub(super) fn any_group(rng: &Rng, number: u64, said: &Said) -> Group {
    let mut group = group(number, Vec::new());
    let state = &said.hard_state;
    let (mut term, mut vote) = (state.term.get(), state.vote);
    if rng.below(4) == 0 {
        term += 1;
        vote = (rng.below(2) == 0).then(|| node(1 + rng.below(3)));
    }
    let mut index = said.last() + 1;
    if rng.below(4) == 0 {
        let open = said.last() - state.commit.get();
        index -= rng.below(open + 1);
    }
    for _ in 0..rng.below(5) {
        let most = if rng.below(40) == 0 { 3000 } else { 200 };
        let data: Vec<u8> = (0..rng.below(most)).map(|_| rng.next_u64() as u8).collect();
        group.entries.push(entry(index, term, &data));
        index += 1;
    }
    let last = group.entries.last().map_or(said.last(), |last| last.index.get());
    let commit = state.commit.get() + rng.below(last - state.commit.get() + 1);
    if term != state.term.get() || rng.below(3) == 0 {
        group.hard_state = Some(HardState { term: Term(term), vote, commit: LogIndex(commit) });
    }
    if rng.below(20) == 0 {
        group.founding = Some(BTreeMap::from([(node(1 + rng.below(9)), DiskId(rng.next_u128()))]));
    }
    group
}

/// Returns a group with a base that the log either has or does not have. The group has no entries,
/// or has entries that follow the base.
pub(super) fn any_based_group(rng: &Rng, number: u64, said: &Said) -> Group {
    let state = &said.hard_state;
    let base = if rng.below(2) == 0 {
        let index = said.base.index.get() + rng.below(said.entries.len() as u64 + 1);
        base(index, said.term(index).unwrap().get())
    } else {
        // The base has a term in which this log contains no entry.
        let term = state.term.get() + 1;
        base(state.commit.get() + 1 + rng.below(said.entries.len() as u64 + 20), term)
    };
    let alone = Group { number, base: Some(base), ..Group::default() };
    let mut after = said.after(&alone);
    let term = after.hard_state.term.max(base.term);
    if term > after.hard_state.term {
        after.hard_state = HardState { term, vote: None, ..after.hard_state };
    }
    let mut group = any_group(rng, number, &after);
    group.base = Some(base);
    let written = group.hard_state.is_some() || after.hard_state.term == said.hard_state.term;
    if !written {
        group.hard_state = Some(after.hard_state);
    }
    group
}
