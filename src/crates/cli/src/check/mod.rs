//! `bowline check`: reads a history from a file, checks it with the library's checkers ([`bowline_check`]), and
//! reports the verdict as text, as JSON, or as a page with a picture.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use bowline_check::edn::{self, Dialect};
use bowline_check::intervals::{self, HoldCall, Holds, LeaseCall, Leases};
use bowline_check::lines::{self, FieldError, LineError, LineFault, Lines, Written};
use bowline_check::page::Page;
use bowline_check::watch::{self, RecordedWatchCall, WatchRecord};
use bowline_check::{
    Budget, ElectionModel, ElectionReply, History, Kv, KvCall, Level, ListTxn, Model, MutexModel,
    MutexReply, Operation, Outcome, QueueModel, Register, RegisterTxn, SemaphoreModel, Total,
    TxnStep, Undecided, Value, Verdict, cycles, linear, total,
};
use clap::{Args, ValueEnum};
use thiserror::Error;

mod report;

/// Exit code if the history violates the model.
const EXIT_VIOLATION: u8 = 1;

/// Exit code if the budget was used up before a verdict, or if there was nothing to check.
const EXIT_UNDECIDED: u8 = 3;

/// Check whether a history of operations is possible
///
/// The history is a file with one operation per line, in JSON from any program, or in EDN from Jepsen; see
/// docs/assurance/checkers.md. Histories of objects are checked for linearizability: some order of the operations must
/// explain every reply. In this order, an operation that ended before another was called must precede it. Histories of
/// transactions are checked for cycles of dependencies between reads and writes.
///
/// Exit codes: 0 ok; 1 violation; 2 wrong arguments, or a file that cannot be read; 3 undecided.
#[derive(Args, Debug)]
pub(crate) struct CheckOptions {
    /// History to check (-: standard input)
    file: PathBuf,

    /// Model of the object that the operations were called on
    #[arg(long, value_enum)]
    model: ModelName,

    /// Read the history as EDN, in Jepsen's format (implied by a name ending in .edn)
    #[arg(long)]
    edn: bool,

    /// Print one JSON object and nothing else
    #[arg(long)]
    json: bool,

    /// Write an HTML page with a picture of the violation, if there is one
    #[arg(long, value_name = "FILE.html")]
    page: Option<PathBuf>,

    /// Isolation level of transactions: read-uncommitted, read-committed, snapshot-isolation, serializable,
    /// session-serializable or strict-serializable
    #[arg(long, value_name = "LEVEL", value_parser = level, default_value = Level::default().name())]
    level: Level,

    /// Initial value of a register, a number or a text [default: none]
    #[arg(long, value_name = "VALUE", allow_hyphen_values = true, value_parser = value)]
    first: Option<Value>,

    /// Revision of the store before the first change of the history
    #[arg(long, value_name = "REVISION", default_value_t = Kv::default().first)]
    first_revision: u64,

    /// Maximum number of holds that the owner of a reentrant lock can have at once
    #[arg(long, value_name = "COUNT", default_value_t = 1_000_000, value_parser = clap::value_parser!(u32).range(1..))]
    holds: u32,

    /// Require that tokens increase from one hold or leader to the next (mutex, reentrant, election)
    #[arg(long)]
    fenced: bool,

    /// Number of permits of each object (semaphore, holds)
    #[arg(long, value_name = "COUNT", default_value_t = 1)]
    permits: u64,

    /// Allow an owner to have several holds at once (holds)
    #[arg(long)]
    shared: bool,

    /// Assume that clients that are not in the history also change the store (revisions, watch)
    #[arg(long)]
    others: bool,

    /// Maximum difference between two clocks, in the time unit of the history (holds, leases)
    #[arg(long, value_name = "TIME", default_value_t = 0)]
    slack: u64,

    /// Maximum drift of a clock, in percent (holds, leases)
    #[arg(long, value_name = "PERCENT", default_value_t = 0)]
    drift: u64,

    /// Time after the loss of a hold during which no other owner may hold, in the time unit of the history (holds)
    #[arg(long, value_name = "TIME", default_value_t = 0)]
    lock_delay: u64,

    /// Maximum time by which a lease may outlive its TTL, in the time unit of the history (leases)
    #[arg(long, value_name = "TIME")]
    late: Option<u64>,

    /// Maximum number of search steps per object
    #[arg(long, default_value_t = linear::STEPS_DEFAULT)]
    steps: u64,

    /// Maximum number of search states to keep in memory per object; determines most of the memory use
    #[arg(long, default_value_t = linear::CONFIGURATIONS_DEFAULT)]
    configurations: usize,

    /// Time limit
    #[arg(long, value_name = "SECONDS")]
    seconds: Option<u64>,
}

