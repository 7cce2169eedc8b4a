//! Exports the metrics to a recorder of the crate `metrics`.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

use ::metrics::{Key, KeyName, Label, Level, Metadata, Recorder};

use super::Metrics;
use super::samples::{Labels, Number, Sink};

/// The gauges per peer that were exported so far.
pub(super) type ExportedPeers = Mutex<BTreeSet<Key>>;

impl Metrics {
    /// Sets every metric of a recorder of the crate [`metrics`](https://docs.rs/metrics/0.24) to its
    /// current value, under the names and with the labels of the [Prometheus
    /// text](Metrics::to_prometheus). Requires the crate feature `metrics`.
    ///
    /// Call this method periodically, or before each scrape. Both outputs are produced from the
    /// same snapshot of the node's own counters. So the outputs never disagree, and a recorder that
    /// is installed late, or replaced, shows the same values as other recorders. The node itself
    /// does not call the recorder, so a slow recorder does not slow the node down.
    ///
    /// - Counters are set with [`Counter::absolute`](metrics::Counter::absolute).
    /// - A histogram is exported as in Prometheus: as counters with the suffixes `_bucket` (with
    ///   the label `le`) and `_count`, and a gauge with the suffix `_sum`. The node keeps its
    ///   histograms in buckets, so the recorder's histograms could only approximate the values.
    /// - A recorder cannot forget a gauge. The gauge of a peer that has no value any more, for
    ///   example because this node is not the leader now, is set to 0.
    ///
    /// ```
    /// # use bowline::{Config, Node};
    /// # use std::time::Duration;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let node = Node::start(Config::new(dir.path(), "solo")).await?;
    /// let node_metrics = node.metrics();
    /// tokio::spawn(async move {
    ///     let mut every = tokio::time::interval(Duration::from_secs(10));
    ///     loop {
    ///         every.tick().await;
    ///         metrics::with_recorder(|recorder| node_metrics.export_to(recorder));
    ///     }
    /// });
    /// # tokio::task::yield_now().await;
    /// # node.shutdown().await;
    /// # Ok(())
    /// # }
    /// ```
    pub fn export_to(&self, recorder: &(impl Recorder + ?Sized)) {
        let mut export = Export { recorder, name: "", kind: "", peers: BTreeSet::new() };
        self.snapshot().show(&mut export);
        let now = export.peers;
        let mut exported = self.exported.lock().unwrap_or_else(PoisonError::into_inner);
        for gone in exported.difference(&now) {
            recorder.register_gauge(gone, &METADATA).set(0.0);
        }
        exported.extend(now);
    }
}

const METADATA: Metadata<'static> = Metadata::new("bowline", Level::INFO, Some("bowline"));

/// A recorder that receives one export.
struct Export<'a, R: ?Sized> {
    recorder: &'a R,
    name: &'static str,
    kind: &'static str,
    /// The gauges per peer.
    peers: BTreeSet<Key>,
}

