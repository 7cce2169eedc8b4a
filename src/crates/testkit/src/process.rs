//! A server process, of Bowline or etcd, and gRPC channels to it.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, Once};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use tokio::runtime::Builder;
use tokio::signal::unix::{SignalKind, signal};
use tonic::transport::Channel;

use crate::ports::reserved_ports;

/// How often to check whether a server responds.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// How long any step of a server may take, on a machine with far too much load.
const LIMIT: Duration = Duration::from_secs(60);

/// The log of a server, as it is written.
#[derive(Default)]
struct ServerLog {
    /// The text so far, and whether the log has ended.
    state: Mutex<(String, bool)>,
    more: Condvar,
}

impl ServerLog {
    fn listen(&self, mut lines: impl BufRead) {
        let mut line = Vec::new();
        while lines.read_until(b'\n', &mut line).is_ok_and(|bytes| bytes > 0) {
            self.state.lock().unwrap().0.push_str(&String::from_utf8_lossy(&line));
            self.more.notify_all();
            line.clear();
        }
        self.state.lock().unwrap().1 = true;
        self.more.notify_all();
    }

    /// Waits until the log contains the text, or has ended.
    fn until(&self, words: &str) -> MutexGuard<'_, (String, bool)> {
        let continues = |state: &mut (String, bool)| !state.1 && !state.0.contains(words);
        self.more.wait_timeout_while(self.state.lock().unwrap(), LIMIT, continues).unwrap().0
    }
}

/// A running member of a cluster of Bowline or etcd.
pub struct Server {
    child: Child,
    log: Arc<ServerLog>,
    listens: Option<JoinHandle<()>>,
    /// The client address, as `host:port`.
    pub address: String,
    /// A directory that is removed after the server has ended.
    _dir: Option<TempDir>,
}

/// Returns free ports.
pub fn free_ports<const N: usize>() -> [u16; N] {
    reserved_ports(N).try_into().unwrap()
}

/// Restores the default action of ignored signals. A program inherits ignored signals from its parent, and a shell
/// makes background jobs ignore some. The servers that these tests start must receive them anyway.
fn listen_to_what_is_ignored() {
    static ONCE: Once = Once::new();
    let listen = || {
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
        let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        let _within = runtime.enter();
        for kind in [SignalKind::interrupt(), SignalKind::hangup(), SignalKind::quit()] {
            if mask >> (kind.as_raw_value() - 1) & 1 == 1 {
                drop(signal(kind).unwrap());
            }
        }
    };
    // The runtime is created on a separate thread, because this thread may already have a runtime.
    ONCE.call_once(|| std::thread::spawn(listen).join().unwrap());
}

/// Returns the path of the program, which cargo builds before the tests and benchmarks of its package.
fn program() -> PathBuf {
    if let Some(path) = std::env::var_os("CARGO_BIN_EXE_bowline") {
        return path.into();
    }
    // Older versions of cargo do not set the variable. The test is in a folder next to the program.
    let test = std::env::current_exe().unwrap();
    test.ancestors().nth(2).unwrap().join("bowline")
}

/// Returns the command, without environment variables that would change what it does.
pub fn bowline() -> Command {
    listen_to_what_is_ignored();
    let mut command = Command::new(program());
    for (name, _) in std::env::vars_os() {
        if name.to_str().is_some_and(|name| name.starts_with("ETCD_")) {
            command.env_remove(name);
        }
    }
    command
}

/// Returns the flags of member `own`.
pub fn flags(own: usize, peers: &[u16], client: u16, dir: &Path) -> Vec<String> {
    let member = |(at, port): (usize, &u16)| format!("m{at}=http://127.0.0.1:{port}");
    let cluster: Vec<_> = peers.iter().enumerate().map(member).collect();
    let peer = peers[own];
    vec![
        format!("--name=m{own}"),
        format!("--data-dir={}", dir.display()),
        format!("--listen-client-urls=http://127.0.0.1:{client}"),
        format!("--advertise-client-urls=http://127.0.0.1:{client}"),
        format!("--listen-peer-urls=http://127.0.0.1:{peer}"),
        format!("--initial-advertise-peer-urls=http://127.0.0.1:{peer}"),
        format!("--initial-cluster={}", cluster.join(",")),
    ]
}

