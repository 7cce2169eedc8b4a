//! Serializes the values of metrics.

use serde::ser::{Serialize, SerializeMap, SerializeStruct, Serializer};

use super::snapshot::{Histogram, PeerLag, PeerLink, PeerQueue};
use super::{ByLabel, Label};

/// The value of a metric.
pub(super) struct Value<'a, T>(pub(super) &'a T);

/// Implements serialization for values that serialize themselves.
macro_rules! plain {
    ($($type:ty),*) => {$(
        impl Serialize for Value<'_, $type> {
            fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
                self.0.serialize(to)
            }
        }
    )*};
}

plain!(u64, Histogram, Vec<PeerLag>, Vec<PeerQueue>, Vec<PeerLink>);

impl<L: Label, V> Serialize for Value<'_, ByLabel<L, V>>
where
    for<'v> Value<'v, V>: Serialize,
{
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let mut all = to.serialize_map(Some(self.0.len()))?;
        for (label, value) in self.0 {
            all.serialize_entry(label.text(), &Value(value))?;
        }
        all.end()
    }
}

/// An object with the fields `count`, `sum` and `buckets`. Each bucket has its upper bound `le` and
/// the `count` of the values at or below it. Later buckets, with the same count as the last one, are
/// left out.
impl Serialize for Histogram {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let count = self.count();
        let mut buckets: Vec<Bucket> = Vec::new();
        for (le, below) in self.cumulative().filter(|_| count > 0) {
            if le.is_finite() {
                buckets.push(Bucket { le, count: below });
            }
            if below == count {
                break;
            }
        }
        let mut all = to.serialize_struct("Histogram", 3)?;
        all.serialize_field("count", &count)?;
        all.serialize_field("sum", &self.sum())?;
        all.serialize_field("buckets", &buckets)?;
        all.end()
    }
}

#[derive(serde::Serialize)]
struct Bucket {
    le: f64,
    count: u64,
}

#[cfg(all(test, feature = "json"))]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use crate::metrics::{Ending, Meters, Metrics, PeerLag, RequestKind};

    #[test]
    fn snapshot_is_an_object_with_a_field_for_each_metric() {
        let meters = Arc::new(Meters::default());
        meters.ended(RequestKind::Put, Ending::Ok, Duration::from_micros(20));
        let lag = PeerLag { peer: "n2".to_owned(), entries: 7, active: true };
        meters.peer_lag_entries.set(vec![lag]);
        let snapshot = Metrics::new("n1", meters).snapshot();
        let json = serde_json::to_value(&snapshot).unwrap();
        assert_eq!(json.as_object().unwrap().len(), crate::metrics::NAMES.len() + 1);
        assert_eq!(json["node"], "n1");
        assert_eq!(json["requests_total"]["put"]["ok"], 1);
        assert_eq!(json["term"], 0);
        let expected = serde_json::json!({
            "count": 1, "sum": 0.00002,
            "buckets": [{"le": 0.000016, "count": 0}, {"le": 0.000024, "count": 1}],
        });
        assert_eq!(json["request_seconds"]["put"], expected);
        let none = serde_json::json!({"count": 0, "sum": 0.0, "buckets": []});
        assert_eq!(json["turn_seconds"], none);
        let peers = serde_json::json!([{"peer": "n2", "entries": 7, "active": true}]);
        assert_eq!(json["peer_lag_entries"], peers);
    }
}
