//! The state as a stream: a backup of the library's, sent as etcd sends its database.
//!
//! ```text
//!   backup            zeros up to a multiple of 512 bytes   sha256 of all before
//!   blob blob ... blob ──────────────────────────────────▶  blob
//!   remaining_bytes falls to 0                              0
//! ```
//!
//! Whoever writes all of it into a file, as etcd's clients do, has a file that `bowline snapshot` reads.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;
use sha2::{Digest, Sha256};
use tokio::sync::{OwnedSemaphorePermit, oneshot};
use tonic::Status;
use tracing::Instrument;

use super::driven::Answers;
use super::member::{CLUSTER_VERSION, Member};
use super::wire::{Reason, refused};
use crate::generated::etcdserverpb::SnapshotResponse;

/// How much is sent at a time, as in etcd.
const BLOB_BYTES: usize = 32 << 10;

/// What is before the hash is so long, or a multiple of it: etcd's clients tell by it that there is a hash.
const ALIGN_BYTES: u64 = 512;

/// The backup while it is written. Left behind by a crash, it is removed with the next start like an unfinished
/// snapshot, since it is called like one.
const NAME: &str = "snap-sent.writing";

/// A copy of this member's state, and how long it is. The file has no name any more, so that it goes away with whoever
/// reads it; also if nobody does, who has gone while it was written.
///
/// # Errors
/// Too many are sent. As the library's backup; the file cannot be read.
pub(super) async fn taken(member: Arc<Member>) -> Result<Sent, Status> {
    let sending = member.may_send_snapshot().ok_or(Reason::TooManyRequests)?;
    let (tell, taken) = oneshot::channel();
    let take = async move {
        let result = take(&member, &tell).await;
        // Who has gone meanwhile needs nothing.
        drop(tell.send(result.map(|(file, bytes)| Sent { file, bytes, _sending: sending })));
    };
    tokio::spawn(take.in_current_span());
    taken.await.map_err(|_| Status::internal("bowline: no snapshot was taken"))?
}

/// A snapshot on its way to a client. It counts until it is there.
pub(super) struct Sent {
    file: File,
    bytes: u64,
    _sending: OwnedSemaphorePermit,
}

async fn take(
    member: &Member,
    waits: &oneshot::Sender<Result<Sent, Status>>,
) -> Result<(File, u64), Status> {
    // One at a time: they have the same name.
    let _turn = member.takes_snapshot().await;
    if waits.is_closed() {
        return Err(Status::cancelled("nobody waits for it"));
    }
    let path: PathBuf = member.options().data_dir.join(NAME);
    let id = member.node().backup(&path).await.map_err(refused)?;
    let file = blocking(move || {
        let file = File::open(&path);
        fs::remove_file(&path)?;
        file
    });
    Ok((file.await?, id.bytes))
}

/// Sends a file, and what comes after it.
///
/// # Errors
/// The file cannot be read, or ends too early.
pub(super) async fn send(
    Sent { mut file, bytes, _sending }: Sent,
    answers: &Answers<SnapshotResponse>,
) -> Result<(), Status> {
    let mut left = bytes.next_multiple_of(ALIGN_BYTES);
    let mut in_file = bytes;
    let mut hash = Sha256::new();
    while left > 0 {
        let mut blob = vec![0; left.min(BLOB_BYTES as u64) as usize];
        let filled = in_file.min(blob.len() as u64);
        let read = blocking(move || {
            file.read_exact(&mut blob[..filled as usize])?;
            Ok((file, blob))
        });
        let read = read.await?;
        file = read.0;
        let blob = Bytes::from(read.1);
        hash.update(&blob);
        in_file -= filled;
        left -= blob.len() as u64;
        if answers.send(Ok(part(left, blob))).await.is_err() {
            // Nobody listens any more.
            return Ok(());
        }
    }
    drop(answers.send(Ok(part(0, Bytes::copy_from_slice(&hash.finalize())))).await);
    Ok(())
}

fn part(remaining_bytes: u64, blob: Bytes) -> SnapshotResponse {
    SnapshotResponse { header: None, remaining_bytes, blob, version: CLUSTER_VERSION.to_owned() }
}

/// Work that waits for the disk, where that harms nobody.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> Result<T, Status> {
    let failed = |why: &dyn std::fmt::Display| Status::internal(format!("bowline: {why}"));
    let done = tokio::task::spawn_blocking(work).await.map_err(|error| failed(&error))?;
    done.map_err(|error| failed(&error))
}
