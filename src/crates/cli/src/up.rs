//! `bowline up`: runs a cluster on this machine for testing. Each server is a process with a directory of its own.

mod certificates;

use std::ffi::OsString;
use std::io::{self, IsTerminal, Write};
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{ExitCode, Stdio};
use std::time::Duration;

use clap::Args;
use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncBufReadExt, AsyncRead, BufReader};
use tokio::process::Child;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{mpsc, watch};

use crate::client;
use certificates::Certificates;

/// Text in a server's log that shows that the server is ready.
const READY: &str = "ready to serve client requests";

/// Maximum time for the servers to stop. Servers that still run afterwards are killed.
const STOP_PATIENCE: Duration = Duration::from_secs(20);

/// Terminal colors of the servers' names.
const COLOURS: [&str; 6] = ["36", "33", "32", "35", "34", "31"];

/// Start a cluster of servers on this machine for testing
///
/// Each server is a process `bowline serve` on loopback, with a directory of its own. The logs of the servers are
/// printed, each line preceded by the server's name. When all servers are ready, one line prints their endpoints.
/// Ctrl-C stops the servers; their data is kept for the next start.
///
/// Each server uses two consecutive ports, starting at --port: one for clients and one for peers.
///
/// Exit codes: 0 if stopped as requested, 1 if a server did not start or ended by itself, 2 for wrong arguments.
#[derive(Args, Debug)]
pub(crate) struct UpOptions {
    /// Number of servers, 1 to 7
    #[arg(long, value_name = "COUNT", default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=7))]
    nodes: u16,

    /// Directory for the servers' directories (created if missing)
    #[arg(long, value_name = "DIR", default_value = "bowline-data")]
    dir: PathBuf,

    /// First port
    #[arg(long, default_value_t = 2379, value_parser = clap::value_parser!(u16).range(1..=65000))]
    port: u16,

    /// Use TLS, with new certificates at each start, stored in `tls` below --dir (prints the options for clients)
    #[arg(long)]
    tls: bool,

    /// More flags of `bowline serve` for all servers
    #[arg(last = true, value_name = "FLAG")]
    flags: Vec<OsString>,
}

/// An event of a server.
enum News {
    Line(String),
    Ended(String),
}

pub(crate) fn main(options: UpOptions) -> ExitCode {
    let runtime = match tokio::runtime::Runtime::new() {
        Ok(runtime) => runtime,
        Err(error) => {
            crate::print_failure(&format!("cannot start the async runtime: {error}"));
            return ExitCode::FAILURE;
        }
    };
    match runtime.block_on(up(&options)) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            crate::print_failure(&error);
            ExitCode::FAILURE
        }
    }
}

impl UpOptions {
    fn client(&self, node: u16) -> String {
        format!("127.0.0.1:{}", self.port + 2 * node)
    }

    fn peer(&self, node: u16) -> String {
        format!("127.0.0.1:{}", self.port + 2 * node + 1)
    }

    /// Checks that the ports are free before anything is written. Without this check, a second start would replace the
    /// certificates of the running servers.
    fn ports_are_free(&self) -> io::Result<()> {
        for address in (0..self.nodes).flat_map(|node| [self.client(node), self.peer(node)]) {
            TcpListener::bind(&address).map_err(|error| {
                let advice = "is the cluster already running? Otherwise use another --port";
                io::Error::new(
                    error.kind(),
                    format!("cannot listen on {address}: {error}: {advice}"),
                )
            })?;
        }
        Ok(())
    }

    /// Returns the certificates, if --tls was given.
    fn certificates(&self) -> Option<Certificates> {
        self.tls.then(|| Certificates::in_directory(&self.dir.join("tls")))
    }

    fn flags(&self, node: u16) -> Vec<OsString> {
        let scheme = if self.tls { "https" } else { "http" };
        let member = |node| format!("{}={scheme}://{}", name(node), self.peer(node));
        let cluster: Vec<_> = (0..self.nodes).map(member).collect();
        let (client, peer) = (self.client(node), self.peer(node));
        let mut dir = OsString::from("--data-dir=");
        dir.push(self.dir.join(name(node)));
        let flags = [
            format!("--name={}", name(node)),
            format!("--listen-client-urls={scheme}://{client}"),
            format!("--advertise-client-urls={scheme}://{client}"),
            format!("--listen-peer-urls={scheme}://{peer}"),
            format!("--initial-advertise-peer-urls={scheme}://{peer}"),
            format!("--initial-cluster={}", cluster.join(",")),
        ];
        let mut flags: Vec<_> = flags.into_iter().map(OsString::from).chain([dir]).collect();
        if let Some(certificates) = self.certificates() {
            let (authority, own) = (certificates.authority(), certificates.of(&name(node)));
            for side in ["", "peer-"] {
                for (flag, path) in
                    [("trusted-ca", &authority), ("cert", &own.cert), ("key", &own.key)]
                {
                    let mut flag = OsString::from(format!("--{side}{flag}-file="));
                    flag.push(path);
                    flags.push(flag);
                }
            }
        }
        flags.extend(self.flags.iter().cloned());
        flags
    }

