//! Numbers with a meaning, each a type of its own.

use std::fmt;
use std::num::NonZeroU64;

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

/// A lease. Printed in hexadecimal, as etcd prints it and as lock keys carry it.
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

impl fmt::Debug for LeaseId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "l{:x}", self.0)
    }
}

macro_rules! wide {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub u128);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:032x}", self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:032x}", self.0)
            }
        }
    };
}

wide!(
    /// A cluster: a hash of its token and its founding members.
    ClusterId
);
wide!(
    /// One data directory, drawn at random when it is made. A member that comes back with another
    /// one has lost its disk and must not vote under its old id.
    DiskId
);

impl DiskId {
    /// No disk: that of a place which nobody has taken yet. Never drawn.
    pub const NONE: Self = Self(0);
}