impl<R: Recorder + ?Sized> Sink for Export<'_, R> {
    fn head(&mut self, name: &'static str, help: &'static str, kind: &'static str) {
        (self.name, self.kind) = (name, kind);
        let Self { recorder, .. } = self;
        let with = |suffix: &str| KeyName::from(format!("{name}{suffix}"));
        match kind {
            "counter" => recorder.describe_counter(with(""), None, help.into()),
            "histogram" => {
                recorder.describe_counter(with("_bucket"), None, help.into());
                recorder.describe_gauge(with("_sum"), None, help.into());
                recorder.describe_counter(with("_count"), None, help.into());
            }
            _ => recorder.describe_gauge(with(""), None, help.into()),
        }
    }

    fn sample(&mut self, suffix: &'static str, labels: &Labels, value: Number) {
        let each = labels.iter().map(|(name, value)| Label::new(name, value.to_owned()));
        let key = Key::from_parts(format!("{}{suffix}", self.name), each.collect::<Vec<Label>>());
        match value {
            Number::Whole(count) if self.kind != "gauge" => {
                self.recorder.register_counter(&key, &METADATA).absolute(count);
            }
            Number::Whole(number) => {
                self.recorder.register_gauge(&key, &METADATA).set(number as f64);
                if labels.iter().any(|(name, _)| name == "peer") {
                    self.peers.insert(key);
                }
            }
            Number::Real(number) => self.recorder.register_gauge(&key, &METADATA).set(number),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::time::Duration;

    use ::metrics::{Counter, Gauge, Histogram, SharedString, Unit};

    use super::*;
    use crate::metrics::{Ending, Meters, PeerLag, RequestKind};

    /// A recorder that keeps every value as text, in the form of the Prometheus text.
    #[derive(Default)]
    struct Recorded {
        counters: Mutex<BTreeMap<String, Arc<AtomicU64>>>,
        gauges: Mutex<BTreeMap<String, Arc<AtomicU64>>>,
        help: Mutex<BTreeMap<String, String>>,
    }

    fn line(key: &Key) -> String {
        let labels: Vec<String> =
            key.labels().map(|label| format!("{}={:?}", label.key(), label.value())).collect();
        format!("{}{{{}}}", key.name(), labels.join(","))
    }

    impl Recorded {
        fn describe(&self, name: &KeyName, help: &SharedString) {
            self.help.lock().unwrap().insert(name.as_str().to_owned(), help.to_string());
        }

        fn samples(&self) -> BTreeMap<String, f64> {
            let counters = self.counters.lock().unwrap();
            let gauges = self.gauges.lock().unwrap();
            let whole =
                counters.iter().map(|(at, value)| (at, value.load(Ordering::SeqCst) as f64));
            let real =
                gauges.iter().map(|(at, value)| (at, f64::from_bits(value.load(Ordering::SeqCst))));
            whole.chain(real).map(|(at, value)| (at.clone(), value)).collect()
        }
    }

    impl Recorder for Recorded {
        fn describe_counter(&self, name: KeyName, _: Option<Unit>, help: SharedString) {
            self.describe(&name, &help);
        }

        fn describe_gauge(&self, name: KeyName, _: Option<Unit>, help: SharedString) {
            self.describe(&name, &help);
        }

        fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {
            panic!("nothing is a histogram of the recorder");
        }

        fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
            let mut all = self.counters.lock().unwrap();
            Counter::from_arc(all.entry(line(key)).or_default().clone())
        }

        fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
            let mut all = self.gauges.lock().unwrap();
            Gauge::from_arc(all.entry(line(key)).or_default().clone())
        }

        fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
            panic!("nothing is a histogram of the recorder");
        }
    }

    fn parsed(text: &str) -> BTreeMap<String, f64> {
        let samples = text.lines().filter(|line| !line.starts_with('#'));
        let split = samples.map(|line| line.rsplit_once(' ').expect("a value"));
        split.map(|(at, value)| (at.to_owned(), value.parse().expect("a number"))).collect()
    }

    #[test]
    fn recorder_and_text_have_the_same_samples() {
        let meters = Arc::new(Meters::default());
        let metrics = Metrics::new("n \"1\"", meters.clone());
        let recorded = Recorded::default();
        for round in 1..=3 {
            meters.ended(RequestKind::Put, Ending::Ok, Duration::from_micros(100 << (round * 3)));
            meters.inbox_inputs.add(round);
            meters.term.set(round as u64);
            let peers = ["n2", "n3"].map(|peer| PeerLag {
                peer: peer.to_owned(),
                entries: round as u64,
                active: true,
            });
            meters.peer_lag_entries.set(peers.into());
            metrics.export_to(&recorded);
            assert_eq!(recorded.samples(), parsed(&metrics.to_prometheus()));
        }
        let text = metrics.to_prometheus();
        let help = recorded.help.lock().unwrap();
        for line in text.lines().filter_map(|line| line.strip_prefix("# HELP ")) {
            let (name, words) = line.split_once(' ').unwrap();
            let found = help.get(name).or_else(|| help.get(&format!("{name}_bucket")));
            assert_eq!(found.map(String::as_str), Some(words), "{name}");
        }
    }

    #[test]
    fn gauge_of_a_peer_without_a_value_becomes_zero() {
        let meters = Arc::new(Meters::default());
        let (metrics, recorded) = (Metrics::new("n1", meters.clone()), Recorded::default());
        let lag = PeerLag { peer: "n2".to_owned(), entries: 7, active: true };
        meters.peer_lag_entries.set(vec![lag]);
        metrics.export_to(&recorded);
        let gauge = r#"bowline_peer_lag_entries{node="n1",peer="n2"}"#;
        assert_eq!(recorded.samples()[gauge], 7.0);
        meters.peer_lag_entries.set(Vec::new());
        metrics.clone().export_to(&recorded as &dyn Recorder);
        assert_eq!(recorded.samples()[gauge], 0.0);
    }
}
