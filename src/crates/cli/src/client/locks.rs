//! `bowline locks`: lists holders and waiters of locks.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;

use bytes::Bytes;
use clap::Args;

use super::connect::{CallKind, Client, Link};
use super::failure::{EXIT_CODES, Failure};
use super::print::{Object, Output, Page, Show, Table, header_json, list};
use bowline_client::prefix_end;
use bowline_client::queue_entries;
use bowline_client::{EntryValue, LOCK_MARK};
use bowline_proto::etcdserverpb as pb;
use bowline_proto::mvccpb::KeyValue;

/// List locks, semaphores and elections with their holders, waiters and reasons
///
/// Includes the locks of `etcdctl lock`, of etcd's concurrency package and of programs that embed Bowline. The column
/// `since` is the revision at which the request was queued. The column `lease` identifies the client's session;
/// `bowline lease timetolive` prints the remaining time of a lease. To revoke a hold, delete its key with `bowline
/// del`; if the holder uses Bowline, it is notified at once.
#[derive(Args, Debug)]
#[command(after_long_help = EXIT_CODES)]
pub(crate) struct LocksOptions {
    /// Name of the lock [default: all locks]
    name: Option<OsString>,

    /// List all locks whose names begin with NAME
    #[arg(long, requires = "name")]
    prefix: bool,
}

struct Line {
    name: Bytes,
    places: Vec<(KeyValue, EntryValue, bool)>,
}

struct Lines {
    header: Option<pb::ResponseHeader>,
    lines: Vec<Line>,
}

pub(crate) async fn run(
    client: &Client,
    output: Output,
    options: LocksOptions,
) -> Result<(), Failure> {
    // Without --prefix, NAME is the name of one lock, whose keys begin with the name and a slash.
    let name = options.name.map(OsStringExt::into_vec);
    let wanted = name.clone().filter(|_| !options.prefix);
    let begins = name.unwrap_or_default();
    let prefix = match &wanted {
        Some(name) => [&name[..], b"/"].concat(),
        None => begins.clone(),
    };
    let range_end = prefix_end(&prefix);
    let key = if prefix.is_empty() { Bytes::from_static(b"\0") } else { prefix.into() };
    let request = pb::RangeRequest { key, range_end, ..Default::default() };
    let call = async |link: Link| link.kv().range(request.clone()).await;
    let answer = client.ask(CallKind::Repeatable, call).await?;
    let mut lines: BTreeMap<Bytes, Vec<KeyValue>> = BTreeMap::new();
    for row in answer.kvs {
        if let Some(name) = name_of(&row)
            && name.starts_with(&begins)
            && wanted.as_ref().is_none_or(|wanted| name == wanted[..])
        {
            lines.entry(name).or_default().push(row);
        }
    }
    let lines = lines.into_iter().map(|(name, rows)| {
        let mut before = Vec::new();
        let place = |row: KeyValue| {
            let stance = EntryValue::parse(&row.value);
            let holds = stance.mode.holds_after(&before);
            before.push(stance.mode);
            (row, stance, holds)
        };
        Line { places: queue_entries(&name, rows).into_iter().map(place).collect(), name }
    });
    output.show(&Lines { header: answer.header, lines: lines.collect() })
}

/// Returns the name of the lock that a row belongs to. The row's key is `NAME/<lease in hexadecimal>`, possibly
/// followed by a number.
fn name_of(row: &KeyValue) -> Option<Bytes> {
    let slash = row.key.iter().rposition(|byte| *byte == b'/')?;
    let last = std::str::from_utf8(&row.key[slash + 1..]).ok()?;
    let lease = last.split('.').next()?;
    let is_its_own = row.lease != 0 && i64::from_str_radix(lease, 16) == Ok(row.lease);
    is_its_own.then(|| row.key.slice(..slash))
}

/// Returns the kind of lock that the row is a request for. Candidates of an election store their own value; mutexes of
/// etcd clients store none.
fn kind(row: &KeyValue, stance: &EntryValue) -> String {
    if row.value.is_empty() || row.value.starts_with(LOCK_MARK.as_bytes()) {
        stance.mode.name()
    } else {
        "election".to_owned()
    }
}

fn who(stance: &EntryValue) -> String {
    let parts = [stance.owner.as_str(), stance.site.as_str()];
    let parts: Vec<_> = parts.into_iter().filter(|part| !part.is_empty()).collect();
    parts.join(", ")
}

impl Show for Lines {
    fn simple(&self, page: &mut Page) {
        for line in &self.lines {
            page.line(line.name.escape_ascii().to_string());
            for (row, stance, holds) in &line.places {
                let holds = if *holds { "holds" } else { "waits" };
                let kind = kind(row, stance);
                let (since, lease) = (row.create_revision, row.lease);
                let mut text = format!("  {holds} {kind} since {since}, lease {lease:x}");
                if !who(stance).is_empty() {
                    text += &format!(", {}", who(stance));
                }
                if !stance.why.is_empty() {
                    text += &format!(": {}", stance.why.escape_ascii());
                }
                page.line(text);
            }
        }
    }

    fn fields(&self, page: &mut Page) {
        page.header(&self.header);
        for line in &self.lines {
            for (row, stance, holds) in &line.places {
                page.quoted("Name", &line.name);
                page.quoted("Key", &row.key);
                page.field("Holds", holds);
                page.quoted("Kind", kind(row, stance));
                page.field("Since", row.create_revision);
                page.field("Lease", row.lease);
                page.quoted("Owner", &stance.owner);
                page.quoted("Site", &stance.site);
                page.quoted("Reason", &stance.why);
                page.line("");
            }
        }
    }

    fn json(&self) -> String {
        let place = |(row, stance, holds): &(KeyValue, EntryValue, bool)| {
            Object::default()
                .bytes("key", &row.key)
                .raw("holds", holds)
                .text("kind", &kind(row, stance))
                .number("since", row.create_revision)
                .number("lease", row.lease)
                .text("owner", &stance.owner)
                .text("site", &stance.site)
                .bytes("reason", &stance.why)
                .end()
        };
        let line = |line: &Line| {
            let object = Object::default().bytes("name", &line.name);
            object.raw("queue", list(line.places.iter().map(place))).end()
        };
        Object::default()
            .object("header", header_json(&self.header))
            .raw("locks", list(self.lines.iter().map(line)))
            .end()
    }

    fn table(&self) -> Option<Table> {
        let row = |name: &Bytes, (row, stance, holds): &(KeyValue, EntryValue, bool)| {
            vec![
                name.escape_ascii().to_string(),
                if *holds { "holds" } else { "waits" }.to_owned(),
                kind(row, stance),
                row.create_revision.to_string(),
                format!("{:x}", row.lease),
                who(stance),
                stance.why.escape_ascii().to_string(),
            ]
        };
        let rows = self.lines.iter().flat_map(|line| {
            line.places.iter().map(|place| row(&line.name, place)).collect::<Vec<_>>()
        });
        let titles = ["name", "state", "kind", "since", "lease", "holder or waiter", "reason"];
        Some(Table::new(&titles, rows.collect()))
    }
}
