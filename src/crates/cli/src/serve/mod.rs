//! `bowline serve`: runs a cluster member that serves etcd's v3 protocol.
//!
//! This module starts a node and a [`Server`] for it, configured by the flags, and stops both at a signal.
//!
//! ```text
//!   flags        configuration from arguments, environment variables and a file
//!   log          the server's log
//!   directory    checks the contents of a new member's data directory
//!   notify       reports readiness to the service manager
//! ```

mod directory;
mod flags;
mod log;
mod notify;
mod peer_certificate;

use std::io::{self, Write};
use std::process::ExitCode;
use std::sync::Arc;

use bowline::{Node, NodeStatus};
use bowline_server::{
    BindError, CLUSTER_VERSION_SHORT, Listeners, Server, ServerError, ServerTls, TlsError,
    TokenError, Tokens, VERSION,
};
use clap::Args;
use rustix::process::{Resource, getrlimit, setrlimit};
use thiserror::Error;
use tokio::signal::unix::{SignalKind, signal};

use directory::DirectoryError;
use flags::{Door, Options, TokenKind, Values};
use log::Log;
use notify::Notifier;

/// Run a server for clients of etcd's v3 protocol
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
    #[error(transparent)]
    Listen(#[from] BindError),
    #[error("cannot use the TLS certificates for clients: {0}")]
    Tls(#[from] TlsError),
    #[error("cannot use the keys of --auth-token: {0}")]
    Tokens(#[from] TokenError),
    #[error(transparent)]
    Directory(#[from] DirectoryError),
    #[error("cannot start the member: {0}")]
    Start(#[from] bowline::StartError),
    #[error(transparent)]
    Server(#[from] ServerError),
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
            crate::print_failure(&error);
            return ExitCode::from(crate::EXIT_USAGE);
        }
    };
    let log = match log::begin(&options.log) {
        Ok(log) => log,
        Err(error) => {
            crate::print_failure(&error);
            return ExitCode::FAILURE;
        }
    };
    match run(&values, options, &log) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            log.print_failure(&error);
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
    for name in values.unknown_variables() {
        tracing::warn!("unknown environment variable {name}");
    }
    raise_descriptor_limit();
    // The node and the server have threads of their own. This thread waits for signals.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(ServeError::Runtime)?.block_on(serve(options, log))
}

/// Raises the limit of file descriptors as far as allowed. If that fails, the old limit stays in force.
fn raise_descriptor_limit() {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    setrlimit(Resource::Nofile, limit).ok();
}

async fn serve(options: Options, log: &Log) -> Result<(), ServeError> {
    let mut terminate = signal(SignalKind::terminate()).map_err(ServeError::Runtime)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(ServeError::Runtime)?;
    // All files are loaded before anything is changed.
    let tls = options.client_tls.clone().map(ServerTls::load).transpose()?;
    let tokens = match &options.tokens {
        TokenKind::Simple { ttl } => Tokens::simple(*ttl),
        TokenKind::Jwt(settings) => Tokens::jwt(settings)?,
    };
    // The ports are bound first: a second server with the same ports must not open the data directory.
    let endpoints: Vec<_> = options.doors.iter().map(Door::endpoint).collect();
    let listeners = Listeners::bind(&endpoints)?;
    if let Some((cert, key)) = options.makes_peer_files() {
        peer_certificate::make(&options.name, cert, key)?;
    }
    let config = options.config();
    directory::check(&options, &config)?;
    let notifier = Notifier::from_environment();
    let notify = |report: fn(&Notifier)| notifier.iter().for_each(report);
    notify(Notifier::waiting);
    let node = tokio::select! {
        started = Node::start(config) => Arc::new(started?),
        // A joining member may search for the cluster for a minute before it starts. If a signal ends this wait, the
        // disk is in the same state as after a kill.
        _ = terminate.recv() => return Ok(()),
        _ = interrupt.recv() => return Ok(()),
    };
    let server = Server::new(&node).listeners(listeners).auth(tokens).announce(options.announced);
    let server = server.settings(options.settings.clone()).open_when(opening(&options));
    let server = match tls {
        Some(tls) => server.tls(tls),
        None => server,
    };
    let server = server.start().await?;
    let served = async {
        let opened = async {
            if server.opened().await {
                log.print_ready(&options);
                notify(Notifier::ready);
            }
            std::future::pending().await
        };
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
            why = node.stopped() => tracing::error!("the member has stopped: {why}"),
            () = opened => {}
        }
        notify(Notifier::stopping);
        server.shutdown().await;
    };
    let watchdog = async {
        match &notifier {
            Some(notifier) => notifier.keep_watchdog(&node).await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        () = served => {}
        () = watchdog => {}
    }
    end(&node).await
}

/// Returns the condition under which the server accepts clients: there is a leader, and the member list contains the
/// client URLs of this member.
fn opening(options: &Options) -> impl FnMut(&NodeStatus) -> bool + Send + 'static {
    let advertised = options.advertise_clients.clone();
    move |status| {
        let own = status.members.iter().find(|member| member.id == status.id);
        status.leader.is_some() && own.is_some_and(|own| own.endpoints == advertised)
    }
}

/// Shuts down the node. A node that has stopped by itself is an error, unless the member was removed: as in etcd, a
/// service manager must not restart it then.
async fn end(node: &Node) -> Result<(), ServeError> {
    match node.stop_reason() {
        Some(bowline::StopReason::Removed) => return Ok(()),
        Some(reason) => return Err(ServeError::Stopped(reason.to_string())),
        None => {}
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
