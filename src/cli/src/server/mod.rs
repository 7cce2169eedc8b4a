//! `bowline serve`: a member of a cluster that speaks etcd's v3 protocol.
//!
//! ```text
//!   flags        what it is told: arguments, environment, file
//!     │
//!   listen       sockets (socket: TCP, or a file), HTTP/1 and HTTP/2 on one port; gone looks at those that nobody reads
//!     │
//!   greet        the first words: TLS or none, whose certificate; tls is what is shown and asked for
//!     │
//!   dispatch     which service; what is asked of every request; deadline is when it ends
//!     │
//!   identity     who asks: token, password and certificate are what it is found out by; late asks once more
//!     │
//!   kv ...       one file for each service of gRPC; gateway for the same as JSON; http_side for the rest; aside is who
//!     │          has its turn of what takes long, room what may wait to be read
//!   wire         requests, answers and errors, translated both ways
//!     │
//!   member       the library's node, and what all services share
//! ```
//!
//! Services use nothing of the library but its public interface, and hold no state that others depend on: that is
//! all in the node. `docs/etcd-compatibility.md` says where it differs from etcd.

mod address;
mod alarms;
mod aside;
mod auth;
mod calls;
mod cluster;
mod compression;
mod deadline;
mod directory;
mod dispatch;
mod driven;
mod election;
mod flags;
mod gateway;
mod gone;
mod greet;
mod health;
mod http_side;
mod identity;
mod kv;
mod late;
mod leader;
mod lease;
mod line;
mod listen;
mod lock;
mod log;
mod maintenance;
mod member;
mod metrics;
mod newcomers;
mod no_space;
mod notify;
mod password;
mod probes;
mod process;
mod room;
mod snapshot;
mod socket;
mod tls;
mod token;
mod traffic;
mod watch;
mod wire;

use std::io::{self, Write};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use bowline::{Node, NodeStatus, Role};
use clap::Args;
use thiserror::Error;
use tokio::signal::unix::{SignalKind, signal};

use directory::DirectoryError;
use dispatch::Dispatch;
use flags::{Options, Values};
use listen::Doors;
use log::Log;
pub(crate) use member::CLUSTER_VERSION;
use member::{CLUSTER_VERSION_SHORT, Member, VERSION};
use notify::Notifier;
use tls::{Tls, TlsError};
use token::{TokenError, Tokens};

/// How long to wait at most for work of the process that has begun, once the member has stopped.
const HANGING_MAX: Duration = Duration::from_millis(200);

/// Run a server that speaks etcd's v3 protocol
#[derive(Args, Debug)]
#[command(disable_help_flag = true)]
pub(crate) struct ServeOptions {
    /// etcd's flags; --help lists them
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    flags: Vec<String>,
}

