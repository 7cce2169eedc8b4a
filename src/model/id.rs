//! Numbers with a meaning, each a type of its own.

use std::fmt;
use std::num::NonZeroU64;
use std::str::FromStr;

use thiserror::Error;

macro_rules! number {
    ($(#[$doc:meta])* $name:ident, $prefix:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        pub struct $name(pub u64);

        impl $name {
            /// The bare number.
            pub const fn get(self) -> u64 {
                self.0
            }

            /// The number after this one.
            #[must_use]
            pub const fn next(self) -> Self {
                Self(self.0 + 1)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}", self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($prefix, "{}"), self.0)
            }
        }
    };
}

number!(
    /// A state of the store. A new cluster is at revision 1 with nothing in it; every request that
    /// changes at least one key takes exactly one more. Revisions never repeat and never go back.
    Revision,
    "r"
);
number!(
    /// A raft term: at most one leader each.
    Term,
    "t"
);
number!(
    /// A place in the replicated log. The first entry that a cluster writes has index 2: every
    /// member starts from a synthetic (index 1, term 1).
    LogIndex,
    "i"
);
number!(
    /// Counts the starts of one member on one disk, from 1. Durable before the member speaks.
    Incarnation,
    "b"
);

number!(
    /// What all members of a cluster understand: raised, and never lowered, when every member runs a
    /// build that does. What the log may hold depends on it.
    ClusterVersion,
    "v"
);

impl ClusterVersion {
    /// Where every cluster begins.
    pub const FIRST: ClusterVersion = ClusterVersion(1);

    /// The newest that this build understands.
    pub const NEWEST: ClusterVersion = ClusterVersion(1);
}

impl Revision {
    /// The revision of a store in which nothing has happened.
    pub const FIRST: Revision = Revision(1);
}

/// A member of the cluster, as raft knows it. Minted once, never reused, bound to one disk.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(NonZeroU64);

impl NodeId {
    /// The id with this number, unless it is 0, which names nobody.
    pub const fn new(id: u64) -> Option<Self> {
        match NonZeroU64::new(id) {
            Some(id) => Some(Self(id)),
            None => None,
        }
    }

    /// The bare number, never 0.
    pub const fn get(self) -> u64 {
        self.0.get()
    }
}

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

impl fmt::Debug for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "n{}", self.0)
    }
}

/// A lease, and by that a session. Printed in hexadecimal, as etcd prints it and as lock keys carry it, and read back
/// from there.
///
/// ```
/// use bowline::LeaseId;
/// let lease = LeaseId::try_from(0x7f3a_u64)?;
/// assert_eq!((lease.to_string(), "7f3a".parse()), ("7f3a".to_owned(), Ok(lease)));
/// assert_eq!(u64::from(lease), 0x7f3a);
/// assert!("0".parse::<LeaseId>().is_err());
/// # Ok::<(), bowline::lease::ParseLeaseIdError>(())
/// ```
///
/// etcd allows any 64-bit number but 0 as an id, negative ones too; here the same 64 bits are read
/// as an unsigned number.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LeaseId(NonZeroU64);

impl LeaseId {
    /// The id with this number, unless it is 0, which means "no lease".
    pub const fn new(id: u64) -> Option<Self> {
        match NonZeroU64::new(id) {
            Some(id) => Some(Self(id)),
            None => None,
        }
    }

    /// The bare number, never 0.
    pub const fn get(self) -> u64 {
        self.0.get()
    }
}

impl fmt::Display for LeaseId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x}", self.0)
    }
}

/// No lease has this id: it is 0, or not written in 1 to 16 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[error(
    "not the id of a lease, which is a number of 64 bits, not 0, in hexadecimal digits when it is written"
)]
pub struct ParseLeaseIdError;

/// As [`LeaseId`] is printed, in letters of either case.
impl FromStr for LeaseId {
    type Err = ParseLeaseIdError;

    fn from_str(text: &str) -> Result<Self, ParseLeaseIdError> {
        // An empty text is refused by the number; neither a sign is, nor zeros before it.
        let is_number =
            |text: &&str| text.len() <= 16 && text.bytes().all(|b| b.is_ascii_hexdigit());
        let digits = Some(text).filter(is_number);
        let number = digits.and_then(|digits| u64::from_str_radix(digits, 16).ok());
        number.and_then(LeaseId::new).ok_or(ParseLeaseIdError)
    }
}

impl TryFrom<u64> for LeaseId {
    type Error = ParseLeaseIdError;

    fn try_from(id: u64) -> Result<Self, ParseLeaseIdError> {
        LeaseId::new(id).ok_or(ParseLeaseIdError)
    }
}

impl From<LeaseId> for u64 {
    fn from(lease: LeaseId) -> Self {
        lease.get()
    }
}

impl fmt::Debug for LeaseId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "l{:x}", self.0)
    }
}

macro_rules! wide {
    ($(#[$doc:meta])* $name:ident, $format:literal, $shown:ty) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub u128);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, $format, self.0 as $shown)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, $format, self.0 as $shown)
            }
        }
    };
}

wide!(
    /// A cluster: a hash of its token and its founding members. It is displayed as the lower 64 bits in hexadecimal, which
    /// is the cluster id of etcd's protocol.
    ClusterId, "{:016x}", u64
);
wide!(
    /// One data directory, drawn at random when it is made. A member that comes back with another
    /// one has lost its disk and must not vote under its old id.
    DiskId, "{:032x}", u128
);

impl DiskId {
    /// No disk: that of a place which nobody has taken yet. Never drawn.
    pub const NONE: Self = Self(0);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_is_read_back_as_it_is_printed_and_nothing_else_is_read() {
        for id in [1, 0xf, 0x7f3a, u64::MAX >> 1, u64::MAX] {
            let lease = LeaseId::new(id).unwrap();
            assert_eq!(lease.to_string().parse(), Ok(lease));
            assert_eq!(lease.to_string().to_uppercase().parse(), Ok(lease));
            assert_eq!((LeaseId::try_from(id), u64::from(lease)), (Ok(lease), id));
        }
        for text in [
            "",
            "0",
            "000",
            "+1",
            "-1",
            "0x1",
            " 1",
            "1 ",
            "g",
            "10000000000000000",
            "0000000000000000f",
        ] {
            assert_eq!(text.parse::<LeaseId>(), Err(ParseLeaseIdError), "{text:?}");
        }
        assert_eq!(LeaseId::try_from(0), Err(ParseLeaseIdError));
    }
}
