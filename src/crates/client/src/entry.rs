//! The metadata of a queue entry, in the text format of the library's locks. The metadata is stored as the value of the
//! entry's key. A value that does not start with `bowline:` was written by an etcd client, and its entry counts as a
//! mutex.
//!
//! ```text
//!   bowline:1 semaphore 4 2      kind of lock, with its numbers
//!   web-3 process 4711           machine and process
//!   nightly                      name of the owner
//!   rebuilding the index         reason, to the end of the value
//! ```

use bytes::Bytes;

/// Prefix of every value in this format.
pub const LOCK_MARK: &str = "bowline:1 ";

/// Mode of a lock request. The mode decides when the request holds the lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LockMode {
    /// The request holds the lock if no entry is ahead.
    Alone,
    /// The request holds the lock if only readers are ahead.
    Read,
    /// The request holds the lock if no entry is ahead. Unlike with `Alone`, the queue may contain readers.
    Write,
    /// A reader that waits to become a writer; used only by the library.
    Upgrade,
    /// The request holds permits if its permits and those of all entries ahead do not exceed the limit.
    Permits {
        /// Total number of permits.
        limit: u32,
        /// Number of permits requested.
        wants: u32,
    },
}

impl LockMode {
    /// Returns whether two requests can share a queue.
    pub fn is_compatible_with(self, other: LockMode) -> bool {
        let kind = |mode| match mode {
            LockMode::Alone => (0, 0),
            LockMode::Read | LockMode::Write | LockMode::Upgrade => (1, 0),
            LockMode::Permits { limit, .. } => (2, limit),
        };
        kind(self) == kind(other)
    }

    /// Returns whether a request holds the lock, given the modes of all entries ahead of the request.
    pub fn holds_after(self, before: &[LockMode]) -> bool {
        match self {
            LockMode::Alone | LockMode::Write => before.is_empty(),
            LockMode::Read => before.iter().all(|mode| *mode == LockMode::Read),
            // An upgrade entry holds as a reader, and the library decides when it becomes a writer.
            LockMode::Upgrade => false,
            LockMode::Permits { limit, wants } => {
                let (mut least, mut sum) = (limit, u64::from(wants));
                for mode in before {
                    let LockMode::Permits { limit, wants } = mode else { return false };
                    least = least.min(*limit);
                    sum += u64::from(*wants);
                    if sum > u64::from(least) {
                        return false;
                    }
                }
                sum <= u64::from(least)
            }
        }
    }

    /// Returns the name of the mode, as printed by `bowline locks`.
    pub fn name(self) -> String {
        match self {
            LockMode::Alone => "mutex".to_owned(),
            LockMode::Read => "read".to_owned(),
            LockMode::Write => "write".to_owned(),
            LockMode::Upgrade => "upgrade".to_owned(),
            LockMode::Permits { limit, wants } => format!("{wants} of {limit}"),
        }
    }
}

/// Metadata of a queue entry.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EntryValue {
    /// Mode of the request.
    pub mode: LockMode,
    /// Machine and process of the request.
    pub site: String,
    /// Name of the owner.
    pub owner: String,
    /// Reason for the request. If the value is not in this format, the reason is the whole value.
    pub why: Bytes,
}

impl EntryValue {
    /// Returns the metadata of a command run by this process.
    pub fn ours(mode: LockMode, why: &str) -> Self {
        let host = rustix::system::uname();
        let host = host.nodename().to_string_lossy().into_owned();
        let site = format!("{host} process {}", std::process::id());
        let owner = std::env::var("USER").unwrap_or_default();
        Self { mode, site, owner, why: Bytes::copy_from_slice(why.as_bytes()) }
    }

    /// Encodes the metadata as the value of a key.
    pub fn to_value(&self) -> Bytes {
        let head = match self.mode {
            LockMode::Alone => "mutex".to_owned(),
            LockMode::Read => "read".to_owned(),
            LockMode::Write => "write".to_owned(),
            LockMode::Upgrade => "upgrade".to_owned(),
            LockMode::Permits { limit, wants } => format!("semaphore {limit} {wants}"),
        };
        let line = |text: &str| text.replace('\n', " ");
        let head = format!("{LOCK_MARK}{head}\n{}\n{}\n", line(&self.site), line(&self.owner));
        [head.as_bytes(), &self.why].concat().into()
    }

