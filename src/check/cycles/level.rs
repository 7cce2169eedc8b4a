//! What a database promises of its transactions, from little to all.

use super::graph::{Kind, Kinds};

/// What a database promises of its transactions. Each level promises what those before it do.
///
/// A level is named by what it forbids (Adya, "Weak Consistency", 1999; Elle's paper by Kingsbury and Alvaro, 2020).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
pub enum Level {
    /// Writes of several keys happen in one order (no G0). A read sees what somebody wrote.
    ReadUncommitted,
    /// And what is read was committed (no G1a, G1b, G1c).
    ReadCommitted,
    /// And all that is read is of one moment, and no update of two is lost (no G-single, no G-nonadjacent).
    SnapshotIsolation,
    /// And there is an order in which one transaction after the other would have said the same (no G2).
    Serializable,
    /// And in it no transaction comes before one of the same process that had ended when it was called. So here each
    /// operation must say its process.
    SessionSerializable,
    /// And in it no transaction comes before any that had ended when it was called: linearizable, for
    /// transactions. It is what Bowline promises.
    #[default]
    StrictSerializable,
}

/// What is forbidden in one pass.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pass {
    pub(super) kinds: Kinds,
    pub(super) apart: bool,
}

impl Pass {
    /// Whether its circles may go by what a read missed.
    pub(super) fn goes_by_misses(&self) -> bool {
        self.kinds.has(Kind::Rw)
    }
}

const WW: Kinds = Kinds::WW;
const WW_WR: Kinds = Kinds::WW.and(Kinds::WR);
const ALL: Kinds = WW_WR.and(Kinds::RW);

/// From the worst to the mildest.
const PASSES: [Pass; 4] = [
    Pass { kinds: WW, apart: false },
    Pass { kinds: WW_WR, apart: false },
    Pass { kinds: ALL, apart: true },
    Pass { kinds: ALL, apart: false },
];

impl Level {
    /// All of them, from little to all.
    pub const ALL: [Self; 6] = [
        Self::ReadUncommitted,
        Self::ReadCommitted,
        Self::SnapshotIsolation,
        Self::Serializable,
        Self::SessionSerializable,
        Self::StrictSerializable,
    ];

    /// Its name, as the command line has it.
    pub fn name(self) -> &'static str {
        match self {
            Self::ReadUncommitted => "read-uncommitted",
            Self::ReadCommitted => "read-committed",
            Self::SnapshotIsolation => "snapshot-isolation",
            Self::Serializable => "serializable",
            Self::SessionSerializable => "session-serializable",
            Self::StrictSerializable => "strict-serializable",
        }
    }

    /// The level of this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|level| level.name() == name)
    }

    /// What must have no cycle, the worst first; the last covers all others.
    pub(super) fn passes(self) -> Vec<Pass> {
        let count = match self {
            Self::ReadUncommitted => 1,
            Self::ReadCommitted => 2,
            Self::SnapshotIsolation => 3,
            Self::Serializable | Self::SessionSerializable | Self::StrictSerializable => 4,
        };
        let plain = PASSES[..count].iter().copied();
        let timed = plain.clone().filter(|_| self.has_time());
        let timed = timed.map(|pass| Pass { kinds: pass.kinds.and(Kinds::BY_TIME), ..pass });
        plain.chain(timed).collect()
    }

    /// Whether it promises anything about time.
    pub(super) fn has_time(self) -> bool {
        self >= Self::SessionSerializable
    }
}
