//! `bowline snapshot restore`, with the flags of `etcdutl snapshot restore`.

use std::ffi::OsString;
use std::net::ToSocketAddrs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use bowline::Config;
use bowline::backup::{self, RestoreOptions};
use clap::Args;

use super::report::{self, Bar};
use super::{Output, print_result};

/// Default increase of the revision.
const REVISION_JUMP_DEFAULT: u64 = 1_000_000_000;

/// Create the data directory of one member of a new cluster from a snapshot
///
/// Run the command once for each founding member of the new cluster, with the same file, --member list, token and
/// --revision-jump. Then start the members. The new cluster has the contents of the snapshot, but all leases have
/// ended and their keys are deleted. The first revision is far above those of the snapshot, so that fencing tokens
/// never repeat.
///
/// Accepts the flags of `etcdutl snapshot restore`.
///
/// Exit codes: 0 if the directory was created, 1 if that failed, 2 for wrong arguments.
#[derive(Args, Debug)]
pub(crate) struct RestoreArguments {
    /// Snapshot or backup to restore
    file: PathBuf,

    /// Data directory to create (empty or missing) [default: NAME.etcd]
    #[arg(long, alias = "data-dir")]
    dir: Option<OsString>,

    /// Name of the member that the directory is for
    #[arg(long, default_value = "default")]
    name: String,

    /// A member of the new cluster; repeatable or comma-separated; the list must include this member [default: this
    /// member]
    #[arg(long = "member", alias = "initial-cluster", value_name = "NAME=HOST:PORT", value_delimiter = ',',
          value_parser = member)]
    members: Vec<(String, String)>,

    /// Token of the new cluster (programs that embed Bowline use an empty token by default)
    #[arg(long, alias = "initial-cluster-token", default_value = "etcd-cluster")]
    token: String,

    /// Peer URLs of this member, which must match the member list
    #[arg(long, value_name = "URL", value_delimiter = ',')]
    initial_advertise_peer_urls: Vec<String>,

    /// Increase of revisions [default: 1000000000]
    ///
    /// The increase must exceed the number of revisions that the old cluster has written since the backup. If another
    /// cluster was restored from the same backup before, the increase must also exceed the sum of that cluster's
    /// increase and its number of writes.
    #[arg(long, value_name = "REVISIONS")]
    revision_jump: Option<u64>,

    /// etcdutl's name for --revision-jump; requires --mark-compacted
    #[arg(long, value_name = "REVISIONS", conflicts_with = "revision_jump")]
    bump_revision: Option<u64>,

    /// Compact all history before the new revision (always done; etcdutl requires the flag with --bump-revision)
    #[arg(long)]
    mark_compacted: bool,

    /// Accept a snapshot without etcd's hash at its end (always accepted; Bowline's own checksums are always verified)
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    skip_hash_check: Option<bool>,

    /// Directory of the log (the log is always kept in the data directory; other directories are rejected)
    #[arg(long, value_name = "DIR")]
    wal_dir: Option<OsString>,

    /// No effect; accepted for etcdutl compatibility
    #[arg(long, value_name = "BYTES")]
    initial_memory_map_size: Option<u64>,

    #[command(flatten)]
    output: Output,
}

fn bare(url: &str) -> &str {
    let schemes = ["http://", "https://"];
    schemes.iter().find_map(|scheme| url.strip_prefix(scheme)).unwrap_or(url)
}

fn member(text: &str) -> Result<(String, String), String> {
    let (name, address) = text.split_once('=').ok_or("expected NAME=HOST:PORT")?;
    Ok((name.to_owned(), bare(address).to_owned()))
}

/// Returns whether two addresses are equal, as text or after name resolution.
fn is_same_address(one: &str, other: &str) -> bool {
    if one == other {
        return true;
    }
    let (Ok(mut one), Ok(other)) = (one.to_socket_addrs(), other.to_socket_addrs()) else {
        return false;
    };
    let other: Vec<_> = other.collect();
    one.any(|address| other.contains(&address))
}

impl RestoreArguments {
    fn dir(&self) -> PathBuf {
        match self.dir.as_ref().filter(|dir| !dir.is_empty()) {
            Some(dir) => dir.into(),
            None => format!("{}.etcd", self.name).into(),
        }
    }

    /// Returns the increase of the revision. As in etcdutl, `--bump-revision` requires `--mark-compacted`.
    fn jump(&self) -> Result<u64, String> {
        match (self.bump_revision, self.mark_compacted) {
            (Some(0), _) => Err("--bump-revision=0 is not supported: the revisions of a restored \
                 cluster always rise, so that fencing tokens never repeat; omit the flag for an \
                 increase of 1000000000, or give 1 or more"
                .to_owned()),
            (Some(_), false) => Err("--bump-revision requires --mark-compacted".to_owned()),
            (Some(bump), true) => Ok(bump),
            (None, true) if self.revision_jump.is_none() => {
                Err("--mark-compacted requires --bump-revision".to_owned())
            }
            (None, _) => Ok(self.revision_jump.unwrap_or(REVISION_JUMP_DEFAULT)),
        }
    }

    /// Rejects a log directory other than etcd's default.
    fn check_wal_dir(&self) -> Result<(), String> {
        let Some(wal) = self.wal_dir.as_ref().map(Path::new) else { return Ok(()) };
        let dir = self.dir();
        let defaults = [Path::new(""), &dir, &dir.join("member/wal")];
        if defaults.contains(&wal) {
            return Ok(());
        }
        let (wal, dir) = (wal.display(), dir.display());
        Err(format!(
            "--wal-dir={wal} is not supported: the log is kept in the data directory {dir}; omit --wal-dir"
        ))
    }

    /// Rejects peer URLs that differ from the member list.
    fn check_advertised(&self) -> Result<(), String> {
        let own: Vec<_> = self.members.iter().filter(|(name, _)| *name == self.name).collect();
        if own.is_empty() {
            // A single-member cluster has no list. A list without this member is rejected later.
            return Ok(());
        }
        let is_listed = |url: &str| own.iter().any(|(_, at)| is_same_address(bare(url), at));
        let urls = self.initial_advertise_peer_urls.iter().filter(|url| !url.is_empty());
        match urls.into_iter().find(|url| !is_listed(url)) {
            None => Ok(()),
            Some(url) => Err(format!(
                "--initial-advertise-peer-urls has {url}, but --initial-cluster has {} for member {:?}",
                own[0].1, self.name
            )),
        }
    }

    /// Checks the flags against each other, and returns the increase of the revision.
    fn checked(&self) -> Result<u64, String> {
        self.check_wal_dir()?;
        self.check_advertised()?;
        self.jump()
    }
}

pub(crate) fn restore_main(options: &RestoreArguments, as_json: bool) -> ExitCode {
    let as_json = options.output.json || as_json;
    let jump = match options.checked() {
        Ok(jump) => jump,
        Err(why) => {
            crate::print_failure(&why);
            return ExitCode::from(crate::EXIT_USAGE);
        }
    };
    let config = Config::new(options.dir(), &options.name)
        .members(options.members.clone())
        .cluster_token(&options.token);
    let how = RestoreOptions::default().revision_jump(jump);
    let bar = Bar::begin("restores", as_json);
    let restored =
        backup::restore_with(&options.file, &config, &how, &mut |done, total| bar.at(done, total));
    bar.end();
    print_result(restored, |restored| report::of_restored(&restored, &options.name, as_json))
}
