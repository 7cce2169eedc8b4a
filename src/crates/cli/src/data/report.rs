//! Output of commands that work on files: a progress bar, then lines for people or a JSON object.

use std::io::{self, IsTerminal, Write};

use bowline::backup::{BackupInfo, DirectoryInfo, Recovered, Restored};
use bowline::cluster::{MemberRole, Members, SnapshotId};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Value, json};

use crate::client::{Format, Table, size};
use bowline_server::CLUSTER_VERSION;

/// A progress bar, hidden if standard error is not a terminal.
pub(crate) struct Bar(ProgressBar);

impl Bar {
    /// Shows the bar at zero.
    pub(crate) fn begin(what: &'static str, hidden: bool) -> Self {
        if hidden || !io::stderr().is_terminal() {
            return Self(ProgressBar::hidden());
        }
        let bar = ProgressBar::new(0).with_message(what);
        let style = ProgressStyle::with_template("{msg:>12} [{bar:30}] {percent}%");
        Self(bar.with_style(style.expect("the template is valid").progress_chars("=> ")))
    }

    /// Sets the progress.
    pub(crate) fn at(&self, done: u64, total: u64) {
        self.0.set_length(total);
        self.0.set_position(done);
    }

    /// Removes the bar.
    pub(crate) fn end(&self) {
        self.0.finish_and_clear();
    }
}

/// Result of a command, ready to print.
pub(super) struct Report {
    body: Body,
    /// Detected problems.
    problems: Vec<String>,
}

