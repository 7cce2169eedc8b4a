//! The rows of the comparison, and the results of a row.

use std::time::Duration;

use super::redis;
use super::report::{Headline, Ratio, RowReport, RowResult};
use super::systems::System;
use crate::crew::{Measured, Sample, Spread, site};
use crate::served;

/// A row of the comparison. A system without a workload is not part of the row.
pub(super) struct Row {
    pub(super) name: &'static str,
    pub(super) headline: Headline,
    /// Number of concurrent callers or clients; for watches, of writers.
    pub(super) callers: u64,
    pub(super) embedded: Option<site::Work>,
    pub(super) served: Option<served::Work>,
    pub(super) redis: Option<redis::Work>,
}

const fn put(name: &'static str, callers: u64) -> Row {
    Row {
        name,
        headline: if callers == 1 { Headline::Latency } else { Headline::Rate },
        callers,
        embedded: Some(site::Work::Put),
        served: Some(served::Work::Put),
        redis: Some(redis::Work::Set),
    }
}

const fn get(name: &'static str, callers: u64) -> Row {
    Row {
        embedded: Some(site::Work::Get),
        served: Some(served::Work::Range),
        redis: Some(redis::Work::Get),
        ..put(name, callers)
    }
}

/// All rows, in the order of the table.
pub(super) const ROWS: [Row; 11] = [
    put("put, 1 caller", 1),
    put("put, 4 callers", 4),
    put("put, 16 callers", 16),
    put("put, 64 callers", 64),
    put("put, 256 callers", 256),
    get("linearizable get, 1 caller", 1),
    get("linearizable get, 64 callers", 64),
    Row {
        embedded: Some(site::Work::Lock),
        served: Some(served::Work::Lock),
        redis: Some(redis::Work::Lock),
        ..put("lock and unlock, 64 callers", 64)
    },
    Row {
        embedded: Some(site::Work::CompareAndSet),
        served: Some(served::Work::CompareAndSet),
        redis: Some(redis::Work::CompareAndSet),
        ..put("compare-and-set, 64 callers", 64)
    },
    // Redis has no watch. Its publish and subscribe lose messages when a connection breaks.
    Row {
        embedded: Some(site::Work::Watch),
        served: Some(served::Work::Watch),
        redis: None,
        ..put("watch, events, 100 watchers, 64 writers", 64)
    },
    // Embedded sessions renew themselves, and Redis has no leases.
    Row {
        embedded: None,
        served: Some(served::Work::KeepAlive),
        redis: None,
        ..put("lease keep-alive, 1 client", 1)
    },
];

/// The pairs of systems whose ratios are computed, from the pairs of measurements of each round.
const RATIOS: [(System, System); 4] = [
    (System::Embedded, System::Etcd),
    (System::Served, System::Etcd),
    (System::Embedded, System::Redis),
    (System::Served, System::Redis),
];

/// The percentiles of the latency distributions, as parts of 1.
const QUANTILES: [f64; 17] =
    [0.0, 0.01, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99, 0.995, 0.999];

/// The measurements of a row so far.
#[derive(Default)]
pub(super) struct RowMeasurements(Vec<Measurements>);

/// The measurements of one system.
struct Measurements {
    system: System,
    rounds: Vec<Sample>,
    latencies: Measured,
}

impl RowMeasurements {
    /// Adds the measurement of the next round.
    pub(super) fn add(&mut self, system: System, measured: &Measured, cpu: Duration) {
        let known = self.0.iter().position(|other| other.system == system);
        let at = known.unwrap_or_else(|| {
            let (rounds, latencies) = (Vec::new(), Measured::new(Duration::ZERO));
            self.0.push(Measurements { system, rounds, latencies });
            self.0.len() - 1
        });
        self.0[at].rounds.push(Sample::of(measured, cpu));
        self.0[at].latencies.merge(measured);
    }

    /// Computes the results of the row.
    pub(super) fn finish(self, row: &Row) -> RowReport {
        let rounds_of = |system: System| {
            self.0.iter().find(|other| other.system == system).map(|found| &found.rounds)
        };
        let ratio = |(of, to): (System, System)| {
            let (ours, theirs) = (rounds_of(of)?, rounds_of(to)?);
            let spread = |figure: fn(&Sample) -> f64| {
                Spread::of(ours.iter().zip(theirs).map(|(a, b)| figure(a) / figure(b)))
            };
            let (rate, median) = (spread(|s| s.rate), spread(|s| s.median_us));
            Some(Ratio { of, to, rate, median })
        };
        let ratios = RATIOS.into_iter().filter_map(ratio).collect();
        let mut results: Vec<RowResult> = self.0.iter().map(Measurements::result).collect();
        results.sort_by_key(|result| result.system);
        let (name, headline, callers) = (row.name.to_owned(), row.headline, row.callers);
        RowReport { name, headline, callers, results, ratios }
    }
}

impl Measurements {
    fn result(&self) -> RowResult {
        let spread = |figure: fn(&Sample) -> f64| Spread::of(self.rounds.iter().map(figure));
        let at = |quantile: f64| (quantile, self.latencies.micros(quantile));
        RowResult {
            system: self.system,
            rate: spread(|s| s.rate),
            median_us: spread(|s| s.median_us),
            p99_us: spread(|s| s.p99_us),
            cpu_us: spread(|s| s.cpu_us),
            rounds: self.rounds.clone(),
            quantiles_us: QUANTILES.map(at).to_vec(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A measurement of one second.
    fn measured(latency_us: u64, count: u64) -> Measured {
        let mut measured = Measured::new(Duration::from_secs(1));
        (0..count).for_each(|_| measured.add(Duration::from_micros(latency_us)));
        measured
    }

    #[test]
    fn ratios_are_of_the_same_round() {
        let mut row = RowMeasurements::default();
        // Both systems are twice as slow in the second round, and their ratio is the same.
        for (etcd, embedded) in [(100, 200), (50, 100), (100, 220)] {
            row.add(System::Etcd, &measured(1_000, etcd), Duration::ZERO);
            row.add(System::Embedded, &measured(500, embedded), Duration::ZERO);
        }
        let row = row.finish(&ROWS[3]);
        let [ratio] = &row.ratios[..] else { panic!("one pair of systems: {:?}", row.ratios) };
        assert_eq!((ratio.of, ratio.to), (System::Embedded, System::Etcd));
        assert_eq!(ratio.rate, Spread { median: 2.0, min: 2.0, max: 2.2 });
        assert!((ratio.median.median - 0.5).abs() < 0.01, "{ratio:?}");
        assert_eq!(row.results[0].system, System::Embedded);
        assert_eq!(row.results[0].rate, Spread { median: 200.0, min: 100.0, max: 220.0 });
        assert_eq!(row.results[1].rounds.len(), 3);
    }
}