/// Why the server does not run.
#[derive(Debug, Error)]
enum ServeError {
    #[error("no runtime: {0}")]
    Runtime(#[source] io::Error),
    #[error("cannot listen for clients on {0}: {1}")]
    Listen(String, #[source] io::Error),
    #[error("the certificates for clients: {0}")]
    Tls(#[from] TlsError),
    #[error("the keys of --auth-token: {0}")]
    Tokens(#[from] TokenError),
    #[error(transparent)]
    Directory(#[from] DirectoryError),
    #[error("the member does not start: {0}")]
    Start(#[from] bowline::StartError),
    #[error("the member has stopped: {0}")]
    Stopped(String),
}

/// What `bowline serve --help` says of the flags.
pub(crate) fn flags_help() -> String {
    flags::help()
}

/// What versions there are: etcd's, whose behaviour this is, as etcdctl says it, and our own.
pub(crate) fn versions() -> String {
    let own = env!("CARGO_PKG_VERSION");
    format!(
        "etcdctl version: {VERSION}\nAPI version: {CLUSTER_VERSION_SHORT}\nbowline version: {own}"
    )
}

/// The command.
pub(crate) fn serve_main(options: &ServeOptions) -> ExitCode {
    if options.flags.iter().any(|flag| ["-h", "--help", "-help"].contains(&flag.as_str())) {
        // Where nobody reads it nothing is lost.
        drop(write!(io::stdout().lock(), "{}", flags::help()));
        return ExitCode::SUCCESS;
    }
    if options.flags.iter().any(|flag| ["--version", "-version"].contains(&flag.as_str())) {
        // The first line is what programs look for that start a server of either kind.
        let own = env!("CARGO_PKG_VERSION");
        drop(writeln!(io::stdout().lock(), "etcd Version: {VERSION}\nBowline Version: {own}"));
        return ExitCode::SUCCESS;
    }
    let environment = std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
    let read = Values::read(&options.flags, environment)
        .and_then(|values| Options::new(&values).map(|options| (values, options)));
    let (values, options) = match read {
        Ok(read) => read,
        Err(error) => {
            super::complain(&error);
            return ExitCode::from(super::EXIT_USAGE);
        }
    };
    let log = match log::begin(&options.log) {
        Ok(log) => log,
        Err(error) => {
            super::complain(&error);
            return ExitCode::FAILURE;
        }
    };
    match run(&values, options, &log) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            log.complain(&error);
            ExitCode::FAILURE
        }
    }
}

fn run(values: &Values, options: Options, log: &Log) -> Result<(), ServeError> {
    for (name, why) in values.idle() {
        tracing::info!("--{name} changes nothing: {why}");
    }
    for warning in values.warnings().chain(options.warnings.iter().map(String::as_str)) {
        tracing::warn!("{warning}");
    }
    for name in values.strangers() {
        tracing::warn!("{name} in the environment is not known");
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let runtime = runtime.map_err(ServeError::Runtime)?;
    let ended = runtime.block_on(serve(options, log));
    // What hangs in the disk, or in a password's hash, is not waited for.
    runtime.shutdown_timeout(HANGING_MAX);
    ended
}

async fn serve(options: Options, log: &Log) -> Result<(), ServeError> {
    let mut terminate = signal(SignalKind::terminate()).map_err(ServeError::Runtime)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(ServeError::Runtime)?;
    // Nothing is touched where files are wrong.
    let tls = options.client_tls.clone().map(Tls::load).transpose()?.map(Arc::new);
    let tokens = Tokens::load(&options.tokens)?;
    // The ports are taken first: a second server on them must not touch the data.
    let doors = Doors::take(&options.doors)
        .await
        .map_err(|(address, error)| ServeError::Listen(address, error))?;
    if let Some((cert, key)) = options.makes_peer_files() {
        tls::make_files(&options.name, cert, key)?;
    }
    let config = options.config();
    directory::check(&options, &config)?;
    let notifier = Notifier::from_environment();
    let notify = |report: fn(&Notifier)| notifier.iter().for_each(report);
    notify(Notifier::waiting);
    let node = tokio::select! {
        started = Node::start(config) => started?,
        // Whoever joins may ask around for a minute before it has started. What it has on its disk by then is what a
        // process that is killed would leave.
        _ = terminate.recv() => return Ok(()),
        _ = interrupt.recv() => return Ok(()),
    };
    let member = Member::new(node, options.clone(), tokens);
    // Whoever asks for the members is told where clients reach this one.
    let is_known = |status: &NodeStatus| {
        let own = status.members.iter().find(|member| member.id == status.id);
        own.is_some_and(|own| own.endpoints == options.advertise_clients)
    };
    let ready = async {
        let is_ready = |status: &NodeStatus| status.leader.is_some() && is_known(status);
        if member.node().wait_for(is_ready).await.role != Role::Stopped {
            log.say_ready(&options);
            notify(Notifier::ready);
        }
    };
    let (stop, stopping) = tokio::sync::watch::channel(false);
    let dispatch = Dispatch::new(&member);
    let open = doors.open(&dispatch, &options, tls, ready, stopping);
    let signalled = async {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
            why = member.node().stopped() => tracing::error!("the member has stopped: {why}"),
        }
        notify(Notifier::stopping);
        stop.send_replace(true);
    };
    let watchdog = async {
        match &notifier {
            Some(notifier) => notifier.keep_watchdog(member.node()).await,
            None => std::future::pending().await,
        }
    };
    let served = async { tokio::join!(open, signalled) };
    tokio::select! {
        _ = served => {}
        () = watchdog => {}
    }
    drop(dispatch);
    end(member.node()).await
}

/// Stops the node in good order, unless it has stopped by itself, which is a failure.
async fn end(node: &Node) -> Result<(), ServeError> {
    if let Some(reason) = node.stop_reason() {
        return Err(ServeError::Stopped(reason.to_string()));
    }
    let shutdown = node.shutdown().await;
    if !shutdown.hanging.is_empty() {
        tracing::warn!(threads = ?shutdown.hanging, "threads hang in the disk and are left behind");
    }
    tracing::info!("the member has stopped in good order");
    Ok(())
}
