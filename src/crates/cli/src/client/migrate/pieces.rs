//! Reassembles fragmented watch responses.

use bowline_proto::etcdserverpb as pb;
use bowline_proto::mvccpb::Event;

/// The fragments received so far of an incomplete response.
#[derive(Debug, Default)]
pub(crate) struct Pieces(Vec<Event>);

impl Pieces {
    /// Returns the events of a completed response, or `None` while fragments are missing.
    ///
    /// A response without events never completes a fragmented response. A response without events that arrives between
    /// two fragments is not a progress notification, because earlier events are still to be delivered.
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
            let kv = bowline_proto::mvccpb::KeyValue { version: *version, ..Default::default() };
            Event { kv: Some(kv), ..Default::default() }
        };
        let events = versions.iter().map(event).collect();
        pb::WatchResponse { events, fragment, ..Default::default() }
    }

    #[test]
    fn fragmented_watch_response_ends_with_its_last_fragment() {
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
        assert_eq!(add(progress()), Some(vec![]), "no fragment is missing");
        assert_eq!(add(answer(&[3], true)), None);
        assert_eq!(add(progress()), None, "a fragment is missing");
        assert_eq!(add(answer(&[4], true)), None);
        assert_eq!(add(answer(&[5], false)), Some(vec![3, 4, 5]));
        assert_eq!(add(progress()), Some(vec![]));
    }
}
