//! `bowline up`: a cluster on this machine, for trying things out: each server a process with a directory of its own.

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

/// What a server says when clients are served.
const READY: &str = "ready to serve client requests";

/// How long servers may take to stop, before they are killed.
const STOP_PATIENCE: Duration = Duration::from_secs(20);

/// Colours of the servers' names, on a terminal.
const COLOURS: [&str; 6] = ["36", "33", "32", "35", "34", "31"];

/// Start a cluster of servers on this machine, to try things out
///
/// Each is a process of its own, `bowline serve`, on loopback, with a directory of its own. What they log is printed
/// behind their names; one line says when all are ready, and where. Ctrl-C stops them; what they have is there
/// again the next time.
///
/// Servers take two ports each, from --port on: for clients, and for each other.
///
/// Exit codes: 0 stopped when it was told to; 1 a server did not start, or ended by itself; 2 wrong arguments.
#[derive(Args, Debug)]
pub(crate) struct UpOptions {
    /// How many servers, 1 to 7
    #[arg(long, value_name = "COUNT", default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=7))]
    nodes: u16,

    /// Where their directories are, or are made
    #[arg(long, value_name = "DIR", default_value = "bowline-data")]
    dir: PathBuf,

    /// The first port
    #[arg(long, default_value_t = 2379, value_parser = clap::value_parser!(u16).range(1..=65000))]
    port: u16,

    /// Encrypt, with certificates that are made anew at each start, in `tls` below --dir: clients need the one that is
    /// printed, and the servers know each other by theirs
    #[arg(long)]
    tls: bool,

    /// More flags for all servers: those of `bowline serve`
    #[arg(last = true, value_name = "FLAG")]
    flags: Vec<OsString>,
}

/// What a server does.
enum News {
    Line(String),
    Ended(String),
}

/// The command.
pub(crate) fn main(options: UpOptions) -> ExitCode {
    let runtime = match tokio::runtime::Runtime::new() {
        Ok(runtime) => runtime,
        Err(error) => {
            crate::complain(&format!("no runtime: {error}"));
            return ExitCode::FAILURE;
        }
    };
    match runtime.block_on(up(&options)) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            crate::complain(&error);
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

    /// Whether nobody else has the ports. Asked before anything is written: a second start would put new certificates
    /// before the servers of the first.
    fn ports_are_free(&self) -> io::Result<()> {
        for address in (0..self.nodes).flat_map(|node| [self.client(node), self.peer(node)]) {
            TcpListener::bind(&address).map_err(|error| {
                let advice = "does the cluster run already? Else choose another --port";
                io::Error::new(
                    error.kind(),
                    format!("cannot listen on {address}: {error}: {advice}"),
                )
            })?;
        }
        Ok(())
    }

    /// The certificates, where there are any.
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

    /// Starts a server that ends when this process does, whatever ends it.
    fn start(&self, node: u16) -> io::Result<Child> {
        let mut command = client::bound()?;
        command.arg(std::env::current_exe()?).arg("serve").args(self.flags(node));
        for (name, _) in std::env::vars_os() {
            // Meant for one server, they would be wrong for the others.
            if name.to_string_lossy().starts_with("ETCD_") {
                command.env_remove(name);
            }
        }
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        // What a terminal sends to all is not for them: they are stopped in good order.
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        tokio::process::Command::from(command).spawn()
    }
}

fn name(node: u16) -> String {
    format!("node{}", node + 1)
}

/// Runs them until it is told to stop, or none is left. Says whether none ended by itself.
async fn up(options: &UpOptions) -> io::Result<bool> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    options.ports_are_free()?;
    std::fs::create_dir_all(&options.dir)?;
    if let Some(certificates) = options.certificates() {
        let names: Vec<_> = (0..options.nodes).map(name).collect();
        certificates.make(&names)?;
    }
    let (news, mut heard) = mpsc::channel(64);
    let orders = watch::Sender::new(None);
    for node in 0..options.nodes {
        let mut child = options.start(node)?;
        let mut ordered = orders.subscribe();
        let (out, err) = (child.stdout.take(), child.stderr.take());
        let news = news.clone();
        tokio::spawn(async move {
            let (out, err) = (pass_on(node, out, &news), pass_on(node, err, &news));
            let (ended, ..) = tokio::join!(end(&mut child, &mut ordered), out, err);
            // If nobody listens there is nobody to tell.
            drop(news.send((node, News::Ended(ended))).await);
        });
    }
    drop(news);
    let (mut ready, mut is_well, mut is_stopping) = (0, true, false);
    let mut killing =
        Box::pin(std::future::pending()) as std::pin::Pin<Box<dyn Future<Output = ()>>>;
    loop {
        let told = tokio::select! {
            news = heard.recv() => match news {
                Some((node, News::Line(line))) => {
                    say(node, &line);
                    if line.contains(READY) {
                        ready += 1;
                        if ready == options.nodes {
                            say_ready(options)?;
                        }
                    }
                    false
                }
                Some((node, News::Ended(how))) => {
                    say(node, &format!("has ended: {how}"));
                    is_well &= is_stopping;
                    false
                }
                None => return Ok(is_well),
            },
            _ = interrupt.recv() => true,
            _ = terminate.recv() => true,
            () = &mut killing => {
                crate::complain(&"some servers do not stop: they are killed");
                orders.send_replace(Some(Signal::KILL));
                killing = Box::pin(std::future::pending());
                false
            }
        };
        if told && !is_stopping {
            is_stopping = true;
            orders.send_replace(Some(Signal::TERM));
            killing = Box::pin(tokio::time::sleep(STOP_PATIENCE));
        }
    }
}

/// Waits for a server's end, and passes on what it is told meanwhile. Says how it ended.
async fn end(child: &mut Child, ordered: &mut watch::Receiver<Option<Signal>>) -> String {
    loop {
        // None once it was waited for: its number may be another's then.
        let pid = child.id().and_then(|pid| Pid::from_raw(i32::try_from(pid).ok()?));
        tokio::select! {
            ended = child.wait() => {
                return ended.map_or_else(|error| error.to_string(), |status| status.to_string());
            }
            Ok(()) = ordered.changed() => {
                if let (Some(pid), Some(signal)) = (pid, *ordered.borrow_and_update()) {
                    // Who is gone needs no signal.
                    kill_process(pid, signal).ok();
                }
            }
        }
    }
}

/// Tells each line that a server prints.
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

/// Prints a line behind the server's name.
fn say(node: u16, line: &str) {
    let mut out = io::stderr().lock();
    let colour = COLOURS[usize::from(node) % COLOURS.len()];
    let (begin, end) = match io::stderr().is_terminal() {
        true => (format!("\x1b[{colour}m"), "\x1b[0m"),
        false => (String::new(), ""),
    };
    // Where nobody reads it nothing is lost.
    drop(writeln!(out, "{begin}{} |{end} {line}", name(node)));
}

fn say_ready(options: &UpOptions) -> io::Result<()> {
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