/// The main part of a report.
enum Body {
    Lines(Vec<(&'static str, String)>),
    Json(Value),
    /// Text in a format of etcdutl, including line ends.
    Text(String),
}

impl Report {
    fn new(as_json: bool, json: Value, lines: Vec<(&'static str, String)>) -> Self {
        let body = if as_json { Body::Json(json) } else { Body::Lines(lines) };
        Self { body, problems: Vec::new() }
    }

    /// Returns whether no problems were detected.
    pub(super) fn is_ok(&self) -> bool {
        self.problems.is_empty()
    }

    pub(super) fn print(&self) -> io::Result<()> {
        let mut out = io::stdout().lock();
        let lines = match &self.body {
            Body::Lines(lines) => lines,
            Body::Json(json) => return writeln!(out, "{json}"),
            Body::Text(text) => return out.write_all(text.as_bytes()),
        };
        let (bold, plain) =
            if io::stdout().is_terminal() { ("\x1b[1m", "\x1b[0m") } else { ("", "") };
        let (mark, red) =
            if io::stderr().is_terminal() { ("\x1b[0m", "\x1b[1;31m") } else { ("", "") };
        for (what, value) in lines {
            writeln!(out, "{bold}{what:>12}{plain} {value}")?;
        }
        out.flush()?;
        for trouble in &self.problems {
            writeln!(io::stderr().lock(), "{red}damaged{mark}: {trouble}")?;
        }
        Ok(())
    }
}

fn id_json(id: SnapshotId) -> Value {
    json!({
        "index": id.index.get(),
        "term": id.term.get(),
        "bytes": id.bytes,
        "checksum": format!("{:016x}", id.checksum),
    })
}

fn members_json(members: &Members) -> Value {
    let rows = members.rows().iter().map(|(id, member)| {
        json!({
            "id": id.get(),
            "name": member.name,
            "address": member.address,
            "votes": member.role == MemberRole::Voter,
        })
    });
    rows.collect()
}

fn members_words(members: &Members) -> String {
    let rows = members.rows().iter().map(|(id, member)| {
        let learner = if member.role == MemberRole::Learner { " (learner)" } else { "" };
        match member.name.as_str() {
            "" => format!("{id}{learner}"),
            name => format!("{id} {name} {}{learner}", member.address),
        }
    });
    match rows.collect::<Vec<_>>() {
        rows if rows.is_empty() => "none".to_owned(),
        rows => rows.join(", "),
    }
}

fn bytes(bytes: u64) -> String {
    indicatif::HumanBytes(bytes).to_string()
}

/// Returns a report on a backup. The text for people has Bowline's format, and the other formats are etcdutl's. The
/// JSON object has etcdutl's fields and additional fields of Bowline.
pub(super) fn of_backup(info: &BackupInfo, format: Format) -> Report {
    let status = EtcdStatus::of(info);
    match format {
        Format::Table => return status.table(),
        Format::Fields => return status.fields(),
        _ => {}
    }
    let json = json!({
        "hash": status.hash,
        "revision": status.revision,
        "totalKey": status.keys,
        "totalSize": status.bytes,
        "version": CLUSTER_VERSION,
        "sound": true,
        "cluster": info.cluster.to_string(),
        "cluster_version": info.version.get(),
        "id": id_json(info.id),
        "compacted": info.compacted.get(),
        "keys": info.keys,
        "leases": info.leases,
        "state_bytes": info.state_bytes,
        "members": members_json(&info.members),
    });
    let lines = vec![
        ("sound", format!("{}, all checksums match", bytes(info.id.bytes))),
        ("cluster", format!("{}, version {}", info.cluster, info.version)),
        ("entry", format!("{} of term {}", info.id.index, info.id.term)),
        ("revision", format!("{}, compacted at {}", info.revision, info.compacted)),
        ("keys", format!("{}, {} in memory", info.keys, bytes(info.state_bytes))),
        ("leases", info.leases.to_string()),
        ("members", members_words(&info.members)),
    ];
    Report::new(format == Format::Json, json, lines)
}

/// The values that `etcdutl snapshot status` prints.
struct EtcdStatus {
    /// The lower 32 bits of the checksum that identifies the file.
    hash: u32,
    revision: u64,
    keys: u64,
    bytes: u64,
}

impl EtcdStatus {
    fn of(info: &BackupInfo) -> Self {
        Self {
            hash: info.id.checksum as u32,
            revision: info.revision.get(),
            keys: info.keys,
            bytes: info.id.bytes,
        }
    }

    fn table(&self) -> Report {
        let titles = ["hash", "revision", "total keys", "total size", "version"];
        let row = [
            format!("{:x}", self.hash),
            self.revision.to_string(),
            self.keys.to_string(),
            size(self.bytes.try_into().unwrap_or(i64::MAX)),
            CLUSTER_VERSION.to_owned(),
        ];
        let text = Table::new(&titles, vec![row.into()]).to_string();
        Report { body: Body::Text(text), problems: Vec::new() }
    }

    fn fields(&self) -> Report {
        let Self { hash, revision, keys, bytes } = self;
        let text = format!(
            "\"Hash\" : {hash}\n\"Revision\" : {revision}\n\"Keys\" : {keys}\n\"Size\" : {bytes}\n\
             \"Version\" : {CLUSTER_VERSION}\n"
        );
        Report { body: Body::Text(text), problems: Vec::new() }
    }
}

/// Returns a report on a restored directory.
pub(super) fn of_restored(restored: &Restored, name: &str, as_json: bool) -> Report {
    let json = json!({
        "dir": restored.dir.display().to_string(),
        "cluster": restored.cluster.to_string(),
        "member": restored.member.get(),
        "name": name,
        "revision": restored.revision.get(),
        "keys": restored.keys,
        "leases_ended": restored.leases_ended,
        "keys_deleted": restored.keys_deleted,
    });
    let lines = vec![
        ("restored", format!("{} for member {} {name}", restored.dir.display(), restored.member)),
        ("cluster", restored.cluster.to_string()),
        ("revision", restored.revision.to_string()),
        ("keys", restored.keys.to_string()),
        ("ended", format!("{} leases, with {} keys", restored.leases_ended, restored.keys_deleted)),
    ];
    Report::new(as_json, json, lines)
}

/// Returns a report on a recovered backup.
pub(super) fn of_recovered(recovered: &Recovered, as_json: bool) -> Report {
    let warning = &recovered.warning;
    let json = json!({
        "file": recovered.file.display().to_string(),
        "cluster": recovered.cluster.to_string(),
        "id": id_json(recovered.id),
        "keys": recovered.keys,
        "warning": {
            "words": warning.to_string(),
            "member": warning.member.get(),
            "name": warning.name,
            "last": warning.last.get(),
            "term": warning.term.get(),
            "revision": warning.revision.get(),
            "committed": warning.committed.get(),
            "committed_revision": warning.committed_revision.get(),
        },
    });
    let lines = vec![
        ("recovered", format!("{}, {}", recovered.file.display(), bytes(recovered.id.bytes))),
        ("cluster", recovered.cluster.to_string()),
        ("keys", recovered.keys.to_string()),
        ("warning", warning.to_string()),
    ];
    Report::new(as_json, json, lines)
}

/// Returns a report on a data directory.
pub(super) fn of_directory(info: &DirectoryInfo, as_json: bool) -> Report {
    let own = info.members.get(info.member);
    let name = own.map(|member| member.name.clone()).unwrap_or_default();
    let snapshots = info.snapshots.iter().map(|file| {
        json!({
            "path": file.path.display().to_string(),
            "index": file.index.get(),
            "term": file.term.get(),
            "sound_bytes": file.sound_bytes,
        })
    });
    let from_backup = info.from_backup.map(|from| {
        json!({
            "cluster": from.cluster.to_string(),
            "id": id_json(from.id),
            "revision_jump": from.revision_jump,
        })
    });
    let json = json!({
        "cluster": info.cluster.to_string(),
        "member": info.member.get(),
        "name": name,
        "disk": info.disk.to_string(),
        "starts": info.starts.get(),
        "founded": info.founded,
        "from_backup": from_backup,
        "term": info.term.get(),
        "vote": info.vote.map(|vote| vote.get()),
        "log": {
            "first": info.first.get(),
            "last": info.last.get(),
            "last_term": info.last_term.get(),
            "commit": info.commit.get(),
            "bytes": info.log_bytes,
            "torn_bytes": info.torn_bytes,
        },
        "snapshots": snapshots.collect::<Value>(),
        "members": members_json(&info.members),
        "revision": info.revision.map(|revision| revision.get()),
        "keys": info.keys,
        "problems": info.problems,
    });
    let vote = info.vote.map_or_else(|| "nobody".to_owned(), |vote| format!("member {vote}"));
    let mut lines = vec![
        ("cluster", info.cluster.to_string()),
        (
            "member",
            format!("{} {name}, disk {}, started {} times", info.member, info.disk, info.starts),
        ),
        ("term", format!("{}, voted for {vote}", info.term)),
        (
            "log",
            match info.last < info.first {
                true => format!("no entries after {}", info.last),
                false => format!(
                    "entries {} to {} (term {}), {}, committed at least up to {}",
                    info.first,
                    info.last,
                    info.last_term,
                    bytes(info.log_bytes),
                    info.commit
                ),
            },
        ),
    ];
    for file in &info.snapshots {
        let size = file.sound_bytes.map_or_else(|| "damaged".to_owned(), bytes);
        lines.push(("snapshot", format!("entry {} of term {}, {size}", file.index, file.term)));
    }
    if let (Some(revision), Some(keys)) = (info.revision, info.keys) {
        lines.push(("state", format!("revision {revision}, {keys} keys")));
    }
    lines.push(("members", members_words(&info.members)));
    if !info.founded {
        lines.push(("founded", "no: the member has not been part of a cluster yet".to_owned()));
    }
    if let Some(from) = info.from_backup {
        let (cluster, index) = (from.cluster, from.id.index);
        lines.push(("made from", format!("a backup of cluster {cluster} at entry {index}")));
    }
    if info.torn_bytes > 0 {
        let torn = bytes(info.torn_bytes);
        lines.push(("torn", format!("{torn} of an incomplete write at a crash")));
    }
    Report { problems: info.problems.clone(), ..Report::new(as_json, json, lines) }
}
