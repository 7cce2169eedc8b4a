//! Named points in the code where tests inject a crash.
//!
//! In production they do nothing. A crash test supplies an implementation that kills the process;
//! the simulated world supplies one that kills the node.

/// A point in the code where a crash must not lose anything.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[non_exhaustive]
pub enum Point {
    /// The log is about to write a group.
    LogBeforeWrite,
    /// The group is written but not synced.
    LogAfterWrite,
    /// The group is synced, but its completion is not reported yet.
    LogAfterSync,
    /// A new segment is created, but the directory is not synced.
    LogSegmentCreated,
    /// A new segment is created and the directory is synced.
    LogSegmentSynced,
    /// The log is about to record a truncation of its oldest entries.
    LogBeforeCut,
    /// The truncation is recorded durably, but no segment is removed yet.
    LogAfterCut,
    /// A segment is removed, but the directory is not synced.
    LogSegmentRemoved,
    /// Segments are removed, and the directory is synced.
    LogRemovalSynced,
    /// The driver is about to hand a group to the log.
    DriverBeforePersist,
    /// The driver knows that a group is durable but has not sent the messages that waited for it.
    DriverBeforeSend,
    /// The driver has sent the messages that waited for the group.
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
