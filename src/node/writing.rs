//! A state on its way into a file, one small step at a time, so that whoever writes it can do something else between any
//! two.

use thiserror::Error;

use crate::machine::{Image, ImageError};
use crate::model::{SnapshotId, StateHead};
use crate::snapshot::{Check, SnapshotError, Writer};

/// How much of a state is written, or sent, at a time, if nobody says otherwise.
pub(crate) const PART_BYTES: usize = 256 << 10;

/// See the module.
pub(super) enum Writing {
    /// Its file is not there yet.
    Waiting(Image),
    /// Its rows are being written.
    Rows {
        /// What is left.
        image: Image,
        /// Where.
        writer: Writer,
    },
    /// It is being read back.
    Checking(Check),
}

/// What a step came to.
#[allow(clippy::large_enum_variant, reason = "there is one, which moves once a part")]
pub(super) enum Written {
    /// There is more to do.
    On(Writing),
    /// It is whole, sound and durable.
    Done(SnapshotId),
}

/// Why a state cannot be written down.
#[derive(Debug, Error)]
pub(crate) enum WriteError {
    /// It is not there any more, or is not what was applied.
    #[error(transparent)]
    State(#[from] ImageError),
    /// The file.
    #[error(transparent)]
    File(#[from] SnapshotError),
}

impl Writing {
    /// Does a step: of the rows, `part_bytes` or about that. `begin` makes its file.
    ///
    /// # Errors
    /// Why it cannot be written.
    pub(super) fn step(
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
