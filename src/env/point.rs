//! Named points in the code where tests inject a crash.
//!
//! In production, reaching a point does nothing. In a crash test, a point can kill the process. In
//! the simulation, a point can kill the simulated node.

/// A point in the code at which a test can crash the node. A crash at a point must not lose
/// acknowledged data.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[non_exhaustive]
pub enum Point {
    /// The log is about to write a group.
    LogBeforeWrite,
    /// The log has written a group but not synced it.
    LogAfterWrite,
    /// The log has synced a group but not reported this to the driver yet.
    LogAfterSync,
    /// The log has created a new segment but not synced the directory.
    LogSegmentCreated,
    /// The log has created a new segment and synced the directory.
    LogSegmentSynced,
    /// The log is about to record a truncation of its oldest entries.
    LogBeforeCut,
    /// The truncation is recorded durably, but no segment is removed yet.
    LogAfterCut,
    /// The log has removed a segment but not synced the directory.
    LogSegmentRemoved,
    /// The log has removed segments and synced the directory.
    LogRemovalSynced,
    /// The driver is about to hand a group to the log.
    DriverBeforePersist,
    /// The driver knows that a group is durable, but has not sent the messages that depend on the
    /// group.
    DriverBeforeSend,
    /// The driver has sent the messages that depend on a group.
    DriverAfterSend,
    /// Committed entries are about to be applied.
    DriverBeforeApply,
    /// Committed entries are applied, but no caller has received a reply.
    DriverBeforeReply,
    /// All callers have received their replies.
    DriverAfterReply,
}

impl Point {
    /// All points.
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

/// A receiver that is notified of every [`Point`] that the code reaches.
pub trait Points: Send + Sync + 'static {
    /// Reports that the code has reached `point`. May end the process.
    fn reach(&self, point: Point);
}

/// An implementation that ignores every point.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoPoints;

impl Points for NoPoints {
    fn reach(&self, _point: Point) {}
}
