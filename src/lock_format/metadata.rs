//! Entry metadata: the value of a queue entry's row. The metadata contains the lock mode and, for
//! operators, the source location and the reason of the request.
//!
//! The value consists of lines of readable text. A value without the Bowline prefix was written by
//! another client and counts as a mutex. Clients of etcd write an empty value, or the name of a
//! candidate.
//!
//! ```text
//!   bowline:1 semaphore 4 2 owner=694d7f2.3       mode with its numbers, and the owner if there is one
//!   src/jobs.rs:41 task 17                        source location and task
//!   nightly                                       name of the owner
//!   rebuilding the index                          reason, up to the end
//! ```

use bytes::Bytes;

use super::mode::LockMode;
use crate::model::LeaseId;

/// Prefix of values written by Bowline. A candidate's value must not begin with this prefix.
pub(crate) const MARK: &[u8] = b"bowline:1 ";

/// Maximum length of a stored `site` in bytes. From a longer path the beginning is removed, because
/// the end is more specific.
const SITE_BYTES_MAX: usize = 80;

/// The metadata of a queue entry.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct EntryMetadata {
    pub(crate) mode: LockMode,
    /// Cluster-wide id of the entry's owner, or empty.
    pub(crate) owner: String,
    /// Name of the entry's owner, or empty.
    pub(crate) owner_name: String,
    /// Source location and task.
    pub(crate) site: String,
    /// Reason given with the request.
    pub(crate) reason: Bytes,
}

impl EntryMetadata {
    /// Returns metadata with this mode, without owner and reason.
    pub(crate) fn new(mode: LockMode, site: String) -> Self {
        let (owner, owner_name) = (String::new(), String::new());
        Self { mode, owner, owner_name, site, reason: Bytes::new() }
    }

    /// Encodes the metadata as a row's value.
    pub(crate) fn to_value(&self) -> Bytes {
        let mut text = String::with_capacity(96);
        text.push_str("bowline:1 ");
        match &self.mode {
            // The library never writes rows with the mode `Foreign`.
            LockMode::Mutex | LockMode::Foreign => text.push_str("mutex"),
            LockMode::Read => text.push_str("read"),
            LockMode::Write => text.push_str("write"),
            LockMode::Upgrade(of) => {
                text.push_str("upgrade ");
                let last = of.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
                text.push_str(&String::from_utf8_lossy(last));
            }
            LockMode::Permits { limit, wants } => {
                text.push_str(&format!("semaphore {limit} {wants}"));
            }
        }
        if !self.owner.is_empty() {
            text.push_str(" owner=");
            text.push_str(&self.owner);
        }
        let cut = self.site.len().saturating_sub(SITE_BYTES_MAX);
        let cut = (cut..).find(|at| self.site.is_char_boundary(*at)).unwrap_or_default();
        for line in [&self.site[cut..], &self.owner_name] {
            text.push('\n');
            text.extend(line.chars().map(|c| if c == '\n' { ' ' } else { c }));
        }
        text.push('\n');
        let mut value = text.into_bytes();
        value.extend_from_slice(&self.reason);
        value.into()
    }

    /// Parses the value of the row with this key. Returns `None` if Bowline did not write the
    /// value.
    pub(crate) fn parse(key: &[u8], value: &Bytes) -> Option<EntryMetadata> {
        let rest = value.strip_prefix(MARK)?;
        let mut lines = rest.splitn(4, |byte| *byte == b'\n');
        let text =
            |line: Option<&[u8]>| String::from_utf8_lossy(line.unwrap_or_default()).into_owned();
        let head = text(lines.next());
        let (site, owner_name) = (text(lines.next()), text(lines.next()));
        let reason = lines.next().map(|reason| value.slice_ref(reason)).unwrap_or_default();
        let (head, owner) = head.split_once(" owner=").unwrap_or((&head, ""));
        let mut words = head.split(' ');
        let mode = match words.next()? {
            "mutex" => LockMode::Mutex,
            "read" => LockMode::Read,
            "write" => LockMode::Write,
            "upgrade" => {
                let slash = key.iter().rposition(|byte| *byte == b'/')?;
                LockMode::Upgrade([&key[..=slash], words.next()?.as_bytes()].concat().into())
            }
            "semaphore" => {
                let (limit, wants) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
                LockMode::Permits { limit, wants }
            }
            _ => return None,
        };
        Some(EntryMetadata { mode, owner: owner.to_owned(), owner_name, site, reason })
    }