    /// Starts a server that is killed when this process ends for any reason.
    fn start(&self, node: u16) -> io::Result<Child> {
        let mut command = client::bound()?;
        command.arg(std::env::current_exe()?).arg("serve").args(self.flags(node));
        for (name, _) in std::env::vars_os() {
            // The ETCD_ variables are meant for a single server, so they are not passed on to several.
            if name.to_string_lossy().starts_with("ETCD_") {
                command.env_remove(name);
            }
        }
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        // Ctrl-C at a terminal must not reach the servers directly, because this process stops them in order.
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        tokio::process::Command::from(command).spawn()
    }
}

fn name(node: u16) -> String {
    format!("node{}", node + 1)
}

/// Runs the servers until a signal arrives or all servers have ended. Returns whether no server has ended by itself.
async fn up(options: &UpOptions) -> io::Result<bool> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    options.ports_are_free()?;
    std::fs::create_dir_all(&options.dir)?;
    if let Some(certificates) = options.certificates() {
        let names: Vec<_> = (0..options.nodes).map(name).collect();
        certificates.make(&names)?;
    }
    let (news, mut received) = mpsc::channel(64);
    let orders = watch::Sender::new(None);
    for node in 0..options.nodes {
        let mut child = options.start(node)?;
        let mut ordered = orders.subscribe();
        let (out, err) = (child.stdout.take(), child.stderr.take());
        let news = news.clone();
        tokio::spawn(async move {
            let (out, err) = (pass_on(node, out, &news), pass_on(node, err, &news));
            let (ended, ..) = tokio::join!(end(&mut child, &mut ordered), out, err);
            // Sending fails only if the receiver was dropped.
            drop(news.send((node, News::Ended(ended))).await);
        });
    }
    drop(news);
    let (mut ready, mut is_well, mut is_stopping) = (0, true, false);
    let mut killing =
        Box::pin(std::future::pending()) as std::pin::Pin<Box<dyn Future<Output = ()>>>;
    loop {
        let is_signal = tokio::select! {
            news = received.recv() => match news {
                Some((node, News::Line(line))) => {
                    say(node, &line);
                    if line.contains(READY) {
                        ready += 1;
                        if ready == options.nodes {
                            print_ready(options)?;
                        }
                    }
                    false
                }
                Some((node, News::Ended(how))) => {
                    say(node, &format!("exited: {how}"));
                    is_well &= is_stopping;
                    false
                }
                None => return Ok(is_well),
            },
            _ = interrupt.recv() => true,
            _ = terminate.recv() => true,
            () = &mut killing => {
                crate::print_failure(&"some servers did not stop in time: killing them");
                orders.send_replace(Some(Signal::KILL));
                killing = Box::pin(std::future::pending());
                false
            }
        };
        if is_signal && !is_stopping {
            is_stopping = true;
            orders.send_replace(Some(Signal::TERM));
            killing = Box::pin(tokio::time::sleep(STOP_PATIENCE));
        }
    }
}

/// Waits for a server to end. Forwards signals to the server while waiting. Returns how the server ended.
async fn end(child: &mut Child, ordered: &mut watch::Receiver<Option<Signal>>) -> String {
    loop {
        // The id is `None` after the process was waited for, because its process id may be reused from then on.
        let pid = child.id().and_then(|pid| Pid::from_raw(i32::try_from(pid).ok()?));
        tokio::select! {
            ended = child.wait() => {
                return ended.map_or_else(|error| error.to_string(), |status| status.to_string());
            }
            Ok(()) = ordered.changed() => {
                if let (Some(pid), Some(signal)) = (pid, *ordered.borrow_and_update()) {
                    // The call fails only if the process has already ended.
                    kill_process(pid, signal).ok();
                }
            }
        }
    }
}

/// Forwards each line that a server prints.
async fn pass_on(
    node: u16,
    from: Option<impl AsyncRead + Unpin>,
    news: &mpsc::Sender<(u16, News)>,
) {
    let Some(from) = from else { return };
    let mut lines = BufReader::new(from).split(b'\n');
    while let Ok(Some(line)) = lines.next_segment().await {
        let line = String::from_utf8_lossy(&line).into_owned();
        if news.send((node, News::Line(line))).await.is_err() {
            return;
        }
    }
}

/// Prints a line that begins with the server's name.
fn say(node: u16, line: &str) {
    let mut out = io::stderr().lock();
    let colour = COLOURS[usize::from(node) % COLOURS.len()];
    let (begin, end) = match io::stderr().is_terminal() {
        true => (format!("\x1b[{colour}m"), "\x1b[0m"),
        false => (String::new(), ""),
    };
    // An error of standard error itself cannot be reported.
    drop(writeln!(out, "{begin}{} |{end} {line}", name(node)));
}

fn print_ready(options: &UpOptions) -> io::Result<()> {
    let scheme = if options.tls { "https://" } else { "" };
    let endpoints = (0..options.nodes).map(|node| format!("{scheme}{}", options.client(node)));
    let (count, endpoints) = (options.nodes, endpoints.collect::<Vec<_>>().join(","));
    let mut out = io::stdout().lock();
    write!(out, "{count} servers are ready: --endpoints {endpoints}")?;
    if let Some(certificates) = options.certificates() {
        let (authority, client) = (certificates.authority(), certificates.client());
        let [authority, cert, key] =
            [&authority, &client.cert, &client.key].map(|path| path.display());
        write!(out, " --cacert {authority} --cert {cert} --key {key}")?;
    }
    writeln!(out)?;
    out.flush()
}
