//! A model of the log that stores every entry in memory, and a generator of random valid groups for
//! a log in a given state.

use super::*;

/// The contents of a log as plain data.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(super) struct LogContent {
    pub(super) base: Base,
    /// All entries after the base.
    pub(super) entries: Vec<Entry>,
    pub(super) hard_state: HardState,
    pub(super) founding: Option<Founding>,
}

impl LogContent {
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
        let mut content = self.clone();
        if let Some(base) = group.base.filter(|base| base.index > content.base.index) {
            if content.term(base.index.get()) == Some(base.term) {
                content.entries.drain(..(base.index.get() - content.base.index.get()) as usize);
            } else {
                content.entries.clear();
            }
            content.base = base;
            content.hard_state.commit = content.hard_state.commit.max(base.index);
        }
        for entry in &group.entries {
            let at = entry.index.get() - content.base.index.get() - 1;
            content.entries.truncate(at as usize);
            content.entries.push(entry.clone());
        }
        content.hard_state = group.hard_state.clone().unwrap_or(content.hard_state);
        content.founding = group.founding.clone().or(content.founding);
        content
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
pub(super) fn any_group(rng: &Rng, number: u64, content: &LogContent) -> Group {
    let mut group = group(number, Vec::new());
    let state = &content.hard_state;
    let (mut term, mut vote) = (state.term.get(), state.vote);
    if rng.below(4) == 0 {
        term += 1;
        vote = (rng.below(2) == 0).then(|| node(1 + rng.below(3)));
    }
    let mut index = content.last() + 1;
    if rng.below(4) == 0 {
        let open = content.last() - state.commit.get();
        index -= rng.below(open + 1);
    }
    for _ in 0..rng.below(5) {
        let most = if rng.below(40) == 0 { 3000 } else { 200 };
        let data: Vec<u8> = (0..rng.below(most)).map(|_| rng.next_u64() as u8).collect();
        group.entries.push(entry(index, term, &data));
        index += 1;
    }
    let last = group.entries.last().map_or(content.last(), |last| last.index.get());
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
pub(super) fn any_based_group(rng: &Rng, number: u64, content: &LogContent) -> Group {
    let state = &content.hard_state;
    let base = if rng.below(2) == 0 {
        let index = content.base.index.get() + rng.below(content.entries.len() as u64 + 1);
        base(index, content.term(index).unwrap().get())
    } else {
        // Sometimes choose a base of a later term than all entries of this log.
        let term = state.term.get() + 1;
        base(state.commit.get() + 1 + rng.below(content.entries.len() as u64 + 20), term)
    };
    let alone = Group { number, base: Some(base), ..Group::default() };
    let mut after = content.after(&alone);
    let term = after.hard_state.term.max(base.term);
    if term > after.hard_state.term {
        after.hard_state = HardState { term, vote: None, ..after.hard_state };
    }
    let mut group = any_group(rng, number, &after);
    group.base = Some(base);
    let written = group.hard_state.is_some() || after.hard_state.term == content.hard_state.term;
    if !written {
        group.hard_state = Some(after.hard_state);
    }
    group
}
