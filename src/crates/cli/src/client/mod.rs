//! Client commands for servers of Bowline and etcd, over etcd's protocol. Commands, options and output that exist in
//! etcdctl have the same names and formats here.
//!
//! ```text
//!   options      endpoints, credentials, output format; accepted before or after the command
//!     │
//!   put ...      one file per command: its options, help and requests
//!     │
//!   connect      connects to a server and decides on retries
//!     │
//!   print        formats the output
//! ```
//!
//! The module `failure` defines the exit codes.

use std::process::ExitCode;
use std::sync::Arc;

use clap::Subcommand;

mod alarm;
mod auth;
mod child;
mod compact;
mod connect;
mod deadline_pipe;
mod defrag;
mod del;
mod descendants;
mod elect;
mod endpoint;
mod failure;
mod get;
mod hold;
mod lease;
mod lock;
mod locks;
mod member;
mod migrate;
mod move_leader;
mod options;
mod print;
mod put;
mod quote;
mod range;
mod role;
mod snapshot;
mod supervisor;
mod terminal;
mod txn;
mod user;
mod watch;

pub(crate) use options::{Format, Globals};
pub(crate) use print::Table;
pub(crate) use print::cluster::size;
pub(crate) use supervisor::{SupervisedChild, bound};

use connect::Client;
use failure::Failure;
use print::Output;

/// Exit code of a process that was killed by SIGPIPE. Used when the reader of the output has closed the pipe.
const EXIT_PIPE: u8 = 141;

/// A client command.
#[derive(Subcommand, Debug)]
pub(crate) enum Command {
    Get(get::GetOptions),
    Put(put::PutOptions),
    Del(del::DelOptions),
    Txn(txn::TxnOptions),
    Watch(watch::WatchOptions),
    #[command(alias = "compaction")]
    Compact(compact::CompactOptions),
    Lease(lease::LeaseOptions),
    Lock(lock::LockOptions),
    Semaphore(lock::SemaphoreOptions),
    Elect(elect::ElectOptions),
    Locks(locks::LocksOptions),
    Member(member::MemberOptions),
    Endpoint(endpoint::EndpointOptions),
    MoveLeader(move_leader::MoveLeaderOptions),
    Import(migrate::ImportOptions),
    Alarm(alarm::AlarmOptions),
    Defrag(defrag::DefragOptions),
    #[command(alias = "backup")]
    Snapshot(snapshot::SnapshotOptions),
    User(user::UserOptions),
    Role(role::RoleOptions),
    Auth(auth::AuthOptions),
}

impl Command {
    /// Returns whether the command has the exit codes that show whether something was changed. Commands with other exit
    /// codes document them in their help.
    fn reports_changes(&self) -> bool {
        !matches!(
            self,
            Command::Lock(_) | Command::Semaphore(_) | Command::Elect(_) | Command::Import(_)
        )
    }

    /// Returns whether the output can be a table.
    fn has_table(&self) -> bool {
        match self {
            Command::Locks(_) | Command::Endpoint(_) => true,
            Command::Member(options) => options.has_table(),
            _ => false,
        }
    }
}

pub(crate) fn main(command: Command, globals: &Globals) -> ExitCode {
    match run(command, globals) {
        Ok(code) => code,
        Err(failure) => {
            failure.print_failure();
            ExitCode::from(failure.code())
        }
    }
}

fn run(command: Command, globals: &Globals) -> Result<ExitCode, Failure> {
    let mut settings = globals.settle()?;
    if let Command::Snapshot(options) = &command
        && let Some(code) = options.local(settings.format)
    {
        return Ok(code);
    }
    if settings.format == options::Format::Table && !command.has_table() {
        // The format is checked before the command changes anything.
        let why = "this command cannot print a table: use -w simple, json or fields";
        return Err(Failure::Usage(why.to_owned()));
    }
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime = runtime
        .map_err(|error| Failure::Local("cannot start the async runtime".to_owned(), error))?;
    let output = Output::new(&settings);
    settings.login = terminal::known(settings.login, "BOWLINE_PASSWORD")?;
    let client = Client::new(settings);
    let tasks = tokio::task::LocalSet::new();
    let reports_changes = command.reports_changes();
    let work = dispatch(command, Arc::clone(&client), output);
    let result = runtime.block_on(tasks.run_until(work)).map_err(|failure| {
        if reports_changes && client.has_changed() { failure.after_a_change() } else { failure }
    });
    // The shutdown does not wait for threads that are blocked reading standard input.
    runtime.shutdown_background();
    result.map(|()| ExitCode::SUCCESS)
}

async fn dispatch(command: Command, client: Arc<Client>, output: Output) -> Result<(), Failure> {
    match command {
        Command::Get(options) => get::run(&client, output, options).await,
        Command::Put(options) => put::run(&client, output, options).await,
        Command::Del(options) => del::run(&client, output, options).await,
        Command::Txn(options) => txn::run(&client, output, options).await,
        Command::Watch(options) => watch::run(client, output, options).await,
        Command::Compact(options) => compact::run(&client, output, options).await,
        Command::Lease(options) => lease::run(&client, output, options).await,
        Command::Lock(options) => lock::run(&client, output, options).await,
        Command::Semaphore(options) => lock::run_semaphore(&client, output, options).await,
        Command::Elect(options) => elect::run(&client, output, options).await,
        Command::Locks(options) => locks::run(&client, output, options).await,
        Command::Member(options) => member::run(&client, output, options).await,
        Command::Endpoint(options) => endpoint::run(&client, output, options).await,
        Command::MoveLeader(options) => move_leader::run(&client, output, options).await,
        Command::Import(options) => migrate::run(client, output, options).await,
        Command::Alarm(options) => alarm::run(&client, output, options).await,
        Command::Defrag(options) => defrag::run(&client, output, options).await,
        Command::Snapshot(options) => snapshot::run(&client, output, options).await,
        Command::User(options) => user::run(&client, output, options).await,
        Command::Role(options) => role::run(&client, output, options).await,
        Command::Auth(options) => auth::run(&client, output, options).await,
    }
}