/// Model of the operations in a history.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
enum ModelName {
    /// A single value: read, write, cas
    #[value(alias = "cas")]
    Register,
    /// A store of rows with revisions, like etcd's: put, get, delete, cas
    Kv,
    /// A FIFO queue: put, take
    Queue,
    /// A lock with one owner: acquire, release
    Mutex,
    /// A lock that its owner may hold several times
    Reentrant,
    /// A lock whose holds have increasing tokens
    Fenced,
    /// A semaphore: acquire, release
    Semaphore,
    /// An election with one leader at a time: campaign, proclaim, resign, expire, leader
    Election,
    /// Like kv, for replies with revisions; handles millions of operations
    Revisions,
    /// Watches of a store and the events they received: change, compact, watch, receive
    Watch,
    /// Time intervals in which owners believed that they held a resource: hold
    Holds,
    /// Lifetimes of leases by the clock: grant, renew, revoke, look
    Leases,
    /// Transactions that append to lists: txn
    ListAppend,
    /// Transactions that write registers: txn
    WriteRead,
    /// A set of elements that are never removed, in EDN: add, read
    Set,
}

impl ModelName {
    fn calls(self) -> &'static str {
        match self {
            Self::Register => "read, write and cas",
            Self::Kv | Self::Revisions => "put, get, delete and cas",
            Self::Queue => "put and take",
            Self::Mutex | Self::Reentrant | Self::Fenced | Self::Semaphore => "acquire and release",
            Self::Election => "campaign, proclaim, resign, expire and leader",
            Self::Watch => "change, compact, watch and receive",
            Self::Holds => "hold",
            Self::Leases => "grant, renew, revoke and look",
            Self::ListAppend | Self::WriteRead => "txn",
            Self::Set => "add and read, in EDN",
        }
    }

    /// Returns the Jepsen dialect (EDN format) of this model, if there is one.
    fn dialect(self) -> Option<Dialect> {
        Some(match self {
            Self::Register => Dialect::Register,
            Self::Queue => Dialect::Queue,
            Self::Mutex | Self::Reentrant | Self::Semaphore => Dialect::Lock,
            Self::ListAppend => Dialect::ListAppend,
            Self::WriteRead => Dialect::WriteRead,
            Self::Set => Dialect::Set,
            _ => return None,
        })
    }
}

impl CheckOptions {
    fn is_edn(&self) -> bool {
        self.edn || self.file.extension().is_some_and(|extension| extension == "edn")
    }

    /// Returns what is proved if no violation is found.
    fn promise(&self) -> &'static str {
        match self.model {
            ModelName::ListAppend | ModelName::WriteRead | ModelName::Set => self.level.name(),
            ModelName::Watch => "every event was received once and in order",
            ModelName::Holds => "mutual exclusion",
            ModelName::Leases => "each lease lived for its TTL",
            _ => "linearizable",
        }
    }
}

fn level(name: &str) -> Result<Level, String> {
    let names = || Level::ALL.map(Level::name).join(", ");
    Level::named(name).ok_or_else(|| format!("use one of {}", names()))
}

fn value(text: &str) -> Result<Value, std::convert::Infallible> {
    Ok(text.parse().map_or_else(|_| Value::from(text), |number: i64| Value::from(number)))
}

/// Reason why there is no verdict.
#[derive(Debug, Error)]
enum CheckError {
    #[error("cannot open {file}: {error}")]
    Open { file: String, error: io::Error },
    #[error("{file}: {error}\n{help}")]
    Line { file: String, error: LineError, help: String },
    #[error("histories of a set must be EDN: name the file something.edn, or pass --edn")]
    OnlyEdn,
    #[error(
        "this model has no EDN format; supported are register, set, list-append, write-read, queue, mutex, reentrant \
         and semaphore"
    )]
    NoEdn,
    #[error("cannot write the page {file}: {error}")]
    Page { file: String, error: io::Error },
    #[error("cannot print the verdict: {0}")]
    Print(#[from] io::Error),
}

pub(crate) fn check_main(options: &CheckOptions) -> ExitCode {
    match check(options) {
        Ok(code) => code,
        Err(error) => {
            crate::print_failure(&error);
            ExitCode::from(crate::EXIT_USAGE)
        }
    }
}

