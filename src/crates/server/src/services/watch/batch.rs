//! Converts the events of a watch to the protocol, in fragments if they are too large.

use bowline::{Event, EventKind, Filter, Revision};
use prost::Message;

use crate::wire::event;
use bowline_proto::etcdserverpb as pb;
use bowline_proto::mvccpb;
use pb::watch_create_request::FilterType::{Nodelete, Noput};

/// Returns the filter for the library, which supports one filter. If the request has two, [`translate`] applies the
/// other.
pub(crate) fn filter(request: &pb::WatchCreateRequest) -> Filter {
    let has = |wanted| request.filters().any(|filter| filter == wanted);
    match (has(Noput), has(Nodelete)) {
        (true, _) => Filter::NoPut,
        (false, true) => Filter::NoDelete,
        (false, false) => Filter::All,
    }
}

/// Converts the events that pass the filters.
pub(crate) fn translate(events: Vec<Event>, no_puts: bool, no_deletes: bool) -> Vec<mvccpb::Event> {
    let wanted = |kind| match kind {
        EventKind::Put => !no_puts,
        EventKind::Delete => !no_deletes,
    };
    events.into_iter().filter(|event| wanted(event.kind)).map(event).collect()
}

/// Splits a response into the events up to a revision and those after it.
pub(crate) fn split(
    whole: pb::WatchResponse,
    revision: Revision,
) -> (pb::WatchResponse, pb::WatchResponse) {
    let is_before = |event: &mvccpb::Event| {
        event.kv.as_ref().is_none_or(|kv| kv.mod_revision <= revision.get() as i64)
    };
    let mut events = whole.events;
    let frame = pb::WatchResponse { events: Vec::new(), ..whole };
    let later = events.split_off(events.partition_point(is_before));
    let with = |events| pb::WatchResponse { events, ..frame.clone() };
    (with(events), with(later))
}

/// Splits a response into fragments smaller than `bytes_max`. A fragment is larger only if a single event is. All
/// fragments except the last are marked as fragments.
pub(crate) fn pieces(whole: pb::WatchResponse, bytes_max: usize) -> Vec<pb::WatchResponse> {
    if whole.encoded_len() < bytes_max || whole.events.len() < 2 {
        return vec![whole];
    }
    let frame = pb::WatchResponse { events: Vec::new(), fragment: true, ..whole.clone() };
    let frame_bytes = frame.encoded_len();
    let (mut pieces, mut piece, mut bytes) = (Vec::new(), frame.clone(), frame_bytes);
    for event in whole.events {
        // The size of an event in a response is its length plus the bytes of its length prefix and its tag.
        let more = event.encoded_len() + 8;
        if !piece.events.is_empty() && bytes + more >= bytes_max {
            pieces.push(std::mem::replace(&mut piece, frame.clone()));
            bytes = frame_bytes;
        }
        bytes += more;
        piece.events.push(event);
    }
    pieces.push(pb::WatchResponse { fragment: false, ..piece });
    pieces
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event_of(bytes: usize) -> mvccpb::Event {
        let kv = mvccpb::KeyValue { value: vec![0; bytes].into(), ..Default::default() };
        mvccpb::Event { kv: Some(kv), ..Default::default() }
    }

    #[test]
    fn response_is_split_at_a_revision_boundary() {
        let at = |mod_revision| mvccpb::Event {
            kv: Some(mvccpb::KeyValue { mod_revision, ..Default::default() }),
            ..Default::default()
        };
        let whole = pb::WatchResponse {
            watch_id: 7,
            events: [4, 4, 5, 8].map(at).into(),
            ..Default::default()
        };
        for (revision, before) in [(3, 0), (4, 2), (5, 3), (7, 3), (8, 4)] {
            let (first, rest) = split(whole.clone(), Revision(revision));
            assert_eq!((first.watch_id, rest.watch_id), (7, 7));
            assert_eq!(first.events, whole.events[..before]);
            assert_eq!(rest.events, whole.events[before..]);
        }
    }

    #[test]
    fn oversized_response_is_fragmented_with_a_fragment_flag() {
        let cases: [(&[usize], &[usize]); 5] = [
            (&[10, 10], &[2]),
            (&[60, 60], &[1, 1]),
            (&[30, 30, 30, 30], &[2, 2]),
            (&[200, 10, 10], &[1, 2]),
            (&[500], &[1]),
        ];
        for (sizes, counts) in cases {
            let events = sizes.iter().map(|bytes| event_of(*bytes)).collect();
            let whole = pb::WatchResponse { watch_id: 7, events, ..Default::default() };
            let pieces = pieces(whole.clone(), 100);
            let found: Vec<_> = pieces.iter().map(|piece| piece.events.len()).collect();
            assert_eq!(found, counts, "{sizes:?}");
            let (last, others) = pieces.split_last().unwrap();
            assert!(!last.fragment && others.iter().all(|piece| piece.fragment));
            assert!(pieces.iter().all(|piece| piece.watch_id == 7));
            let events: Vec<_> = pieces.into_iter().flat_map(|piece| piece.events).collect();
            assert_eq!(events, whole.events);
        }
    }
}