/// Returns the CPU time of a process, or zero if there is no such process.
pub fn cpu_time(process: u32) -> Duration {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    // The fields after the command name, which may contain anything: the state is the third field of the line, the
    // user time and the system time are the 14th and the 15th.
    let fields = stat.rsplit(')').next().unwrap_or_default();
    let ticks: u64 = fields.split_whitespace().skip(11).take(2).flat_map(str::parse::<u64>).sum();
    Duration::from_millis(ticks * 1000 / rustix::param::clock_ticks_per_second())
}

/// Sends a plain HTTP request. Returns the status code, and the body as a stream.
pub fn http(address: &str, method: &str, path: &str, body: &str) -> (u16, HttpBody) {
    http_with(address, method, path, "", body)
}

/// Like [`http()`], with additional headers. Each header in `headers` must end with a line break.
pub fn http_with(
    address: &str,
    method: &str,
    path: &str,
    headers: &str,
    body: &str,
) -> (u16, HttpBody) {
    let mut stream = TcpStream::connect(address).unwrap();
    let length = body.len();
    write!(
        stream,
        "{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{headers}Content-Length: {length}\r\n\r\n{body}"
    )
    .unwrap();
    HttpBody::of(stream)
}

/// The body of an HTTP response, whole or chunked.
pub struct HttpBody {
    stream: BufReader<TcpStream>,
    /// Lines of the head.
    headers: Vec<String>,
    chunked: bool,
    /// Bytes that were received and not consumed yet.
    read: Vec<u8>,
}

impl HttpBody {
    /// Reads the head of a response.
    pub fn of(stream: TcpStream) -> (u16, Self) {
        let (stream, headers) = (BufReader::new(stream), Vec::new());
        let mut body = Self { stream, headers, chunked: false, read: Vec::new() };
        let head = body.head_line();
        let code = head.split(' ').nth(1).unwrap().parse().unwrap();
        loop {
            match body.head_line() {
                end if end.is_empty() => break,
                header => body.headers.push(header),
            }
        }
        body.chunked = body.header("transfer-encoding") == Some("chunked");
        (code, body)
    }

    /// Returns a header of the response.
    pub fn header(&self, name: &str) -> Option<&str> {
        let pairs = self.headers.iter().filter_map(|header| header.split_once(": "));
        pairs
            .into_iter()
            .find(|(known, _)| known.eq_ignore_ascii_case(name))
            .map(|(_, value)| value)
    }

    fn head_line(&mut self) -> String {
        let mut line = String::new();
        assert!(self.stream.read_line(&mut line).unwrap() > 0, "the connection ended");
        line.trim_end().to_owned()
    }

    /// Reads more bytes. Returns whether there were any.
    fn more(&mut self) -> bool {
        if !self.chunked {
            return self.stream.read_to_end(&mut self.read).unwrap() > 0;
        }
        let length = u64::from_str_radix(&self.head_line(), 16).unwrap();
        (&mut self.stream).take(length).read_to_end(&mut self.read).unwrap();
        if length > 0 {
            // Every chunk ends with a line end.
            self.head_line();
        }
        length > 0
    }

    /// Returns the whole body, once it has ended.
    pub fn text(&mut self) -> String {
        while self.more() {}
        String::from_utf8(std::mem::take(&mut self.read)).unwrap()
    }

    /// Returns the next line, or `None` at the end.
    pub fn line(&mut self) -> Option<String> {
        loop {
            if let Some(end) = self.read.iter().position(|byte| *byte == b'\n') {
                let line = self.read.drain(..=end).collect();
                return Some(String::from_utf8(line).unwrap());
            }
            if !self.more() {
                return None;
            }
        }
    }
}

/// Reports that a test cannot run here, and why. Panics if `BOWLINE_REQUIRE_TOOLS` is set, as in continuous
/// integration, where every test must run.
pub fn skip(why: &str) {
    let required = std::env::var_os("BOWLINE_REQUIRE_TOOLS").is_some();
    assert!(!required, "BOWLINE_REQUIRE_TOOLS is set, but {why}");
    // The line is written to standard error directly, because the test harness captures `eprintln!` and shows it only
    // for failures.
    drop(writeln!(std::io::stderr(), "SKIPPED: {why}"));
}

/// Returns whether `etcdctl` is installed, and skips the test if it is not.
pub fn etcdctl_is_installed() -> bool {
    let installed = Command::new("etcdctl").arg("version").stdout(Stdio::null()).status().is_ok();
    if !installed {
        skip("etcdctl is not installed (Debian: etcd-client)");
    }
    installed
}

