//! Named points in the code where a crash is interesting.
//!
//! The real world passes them by. A crash test puts an implementation here that kills the process,
//! the simulated world one that kills the node.

/// A place where a crash must not lose anything.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[non_exhaustive]
pub enum Point {
    /// The log is about to write a group.
    LogBeforeWrite,
    /// The group is written and not synced.
    LogAfterWrite,
    /// The group is synced and nobody has been told.
    LogAfterSync,
    /// A new segment was created and the directory not synced.
    LogSegmentCreated,
    /// A new segment is in place.
    LogSegmentSynced,
    /// The log is about to say that its front is not needed any more.
    LogBeforeCut,
    /// It has said so, durably, and removed nothing.
    LogAfterCut,
    /// A segment was removed and the directory not synced.
    LogSegmentRemoved,
    /// Segments were removed, durably.
    LogRemovalSynced,
    /// The driver is about to hand a group to the log.
    DriverBeforePersist,
    /// The driver was told that a group is durable and has not sent what waited for it.
    DriverBeforeSend,
    /// The driver has sent what waited for the group.
    DriverAfterSend,
    /// Committed entries are about to be applied.
    DriverBeforeApply,
    /// They are applied and nobody was answered.
    DriverBeforeReply,
    /// The callers were answered.
    DriverAfterReply,
}

impl Point {
    /// All of them.
    pub const ALL: [Point; 15] = [
        Point::LogBeforeWrite,
        Point::LogAfterWrite,
        Point::LogAfterSync,
        Point::LogSegmentCreated,
        Point::LogSegmentSynced,
        Point::LogBeforeCut,
        Point::LogAfterCut,
        Point::LogSegmentRemoved,
        Point::LogRemovalSynced,
        Point::DriverBeforePersist,
        Point::DriverBeforeSend,
        Point::DriverAfterSend,
        Point::DriverBeforeApply,
        Point::DriverBeforeReply,
        Point::DriverAfterReply,
    ];
}

/// Is told of every [`Point`] that is reached.
pub trait Points: Send + Sync + 'static {
    /// The code has come to `point`. May end the process.
    fn reach(&self, point: Point);
}

/// Passes every point by.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoPoints;

impl Points for NoPoints {
    fn reach(&self, _point: Point) {}
}