    /// Parses the value of a key.
    pub fn parse(value: &Bytes) -> Self {
        Self::known(value).unwrap_or_else(|| Self {
            mode: LockMode::Alone,
            site: String::new(),
            owner: String::new(),
            why: value.clone(),
        })
    }

    fn known(value: &Bytes) -> Option<Self> {
        let rest = value.strip_prefix(LOCK_MARK.as_bytes())?;
        let mut lines = rest.splitn(4, |byte| *byte == b'\n');
        let mut text = || String::from_utf8_lossy(lines.next().unwrap_or_default()).into_owned();
        let (head, site, owner) = (text(), text(), text());
        let why = lines.next().map(|why| value.slice_ref(why)).unwrap_or_default();
        let head = head.split_once(" owner=").map_or(head.as_str(), |(head, _)| head);
        let mut words = head.split(' ');
        let mode = match words.next()? {
            "mutex" => LockMode::Alone,
            "read" => LockMode::Read,
            "write" => LockMode::Write,
            "upgrade" => LockMode::Upgrade,
            "semaphore" => {
                let (limit, wants) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
                LockMode::Permits { limit, wants }
            }
            _ => return None,
        };
        Some(Self { mode, site, owner, why })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bowline::{Blocking, Config, Node};

    #[test]
    fn lock_metadata_round_trips_with_the_library() {
        let dir = tempfile::tempdir().unwrap();
        let node = Node::start(Config::new(dir.path(), "solo")).block().unwrap();
        let session = node.session().block().unwrap();
        let _guard = session.mutex("m").lock().reason("cleaning\nup").block().unwrap();
        let _permit = session.semaphore("s", 4).acquire().block().unwrap();
        let row =
            |name: &str| node.client().range(bowline::KeyRange::prefix(name.to_owned())).block();
        let stance = EntryValue::parse(&row("m/").unwrap().kvs[0].value);
        assert_eq!((stance.mode, &stance.why[..]), (LockMode::Alone, &b"cleaning\nup"[..]));
        let stance = EntryValue::parse(&row("s/").unwrap().kvs[0].value);
        assert_eq!(stance.mode, LockMode::Permits { limit: 4, wants: 1 });

        let ours = EntryValue::ours(LockMode::Permits { limit: 4, wants: 2 }, "a backup");
        assert_eq!(EntryValue::parse(&ours.to_value()), ours);
        let lease = node.client().grant(std::time::Duration::from_secs(60)).block().unwrap().id;
        let key = format!("o/{lease}");
        node.client().put(key, ours.to_value()).lease(lease).block().unwrap();
        let seen = &node.locks().of("o").unwrap().queue[0];
        assert_eq!(
            (seen.kind, &seen.reason[..]),
            (bowline::lock::LockKind::Semaphore(4), &b"a backup"[..])
        );
        assert!(node.shutdown().block().hanging.is_empty());
    }

    #[test]
    fn lock_listing_derives_holders_from_the_entries_ahead() {
        use LockMode::{Alone, Read, Write};
        let permits = |limit, wants| LockMode::Permits { limit, wants };
        let table: [(LockMode, &[LockMode], bool); 9] = [
            (Alone, &[], true),
            (Alone, &[Read], false),
            (Read, &[Read, Read], true),
            (Read, &[Read, Write], false),
            (Write, &[Read], false),
            (permits(3, 1), &[permits(3, 1), permits(3, 1)], true),
            (permits(3, 2), &[permits(3, 1), permits(3, 1)], false),
            (permits(3, 1), &[permits(2, 2)], false),
            (permits(3, 1), &[Alone], false),
        ];
        for (mode, before, holds) in table {
            assert_eq!(mode.holds_after(before), holds, "{mode:?} behind {before:?}");
        }
    }
}