/// Returns the command of etcd: the program that `BOWLINE_ETCD` names, or else the one of the Debian package. Skips the
/// test if etcd is not installed.
pub fn etcd_command() -> Option<Command> {
    let chosen = std::env::var_os("BOWLINE_ETCD");
    let program = chosen.as_deref().unwrap_or("etcd".as_ref());
    let runs = Command::new(program).arg("--version").stdout(Stdio::null()).status();
    // A program that `BOWLINE_ETCD` names must exist.
    assert!(runs.is_ok() || chosen.is_none(), "BOWLINE_ETCD={chosen:?}: {runs:?}");
    if runs.is_err() {
        skip("etcd is not installed (Debian: etcd-server)");
        return None;
    }
    let mut command = Command::new(program);
    command.stdout(Stdio::null());
    Some(command)
}

/// A cluster of one member, which can be started several times.
pub struct SingleMember {
    /// The data directory.
    pub dir: TempDir,
    /// The port of the clients.
    pub client: u16,
    pub flags: Vec<String>,
}

impl SingleMember {
    /// Makes the directory and reserves the ports, without starting the member.
    pub fn prepare() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let [peer, client] = free_ports();
        let flags = flags(0, &[peer], client, dir.path());
        Self { dir, client, flags }
    }

    /// Starts the member, and waits until it is ready.
    pub fn start(&self, more: &[&str]) -> Server {
        Server::start(&self.flags, self.client, more).ready()
    }
}

impl Server {
    /// Starts a cluster of one member with its data in a directory of its own, and waits until it is ready.
    pub fn alone(more: &[&str]) -> Self {
        let member = SingleMember::prepare();
        member.start(more).owning(member.dir)
    }

    /// Like [`Server::alone`], with TLS for the clients.
    pub fn with_tls(more: &[&str]) -> Self {
        let mut member = SingleMember::prepare();
        for flag in member.flags.iter_mut().filter(|flag| flag.contains("client-urls")) {
            *flag = flag.replace("http://", "https://");
        }
        member.start(more).owning(member.dir)
    }

    /// Starts a cluster of one etcd with its data in a directory of its own, and waits until it is ready. Returns `None`,
    /// and skips the test, if etcd is not installed.
    pub fn etcd(more: &[&str]) -> Option<Self> {
        let mut command = etcd_command()?;
        let member = SingleMember::prepare();
        command.args(&member.flags).args(more);
        let server = Self::run(command, member.client).ready().owning(member.dir);
        server.wait_until_healthy("/health");
        Some(server)
    }

    /// Starts a cluster of three members with their data in directories of their own, and waits until they are ready.
    pub fn three() -> Vec<Self> {
        let (peers, clients): ([u16; 3], [u16; 3]) = (free_ports(), free_ports());
        let start = |at: usize| {
            let dir = tempfile::tempdir().unwrap();
            let flags = flags(at, &peers, clients[at], dir.path());
            Self::start(&flags, clients[at], &[]).owning(dir)
        };
        // No member is ready before a quorum runs.
        [0, 1, 2].map(start).map(Self::ready).into()
    }

    /// Starts a member, without waiting until it is ready.
    pub fn start(flags: &[String], client: u16, more: &[&str]) -> Self {
        let mut command = bowline();
        command.arg("serve").args(flags).args(more);
        Self::run(command, client)
    }

    /// Starts a member by a command, which may be a shell that calls exec.
    pub fn run(mut command: Command, client: u16) -> Self {
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        let (lines, log) = (child.stderr.take().unwrap(), Arc::<ServerLog>::default());
        let received = Arc::clone(&log);
        let listens = std::thread::spawn(move || received.listen(BufReader::new(lines)));
        let address = format!("127.0.0.1:{client}");
        Self { child, log, listens: Some(listens), address, _dir: None }
    }

    /// Removes the directory after the server has ended.
    pub fn owning(mut self, dir: TempDir) -> Self {
        self._dir = Some(dir);
        self
    }

    /// Waits until the server is ready.
    pub fn ready(self) -> Self {
        self.until_logged("ready to serve client requests");
        self
    }

