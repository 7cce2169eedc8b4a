//! The scripted other end of a connection, for fuzz targets.

use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::{BufMut, Bytes};

/// A scripted other end: its output is fixed in advance, and it records its input.
pub(super) struct Script {
    unread: Mutex<Bytes>,
    sent: Mutex<Vec<u8>>,
}

impl Script {
    pub(super) fn new(words: Vec<u8>) -> Self {
        Self { unread: Mutex::new(words.into()), sent: Mutex::default() }
    }

    pub(super) fn unread(&self) -> MutexGuard<'_, Bytes> {
        self.unread.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn sent(&self) -> MutexGuard<'_, Vec<u8>> {
        self.sent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads at most `room` bytes, or nothing at the end of the input.
    pub(super) fn read(&self, mut out: impl BufMut, room: usize) -> usize {
        let mut unread = self.unread();
        let some = room.min(unread.len());
        out.put(unread.split_to(some));
        some
    }

    pub(super) fn write(&self, bytes: &[u8]) -> usize {
        self.sent().extend_from_slice(bytes);
        bytes.len()
    }
}
