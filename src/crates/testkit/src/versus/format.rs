//! Numbers as text.

use super::report::Headline;
use crate::crew::Spread;

/// Formats a number of at least 100 with groups of three digits, and a smaller one with two or three digits in all.
pub(super) fn number(value: f64) -> String {
    if !value.is_finite() {
        return "-".to_owned();
    }
    match value.abs() {
        under if under < 10.0 => format!("{value:.2}"),
        under if under < 100.0 => format!("{value:.1}"),
        _ => grouped(value.round() as i64),
    }
}

fn grouped(value: i64) -> String {
    let digits = value.abs().to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    if value < 0 { format!("-{text}") } else { text }
}

/// Formats a median with its minimum and maximum.
pub(super) fn spread(spread: Spread) -> String {
    let Spread { median, min, max } = spread;
    if !median.is_finite() {
        return "-".to_owned();
    }
    format!("{} ({} to {})", number(median), number(min), number(max))
}

/// Formats microseconds in the unit that suits.
pub(super) fn micros(value: f64) -> String {
    match value {
        under if under < 1_000.0 => format!("{} µs", number(value)),
        under if under < 1_000_000.0 => format!("{} ms", number(value / 1e3)),
        _ => format!("{} s", number(value / 1e6)),
    }
}

/// Formats the figure that the summary compares.
pub(super) fn headline(headline: Headline, value: f64) -> String {
    match headline {
        Headline::Rate => format!("{}/s", number(value)),
        Headline::Latency => micros(value),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_few_digits() {
        for (value, text) in [
            (0.347, "0.35"),
            (9.5, "9.50"),
            (42.04, "42.0"),
            (999.6, "1,000"),
            (40_213.4, "40,213"),
            (1_250_000.0, "1,250,000"),
            (-1_000.0, "-1,000"),
            (f64::NAN, "-"),
        ] {
            assert_eq!(number(value), text);
        }
        assert_eq!(micros(533.2), "533 µs");
        assert_eq!(micros(29_753.0), "29.8 ms");
        assert_eq!(micros(1_241_000.0), "1.24 s");
        let of = Spread { median: 10.0, min: 9.0, max: 12.0 };
        assert_eq!(spread(of), "10.0 (9.00 to 12.0)");
        assert_eq!(spread(Spread { median: f64::INFINITY, ..of }), "-");
    }
}
