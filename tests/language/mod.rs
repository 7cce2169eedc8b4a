//! The language of the scripts: commands, and the format of answers.
//!
//! A command is a line, or a line with indented lines below it (a transaction, a proposal). Words are separated by
//! spaces:
//!
//! ```text
//! put KEY VALUE [lease=ID] [prev]        keep-value for VALUE keeps the value, lease=keep the lease
//! get KEYS | range KEYS [rev=N] [limit=N] [sort=TARGET | sort=-TARGET] [keys-only] [count-only]
//!          [mod=MIN..MAX] [create=MIN..MAX]       either end of the bounds may be left out
//! delete KEYS [prev]
//! txn                                    below it, one line each, in this order:
//!   if FIELD(KEYS) OP VALUE              FIELD: version create mod value lease; OP: = != > <
//!   then COMMAND                         put, get, range, delete or txn
//!   else COMMAND
//! compact REVISION
//! grant ID|any ttl=MILLISECONDSms [session=LABEL | own-session=LABEL]
//! revoke ID
//! raise KIND [member=N] | end KIND [member=N] | end-all [member=N]         alarms: nospace, corrupt
//! expire ID... [term=N]                  an entry of the leader of that term
//! propose node=N life=N frontier=N [open=A..B,C..D]                        life: the incarnation
//!   SEQ COMMAND                          the requests of one proposal, by number
//! answer node=N life=N SEQ
//! read                                   a transaction that only reads, without the log
//! events [KEYS] from=REVISION            the events of a watch; prev: with the rows before
//! lease ID | leases | alarms | revision
//! hold | publish                         stop, and resume, making applied changes visible
//! ```
//!
//! KEYS: `a` one key, `a..c` half-open, `a..` from there on, `a*` a prefix, `*` every key. Bytes
//! that are not letters are written `\x00`; `""` is the empty string; `x{9}` is nine times `x`.
//! Before a line of a transaction, `9x` stands for nine copies of that line, in which `#` is
//! replaced by the number of the copy. Lease ids are hexadecimal. Unless a script names another
//! node, requests are made by node 9 and numbered from 1.

use std::fmt::Write as _;
use std::time::Duration;

use bowline::model::{
    AckWindow, Alarm, AlarmChange, AlarmKind, Command, Compare, CompareOp, CompareTarget, Delete,
    Event, EventKind, Incarnation, Item, KeyRange, KeyValue, LeaseId, NodeId, Op, Outcome,
    Proposal, Put, PutLease, PutValue, Range, RangeEnd, RangeReply, Reply, RequestId, Revision,
    RevisionBounds, SessionInfo, Sort, SortOrder, SortTarget, Term, Txn, TxnReply, TxnResult,
};
use bytes::Bytes;

use bowline_testkit::subject::Lease;

/// A command of a script.
pub(crate) enum Step {
    Request(Command),
    Propose(Proposal),
    Expire(Item),
    Range(Range),
    Read(Txn),
    Events { range: KeyRange, from: Revision, prev: bool },
    Lease(LeaseId),
    Leases,
    Alarms,
    Revision,
    Answer(RequestId),
    Hold,
    Publish,
}

/// A line with the indented lines below it.
pub(crate) struct Block<'a> {
    text: &'a str,
    below: Vec<Block<'a>>,
}

impl<'a> Block<'a> {
    /// Parses lines into blocks by their indentation.
    pub(crate) fn parse(lines: &[&'a str]) -> Vec<Block<'a>> {
        let indent = |line: &str| line.len() - line.trim_start().len();
        let mut blocks = Vec::new();
        let mut rest = lines;
        while let [first, after @ ..] = rest {
            let below = after.iter().take_while(|line| indent(line) > indent(first)).count();
            blocks.push(Block { text: first.trim(), below: Block::parse(&after[..below]) });
            rest = &after[below..];
        }
        blocks
    }
}

type Parsed<T> = Result<T, String>;

/// The words of one command: positional words, flags, and `name=value`.
struct Words<'a> {
    line: &'a str,
    words: Vec<&'a str>,
}

impl<'a> Words<'a> {
    fn new(line: &'a str) -> Self {
        Self { line, words: line.split_whitespace().collect() }
    }

    fn next(&mut self, what: &str) -> Parsed<&'a str> {
        if self.words.is_empty() {
            return Err(format!("`{}` lacks {what}", self.line));
        }
        Ok(self.words.remove(0))
    }

