//! Parses the texts of settings.

use std::str::FromStr;
use std::time::Duration;

pub(super) fn parse<T: FromStr<Err: std::fmt::Display>>(text: &str) -> Result<T, String> {
    text.trim().parse().map_err(|why| format!("invalid value {text:?}: {why}"))
}

/// Parses a whole number.
pub(super) fn count<T: TryFrom<u64>>(text: &str) -> Result<T, String> {
    let number = text.trim().parse::<u64>().ok().and_then(|number| T::try_from(number).ok());
    number.ok_or_else(|| format!("invalid value {text:?}: expected a whole number"))
}

/// Parses a number of bytes, with or without a unit.
pub(super) fn size<T: TryFrom<u64>>(text: &str) -> Result<T, String> {
    let units = [("", 0), ("B", 0), ("KiB", 10), ("MiB", 20), ("GiB", 30), ("TiB", 40)];
    let bytes = with_unit(text).and_then(|(number, unit)| {
        let (_, power) = units.into_iter().find(|(name, _)| *name == unit)?;
        T::try_from(number.checked_mul(1 << power)?).ok()
    });
    bytes.ok_or_else(|| {
        format!(
            "invalid size {text:?}: expected a number of bytes, or a number with KiB, MiB, GiB or TiB"
        )
    })
}

pub(super) fn duration(text: &str) -> Result<Duration, String> {
    let units = [("ms", 1), ("s", 1_000), ("m", 60_000), ("h", 3_600_000)];
    let millis = with_unit(text).and_then(|(number, unit)| {
        let (_, millis) = units.into_iter().find(|(name, _)| *name == unit)?;
        number.checked_mul(millis)
    });
    millis.map(Duration::from_millis).ok_or_else(|| {
        format!("invalid duration {text:?}: expected a number with a unit, such as 250ms, 5s or 2m")
    })
}

/// Splits a text into a whole number and its unit.
fn with_unit(text: &str) -> Option<(u64, &str)> {
    let text = text.trim();
    let split = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    Some((number.parse().ok()?, unit.trim()))
}

/// Parses a value that may be `off`.
pub(super) fn off<T>(
    text: &str,
    parse: impl Fn(&str) -> Result<T, String>,
) -> Result<Option<T>, String> {
    match text.trim() {
        "off" => Ok(None),
        _ => parse(text).map(Some).map_err(|why| format!("{why}, or off")),
    }
}

/// Splits a list at its commas. The empty text is an empty list.
pub(super) fn list(text: &str) -> impl Iterator<Item = &str> {
    let is_empty = text.trim().is_empty();
    text.split(',').map(str::trim).filter(move |_| !is_empty)
}

/// Returns how many characters must be added, removed or replaced to turn one text into the other.
pub(super) fn distance(a: &str, b: &str) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.bytes().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, y) in b.bytes().enumerate() {
            let replaced = diagonal + usize::from(x != y);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_durations_have_units() {
        assert_eq!(size::<u64>("1048576"), Ok(1 << 20));
        assert_eq!(size::<u64>(" 64 MiB "), Ok(64 << 20));
        assert_eq!(size::<usize>("3KiB"), Ok(3 << 10));
        for text in ["", "MiB", "-1", "1.5MiB", "64MB", "64mib", "99999999999999TiB"] {
            let why = size::<u64>(text).unwrap_err();
            assert!(why.contains("expected a number of bytes"), "{text}: {why}");
        }
        assert_eq!(duration("3 s"), Ok(Duration::from_secs(3)));
        assert_eq!(duration("2h"), Ok(Duration::from_secs(7200)));
        for text in ["", "5", "s", "-1s", "1.5s", "9999999999999999h"] {
            let why = duration(text).unwrap_err();
            assert!(why.contains("a number with a unit"), "{text}: {why}");
        }
        assert_eq!(off("off", duration), Ok(None));
        assert!(off("of", count::<u64>).unwrap_err().ends_with("a whole number, or off"));
        assert!(count::<u32>("4294967296").is_err());
        assert_eq!(list(" ").count(), 0);
    }

    #[test]
    fn distance_counts_changed_characters() {
        assert_eq!(
            (distance("abc", "abc"), distance("", "ab"), distance("kitten", "sitting")),
            (0, 2, 3)
        );
    }
}
