//! Isolation levels: the promises of a database about its transactions, from the weakest to the strongest.

use super::graph::{EdgeKind, Kinds};

/// An isolation level. Each level includes the promises of the levels before it.
///
/// A level is defined by the anomalies that it forbids (Adya, "Weak Consistency", 1999; Elle's paper by Kingsbury and
/// Alvaro, 2020).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
pub enum Level {
    /// Writes to several keys happen in one order (no G0). A read returns only values that were written.
    ReadUncommitted,
    /// In addition, a read returns only committed values (no G1a, G1b, G1c).
    ReadCommitted,
    /// In addition, all reads of a transaction come from one snapshot, and no update is lost (no G-single, no
    /// G-nonadjacent).
    SnapshotIsolation,
    /// In addition, executing the transactions one at a time in some order would give the same results (no G2).
    Serializable,
    /// In addition, that order never puts a transaction before an earlier transaction of the same process. Every
    /// operation of the history must therefore name its process.
    SessionSerializable,
    /// In addition, if a transaction was called after another one had ended, that order never puts it before the other
    /// one. This is linearizability for transactions, and the level that Bowline promises.
    #[default]
    StrictSerializable,
}

/// The kinds of cycles that one search pass forbids.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pass {
    pub(super) kinds: Kinds,
    pub(super) apart: bool,
}

impl Pass {
    /// Returns whether the forbidden cycles may contain read-write edges.
    pub(super) fn allows_read_write_edges(&self) -> bool {
        self.kinds.has(EdgeKind::Rw)
    }
}

const WW: Kinds = Kinds::WW;
const WW_WR: Kinds = Kinds::WW.and(Kinds::WR);
const ALL: Kinds = WW_WR.and(Kinds::RW);

/// From the worst anomaly to the mildest.
const PASSES: [Pass; 4] = [
    Pass { kinds: WW, apart: false },
    Pass { kinds: WW_WR, apart: false },
    Pass { kinds: ALL, apart: true },
    Pass { kinds: ALL, apart: false },
];

impl Level {
    /// All levels, from the weakest to the strongest.
    pub const ALL: [Self; 6] = [
        Self::ReadUncommitted,
        Self::ReadCommitted,
        Self::SnapshotIsolation,
        Self::Serializable,
        Self::SessionSerializable,
        Self::StrictSerializable,
    ];

    /// Returns the name that the command line uses.
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

    /// Returns the level with this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|level| level.name() == name)
    }

    /// Returns the passes that must find no cycle, the worst anomaly first. The last pass covers all others.
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

    /// Returns whether the level promises anything about real time.
    pub(super) fn has_time(self) -> bool {
        self >= Self::SessionSerializable
    }
}