    fn optional(&mut self) -> Option<&'a str> {
        (!self.words.is_empty()).then(|| self.words.remove(0))
    }

    fn flag(&mut self, name: &str) -> bool {
        let found = self.words.iter().position(|word| *word == name);
        found.map(|at| self.words.remove(at)).is_some()
    }

    fn named(&mut self, name: &str) -> Option<&'a str> {
        let value = |word: &&'a str| word.strip_prefix(name)?.strip_prefix('=');
        let at = self.words.iter().position(|word| value(word).is_some())?;
        value(&self.words.remove(at))
    }

    fn end(self) -> Parsed<()> {
        match self.words.first() {
            Some(word) => Err(format!("what is `{word}` in `{}`?", self.line)),
            None => Ok(()),
        }
    }
}

/// Parses a command.
pub(crate) fn parse(block: &Block<'_>) -> Parsed<Step> {
    let mut words = Words::new(block.text);
    let step = match words.next("a command")? {
        "propose" => Step::Propose(parse_proposal(&mut words, &block.below)?),
        "expire" => {
            let term = Term(words.named("term").map_or(Ok(TERM.get()), number)?);
            let leases = std::mem::take(&mut words.words);
            let leases = leases.into_iter().map(lease_id).collect::<Parsed<_>>()?;
            Step::Expire(Item::Expire { term, leases })
        }
        "get" | "range" => Step::Range(parse_range(&mut words)?),
        "read" => Step::Read(parse_txn(&block.below)?),
        "events" => Step::Events {
            from: words.named("from").map_or(Ok(Revision::FIRST), revision)?,
            prev: words.flag("prev"),
            range: words.optional().map_or(Ok(KeyRange::all()), keys)?,
        },
        "lease" => Step::Lease(lease_id(words.next("an id")?)?),
        "leases" => Step::Leases,
        "alarms" => Step::Alarms,
        "revision" => Step::Revision,
        "answer" => Step::Answer(RequestId {
            node: node(words.named("node").ok_or("node=?")?)?,
            incarnation: Incarnation(number(words.named("life").ok_or("life=?")?)?),
            seq: number(words.next("a number")?)?,
        }),
        "hold" => Step::Hold,
        "publish" => Step::Publish,
        _ => return Ok(Step::Request(parse_command(block)?)),
    };
    words.end()?;
    Ok(step)
}

/// The term of the scripts' entries.
pub(crate) const TERM: Term = Term(3);

fn parse_command(block: &Block<'_>) -> Parsed<Command> {
    let mut words = Words::new(block.text);
    let command = match words.next("a command")? {
        "put" => Command::Put(parse_put(&mut words)?),
        "delete" => Command::Delete(parse_delete(&mut words)?),
        "txn" => Command::Txn(parse_txn(&block.below)?),
        "compact" => Command::Compact(revision(words.next("a revision")?)?),
        "grant" => Command::Grant {
            id: match words.next("an id")? {
                "any" => None,
                id => Some(lease_id(id)?),
            },
            ttl: {
                let ttl = words.named("ttl").and_then(|ttl| ttl.strip_suffix("ms"));
                Duration::from_millis(number(ttl.ok_or("ttl=?ms")?)?)
            },
            session: {
                let session = |own| move |label: &str| SessionInfo { label: label.into(), own };
                let shared = words.named("session").map(session(false));
                shared.or_else(|| words.named("own-session").map(session(true)))
            },
        },
        "revoke" => Command::Revoke(lease_id(words.next("an id")?)?),
        "raise" => Command::Alarm(AlarmChange::Raise(parse_alarm(&mut words)?)),
        "end" => Command::Alarm(AlarmChange::End(parse_alarm(&mut words)?)),
        "end-all" => Command::Alarm(match words.named("member") {
            Some(member) => AlarmChange::EndAllOf(node(member)?),
            None => AlarmChange::EndAll,
        }),
        other => return Err(format!("no command is called `{other}`")),
    };
    words.end()?;
    Ok(command)
}

fn parse_alarm(words: &mut Words<'_>) -> Parsed<Alarm> {
    let kind = match words.next("a kind")? {
        "nospace" => AlarmKind::NoSpace,
        "corrupt" => AlarmKind::Corrupt,
        other => return Err(format!("no kind of alarm is called `{other}`")),
    };
    Ok(Alarm { member: words.named("member").map(node).transpose()?, kind })
}

fn parse_put(words: &mut Words<'_>) -> Parsed<Put> {
    Ok(Put {
        key: bytes(words.next("a key")?)?,
        value: match words.next("a value")? {
            "keep-value" => PutValue::Keep,
            value => PutValue::Set(bytes(value)?),
        },
        lease: match words.named("lease") {
            None => PutLease::None,
            Some("keep") => PutLease::Keep,
            Some(id) => PutLease::Attach(lease_id(id)?),
        },
        prev_kv: words.flag("prev"),
    })
}