    /// Returns the lock mode of a row below a lock's prefix.
    pub(crate) fn mode_in_queue(key: &[u8], value: &Bytes) -> LockMode {
        match EntryMetadata::parse(key, value) {
            Some(metadata) => metadata.mode,
            None if is_named_as_request(key) => LockMode::Mutex,
            None => LockMode::Foreign,
        }
    }

    /// Returns the lock mode of the row with this key, if it is known to be a lock request.
    pub(crate) fn mode_of(key: &[u8], value: &Bytes) -> LockMode {
        EntryMetadata::parse(key, value).map_or(LockMode::Mutex, |metadata| metadata.mode)
    }
}

/// Reports whether the key is named like a lock request of Bowline or etcd. Such a name is a lease
/// id in hexadecimal, optionally with a number after a dot, or in decimal as in etcd's client for
/// Node.js. A name with leading zeros belongs to a sequential key, not to a request.
fn is_named_as_request(key: &[u8]) -> bool {
    let last = key.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
    let lease = last.split(|byte| *byte == b'.').next().unwrap_or_default();
    let Ok(lease) = std::str::from_utf8(lease) else { return false };
    let is_hexadecimal = lease.parse().is_ok_and(|id: LeaseId| id.to_string() == lease);
    let is_decimal = lease.parse().is_ok_and(|id: u64| id > 0 && id.to_string() == lease);
    is_hexadecimal || is_decimal
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leased_keys_that_are_not_lock_requests_are_foreign() {
        let mode = |name: &str| {
            let key = format!("locks/a/{name}");
            EntryMetadata::mode_in_queue(key.as_bytes(), &Bytes::from("any value"))
        };
        for request in ["1234", "694d7f3a", "694d7f3a.2", "ffffffffffffffff", "7587862969264072117"]
        {
            assert_eq!(mode(request), LockMode::Mutex, "{request}");
        }
        // The names are those of a group member, sequential keys, a UUID, and a barrier
        // participant.
        for other in ["694d7f3a-0", "job-0000000001", "0000000001", "", ".1", "5f0c-11", "ready"] {
            assert_eq!(mode(other), LockMode::Foreign, "{other}");
        }
    }

    #[test]
    fn entry_metadata_round_trips_and_other_values_are_foreign() {
        let key = b"locks/a/1234.2";
        for mode in [
            LockMode::Mutex,
            LockMode::Read,
            LockMode::Write,
            LockMode::Upgrade("locks/a/1234".into()),
            LockMode::Permits { limit: 4, wants: 2 },
        ] {
            let mut metadata = EntryMetadata::new(mode, "src/a.rs:3".to_owned());
            assert_eq!(EntryMetadata::parse(key, &metadata.to_value()).as_ref(), Some(&metadata));
            metadata.owner = "1234.7".to_owned();
            metadata.owner_name = "nightly job".to_owned();
            metadata.reason = Bytes::from_static(b"two\nlines, and \xff");
            assert_eq!(EntryMetadata::parse(key, &metadata.to_value()), Some(metadata));
        }
        for other in
            ["", "10.0.0.7:9000", "bowline:1 ", "bowline:1 spoon\n\n\n", "bowline:1 semaphore 4"]
        {
            assert_eq!(EntryMetadata::parse(key, &Bytes::from(other)), None, "{other:?}");
            assert_eq!(EntryMetadata::mode_of(key, &Bytes::from(other)), LockMode::Mutex);
        }
    }

    #[test]
    fn long_source_path_keeps_its_end() {
        let metadata =
            EntryMetadata::new(LockMode::Mutex, format!("{}é/src/a.rs:3", "é".repeat(100)));
        let read = EntryMetadata::parse(b"a/1", &metadata.to_value()).unwrap();
        assert!(read.site.ends_with("/src/a.rs:3") && read.site.len() <= SITE_BYTES_MAX);
    }
}
