//! `bowline snapshot`: saves a backup to a file, inspects one, and restores a cluster from one.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bowline_fleet::Signals;
use clap::{Args, Subcommand};
use sha2::{Digest, Sha256};
use tonic::Streaming;

use super::connect::{CallKind, Client, Link, NO_LIMIT};
use super::failure::{EXIT_CODES, Failure};
use super::options::Format;
use super::print::Output;
use super::supervisor::ended_by;
use crate::data::{self, Bar};
use bowline_proto::etcdserverpb::{SnapshotRequest, SnapshotResponse};

/// Maximum time to wait for the next part of a snapshot.
const WAIT_MAX: Duration = Duration::from_secs(30);

/// Alignment of the data before the hash. The size of a file therefore shows whether the file ends with a hash.
const ALIGN_BYTES: u64 = 512;

const HASH_BYTES: usize = 32;

const EXAMPLES: &str = "\
Examples:
  bowline snapshot save today.snap
  bowline snapshot status today.snap
  bowline snapshot restore today.snap --dir /var/lib/bowline --name a \\
      --member a=10.0.0.1:2380 --member b=10.0.0.2:2380 --member c=10.0.0.3:2380";

/// Save a backup to a file, inspect one, or restore a cluster from one
#[derive(Args, Debug)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct SnapshotOptions {
    #[command(subcommand)]
    command: SnapshotCommand,
}

#[derive(Subcommand, Debug)]
enum SnapshotCommand {
    /// Save a server's state to a file
    ///
    /// Creates the file, readable only by its owner, when the download is complete and verified. A snapshot of an etcd
    /// server has etcd's own format, which `etcdutl` reads.
    ///
    /// Uses the first of the --endpoints that answers. The download has no time limit unless --command-timeout is
    /// given.
    #[command(after_long_help = EXIT_CODES)]
    Save {
        /// File to create or replace
        file: PathBuf,
    },
    #[command(alias = "verify")]
    Status(data::VerifyOptions),
    Restore(data::RestoreArguments),
}

impl SnapshotOptions {
    /// Runs a subcommand that needs no server. Returns `None` if the subcommand needs a server.
    pub(crate) fn local(&self, format: Format) -> Option<ExitCode> {
        match &self.command {
            SnapshotCommand::Save { .. } => None,
            SnapshotCommand::Status(options) => Some(data::verify_main(options, format)),
            SnapshotCommand::Restore(options) => {
                Some(data::restore_main(options, format == Format::Json))
            }
        }
    }
}

pub(crate) async fn run(
    client: &Client,
    output: Output,
    options: SnapshotOptions,
) -> Result<(), Failure> {
    let SnapshotCommand::Save { file } = options.command else { return Ok(()) };
    let signals = Signals::new();
    let mut signals =
        signals.map_err(|error| Failure::Local("cannot handle signals".to_owned(), error))?;
    let limit = client.settings.given_timeout.unwrap_or(NO_LIMIT);
    let version = tokio::select! {
        saved = tokio::time::timeout(limit, save(client, &file)) => {
            saved.map_err(|_| Failure::Timeout(limit))??
        }
        signal = signals.next() => return Err(Failure::Exit(ended_by(signal))),
    };
    output.say(format!("Snapshot saved at {}", file.display()))?;
    if version.is_empty() { Ok(()) } else { output.say(format!("Server version {version}")) }
}

/// Saves a snapshot and returns the server's version.
async fn save(client: &Client, file: &Path) -> Result<String, Failure> {
    let part = Part::beside(file)?;
    let call = async |link: Link| link.maintenance().snapshot(SnapshotRequest {}).await;
    // The download has no time limit, because a retry at another server would have to start from the beginning.
    let answers = client.ask_for(NO_LIMIT, CallKind::Repeatable, call).await?;
    let version = receive(answers, &part).await?;
    publish(&part.path, file).map_err(|error| Failure::Local(file.display().to_string(), error))?;
    Ok(version)
}

/// A temporary file in the directory of the final file. The temporary file is deleted unless it is renamed, because an
/// incomplete snapshot is useless.
struct Part {
    file: File,
    path: PathBuf,
}

impl Part {
    /// Creates the temporary file, which only its owner can read.
    fn beside(file: &Path) -> Result<Self, Failure> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let mut path = file.as_os_str().to_owned();
        path.push(format!(".part.{}.{}", std::process::id(), now.as_nanos()));
        let path = PathBuf::from(path);
        match File::options().write(true).create_new(true).mode(0o600).open(&path) {
            Ok(file) => Ok(Self { file, path }),
            Err(error) => Err(Failure::Local(path.display().to_string(), error)),
        }
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        // If the file has been renamed, removing it fails, which is harmless.
        drop(fs::remove_file(&self.path));
    }
}

/// Downloads a snapshot and verifies its hash. Returns the server's version.
async fn receive(mut answers: Streaming<SnapshotResponse>, part: &Part) -> Result<String, Failure> {
    let local = |error| Failure::Local(part.path.display().to_string(), error);
    let mut file = &part.file;
    let bar = Bar::begin("saves", false);
    let (mut bytes, mut version) = (0, String::new());
    // The last bytes may be the hash, so they are held back from hashing.
    let (mut hash, mut tail) = (Sha256::new(), Vec::new());
    loop {
        let answer = tokio::time::timeout(WAIT_MAX, answers.message()).await;
        let answer = answer.map_err(|_| Failure::Timeout(WAIT_MAX))?.map_err(Failure::Refused)?;
        let Some(answer) = answer else { break };
        file.write_all(&answer.blob).map_err(local)?;
        bytes += answer.blob.len() as u64;
        bar.at(bytes, bytes + answer.remaining_bytes);
        if !answer.version.is_empty() {
            version = answer.version;
        }
        tail.extend_from_slice(&answer.blob);
        let known = tail.len().saturating_sub(HASH_BYTES);
        hash.update(&tail[..known]);
        tail.drain(..known);
    }
    bar.end();
    if bytes % ALIGN_BYTES != HASH_BYTES as u64 || hash.finalize()[..] != tail[..] {
        let why = format!(
            "the received snapshot of {bytes} bytes does not match its checksum: it was discarded"
        );
        return Err(Failure::Failed(why));
    }
    file.sync_all().map_err(local)?;
    Ok(version)
}

/// Renames the temporary file to its final name, and makes the rename durable.
fn publish(part: &Path, file: &Path) -> io::Result<()> {
    fs::rename(part, file)?;
    let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty());
    File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
}