fn parse_delete(words: &mut Words<'_>) -> Parsed<Delete> {
    Ok(Delete { range: keys(words.next("keys")?)?, prev_kv: words.flag("prev") })
}

fn parse_range(words: &mut Words<'_>) -> Parsed<Range> {
    let (mod_min, mod_max) = words.named("mod").map_or(Ok((None, None)), bounds)?;
    let (create_min, create_max) = words.named("create").map_or(Ok((None, None)), bounds)?;
    Ok(Range {
        range: keys(words.next("keys")?)?,
        revision: words.named("rev").map(revision).transpose()?,
        limit: words.named("limit").map(number).transpose()?,
        sort: words.named("sort").map_or(Ok(Sort::default()), |sort| {
            let (target, order) = match sort.strip_prefix('-') {
                Some(target) => (target, SortOrder::Descend),
                None => (sort, SortOrder::Ascend),
            };
            let target = match target {
                "key" => SortTarget::Key,
                "version" => SortTarget::Version,
                "create" => SortTarget::Create,
                "mod" => SortTarget::Mod,
                "value" => SortTarget::Value,
                _ => return Err(format!("no order is called `{sort}`")),
            };
            Ok(Sort { target, order })
        })?,
        keys_only: words.flag("keys-only"),
        count_only: words.flag("count-only"),
        bounds: RevisionBounds { mod_min, mod_max, create_min, create_max },
    })
}

