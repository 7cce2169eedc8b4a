//! Streams the state to a client as a backup. The library makes the backup, and the server sends it in the format in
//! which etcd sends its database.
//!
//! ```text
//!   backup            zeros up to a multiple of 512 bytes   sha256 of all bytes before
//!   blob blob ... blob ──────────────────────────────────▶  blob
//!   remaining_bytes falls to 0                              0
//! ```
//!
//! A client that writes all blobs into a file, as etcd's clients do, gets a file that `bowline snapshot` can read.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;
use sha2::{Digest, Sha256};
use tokio::sync::{Mutex, OwnedSemaphorePermit, Semaphore, oneshot};
use tonic::Status;
use tracing::Instrument;

use crate::member::Member;
use crate::services::response_stream::ResponseSender;
use crate::wire::{Reason, refused};
use bowline_proto::etcdserverpb::SnapshotResponse;

/// Size of a blob, as in etcd.
const BLOB_BYTES: usize = 32 << 10;

/// Alignment of the data before the hash. etcd's clients detect by it that there is a hash.
const ALIGN_BYTES: u64 = 512;

/// Returns the name of the backup while it is written. In a data directory it is removed at the next start after a
/// crash, because it is named like an unfinished snapshot.
fn name(member: &Member) -> String {
    format!("snap-sent-{:x}-{}.writing", member.node().cluster().0, member.id())
}

/// Maximum number of snapshots sent at the same time. More are rejected, because each keeps a file open.
const SENDING_MAX: usize = 4;

/// The snapshots that a member takes and sends.
pub(crate) struct Snapshots {
    member: Arc<Member>,
    sending: Arc<Semaphore>,
    /// Backups are made one at a time, because they use the same file name.
    taking: Mutex<()>,
}

impl Snapshots {
    pub(crate) fn new(member: &Arc<Member>) -> Arc<Self> {
        let sending = Arc::new(Semaphore::new(SENDING_MAX));
        Arc::new(Self { member: Arc::clone(member), sending, taking: Mutex::default() })
    }

    /// Creates a backup of this member's state. The file is unlinked at once, so that it disappears with the last
    /// reader, even if the client disconnects while it is written.
    ///
    /// # Errors
    /// Fails if too many snapshots are being sent, if the library's backup fails, or if the file cannot be read.
    pub(crate) async fn take(self: &Arc<Self>) -> Result<Sent, Status> {
        let sending = Arc::clone(&self.sending).try_acquire_owned();
        let sending = sending.map_err(|_| Reason::TooManyRequests)?;
        let (reply, taken) = oneshot::channel();
        let snapshots = Arc::clone(self);
        let take = async move {
            let result = snapshots.write(&reply).await;
            // Sending fails only if the caller no longer waits.
            let version = snapshots.member.announced().cluster();
            let sent = |(file, bytes)| Sent { file, bytes, version, _sending: sending };
            drop(reply.send(result.map(sent)));
        };
        tokio::spawn(take.in_current_span());
        taken
            .await
            .map_err(|_| Status::internal("bowline: the task that takes the snapshot has ended"))?
    }

    /// Writes the backup, unless the caller no longer waits.
    async fn write(
        &self,
        waits: &oneshot::Sender<Result<Sent, Status>>,
    ) -> Result<(File, u64), Status> {
        let _turn = self.taking.lock().await;
        if waits.is_closed() {
            return Err(Status::cancelled("the client has disconnected"));
        }
        let path: PathBuf = self.member.settings().snapshot_dir.join(name(&self.member));
        let id = self.member.node().backup(&path).await.map_err(refused)?;
        let file = blocking(move || {
            let file = File::open(&path);
            fs::remove_file(&path)?;
            file
        });
        Ok((file.await?, id.bytes))
    }
}

/// A snapshot that is being sent. It counts against the limit until dropped.
pub(crate) struct Sent {
    file: File,
    bytes: u64,
    /// Version of the cluster to announce.
    version: &'static str,
    _sending: OwnedSemaphorePermit,
}

/// Sends the file, the padding and the hash.
///
/// # Errors
/// Fails if the file cannot be read or is too short.
pub(crate) async fn send(
    Sent { mut file, bytes, version, _sending }: Sent,
    answers: &ResponseSender<SnapshotResponse>,
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
        if answers.send(Ok(part(version, left, blob))).await.is_err() {
            // The client has disconnected.
            return Ok(());
        }
    }
    drop(answers.send(Ok(part(version, 0, Bytes::copy_from_slice(&hash.finalize())))).await);
    Ok(())
}

fn part(version: &str, remaining_bytes: u64, blob: Bytes) -> SnapshotResponse {
    SnapshotResponse { header: None, remaining_bytes, blob, version: version.to_owned() }
}

/// Runs blocking work on a thread for that purpose.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> Result<T, Status> {
    let failed = |why: &dyn std::fmt::Display| Status::internal(format!("bowline: {why}"));
    let done = tokio::task::spawn_blocking(work).await.map_err(|error| failed(&error))?;
    done.map_err(|error| failed(&error))
}
