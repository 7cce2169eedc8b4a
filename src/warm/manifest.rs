//! The manifest of the warm copies: which copy is current, whether that copy can be trusted, and
//! which member it belongs to.
//!
//! ```text
//! mark   = version u8 | origin | boot u8, u128 | copy + 1 or 0 | stop + 1 or 0 | crc32 of all before
//! ```
//!
//! Data that sled has written survives the death of the process, because the operating system keeps
//! running, but not a power cut. Therefore a copy is trusted if it was closed properly (`stop`), or
//! if the machine has not rebooted since the copy was opened (`boot`). If the boot id is unknown,
//! only a properly closed copy is trusted. The manifest is replaced atomically: a new file is
//! written, synced and renamed, and the directory is synced.

use std::io;
use std::path::{Path, PathBuf};

use bytes::Bytes;

use super::layout::CopyRestoredFrom;
use crate::codec::{CodecError, Decode, Decoder, Encode, Encoder};
use crate::env::{BootId, Disk, Env, OpenMode, replace};
use crate::model::LogIndex;

const VERSION: u8 = 1;

const CRC_BYTES: usize = 4;

/// Maximum size of a manifest file in bytes. A valid manifest is far shorter.
const MARK_BYTES_MAX: u64 = 1 << 10;

/// The manifest. See the module page.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Manifest {
    pub(super) origin: CopyRestoredFrom,
    /// Id of the boot of the machine in which the manifest was written.
    pub(super) boot: Option<BootId>,
    /// Number of the complete copy.
    pub(super) copy: Option<u64>,
    /// Log index of the copy, set when the copy was closed properly.
    pub(super) stop: Option<LogIndex>,
}

impl Manifest {
    /// Reads the manifest in `dir`. Returns `None` if there is none.
    pub(super) fn read(disk: &dyn Disk, dir: &Path) -> io::Result<Option<Self>> {
        let file = match disk.open(&path(dir), OpenMode::Read) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            file => file?,
        };
        let length = file.len()?;
        if length > MARK_BYTES_MAX {
            return Err(io::Error::other(format!("invalid manifest length {length}")));
        }
        let mut bytes = vec![0; length as usize];
        file.read_exact_at(&mut bytes, 0)?;
        let Some((body, sum)) = bytes.split_last_chunk::<CRC_BYTES>() else {
            return Err(io::Error::other("the manifest is truncated"));
        };
        if crc32fast::hash(body) != u32::from_le_bytes(*sum) {
            return Err(io::Error::other("the manifest is damaged"));
        }
        let manifest = Self::decode(Bytes::copy_from_slice(body));
        manifest.map(Some).map_err(io::Error::other)
    }

    /// Writes the manifest to `dir` durably.
    pub(super) fn write(&self, disk: &dyn Disk, dir: &Path) -> io::Result<()> {
        replace(disk, &path(dir), &self.encode())
    }

    /// Checks whether the store of the copy can have lost data. If so, returns the reason.
    pub(super) fn check(&self, env: &Env, origin: CopyRestoredFrom) -> Result<(), &'static str> {
        if self.origin != origin {
            return Err("the manifest belongs to another member");
        }
        match (self.stop, self.boot, env.clock.boot()) {
            (Some(_), _, _) => Ok(()),
            (None, Some(then), Some(now)) if then == now => Ok(()),
            (None, Some(_), Some(_)) => {
                Err("the machine has rebooted and the node was not shut down properly")
            }
            (None, _, _) => Err(
                "the node was not shut down properly, and it is unknown whether the machine has rebooted",
            ),
        }
    }

    fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        let to = &mut Encoder::new(&mut bytes);
        to.byte(VERSION);
        self.origin.encode(to);
        to.byte(u8::from(self.boot.is_some()));
        to.fixed_u128(self.boot.map_or(0, |boot| boot.0));
        to.number(self.copy.map_or(0, |copy| copy + 1));
        to.number(self.stop.map_or(0, |stop| stop.get() + 1));
        let sum = crc32fast::hash(&bytes);
        bytes.extend_from_slice(&sum.to_le_bytes());
        bytes
    }

    fn decode(body: Bytes) -> Result<Self, CodecError> {
        let mut from = Decoder::new("warm copy manifest", body);
        from.version(VERSION)?;
        let origin = CopyRestoredFrom::decode(&mut from)?;
        let known = from.byte()? != 0;
        let boot = BootId(from.fixed_u128()?);
        let manifest = Self {
            origin,
            boot: known.then_some(boot),
            copy: from.number()?.checked_sub(1),
            stop: from.number()?.checked_sub(1).map(LogIndex),
        };
        from.finish()?;
        Ok(manifest)
    }
}

fn path(dir: &Path) -> PathBuf {
    dir.join("manifest")
}