fn check(options: &CheckOptions) -> Result<ExitCode, CheckError> {
    let from = opened(&options.file)?;
    match options.model {
        ModelName::Register => {
            by_order(options, read(options, from)?, &Register { first: options.first.clone() })
        }
        ModelName::Kv => {
            by_order(options, read(options, from)?, &Kv { first: options.first_revision })
        }
        ModelName::Queue => by_order(options, read(options, from)?, &QueueModel),
        ModelName::Mutex => locked(options, from, 1, options.fenced),
        ModelName::Fenced => locked(options, from, 1, true),
        ModelName::Reentrant => locked(options, from, options.holds, options.fenced),
        ModelName::Semaphore => {
            by_order(options, read(options, from)?, &SemaphoreModel { permits: options.permits })
        }
        ModelName::Election => {
            let lines = read(options, from)?;
            if options.fenced {
                each_has_a_token(options, &lines, &ElectionReply::Elected { token: None })?;
            }
            by_order(options, lines, &ElectionModel { is_fenced: options.fenced })
        }
        ModelName::Revisions => {
            let rules = Total { first: options.first_revision, others: options.others };
            evaluate::<KvCall>(options, &read(options, from)?, |history| {
                total::check(&rules, history)
            })
        }
        ModelName::Watch => {
            let rules = WatchRecord { others: options.others };
            evaluate::<RecordedWatchCall>(options, &read(options, from)?, |history| {
                watch::check(&rules, history)
            })
        }
        ModelName::Holds => {
            let rules = Holds {
                permits: options.permits,
                is_reentrant: options.shared,
                slack: options.slack,
                lock_delay: options.lock_delay,
                drift_percent: options.drift,
            };
            evaluate::<HoldCall>(options, &read(options, from)?, |history| {
                intervals::holds(&rules, history)
            })
        }
        ModelName::Leases => {
            let rules =
                Leases { drift_percent: options.drift, slack: options.slack, late: options.late };
            evaluate::<LeaseCall>(options, &read(options, from)?, |history| {
                intervals::leases(&rules, history)
            })
        }
        ModelName::ListAppend => transactions(
            options,
            from,
            |txn: &ListTxn| &txn.0,
            |history| cycles::lists(history, options.level),
        ),
        ModelName::WriteRead | ModelName::Set => transactions(
            options,
            from,
            |txn: &RegisterTxn| &txn.0,
            |history| cycles::registers(history, options.level),
        ),
    }
}

fn name_of(file: &Path) -> String {
    if file == Path::new("-") { "standard input".to_owned() } else { file.display().to_string() }
}

fn opened(file: &Path) -> Result<Box<dyn BufRead>, CheckError> {
    if file == Path::new("-") {
        return Ok(Box::new(io::stdin().lock()));
    }
    match File::open(file) {
        Ok(open) => Ok(Box::new(BufReader::new(open))),
        Err(error) => Err(CheckError::Open { file: name_of(file), error }),
    }
}

/// Checks a history of a lock.
fn locked(
    options: &CheckOptions,
    from: impl BufRead,
    holds_max: u32,
    is_fenced: bool,
) -> Result<ExitCode, CheckError> {
    let lines = read(options, from)?;
    if is_fenced {
        each_has_a_token(options, &lines, &MutexReply::Acquired { token: None })?;
    }
    by_order(options, lines, &MutexModel { holds_max, is_fenced })
}

/// Requires a token in each grant. A missing token is a fault of the history and not of the lock.
fn each_has_a_token<C, R: PartialEq>(
    options: &CheckOptions,
    lines: &Lines<C, R>,
    without: &R,
) -> Result<(), CheckError> {
    let is_without = |operation: &Operation<C, R>| match &operation.outcome {
        Outcome::Ok { reply, .. } => reply == without,
        Outcome::Failed { .. } | Outcome::Unknown { .. } => false,
    };
    match lines.history.iter().position(is_without) {
        Some(place) => Err(missing(
            options,
            lines.numbers[place],
            "token",
            "with --fenced, each hold and each leadership must have a token; to check a history without tokens, use \
             --model mutex, or omit --fenced",
        )),
        None => Ok(()),
    }
}

/// Checks a history of transactions by the values that the transactions read.
fn transactions<C: Written>(
    options: &CheckOptions,
    from: impl BufRead,
    steps: impl Fn(&C) -> &[TxnStep],
    check: impl FnOnce(&History<C, C::Reply>) -> Verdict,
) -> Result<ExitCode, CheckError> {
    let lines = read::<C>(options, from)?;
    if let (Level::SessionSerializable, Some(line)) = (options.level, lines.nameless) {
        let help = "session-serializable compares the operations of each process: name the process in each line";
        return Err(missing(options, line, "process", help));
    }
    // A transaction that reads an empty set has no step.
    let is_read = |operation: &Operation<C, C::Reply>| {
        let steps = steps(&operation.call);
        steps.is_empty() || steps.iter().any(|step| matches!(step, TxnStep::Read(_)))
    };
    evaluate(options, &lines, |history| match check(history) {
        Verdict::Ok if !history.iter().any(|one| one.is_answered() && is_read(one)) => {
            no_claim(Undecided::Unread)
        }
        verdict => verdict,
    })
}

