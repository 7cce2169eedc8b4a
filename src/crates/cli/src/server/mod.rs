//! `bowline serve`: a cluster member that speaks etcd's v3 protocol.
//!
//! ```text
//!   flags        configuration from arguments, environment variables and a file
//!     │
//!   listen       accepts connections, with HTTP/1 and HTTP/2 on one port; `socket` has TCP and Unix sockets,
//!     │          `gone` detects clients that have disconnected
//!   greet        detects TLS and performs the handshake; `tls` has the certificates
//!     │
//!   dispatch     routes requests: to `grpc`, to `gateway`, which offers the same services in JSON, or to `http_side`
//!     │
//!   grpc         makes the checks that apply to every call; `deadline` cancels expired calls, `late` re-checks the
//!     │          callers of slow requests, `aside` limits CPU-heavy work, `room` the memory for unread responses
//!   services     creates the services, each with the state that it needs, and limits the sizes of messages
//!     │
//!   kv ...       one file per gRPC service
//!     │
//!   member       the library's node, and the clients that act on behalf of callers
//!     │
//!   identity     identifies a caller by token or certificate; `permission` has the permission that each method needs
//!     │
//!   wire         converts requests, responses and errors
//! ```
//!
//! Each file imports only files below it. Services use only the library's public interface.
//! `docs/etcd-compatibility.md` lists the differences from etcd.

mod address;
mod alarms;
mod aside;
mod auth;
mod calls;
mod cluster;
mod compression;
mod connection;
mod deadline;
mod directory;
mod dispatch;
mod driven;
mod election;
mod flags;
mod gateway;
mod gone;
mod greet;
mod grpc;
mod health;
mod http_side;
mod identity;
mod kv;
mod late;
mod leader;
mod lease;
mod lease_ids;
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
mod permission;
mod probes;
mod process;
mod protocol;
mod room;
mod services;
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

/// Time to wait for blocking work of the process after the member has stopped.
const HANGING_MAX: Duration = Duration::from_millis(200);

/// Run a server that speaks etcd's v3 protocol
#[derive(Args, Debug)]
#[command(disable_help_flag = true)]
pub(crate) struct ServeOptions {
    /// etcd's flags (listed by --help)
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    flags: Vec<String>,
}

/// Reason why the server does not run.
#[derive(Debug, Error)]
enum ServeError {
    #[error("cannot start the async runtime: {0}")]
    Runtime(#[source] io::Error),
    #[error("cannot listen for clients on {0}: {1}")]
    Listen(String, #[source] io::Error),
    #[error("cannot use the TLS certificates for clients: {0}")]
    Tls(#[from] TlsError),
    #[error("cannot use the keys of --auth-token: {0}")]
    Tokens(#[from] TokenError),
    #[error(transparent)]
    Directory(#[from] DirectoryError),
    #[error("cannot start the member: {0}")]
    Start(#[from] bowline::StartError),
    #[error("the member has stopped: {0}")]
    Stopped(String),
}

/// Returns the help text of the flags.
pub(crate) fn flags_help() -> String {
    flags::help()
}

/// Returns the emulated etcd version, as etcdctl prints it, and Bowline's own version.
pub(crate) fn versions() -> String {
    let own = env!("CARGO_PKG_VERSION");
    format!(
        "etcdctl version: {VERSION}\nAPI version: {CLUSTER_VERSION_SHORT}\nbowline version: {own}"
    )
}

pub(crate) fn serve_main(options: &ServeOptions) -> ExitCode {
    if options.flags.iter().any(|flag| ["-h", "--help", "-help"].contains(&flag.as_str())) {
        // An error of standard output itself cannot be reported.
        drop(write!(io::stdout().lock(), "{}", flags::help()));
        return ExitCode::SUCCESS;
    }
    if options.flags.iter().any(|flag| ["--version", "-version"].contains(&flag.as_str())) {
        // Programs that start a Bowline or an etcd server look for the first line of this text.
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
        tracing::info!("--{name} has no effect: {why}");
    }
    for warning in values.warnings().chain(options.warnings.iter().map(String::as_str)) {
        tracing::warn!("{warning}");
    }
    for name in values.strangers() {
        tracing::warn!("unknown environment variable {name}");
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let runtime = runtime.map_err(ServeError::Runtime)?;
    let ended = runtime.block_on(serve(options, log));
    // The shutdown does not wait for threads that are blocked on the disk or are hashing a password.
    runtime.shutdown_timeout(HANGING_MAX);
    ended
}

async fn serve(options: Options, log: &Log) -> Result<(), ServeError> {
    let mut terminate = signal(SignalKind::terminate()).map_err(ServeError::Runtime)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(ServeError::Runtime)?;
    // All files are loaded before anything is changed.
    let tls = options.client_tls.clone().map(Tls::load).transpose()?.map(Arc::new);
    let tokens = Tokens::load(&options.tokens)?;
    // The ports are bound first: a second server with the same ports must not open the data directory.
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
        // A joining member may search for the cluster for a minute before it starts. If it is stopped here, the disk
        // is in the same state as after a kill.
        _ = terminate.recv() => return Ok(()),
        _ = interrupt.recv() => return Ok(()),
    };
    let member = Member::new(node, options.clone(), tokens);
    // The member list must contain the client URLs of this member before it reports ready.
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

/// Shuts down the node. A node that has stopped by itself is an error.
async fn end(node: &Node) -> Result<(), ServeError> {
    if let Some(reason) = node.stop_reason() {
        return Err(ServeError::Stopped(reason.to_string()));
    }
    let shutdown = node.shutdown().await;
    if !shutdown.hanging.is_empty() {
        tracing::warn!(
            threads = ?shutdown.hanging,
            "threads are blocked on the disk, exiting without waiting for them"
        );
    }
    tracing::info!("the member has stopped cleanly");
    Ok(())
}
