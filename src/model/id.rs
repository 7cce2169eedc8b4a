//! Newtypes for numbers with a meaning.

use std::fmt;
use std::num::NonZeroU64;
use std::str::FromStr;

use thiserror::Error;

/// Implements the formats `{:x}` and `{:X}` by those of the number.
macro_rules! hexadecimal {
    ($name:ident, $number:expr) => {
        impl fmt::LowerHex for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::LowerHex::fmt(&$number(*self), f)
            }
        }

        impl fmt::UpperHex for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::UpperHex::fmt(&$number(*self), f)
            }
        }
    };
}

macro_rules! number {
    ($(#[$doc:meta])* $name:ident, $prefix:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        #[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
        pub struct $name(pub u64);

        impl $name {
            /// Creates the value of a number.
            pub const fn new(number: u64) -> Self {
                Self(number)
            }

            /// Returns the number.
            pub const fn get(self) -> u64 {
                self.0
            }

            /// Returns the next higher number.
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
    /// A version number of the whole store. A new, empty cluster is at revision 1. Every request
    /// that changes at least one key increases the revision by exactly one. Revisions never repeat
    /// and never decrease.
    Revision,
    "r"
);
number!(
    /// A Raft term. Each term has at most one leader.
    Term,
    "t"
);
number!(
    /// An index in the replicated log. The first entry that a cluster writes has index 2: every
    /// member starts from a synthetic entry with index 1 and term 1.
    LogIndex,
    "i"
);
number!(
    /// A counter of the starts of one member on one disk, from 1. Each start makes its number
    /// durable before the member sends any message.
    Incarnation,
    "b"
);

number!(
    /// The feature level that all members of a cluster understand. The version is raised when every
    /// member runs a build that supports the new level, and is never lowered. The version
    /// determines which kinds of entries the log may contain.
    ClusterVersion,
    "v"
);

impl ClusterVersion {
    /// The version of every new cluster.
    pub const FIRST: ClusterVersion = ClusterVersion(1);

    /// The newest version that this build supports.
    pub const NEWEST: ClusterVersion = ClusterVersion(1);
}

impl Revision {
    /// The revision of an empty store.
    pub const FIRST: Revision = Revision(1);
}

/// The id of a cluster member in Raft. An id is assigned once, is never reused, and is bound to one
/// disk.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct NodeId(NonZeroU64);

impl NodeId {
    /// Creates an id from a number. Returns `None` for 0, because 0 stands for "no member".
    pub const fn new(id: u64) -> Option<Self> {
        match NonZeroU64::new(id) {
            Some(id) => Some(Self(id)),
            None => None,
        }
    }

    /// Returns the number, which is never 0.
    pub const fn get(self) -> u64 {
        self.0.get()
    }
}

hexadecimal!(NodeId, NodeId::get);

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

/// The id of a lease, and therefore of a session. Lease ids are displayed and parsed in
/// hexadecimal, as in etcd and in lock keys.
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
/// In etcd a lease id is any signed 64-bit number except 0. This type interprets the same 64 bits
/// as an unsigned number.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LeaseId(NonZeroU64);

impl LeaseId {
    /// Creates an id from a number. Returns `None` for 0, because 0 stands for "no lease".
    pub const fn new(id: u64) -> Option<Self> {
        match NonZeroU64::new(id) {
            Some(id) => Some(Self(id)),
            None => None,
        }
    }

    /// Returns the number, which is never 0.
    pub const fn get(self) -> u64 {
        self.0.get()
    }
}

hexadecimal!(LeaseId, LeaseId::get);

impl fmt::Display for LeaseId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x}", self.0)
    }
}

/// The error for an invalid lease id: the number is 0, or the text is not 1 to 16 hexadecimal
/// digits.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[error(
    "invalid lease id: must be a 64-bit number other than 0, written as 1 to 16 hexadecimal digits"
)]
pub struct ParseLeaseIdError;

/// Parses the displayed form of a [`LeaseId`], with digits in upper or lower case.
impl FromStr for LeaseId {
    type Err = ParseLeaseIdError;

    fn from_str(text: &str) -> Result<Self, ParseLeaseIdError> {
        // Accepts leading zeros but no sign. The number parser below rejects an empty text.
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

        hexadecimal!($name, |id: $name| id.0 as $shown);

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
    /// The id of a cluster, a hash of its token and its founding members. Only the lower 64 bits
    /// are displayed, in hexadecimal. These bits are also the cluster id in etcd's protocol.
    ClusterId, "{:016x}", u64
);
wide!(
    /// The id of one data directory, chosen at random on creation. A member that returns with
    /// another disk id has lost its disk, and must not vote under its old member id.
    DiskId, "{:032x}", u128
);

impl DiskId {
    /// The value that means "no disk". A reserved member has this disk id until a process claims
    /// the member. This value is never chosen at random.
    pub const NONE: Self = Self(0);
}

#[cfg(feature = "serde")]
super::serialize::serialize_as_text!(LeaseId);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lease_id_round_trips_as_text() {
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
