//! Canonical decimal encoding of integers in values. Each number has exactly one encoding, because
//! values are compared as bytes.

use std::fmt::Display;
use std::str::FromStr;

/// Parses a number, and returns `None` if the value is not in canonical form.
pub(crate) fn number_in<N: FromStr + Display>(value: &[u8]) -> Option<N> {
    let number: N = std::str::from_utf8(value).ok()?.parse().ok()?;
    (number.to_string().as_bytes() == value).then_some(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decimal_is_parsed_in_canonical_form_only() {
        for text in ["", "x", " 5", "5 ", "+5", "05", "-0", "5.0"] {
            assert_eq!(number_in::<i64>(text.as_bytes()), None, "{text:?}");
            assert_eq!(number_in::<u64>(text.as_bytes()), None, "{text:?}");
        }
        assert_eq!(number_in::<u64>(b"-1"), None);
        assert_eq!(number_in::<u64>(b"18446744073709551615"), Some(u64::MAX));
        assert_eq!(number_in::<i64>(b"-5"), Some(-5));
        assert_eq!(number_in::<i64>(b"9223372036854775808"), None);
        assert_eq!(number_in::<u64>(b"\xff"), None);
    }
}
