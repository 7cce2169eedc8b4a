//! Incremental snapshot writer: each step does a bounded amount of work, so that the caller can do
//! other work between two steps.

use thiserror::Error;

use crate::machine::{Image, ImageError};
use crate::model::{SnapshotId, StateHead};
use crate::snapshot::{Check, SnapshotError, Writer};

/// Default size of the parts in which a state is written or sent, in bytes.
pub(crate) const PART_BYTES: usize = 256 << 10;

/// The progress of writing a state to a file.
pub(in crate::node) enum Writing {
    /// The file does not exist yet.
    Waiting(Image),
    /// The rows are being written.
    Rows {
        /// The remaining rows.
        image: Image,
        writer: Writer,
    },
    /// The file is being read back.
    Checking(Check),
}

/// The result of a step.
#[allow(clippy::large_enum_variant, reason = "there is one, which moves once a part")]
pub(in crate::node) enum Written {
    /// The state is not completely written yet.
    On(Writing),
    /// The file is complete, sound and durable.
    Done(SnapshotId),
}

/// The reasons for which a state cannot be written.
#[derive(Debug, Error)]
pub(crate) enum WriteError {
    /// The state was released, or its rows are damaged in memory.
    #[error(transparent)]
    State(#[from] ImageError),
    #[error(transparent)]
    File(#[from] SnapshotError),
}

impl Writing {
    /// Runs one step, which writes about `part_bytes`. `begin` creates the file.
    ///
    /// # Errors
    /// Fails if the file cannot be written.
    pub(in crate::node) fn step(
        self,
        part_bytes: usize,
        begin: impl FnOnce(&StateHead) -> Result<Writer, SnapshotError>,
    ) -> Result<Written, WriteError> {
        let next = match self {
            Writing::Waiting(image) => {
                let writer = begin(image.head())?;
                Writing::Rows { image, writer }
            }
            Writing::Rows { mut image, mut writer } => match image.next(part_bytes)? {
                Some(piece) => {
                    writer.write(&piece)?;
                    Writing::Rows { image, writer }
                }
                None => Writing::Checking(writer.seal()?),
            },
            Writing::Checking(mut check) => match check.step()? {
                None => Writing::Checking(check),
                Some(id) => return Ok(Written::Done(id)),
            },
        };
        Ok(Written::On(next))
    }
}