    /// Waits until the log contains the text.
    pub fn until_logged(&self, words: &str) {
        let log = self.log.until(words);
        assert!(log.0.contains(words), "{words:?} is not in the log: {}", log.0);
    }

    /// Returns whether the log contains the text.
    pub fn has_logged(&self, words: &str) -> bool {
        self.log.state.lock().unwrap().0.contains(words)
    }

    /// Waits until a GET of this path succeeds: a server that has just started may not have checked its health yet.
    pub fn wait_until_healthy(&self, path: &str) {
        let begun = Instant::now();
        loop {
            let (code, body) = self.http("GET", path, "");
            if code == 200 {
                return;
            }
            assert!(begun.elapsed() < LIMIT, "{path}: {code} {body}");
            std::thread::sleep(POLL_INTERVAL);
        }
    }

    /// Returns a channel to the server.
    pub async fn channel(&self) -> Channel {
        let endpoint = Channel::from_shared(format!("http://{}", self.address)).unwrap();
        endpoint.connect().await.unwrap()
    }

    /// Sends a plain HTTP request. Returns the status code and the body.
    pub fn http(&self, method: &str, path: &str, body: &str) -> (u16, String) {
        let (code, mut body) = http(&self.address, method, path, body);
        (code, body.text())
    }

    /// Returns how much CPU time the server has used.
    pub fn worked(&self) -> Duration {
        cpu_time(self.child.id())
    }

    /// Returns the resident memory in bytes.
    pub fn memory_bytes(&self) -> u64 {
        self.status_bytes("VmRSS:")
    }

    /// Returns the peak of the resident memory in bytes.
    pub fn peak_memory_bytes(&self) -> u64 {
        self.status_bytes("VmHWM:")
    }

    /// Returns by how many bytes the peak of the resident memory has grown since it was `before`. It is 0 if the kernel
    /// reports a smaller peak now: its counters are exact to about a hundred pages only.
    pub fn peak_memory_growth_bytes(&self, before: u64) -> u64 {
        self.peak_memory_bytes().saturating_sub(before)
    }

    fn status_bytes(&self, name: &str) -> u64 {
        let path = format!("/proc/{}/status", self.child.id());
        let text = std::fs::read_to_string(path).unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
    }

    /// Returns the number of open file descriptors.
    pub fn descriptors(&self) -> usize {
        std::fs::read_dir(format!("/proc/{}/fd", self.child.id())).unwrap().count()
    }

    /// Returns the number of open sockets. Regular files are not counted, because those of the log come and go.
    pub fn sockets(&self) -> usize {
        let open = std::fs::read_dir(format!("/proc/{}/fd", self.child.id())).unwrap();
        let links = open.flatten().filter_map(|fd| std::fs::read_link(fd.path()).ok());
        links.filter(|link| link.to_string_lossy().starts_with("socket:")).count()
    }

    /// Pauses the server with SIGSTOP. One of its threads receives the signal and stops the others. On a busy machine
    /// the other threads can run and answer until that thread is scheduled, so this method waits until all threads have
    /// stopped.
    pub fn pause(&self) {
        kill_process(Pid::from_child(&self.child), Signal::STOP).unwrap();
        let begun = Instant::now();
        let runs = |thread: std::fs::DirEntry| {
            // If the thread has ended, its file is missing, and the empty text counts as not running.
            let stat = std::fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
            stat.rsplit_once(") ").is_some_and(|(_, state)| !state.starts_with(['T', 'Z', 'X']))
        };
        let threads = format!("/proc/{}/task", self.child.id());
        while std::fs::read_dir(&threads).unwrap().flatten().any(runs) {
            assert!(begun.elapsed() < LIMIT, "the server is still running");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Resumes a paused server.
    pub fn resume(&self) {
        kill_process(Pid::from_child(&self.child), Signal::CONT).unwrap();
    }

    /// Stops the server and waits for it. Returns its exit status and its log.
    pub fn stop(self) -> (ExitStatus, String) {
        kill_process(Pid::from_child(&self.child), Signal::TERM).unwrap();
        self.ended()
    }

    /// Waits until the server has ended by itself. Returns its exit status and its log.
    pub fn ended(mut self) -> (ExitStatus, String) {
        let status = self.child.wait().unwrap();
        self.listens.take().unwrap().join().unwrap();
        let log = std::mem::take(&mut self.log.state.lock().unwrap().0);
        (status, log)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}
