//! What a place in a line says of itself, as the library's locks write it into the value of its key: text in lines,
//! which anybody can read. What does not begin with the mark was put there by a client of etcd, and stands like a
//! mutex.
//!
//! ```text
//!   bowline:1 semaphore 4 2      kind, and its figures
//!   web-3 process 4711           where
//!   nightly                      the owner's name
//!   rebuilding the index         why, to the end
//! ```

use bytes::Bytes;

/// How such values begin.
pub(crate) const MARK: &str = "bowline:1 ";

/// What lets a place hold.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Rule {
    /// Nobody is before it.
    Alone,
    /// Only readers are before it.
    Read,
    /// Nobody is before it, among readers.
    Write,
    /// A reader that becomes a writer: only the library does that.
    Upgrade,
    /// The permits before it and its own fit into the limit.
    Permits {
        /// How many there are.
        limit: u32,
        /// How many it wants.
        wants: u32,
    },
}

impl Rule {
    /// Whether two places can stand in one line and both get their turn by the rules.
    pub(crate) fn goes_with(self, other: Rule) -> bool {
        let kind = |rule| match rule {
            Rule::Alone => (0, 0),
            Rule::Read | Rule::Write | Rule::Upgrade => (1, 0),
            Rule::Permits { limit, .. } => (2, limit),
        };
        kind(self) == kind(other)
    }

    /// Whether a place of this rule holds behind these, which are all that are before it.
    pub(crate) fn holds_behind(self, before: &[Rule]) -> bool {
        match self {
            Rule::Alone | Rule::Write => before.is_empty(),
            Rule::Read => before.iter().all(|rule| *rule == Rule::Read),
            // It holds as the reader that it was. Its turn as a writer is the library's affair.
            Rule::Upgrade => false,
            Rule::Permits { limit, wants } => {
                let (mut least, mut sum) = (limit, u64::from(wants));
                for rule in before {
                    let Rule::Permits { limit, wants } = rule else { return false };
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

    /// What it is called.
    pub(crate) fn name(self) -> String {
        match self {
            Rule::Alone => "mutex".to_owned(),
            Rule::Read => "read".to_owned(),
            Rule::Write => "write".to_owned(),
            Rule::Upgrade => "upgrade".to_owned(),
            Rule::Permits { limit, wants } => format!("{wants} of {limit}"),
        }
    }
}

/// What a place says.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Stance {
    pub(crate) rule: Rule,
    /// Where it was asked for.
    pub(crate) site: String,
    /// The owner's name.
    pub(crate) owner: String,
    /// Why; all of the value, if it is not of this form.
    pub(crate) why: Bytes,
}

impl Stance {
    /// Of a command: on which machine, by which process, which one.
    pub(crate) fn ours(rule: Rule, why: &str) -> Self {
        let host = rustix::system::uname();
        let host = host.nodename().to_string_lossy().into_owned();
        let site = format!("{host} process {}", std::process::id());
        let owner = std::env::var("USER").unwrap_or_default();
        Self { rule, site, owner, why: Bytes::copy_from_slice(why.as_bytes()) }
    }

    /// As the value of a key.
    pub(crate) fn to_value(&self) -> Bytes {
        let head = match self.rule {
            Rule::Alone => "mutex".to_owned(),
            Rule::Read => "read".to_owned(),
            Rule::Write => "write".to_owned(),
            Rule::Upgrade => "upgrade".to_owned(),
            Rule::Permits { limit, wants } => format!("semaphore {limit} {wants}"),
        };
        let line = |text: &str| text.replace('\n', " ");
        let head = format!("{MARK}{head}\n{}\n{}\n", line(&self.site), line(&self.owner));
        [head.as_bytes(), &self.why].concat().into()
    }

    /// What a value says.
    pub(crate) fn parse(value: &Bytes) -> Self {
        Self::known(value).unwrap_or_else(|| Self {
            rule: Rule::Alone,
            site: String::new(),
            owner: String::new(),
            why: value.clone(),
        })
    }

    fn known(value: &Bytes) -> Option<Self> {
        let rest = value.strip_prefix(MARK.as_bytes())?;
        let mut lines = rest.splitn(4, |byte| *byte == b'\n');
        let mut text = || String::from_utf8_lossy(lines.next().unwrap_or_default()).into_owned();
        let (head, site, owner) = (text(), text(), text());
        let why = lines.next().map(|why| value.slice_ref(why)).unwrap_or_default();
        let head = head.split_once(" owner=").map_or(head.as_str(), |(head, _)| head);
        let mut words = head.split(' ');
        let rule = match words.next()? {
            "mutex" => Rule::Alone,
            "read" => Rule::Read,
            "write" => Rule::Write,
            "upgrade" => Rule::Upgrade,
            "semaphore" => {
                let (limit, wants) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
                Rule::Permits { limit, wants }
            }
            _ => return None,
        };
        Some(Self { rule, site, owner, why })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bowline::{Blocking, Config, Node};

    #[test]
    fn what_the_library_writes_is_read_and_what_is_written_is_read_by_the_library() {
        let dir = tempfile::tempdir().unwrap();
        let node = Node::start(Config::new(dir.path(), "solo")).block().unwrap();
        let session = node.session().block().unwrap();
        let _guard = session.mutex("m").lock().reason("cleaning\nup").block().unwrap();
        let _permit = session.semaphore("s", 4).acquire().block().unwrap();
        let row =
            |name: &str| node.client().range(bowline::KeyRange::prefix(name.to_owned())).block();
        let stance = Stance::parse(&row("m/").unwrap().kvs[0].value);
        assert_eq!((stance.rule, &stance.why[..]), (Rule::Alone, &b"cleaning\nup"[..]));
        let stance = Stance::parse(&row("s/").unwrap().kvs[0].value);
        assert_eq!(stance.rule, Rule::Permits { limit: 4, wants: 1 });

        let ours = Stance::ours(Rule::Permits { limit: 4, wants: 2 }, "a backup");
        assert_eq!(Stance::parse(&ours.to_value()), ours);
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
    fn who_holds_is_decided_by_those_before() {
        use Rule::{Alone, Read, Write};
        let permits = |limit, wants| Rule::Permits { limit, wants };
        let table: [(Rule, &[Rule], bool); 9] = [
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
        for (rule, before, holds) in table {
            assert_eq!(rule.holds_behind(before), holds, "{rule:?} behind {before:?}");
        }
    }
}
