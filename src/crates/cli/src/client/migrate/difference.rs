//! Computes the changes that make a range of the target equal to the source, from the rows of both clusters in key
//! order. The functions here do no I/O.

use bytes::Bytes;

use bowline_proto::mvccpb::KeyValue;

/// A row of the source.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Row {
    /// Key at the source.
    pub(crate) name: Bytes,
    /// The row, under its key at the target.
    pub(crate) row: KeyValue,
}

/// The kinds of changes that an import may make at the target.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(crate) struct Rules {
    /// Overwrite keys that have another value at the target.
    pub(crate) overwrite: bool,
    /// Delete keys that exist only at the target.
    pub(crate) delete: bool,
}

/// The changes for a key range, and the keys that the import does not change.
#[derive(Default, PartialEq, Debug)]
pub(crate) struct Difference {
    /// Rows to put.
    pub(crate) puts: Vec<KeyValue>,
    /// Keys to delete.
    pub(crate) deletes: Vec<Bytes>,
    /// Keys with another value at the target, which the import is not allowed to overwrite.
    pub(crate) refused: Vec<Bytes>,
    /// Keys that exist only at the target and are kept.
    pub(crate) beside: Vec<Bytes>,
    /// Keys with a lease at the source, which are not copied.
    pub(crate) left_out: Vec<(Bytes, i64)>,
    /// Number of rows that are equal in both clusters.
    pub(crate) equal: u64,
}

impl Difference {
    /// Compares the rows of both clusters. `ours` returns whether this import made the given revision of the target.
    pub(crate) fn of(
        source: &[Row],
        target: &[KeyValue],
        rules: Rules,
        ours: impl Fn(i64) -> bool,
    ) -> Self {
        let mut all = Difference::default();
        let only_there = |all: &mut Difference, other: &KeyValue| {
            // A key with a lease belongs to a client that already uses the target.
            let may = rules.delete && other.lease == 0;
            let list =
                if may || ours(other.mod_revision) { &mut all.deletes } else { &mut all.beside };
            list.push(other.key.clone());
        };
        let mut there = target.iter().peekable();
        for Row { name, row } in source {
            while let Some(other) = there.next_if(|other| other.key < row.key) {
                only_there(&mut all, other);
            }
            let found = there.next_if(|other| other.key == row.key);
            if row.lease != 0 {
                all.left_out.push((name.clone(), row.lease));
                // The key may have been copied before the source attached it to a lease.
                let is_stale = |found: &&KeyValue| {
                    ours(found.mod_revision) || (rules.delete && found.lease == 0)
                };
                all.deletes.extend(found.filter(is_stale).map(|found| found.key.clone()));
                continue;
            }
            match found {
                Some(found) if found.value == row.value && found.lease == row.lease => {
                    all.equal += 1
                }
                Some(found) if !rules.overwrite && !ours(found.mod_revision) => {
                    all.refused.push(found.key.clone());
                }
                _ => all.puts.push(row.clone()),
            }
        }
        for other in there {
            only_there(&mut all, other);
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Parses `key=value`, optionally followed by `@lease` and `#revision`.
    fn rows(text: &str) -> Vec<KeyValue> {
        let row = |word: &str| {
            let (word, revision) = word.split_once('#').unwrap_or((word, "1"));
            let (word, lease) = word.split_once('@').unwrap_or((word, "0"));
            let (key, value) = word.split_once('=').unwrap();
            KeyValue {
                key: key.to_owned().into(),
                value: value.to_owned().into(),
                lease: lease.parse().unwrap(),
                mod_revision: revision.parse().unwrap(),
                ..Default::default()
            }
        };
        text.split_whitespace().map(row).collect()
    }

    fn summary(source: &str, target: &str, rules: Rules) -> String {
        let source: Vec<_> =
            rows(source).into_iter().map(|row| Row { name: row.key.clone(), row }).collect();
        let all = Difference::of(&source, &rows(target), rules, |revision| revision == 7);
        let names = |keys: Vec<&Bytes>| {
            keys.iter()
                .map(|key| String::from_utf8_lossy(key).into_owned())
                .collect::<Vec<_>>()
                .join(",")
        };
        let puts = names(all.puts.iter().map(|row| &row.key).collect());
        let parts = [
            ("put", puts),
            ("delete", names(all.deletes.iter().collect())),
            ("refused", names(all.refused.iter().collect())),
            ("beside", names(all.beside.iter().collect())),
            ("out", names(all.left_out.iter().map(|(key, _)| key).collect())),
            ("equal", if all.equal == 0 { String::new() } else { all.equal.to_string() }),
        ];
        let parts = parts.iter().filter(|(_, names)| !names.is_empty());
        parts.map(|(what, names)| format!("{what} {names}")).collect::<Vec<_>>().join("; ")
    }

    #[test]
    fn migration_plan_follows_from_both_sides_and_the_rules() {
        let plain = Rules::default();
        let over = Rules { overwrite: true, ..plain };
        let sync = Rules { delete: true, ..over };
        for (source, target, rules, what) in [
            ("a=1 b=2", "", plain, "put a,b"),
            ("a=1 b=2", "a=1", plain, "put b; equal 1"),
            ("a=1 b=2", "b=3", plain, "put a; refused b"),
            ("a=1 b=2", "b=3", over, "put a,b"),
            ("b=2", "b=3#7", plain, "put b"),
            ("b=2", "a=0 b=2 c=0", plain, "beside a,c; equal 1"),
            ("b=2", "a=0 b=2 c=0#7", plain, "delete c; beside a; equal 1"),
            ("b=2", "a=0 b=2 c=0@3", sync, "delete a; beside c; equal 1"),
            ("a=1@5 b=2", "", plain, "put b; out a"),
            ("a=1@5", "a=0", over, "out a"),
            ("a=1@5", "a=0#7", plain, "delete a; out a"),
            ("a=1@5", "a=0", sync, "delete a; out a"),
            ("a=1@5", "a=0@3", sync, "out a"),
            ("a=1", "a=1@5", plain, "refused a"),
            ("", "a=1 b=1", plain, "beside a,b"),
        ] {
            assert_eq!(summary(source, target, rules), what, "{source} | {target} | {rules:?}");
        }
    }
}
