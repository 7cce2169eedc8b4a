//! What a watch answers, put together again where it came in pieces.

use crate::generated::etcdserverpb as pb;
use crate::generated::mvccpb::Event;

/// The pieces so far of a row that has not ended.
#[derive(Debug, Default)]
pub(crate) struct Pieces(Vec<Event>);

impl Pieces {
    /// The events that this answer makes whole; none while more of them is to come.
    ///
    /// An answer without events ends no row, and within one it tells nothing: there is something from before it that
    /// has not been told.
    pub(crate) fn add(&mut self, answer: pb::WatchResponse) -> Option<Vec<Event>> {
        let is_between = answer.events.is_empty() && !self.0.is_empty();
        let has_more = answer.fragment || is_between;
        self.0.extend(answer.events);
        (!has_more).then(|| std::mem::take(&mut self.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(versions: &[i64], fragment: bool) -> pb::WatchResponse {
        let event = |version: &i64| {
            let kv = crate::generated::mvccpb::KeyValue { version: *version, ..Default::default() };
            Event { kv: Some(kv), ..Default::default() }
        };
        let events = versions.iter().map(event).collect();
        pb::WatchResponse { events, fragment, ..Default::default() }
    }

    #[test]
    fn a_row_of_pieces_ends_with_its_last_piece_whatever_comes_between() {
        let progress = || answer(&[], false);
        let mut pieces = Pieces::default();
        let mut add = |answer| {
            let events: Option<Vec<Event>> = pieces.add(answer);
            events.map(|events| {
                let version = |event: Event| event.kv.unwrap_or_default().version;
                events.into_iter().map(version).collect::<Vec<_>>()
            })
        };
        assert_eq!(add(answer(&[1, 2], false)), Some(vec![1, 2]), "no pieces");
        assert_eq!(add(progress()), Some(vec![]), "all was whole");
        assert_eq!(add(answer(&[3], true)), None);
        assert_eq!(add(progress()), None, "all is not");
        assert_eq!(add(answer(&[4], true)), None);
        assert_eq!(add(answer(&[5], false)), Some(vec![3, 4, 5]));
        assert_eq!(add(progress()), Some(vec![]));
    }
}