fn parse_txn(lines: &[Block<'_>]) -> Parsed<Txn> {
    let mut txn = Txn::default();
    for line in lines {
        let (times, text) = match line.text.split_once("x ") {
            Some((times, text)) if times.parse::<usize>().is_ok() => (number(times)?, text),
            _ => (1, line.text),
        };
        for turn in 1..=times {
            let text = text.replace('#', &turn.to_string());
            let (branch, text) = text.split_once(' ').ok_or_else(|| format!("`{text}` alone"))?;
            match branch {
                "if" => txn.compares.push(parse_compare(text)?),
                "then" => txn.success.push(parse_op(text, &line.below)?),
                "else" => txn.failure.push(parse_op(text, &line.below)?),
                other => return Err(format!("`{other}` is not if, then or else")),
            }
        }
    }
    Ok(txn)
}

fn parse_op(text: &str, below: &[Block<'_>]) -> Parsed<Op> {
    let mut words = Words::new(text);
    let op = match words.next("an operation")? {
        "put" => Op::Put(parse_put(&mut words)?),
        "get" | "range" => Op::Range(parse_range(&mut words)?),
        "delete" => Op::Delete(parse_delete(&mut words)?),
        "txn" => Op::Txn(parse_txn(below)?),
        other => return Err(format!("`{other}` is no operation of a transaction")),
    };
    words.end()?;
    Ok(op)
}

fn parse_compare(text: &str) -> Parsed<Compare> {
    let mut words = Words::new(text);
    let left = words.next("a field")?;
    let (field, range) = left
        .strip_suffix(')')
        .and_then(|left| left.split_once('('))
        .ok_or_else(|| format!("`{left}` is not field(keys)"))?;
    let op = match words.next("an operator")? {
        "=" => CompareOp::Equal,
        "!=" => CompareOp::NotEqual,
        ">" => CompareOp::Greater,
        "<" => CompareOp::Less,
        other => return Err(format!("`{other}` is no operator")),
    };
    let right = words.next("a value")?;
    let target = match field {
        "version" => CompareTarget::Version(number(right)?),
        "create" => CompareTarget::Create(revision(right)?),
        "mod" => CompareTarget::Mod(revision(right)?),
        "value" => CompareTarget::Value(bytes(right)?),
        "lease" => CompareTarget::Lease(hexadecimal(right)?),
        other => return Err(format!("`{other}` is no field")),
    };
    words.end()?;
    Ok(Compare { range: keys(range)?, target, op })
}

fn parse_proposal(words: &mut Words<'_>, lines: &[Block<'_>]) -> Parsed<Proposal> {
    let span = |text: &str| -> Parsed<_> {
        let (from, to) = text.split_once("..").ok_or("open=from..to")?;
        Ok(number(from)?..number(to)?)
    };
    let open = words.named("open").map(|open| open.split(',').map(span).collect::<Parsed<_>>());
    Ok(Proposal {
        node: node(words.named("node").ok_or("node=?")?)?,
        incarnation: Incarnation(number(words.named("life").ok_or("life=?")?)?),
        window: AckWindow {
            frontier: number(words.named("frontier").ok_or("frontier=?")?)?,
            open: open.transpose()?.unwrap_or_default(),
        },
        requests: lines
            .iter()
            .map(|line| {
                let (seq, text) = line.text.split_once(' ').ok_or("SEQ COMMAND")?;
                let below = Block::copy(&line.below);
                Ok((number(seq)?, parse_command(&Block { text, below })?))
            })
            .collect::<Parsed<_>>()?,
    })
}

impl<'a> Block<'a> {
    fn copy(blocks: &[Block<'a>]) -> Vec<Block<'a>> {
        let copy = |block: &Block<'a>| Block { text: block.text, below: Block::copy(&block.below) };
        blocks.iter().map(copy).collect()
    }
}

fn number(text: &str) -> Parsed<u64> {
    text.parse().map_err(|_| format!("`{text}` is not a number"))
}

fn hexadecimal(text: &str) -> Parsed<u64> {
    u64::from_str_radix(text, 16).map_err(|_| format!("`{text}` is not a hexadecimal number"))
}

fn revision(text: &str) -> Parsed<Revision> {
    number(text).map(Revision)
}

fn lease_id(text: &str) -> Parsed<LeaseId> {
    LeaseId::new(hexadecimal(text)?).ok_or_else(|| "0 is no lease".into())
}

fn node(text: &str) -> Parsed<NodeId> {
    NodeId::new(number(text)?).ok_or_else(|| "0 is no node".into())
}

fn bounds(text: &str) -> Parsed<(Option<Revision>, Option<Revision>)> {
    let (min, max) = text.split_once("..").ok_or_else(|| format!("`{text}` is not min..max"))?;
    let bound = |text: &str| (!text.is_empty()).then(|| revision(text)).transpose();
    Ok((bound(min)?, bound(max)?))
}

fn keys(text: &str) -> Parsed<KeyRange> {
    if let Some(prefix) = text.strip_suffix('*') {
        return Ok(KeyRange::prefix(bytes(prefix)?));
    }
    match text.split_once("..") {
        // An empty start stays empty, to test that it is rejected.
        Some((start, "")) => Ok(KeyRange::from_parts(bytes(start)?, RangeEnd::Unbounded)),
        Some((start, end)) => {
            Ok(KeyRange::from_parts(bytes(start)?, RangeEnd::Before(bytes(end)?)))
        }
        None => Ok(KeyRange::key(bytes(text)?)),
    }
}

fn bytes(text: &str) -> Parsed<Bytes> {
    if text == "\"\"" {
        return Ok(Bytes::new());
    }
    if let Some((part, times)) = text.strip_suffix('}').and_then(|text| text.split_once('{')) {
        return Ok(bytes(part)?.repeat(number(times)? as usize).into());
    }
    let mut plain = Vec::new();
    let mut rest = text.as_bytes();
    while let [first, after @ ..] = rest {
        rest = after;
        match (first, after) {
            (b'\\', [b'x', high, low, after @ ..]) => {
                let digits = [*high, *low];
                plain.push(hexadecimal(&String::from_utf8_lossy(&digits))? as u8);
                rest = after;
            }
            (b'\\', [b'n', after @ ..]) => {
                plain.push(b'\n');
                rest = after;
            }
            (b'\\', [b'\\', after @ ..]) => {
                plain.push(b'\\');
                rest = after;
            }
            (b'\\', _) => return Err(format!("what follows the \\ in `{text}`?")),
            _ => plain.push(*first),
        }
    }
    Ok(plain.into())
}

// ---- answers ----

/// Maximum number of results of one branch that are written in full.
const RESULTS_MAX: usize = 8;

/// Returns the lines for the outcome of a request.
pub(crate) fn outcome(outcome: &Outcome) -> Vec<String> {
    match outcome {
        Err(rejection) => vec![format!("refused: {rejection}")],
        Ok(reply) => self::reply(reply),
    }
}

fn reply(reply: &Reply) -> Vec<String> {
    match reply {
        Reply::Put(put) => with_rows(format!("revision={}", put.revision), put.prev.iter(), "was "),
        Reply::Delete(delete) => with_rows(
            format!("revision={} deleted={}", delete.revision, delete.deleted),
            &delete.prev_kvs,
            "was ",
        ),
        Reply::Txn(txn) => txn_lines(txn),
        Reply::Compacted { revision } | Reply::Noted { revision } => {
            vec![format!("revision={revision}")]
        }
        Reply::Grant(grant) => {
            vec![format!("revision={} lease={} ttl={:?}", grant.revision, grant.id, grant.ttl)]
        }
        Reply::Revoke(revoke) => {
            vec![format!("revision={} deleted={}", revoke.revision, revoke.deleted)]
        }
        Reply::Alarms { revision, alarms } => {
            vec![format!("revision={revision} {}", alarms_line(alarms))]
        }
        Reply::AppliedBefore { revision } => {
            vec![format!("applied before, at revision={revision}")]
        }
    }
}

pub(crate) fn alarms_line(alarms: &[Alarm]) -> String {
    let mut line = "alarms:".to_owned();
    for Alarm { member, kind } in alarms {
        let member = member.map(|member| format!("@{member}")).unwrap_or_default();
        write!(line, " {kind}{member}").expect("a string");
    }
    line
}

/// Returns the lines for a transaction.
pub(crate) fn txn_lines(txn: &TxnReply) -> Vec<String> {
    let branch = if txn.succeeded { "then" } else { "else" };
    let mut lines = vec![format!("{branch} revision={}", txn.revision)];
    let shown = if txn.results.len() > RESULTS_MAX { 1 } else { RESULTS_MAX };
    for result in txn.results.iter().take(shown) {
        let result = match result {
            TxnResult::Range(range) => range_lines(range),
            TxnResult::Put(put) => reply(&Reply::Put(put.clone())),
            TxnResult::Delete(delete) => reply(&Reply::Delete(delete.clone())),
            TxnResult::Txn(txn) => txn_lines(txn),
        };
        lines.extend(result.into_iter().map(|line| format!("  {line}")));
    }
    if txn.results.len() > shown {
        lines.push(format!("  and {} more results", txn.results.len() - shown));
    }
    lines
}

pub(crate) fn range_lines(range: &RangeReply) -> Vec<String> {
    let more = if range.more { " more" } else { "" };
    with_rows(format!("revision={} count={}{more}", range.revision, range.count), &range.kvs, "")
}

fn with_rows<'a>(
    head: String,
    rows: impl IntoIterator<Item = &'a KeyValue>,
    mark: &str,
) -> Vec<String> {
    let mut lines = vec![head];
    lines.extend(rows.into_iter().map(|kv| format!("  {mark}{}", row(kv))));
    lines
}

/// Returns the line for a row.
fn row(kv: &KeyValue) -> String {
    let mut line = format!(
        "{}={} create={} mod={} version={}",
        short(&kv.key),
        short(&kv.value),
        kv.create_revision,
        kv.mod_revision,
        kv.version
    );
    if let Some(lease) = kv.lease {
        write!(line, " lease={lease}").expect("a string takes everything");
    }
    line
}

pub(crate) fn event_lines(event: &Event, prev: bool) -> Vec<String> {
    let head = match event.kind {
        EventKind::Put => format!("{} put {}", event.revision(), row(&event.kv)),
        EventKind::Delete => {
            // A deletion should have no further fields. Show them if it has any.
            let mut bare = KeyValue::default();
            bare.key = event.kv.key.clone();
            bare.mod_revision = event.kv.mod_revision;
            let more =
                if event.kv == bare { String::new() } else { format!(" {}", row(&event.kv)) };
            format!("{} delete {}{more}", event.revision(), short(&event.kv.key))
        }
    };
    with_rows(head, event.prev.iter().filter(|_| prev), "was ")
}

pub(crate) fn lease_line(id: LeaseId, lease: &Lease, keys: &[Bytes]) -> String {
    let mut line = format!("lease={id} ttl={:?}", lease.ttl);
    let mut add = |text: std::fmt::Arguments<'_>| {
        line.write_fmt(text).expect("a string takes everything");
    };
    if let Some((node, incarnation, info)) = &lease.session {
        let own = if info.own { "own-" } else { "" };
        add(format_args!(" {own}session={} node={node} life={incarnation}", info.label));
    }
    add(format_args!(" keys:"));
    keys.iter().for_each(|key| add(format_args!(" {}", short(key))));
    line
}

/// Formats bytes as text, and shortens long texts.
pub(crate) fn short(bytes: &[u8]) -> String {
    const SHOWN: usize = 40;
    match bytes {
        [first, rest @ ..] if bytes.len() > SHOWN && rest.iter().all(|byte| byte == first) => {
            format!("{}{{{}}}", [*first].escape_ascii(), bytes.len())
        }
        _ if bytes.len() > SHOWN => {
            format!("{}...({} bytes)", bytes[..SHOWN].escape_ascii(), bytes.len())
        }
        _ => bytes.escape_ascii().to_string(),
    }
}