/// Checks a history for linearizability.
fn by_order<M: Model>(
    options: &CheckOptions,
    lines: Lines<M::Call, M::Reply>,
    model: &M,
) -> Result<ExitCode, CheckError>
where
    M::Call: Written<Reply = M::Reply>,
{
    let begun = Instant::now();
    let limit = options.seconds.map(Duration::from_secs);
    let stop = || limit.is_some_and(|limit| begun.elapsed() >= limit);
    let budget =
        Budget { steps: options.steps, configurations: options.configurations, stop: Some(&stop) };
    evaluate::<M::Call>(options, &lines, |history| linear::check(model, history, budget))
}

fn read<C: Written>(
    options: &CheckOptions,
    from: impl BufRead,
) -> Result<Lines<C, C::Reply>, CheckError> {
    let lines = match (options.is_edn(), options.model.dialect()) {
        (false, _) if options.model == ModelName::Set => return Err(CheckError::OnlyEdn),
        (false, _) => lines::read(from),
        (true, Some(dialect)) => edn::read(from, dialect),
        (true, None) => return Err(CheckError::NoEdn),
    };
    lines.map_err(|error| CheckError::Line {
        help: help(options, &error.fault),
        file: name_of(&options.file),
        error,
    })
}

/// Returns the error for a history that lacks a field that only these options require.
fn missing(
    options: &CheckOptions,
    line: usize,
    field: &'static str,
    help: &'static str,
) -> CheckError {
    let error = LineError { line, fault: FieldError::Missing(field).into() };
    CheckError::Line { file: name_of(&options.file), error, help: help.to_owned() }
}

/// Checks a history and reports the verdict.
fn evaluate<C: Written>(
    options: &CheckOptions,
    lines: &Lines<C, C::Reply>,
    check: impl FnOnce(&History<C, C::Reply>) -> Verdict,
) -> Result<ExitCode, CheckError> {
    let verdict = match check(&lines.history) {
        Verdict::Ok | Verdict::Undecided { why: Undecided::Unread, .. }
            if !lines.history.iter().any(Operation::is_answered) =>
        {
            no_claim(Undecided::Nothing)
        }
        verdict => verdict,
    };
    if let (Some(page), Some(why)) = (&options.page, verdict.violation()) {
        let title = name_of(&options.file);
        let html = Page::new(&title).lines(&lines.numbers).of(&lines.history, why);
        fs::write(page, html).map_err(|error| CheckError::Page { file: name_of(page), error })?;
    }
    let mut out = io::stdout().lock();
    if options.json {
        writeln!(out, "{}", report::to_json(options, lines, &verdict))?;
    } else {
        for (what, words) in report::details(options, lines, &verdict) {
            writeln!(out, "{what:>12} {words}")?;
        }
    }
    out.flush()?;
    Ok(match verdict {
        Verdict::Ok => ExitCode::SUCCESS,
        Verdict::Violation(_) => ExitCode::from(EXIT_VIOLATION),
        Verdict::Undecided { .. } => ExitCode::from(EXIT_UNDECIDED),
    })
}

/// Returns the verdict for a history without replies. The verdict must not be "passed", because any object could have
/// produced such a history.
fn no_claim(why: Undecided) -> Verdict {
    Verdict::Undecided { object: String::new(), why, explored: 0 }
}

/// Returns advice about a line that cannot be parsed.
fn help(options: &CheckOptions, fault: &LineFault) -> String {
    let model = options.model.to_possible_value();
    let model = model.as_ref().map_or("", |model| model.get_name());
    match fault {
        LineFault::NoSuchCall(_) => format!(
            "the calls of {model} are {}; if the history is of another kind, pass its --model",
            options.model.calls()
        ),
        LineFault::NoSuchField(_) => format!(
            "unknown fields are errors, because they may be misspelled: remove the field, or pass another --model \
             than {model}"
        ),
        LineFault::NotJson(_) | LineFault::NotAnObject => {
            "each line is one operation, such as \
             {\"invoke\":1,\"complete\":2,\"outcome\":\"ok\",\"call\":\"read\",\"result\":7}; empty lines and lines \
             that begin with # are ignored"
                .to_owned()
        }
        LineFault::NotEdn(_) => "for the format, see docs/assurance/checkers.md, \"Jepsen histories\"".to_owned(),
        LineFault::Backwards { .. } => "both must be times of a clock that all processes share".to_owned(),
        _ => format!("the fields of {model} are in docs/assurance/checkers.md, \"The format of a history\""),
    }
}
