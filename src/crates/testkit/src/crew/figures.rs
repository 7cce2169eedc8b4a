//! The figures of one measurement, and their spread over several measurements.

use std::time::Duration;

use super::Measured;

/// The figures of one measurement.
#[derive(Clone, Default, Debug, PartialEq)]
#[cfg_attr(feature = "versus", derive(serde::Serialize))]
pub struct Sample {
    /// Operations per second.
    pub rate: f64,
    /// Median latency in microseconds.
    pub median_us: f64,
    /// 99th percentile of the latency in microseconds.
    pub p99_us: f64,
    /// CPU time per operation in microseconds.
    pub cpu_us: f64,
    /// Number of operations.
    pub count: u64,
}

impl Sample {
    /// Computes the figures. `cpu` is the CPU time of all operations.
    pub fn of(measured: &Measured, cpu: Duration) -> Self {
        let count = measured.count();
        Self {
            rate: measured.rate(),
            median_us: measured.micros(0.5),
            p99_us: measured.micros(0.99),
            cpu_us: cpu.as_secs_f64() * 1e6 / count.max(1) as f64,
            count,
        }
    }
}

/// Minimum, median and maximum.
#[derive(Clone, Copy, Default, Debug, PartialEq)]
#[cfg_attr(feature = "versus", derive(serde::Serialize))]
pub struct Spread {
    pub median: f64,
    pub min: f64,
    pub max: f64,
}

impl Spread {
    /// Computes the spread. Of an even number of values, the median is the mean of the two in the middle. Without
    /// values, everything is zero.
    pub fn of(numbers: impl IntoIterator<Item = f64>) -> Self {
        let mut numbers: Vec<f64> = numbers.into_iter().collect();
        numbers.sort_by(f64::total_cmp);
        let (Some(min), Some(max)) = (numbers.first(), numbers.last()) else {
            return Self::default();
        };
        let middle = numbers.len() / 2;
        let median = match numbers.len() % 2 {
            1 => numbers[middle],
            _ => f64::midpoint(numbers[middle - 1], numbers[middle]),
        };
        Self { median, min: *min, max: *max }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spread_is_of_sorted_numbers() {
        let spread = Spread::of([3.0, 1.0, 9.0, 2.0, 8.0]);
        assert_eq!(spread, Spread { median: 3.0, min: 1.0, max: 9.0 });
        let even = Spread::of([4.0, 1.0, 2.0, 10.0]);
        assert_eq!(even, Spread { median: 3.0, min: 1.0, max: 10.0 });
        assert_eq!(Spread::of([]), Spread::default());
    }

    #[test]
    fn sample_divides_by_time_and_count() {
        let mut measured = Measured::new(Duration::from_secs(2));
        for millis in 1..=100 {
            measured.add(Duration::from_millis(millis));
        }
        let sample = Sample::of(&measured, Duration::from_millis(300));
        assert_eq!((sample.rate, sample.count, sample.cpu_us), (50.0, 100, 3_000.0));
        // The histogram keeps three digits.
        assert!((sample.median_us - 50_000.0).abs() < 50.0, "{sample:?}");
        assert!((sample.p99_us - 99_000.0).abs() < 99.0, "{sample:?}");
        let nothing = Sample::of(&Measured::new(Duration::from_secs(1)), Duration::ZERO);
        assert_eq!(nothing, Sample::default());
    }
}
