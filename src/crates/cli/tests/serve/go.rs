//! Runs Go programs that use etcd's client and its concurrency package (`src/crates/cli/tests/go`) while servers are killed.
//! The tests are skipped if Go is not installed or etcd's modules cannot be downloaded.

use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, ChildStdin, Command, Stdio};
use std::sync::{Arc, Condvar, Mutex, OnceLock};
use std::thread::JoinHandle;
use std::time::Duration;

use serde_json::Value;

use crate::crew::Crew;
use crate::ledger::{Count, row, verify};
use bowline_testkit::process::skip;

/// How long a program may take for its next step: time for several elections on a busy machine.
const WAIT_MAX: Duration = Duration::from_secs(120);

/// How many lines a program must print between two kills.
const STEPS: usize = 2;

/// Builds the program once. Returns `None` if it cannot be built.
pub(crate) fn program() -> Option<&'static Path> {
    static PROGRAM: OnceLock<Option<PathBuf>> = OnceLock::new();
    PROGRAM.get_or_init(build).as_deref()
}

fn build() -> Option<PathBuf> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/go");
    let go = |arguments: &[&str]| Command::new("go").args(arguments).current_dir(&source).output();
    match go(&["mod", "download"]) {
        Err(_) => {
            skip("Go is not installed");
            return None;
        }
        Ok(output) if !output.status.success() => {
            let why = String::from_utf8_lossy(&output.stderr);
            skip(&format!("etcd's Go modules cannot be downloaded: {}", why.trim()));
            return None;
        }
        Ok(_) => {}
    }
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join("programs-in-go");
    let built = go(&["build", "-o", program.to_str().unwrap(), "."]).unwrap();
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    Some(program)
}

/// A running scenario of the Go program.
pub(crate) struct Scene {
    child: Child,
    /// The scenario runs until this is closed.
    continues: Option<ChildStdin>,
    received: Arc<(Mutex<Received>, Condvar)>,
    listens: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Received {
    lines: Vec<String>,
    ended: bool,
}

impl Scene {
    pub(crate) fn begin(program: &Path, scene: &str, addresses: &[String]) -> Self {
        let mut command = Command::new(program);
        command.arg(scene).args(addresses).env("ETCD_CLIENT_DEBUG", "fatal");
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let (continues, stdout) = (child.stdin.take(), child.stdout.take().unwrap());
        let received = Arc::new((Mutex::new(Received::default()), Condvar::new()));
        let ear = Arc::clone(&received);
        let listens = std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines() {
                ear.0.lock().unwrap().lines.push(line.unwrap());
                ear.1.notify_all();
            }
            ear.0.lock().unwrap().ended = true;
            ear.1.notify_all();
        });
        Self { child, continues, received, listens: Some(listens) }
    }

    /// Waits until the program has made [`STEPS`] more steps.
    pub(crate) fn continues(&mut self) {
        let received = self.received.0.lock().unwrap();
        let enough = received.lines.len() + STEPS;
        let waits = |received: &mut Received| received.lines.len() < enough && !received.ended;
        let (received, late) =
            self.received.1.wait_timeout_while(received, WAIT_MAX, waits).unwrap();
        let (stands, ended) = (late.timed_out(), received.ended);
        drop(received);
        if stands || ended {
            drop(self.child.kill());
            let printed = printed(self.child.stderr.take().unwrap());
            panic!(
                "the Go program {}: {printed}",
                if ended { "exited" } else { "makes no progress" }
            );
        }
    }

    /// Ends the scenario, which must succeed. Returns the lines that it printed.
    pub(crate) fn end(mut self) -> Vec<Value> {
        drop(self.continues.take());
        self.listens.take().unwrap().join().unwrap();
        let status = self.child.wait().unwrap();
        assert!(status.success(), "{}", printed(self.child.stderr.take().unwrap()));
        let received = self.received.0.lock().unwrap();
        received.lines.iter().map(|line| serde_json::from_str(line).unwrap()).collect()
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

fn printed(stderr: ChildStderr) -> String {
    io::read_to_string(stderr).unwrap_or_default()
}

/// Returns the counts among the printed lines.
pub(crate) fn counts(printed: &[Value]) -> Vec<Count> {
    let counts = printed.iter().filter(|line| line.get("put").is_some());
    let count = |line: &Value| {
        let number = |name: &str| line[name].as_i64().unwrap();
        Count { put: number("put"), value: number("value"), created: number("created") }
    };
    counts.map(count).collect()
}

/// Runs all scenarios at the same time, while the servers are killed and restarted one after the other.
fn play(nodes: usize) {
    let Some(program) = program() else { return };
    let mut crew = Crew::of(nodes, nodes);
    let addresses = crew.addresses();
    let begin = |scene| Scene::begin(program, scene, &addresses);
    let scenes = std::cell::RefCell::new(["mutex", "cron", "watch", "stm"].map(begin));
    let all_go_on = || scenes.borrow_mut().iter_mut().for_each(Scene::continues);
    // The cluster has no second member, so no request succeeds while the only member is down.
    let missed = || {
        if nodes > 1 {
            all_go_on()
        }
    };
    crew.kill_in_turn(all_go_on, missed);
    let [mutex, cron, watch, stm] = scenes.into_inner().map(Scene::end);
    assert!(cron.iter().any(|line| line.get("observed").is_some()), "a leader was observed");
    assert!(!watch.is_empty() && !stm.is_empty());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let channel = crew.channel();
        for (printed, counter) in [(mutex, "shared-counter"), (cron, "cron-jobs")] {
            let (counter, _, _) = row(&channel, counter).await;
            verify(counts(&printed), counter).unwrap();
        }
    });
}

#[test]
fn go_programs_survive_kills_of_each_of_three_servers() {
    play(3);
}

#[test]
fn go_programs_survive_a_kill_of_the_only_server() {
    play(1);
}

/// How many leaders are killed while sessions and watches that require a leader are open.
const LEADERS_KILLED: usize = 10;

#[test]
fn go_sessions_and_watches_survive_ten_leader_kills() {
    let Some(program) = program() else { return };
    let mut crew = Crew::with_default_times(3);
    let scene = Scene::begin(program, "failover", &crew.addresses());
    let scene = std::cell::RefCell::new(scene);
    let continues = || scene.borrow_mut().continues();
    crew.kill_leaders(LEADERS_KILLED, continues, continues);
    assert!(!scene.into_inner().end().is_empty());
}
