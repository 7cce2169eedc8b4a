//! Tests of the commands for locks, semaphores and elections: the holder, the command that runs, and that the command
//! has ended before another client holds the lock.

use std::ffi::OsStr;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::net;
use rustix::process::{Pid, Signal, kill_process};

use crate::ask::{Going, ask, command, command_at, run};
use crate::failover::hang_up;
use bowline_testkit::process::{Server, SingleMember, etcdctl_is_installed};

fn signal(going: &Going, signal: Signal) {
    kill_process(Pid::from_child(&going.child), signal).unwrap();
}

/// Returns `bowline lock` with these arguments.
fn lock(server: &Server, arguments: &[&str]) -> Command {
    let mut lock = command(server);
    lock.arg("lock").args(arguments);
    lock
}

fn code(going: &mut Going) -> i32 {
    going.child.wait().unwrap().code().unwrap_or(-1)
}

/// Returns whether a process is running.
fn runs(pid: &str) -> bool {
    if pid.trim().is_empty() {
        return false;
    }
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.trim()));
    // A zombie is not running.
    let is_dead =
        |stat: &str| stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with(['Z', 'X']));
    stat.is_ok_and(|stat| !is_dead(&stat))
}

fn waits_in_line(server: &Server, name: &str, count: usize) {
    let prefix = format!("{name}/");
    while ask(server, &["get", &prefix, "--prefix", "--count-only"]).done() != format!("{count}\n")
    {
    }
}

#[test]
fn lock_command_runs_its_child_and_passes_its_exit_code() {
    let server = Server::alone(&[]);
    let echo = "echo $ETCD_LOCK_KEY $BOWLINE_LOCK_KEY $BOWLINE_LEASE $BOWLINE_TOKEN $ETCD_LOCK_REV; exit 7";
    let printed = run(lock(&server, &["m", "--", "sh", "-c", echo]), b"");
    assert_eq!(printed.code, 7, "{printed:?}");
    let words: Vec<_> = printed.text().split_whitespace().collect();
    assert_eq!(words[0], format!("m/{}", words[2]));
    assert_eq!((words[0], words[3]), (words[1], words[4]));
    assert_eq!(ask(&server, &["get", "m/", "--prefix", "--count-only"]).done(), "0\n");

    let later = run(lock(&server, &["m", "sh", "-c", "echo $BOWLINE_TOKEN"]), b"").done();
    let token = |text: &str| text.trim().parse::<u64>().unwrap();
    assert!(token(&later) > token(words[3]), "{later} {words:?}");

    let codes: [(&[&str], i32); 3] = [
        (&["m", "--", "/no/such/command"], 127),
        (&["m", "--", "/"], 126),
        (&["m", "--", "sh", "-c", "kill -KILL $$"], 137),
    ];
    for (arguments, expected) in codes {
        let printed = run(lock(&server, arguments), b"");
        assert_eq!(printed.code, expected, "{printed:?}");
    }
    let input = run(lock(&server, &["m", "cat"]), b"what comes in").done();
    assert_eq!(input, "what comes in");
}

#[test]
fn child_environment_variables_are_not_read_as_options() {
    let server = Server::alone(&[]);
    let own = env!("CARGO_BIN_EXE_bowline");
    let mut elect = command(&server);
    elect.args(["elect", "e", "me", "--", own, "--endpoints", &server.address, "put", "k", "v"]);
    let mut semaphore = command(&server);
    semaphore.args([
        "semaphore",
        "s",
        "1",
        "--",
        own,
        "--endpoints",
        &server.address,
        "put",
        "k",
        "v",
    ]);
    let lock = lock(&server, &["m", "--", own, "--endpoints", &server.address, "put", "k", "v"]);
    for hold in [lock, semaphore, elect] {
        assert_eq!(run(hold, b"").done(), "OK\n");
    }
    // The name of a lock may consist of any bytes.
    let mut odd = command(&server);
    odd.arg("lock").arg(OsStr::from_bytes(b"m\xff"));
    odd.args(["--", "sh", "-c", "printf '%s' \"$BOWLINE_NAME $BOWLINE_LOCK_KEY\""]);
    let odd = run(odd, b"");
    assert!(odd.out.starts_with(b"m\xff m\xff/"), "{}", odd.out.escape_ascii());
}

#[test]
fn timed_out_or_interrupted_waiter_leaves_the_queue() {
    let server = Server::alone(&[]);
    let mut holds = Going::start(lock(&server, &["m"]));
    let key = holds.line();
    assert!(key.starts_with("m/"), "{key}");
    for timeout in ["0", "300ms"] {
        let late = run(lock(&server, &["m", "--timeout", timeout, "--", "echo", "no"]), b"");
        assert_eq!((late.code, late.text()), (124, ""), "{late:?}");
    }
    let mut waits = Going::start(lock(&server, &["m", "--", "echo", "no"]));
    waits_in_line(&server, "m", 2);
    signal(&waits, Signal::TERM);
    assert_eq!((code(&mut waits), waits.line()), (143, String::new()));
    assert_eq!(ask(&server, &["get", "m/", "--prefix", "--keys-only"]).done(), format!("{key}\n"));
    // Without a command, a signal releases the lock.
    signal(&holds, Signal::INT);
    assert_eq!(code(&mut holds), 0);
    assert_eq!(ask(&server, &["get", "m/", "--prefix"]).done(), "");
}

#[test]
fn etcdctl_and_bowline_share_one_lock_queue() {
    let server = Server::alone(&[]);
    let etcdctl = || {
        let mut command = Command::new("etcdctl");
        command.env("ETCDCTL_API", "3").args(["--endpoints", &server.address, "lock", "m"]);
        command
    };
    if !etcdctl_is_installed() {
        return;
    }
    let mut first = Going::start(etcdctl());
    assert!(first.line().starts_with("m/"));
    let mut ours = Going::start(lock(&server, &["m"]));
    waits_in_line(&server, "m", 2);
    let mut third = Going::start(etcdctl());
    waits_in_line(&server, "m", 3);
    signal(&first, Signal::INT);
    assert!(ours.line().starts_with("m/"));
    signal(&ours, Signal::TERM);
    assert_eq!(code(&mut ours), 0);
    assert!(third.line().starts_with("m/"));
}

#[test]
fn signals_are_forwarded_and_the_child_dies_with_the_holder() {
    let server = Server::alone(&[]);
    let trap = "trap 'echo got; exit 5' TERM; echo ready; while :; do sleep 0.02; done";
    let mut signalled = Going::start(lock(&server, &["m", "--", "sh", "-c", trap]));
    assert_eq!(signalled.line(), "ready\n");
    signal(&signalled, Signal::TERM);
    assert_eq!((signalled.line(), code(&mut signalled)), ("got\n".to_owned(), 5));

    // The command is killed with SIGKILL, so it cannot release the lock.
    let begun = Instant::now();
    let (mut killed, pid) = loop {
        let arguments = ["m", "--ttl", "2", "--", "sh", "-c", "echo $$; exec sleep 1000"];
        let mut killed = Going::start(lock(&server, &arguments));
        let pid = killed.line();
        if !pid.is_empty() {
            break (killed, pid);
        }
        // The process was suspended for longer than its TTL before it could start the command.
        assert_eq!(code(&mut killed), 123);
        assert!(begun.elapsed() < Duration::from_secs(60), "the lock was never acquired");
    };
    signal(&killed, Signal::KILL);
    killed.child.wait().unwrap();
    let next = run(lock(&server, &["m", "echo", "next"]), b"").done();
    assert_eq!(next, "next\n");
    assert!(!runs(&pid));
}

#[test]
fn stopped_child_ends_on_request() {
    let server = Server::alone(&[]);
    let stops = ["m", "--", "sh", "-c", "echo $$; kill -STOP $$; exec sleep 1000"];
    let mut signalled = Going::start(lock(&server, &stops));
    let pid = signalled.line();
    wait_until_stopped(&pid);
    signal(&signalled, Signal::TERM);
    assert_eq!(code(&mut signalled), 143);
    assert!(!runs(&pid));
}

/// Waits until a process is stopped.
fn wait_until_stopped(pid: &str) {
    let begun = Instant::now();
    let stat = || std::fs::read_to_string(format!("/proc/{}/stat", pid.trim())).unwrap();
    while !stat().rsplit_once(") ").unwrap().1.starts_with('T') {
        assert!(begun.elapsed() < Duration::from_secs(60), "{pid} is still running");
    }
}

#[test]
fn child_ends_before_the_hold_when_the_holder_is_paused() {
    let server = Server::alone(&[]);
    let ttl = Duration::from_secs(10);
    let mut holds = Going::start(lock(&server, &["m", "--ttl", "10", "--", "sh", "-c", STUBBORN]));
    let pids = [holds.line(), holds.line(), holds.line()];
    assert!(pids.iter().all(|pid| !pid.is_empty()), "{pids:?}");
    signal(&holds, Signal::STOP);
    let stopped = Instant::now();
    while pids.iter().any(|pid| runs(pid)) {
        assert!(stopped.elapsed() < ttl, "{pids:?} are still running");
    }
    signal(&holds, Signal::CONT);
    assert_eq!(code(&mut holds), 123);
}

#[test]
fn lock_started_with_nohup_survives_a_hangup() {
    let server = Server::alone(&[]);
    let nohup = |more: &[&str]| {
        let mut nohup = Command::new("sh");
        nohup.args(["-c", "trap '' HUP; exec \"$@\"", "sh", env!("CARGO_BIN_EXE_bowline")]);
        nohup.args(["--endpoints", &server.address, "lock", "m", "--ttl", "60"]).args(more);
        nohup
    };
    let mut holds = Going::start(nohup(&[]));
    assert!(holds.line().starts_with("m/"));
    signal(&holds, Signal::HUP);
    assert_eq!(run(lock(&server, &["m", "--timeout", "0", "true"]), b"").code, 124);
    signal(&holds, Signal::TERM);
    assert_eq!(code(&mut holds), 0);
    // The command that runs under the lock ignores the signal, too.
    let ignores = run(nohup(&["--", "grep", "SigIgn", "/proc/self/status"]), b"").done();
    let mask = ignores.trim().strip_prefix("SigIgn:\t").unwrap();
    assert_eq!(u64::from_str_radix(mask, 16).unwrap() & 1, 1, "{mask}");
}

#[test]
fn descendants_of_a_terminated_child_are_ended() {
    let server = Server::alone(&[]);
    let leaves = "setsid sh -c 'echo $$; exec sleep 1000' & exec sleep 1000";
    let mut signalled = Going::start(lock(&server, &["m", "--", "sh", "-c", leaves]));
    let left = signalled.line();
    signal(&signalled, Signal::TERM);
    assert_eq!(code(&mut signalled), 143);
    assert!(!runs(&left));
}

/// Opens a port that does not respond, like a machine that is down: connection attempts are not rejected either.
pub(crate) fn silence(address: &str) -> (OwnedFd, Vec<TcpStream>) {
    let at: SocketAddr = address.rsplit('/').next().unwrap().parse().unwrap();
    let socket = net::socket(net::AddressFamily::INET, net::SocketType::STREAM, None).unwrap();
    net::sockopt::set_socket_reuseaddr(&socket, true).unwrap();
    net::bind(&socket, &at).unwrap();
    net::listen(&socket, 0).unwrap();
    let come = || TcpStream::connect_timeout(&at, Duration::from_millis(200)).ok();
    let streams = std::iter::from_fn(come).take(100).collect();
    (socket, streams)
}

#[test]
fn holder_ends_before_its_lease_when_servers_are_silent() {
    let server = Server::alone(&[]);
    let address = server.address.clone();
    let mut lock = lock(&server, &["m", "--ttl", "5", "--", "sh", "-c", "echo held; sleep 1000"]);
    // With this timeout, a connection attempt would last longer than the test.
    lock.env("BOWLINE_DIAL_TIMEOUT", "1000s");
    let mut holds = Going::start(lock);
    assert_eq!(holds.line(), "held\n");
    drop(server);
    let _silence = silence(&address);
    assert_eq!(code(&mut holds), 123);
}

/// A command that ignores SIGTERM and leaves a background process. It prints its processes' ids.
const STUBBORN: &str = "trap '' TERM; sh -c \"trap '' TERM; echo \\$\\$; exec sleep 1000\" & \
                        setsid sh -c 'echo $$; exec sleep 1000' & sleep 0.1; echo $$; \
                        while :; do sleep 0.02; done";

/// Waits until none of the processes runs.
fn are_gone(pids: &[String]) {
    assert!(pids.iter().all(|pid| !pid.is_empty()), "{pids:?}");
    let begun = Instant::now();
    while pids.iter().any(|pid| runs(pid)) {
        assert!(begun.elapsed() < Duration::from_secs(60), "{pids:?} are still running");
    }
}

/// Returns the supervisor between `bowline lock` and its command.
fn keeper_of(going: &Going) -> Pid {
    let id = going.child.id();
    let children = std::fs::read_to_string(format!("/proc/{id}/task/{id}/children")).unwrap();
    Pid::from_raw(children.trim().parse().unwrap()).unwrap()
}

#[test]
fn killing_the_holder_or_its_supervisor_ends_all_descendants() {
    let server = Server::alone(&[]);
    let stubborn = ["m", "--ttl", "60", "--", "sh", "-c", STUBBORN];
    for kills_keeper in [false, true] {
        let mut killed = Going::start(lock(&server, &stubborn));
        let pids = [killed.line(), killed.line(), killed.line()];
        if kills_keeper {
            kill_process(keeper_of(&killed), Signal::KILL).unwrap();
            assert_eq!(code(&mut killed), 137);
            assert!(!pids.iter().any(|pid| runs(pid)), "{pids:?}");
        } else {
            signal(&killed, Signal::KILL);
            are_gone(&pids);
            // The killed process did not revoke its lease, so its key is still there.
            let key = ask(&server, &["get", "m/", "--prefix", "--keys-only"]).done();
            ask(&server, &["del", key.trim()]).done();
        }
    }
}

#[test]
fn orphans_of_the_child_are_reaped() {
    let server = Server::alone(&[]);
    let leaves = "sh -c 'sleep 0.1 & echo $!'; echo $$; exec sleep 1000";
    let mut holds = Going::start(lock(&server, &["m", "--ttl", "60", "--", "sh", "-c", leaves]));
    let (detach, command) = (holds.line(), holds.line());
    let begun = Instant::now();
    while std::fs::exists(format!("/proc/{}", detach.trim())).unwrap() {
        assert!(begun.elapsed() < Duration::from_secs(60), "{detach} is a zombie");
    }
    assert!(runs(&command));
    signal(&holds, Signal::TERM);
    assert_eq!(code(&mut holds), 143);
}

#[test]
fn child_ends_before_the_hold_when_the_server_is_paused() {
    let server = Server::alone(&[]);
    let ttl = Duration::from_secs(15);
    let mut holds = Going::start(lock(&server, &["m", "--ttl", "15", "--", "sh", "-c", STUBBORN]));
    let pids = [holds.line(), holds.line(), holds.line()];
    assert!(pids.iter().all(|pid| !pid.is_empty()), "{pids:?}");
    server.pause();
    let paused = Instant::now();
    // The last renewal was before the pause, so the commands must end within a TTL from here.
    while pids.iter().any(|pid| runs(pid)) {
        assert!(paused.elapsed() < ttl, "{pids:?} are still running");
    }
    assert_eq!(code(&mut holds), 123);
    server.resume();
    assert_eq!(run(lock(&server, &["m", "echo", "next"]), b"").done(), "next\n");
}

#[test]
fn child_is_killed_when_its_key_is_deleted_or_lease_revoked() {
    let server = Server::alone(&[]);
    let echo = format!("echo $BOWLINE_LOCK_KEY; echo $BOWLINE_LEASE; {STUBBORN}");
    for delete in [true, false] {
        let arguments = ["m", "--ttl", "60", "--", "sh", "-c", &echo];
        let mut holds = Going::start(lock(&server, &arguments));
        let (key, lease) = (holds.line(), holds.line());
        let pids = [holds.line(), holds.line(), holds.line()];
        assert!(pids.iter().all(|pid| !pid.is_empty()), "{pids:?}");
        let arguments = match delete {
            true => vec!["del", key.trim()],
            false => vec!["lease", "revoke", lease.trim()],
        };
        ask(&server, &arguments).done();
        assert_eq!(code(&mut holds), 123);
        assert!(!pids.iter().any(|pid| runs(pid)), "{pids:?}");
    }
}

#[test]
fn hold_survives_a_dead_or_paused_server() {
    let mut servers = Server::three();
    let all: Vec<_> = servers.iter().map(|server| server.address.clone()).collect();
    let mut lock = command_at(&all.join(","));
    // With default timeouts, the command must switch away from a suspended server soon enough.
    lock.env_remove("BOWLINE_COMMAND_TIMEOUT").env_remove("BOWLINE_DIAL_TIMEOUT");
    // The command runs for longer than the TTL.
    lock.args(["lock", "m", "--ttl", "8", "--", "sh", "-c", "echo held; sleep 10; echo still"]);
    let mut holds = Going::start(lock);
    assert_eq!(holds.line(), "held\n");
    // The paused server is the one that the command is connected to.
    servers[0].pause();
    assert_eq!(holds.line(), "still\n");
    assert_eq!(code(&mut holds), 0);
    servers[0].resume();
    servers.clear();
}

#[test]
fn readers_share_writers_exclude_and_semaphores_limit() {
    let server = Server::alone(&[]);
    let mut readers = [0, 1].map(|_| Going::start(lock(&server, &["rw", "--shared"])));
    for reader in &mut readers {
        assert!(reader.line().starts_with("rw/"));
    }
    let mut writer = Going::start(lock(&server, &["rw", "--exclusive", "--reason", "to write"]));
    waits_in_line(&server, "rw", 3);
    let late = run(lock(&server, &["rw", "--shared", "--timeout", "0", "true"]), b"");
    assert_eq!(late.code, 124, "a writer waits: {late:?}");
    let misfit = run(lock(&server, &["s", "true"]), b"");
    assert_eq!(misfit.code, 0);
    let listed = ask(&server, &["locks", "--prefix", "r"]).done();
    let lines: Vec<_> = listed.lines().collect();
    assert_eq!((lines.len(), lines[0]), (4, "rw"));
    assert!(lines[1].starts_with("  holds read since ") && lines[2].starts_with("  holds read"));
    assert!(lines[3].starts_with("  waits write since ") && lines[3].ends_with(": to write"));
    assert_eq!(ask(&server, &["locks", "r"]).done(), "", "a name without --prefix names one lock");
    assert_eq!(ask(&server, &["locks", "rw"]).done().lines().count(), 4);
    let table = ask(&server, &["-w", "table", "locks"]).done();
    assert!(table.contains("| STATE |") && table.contains("| to write |"), "{table}");
    for reader in &readers {
        signal(reader, Signal::INT);
    }
    assert!(writer.line().starts_with("rw/"));

    let semaphore = |more: &[&str]| {
        let mut semaphore = command(&server);
        semaphore.args(["semaphore", "s", "2"]).args(more);
        semaphore
    };
    let mut holds = [0, 1].map(|_| Going::start(semaphore(&[])));
    for hold in &mut holds {
        assert!(hold.line().starts_with("s/"));
    }
    assert_eq!(run(semaphore(&["--timeout", "0", "true"]), b"").code, 124);
    let mut other = command(&server);
    other.args(["semaphore", "s", "3", "true"]);
    let other = run(other, b"");
    assert_eq!(other.code, 125);
    assert!(other.err.contains("in use as another kind"), "{}", other.err);
    signal(&holds[0], Signal::INT);
    assert_eq!(run(semaphore(&["echo", "in"]), b"").done(), "in\n");
}

#[test]
fn one_candidate_leads_and_observers_see_it() {
    let server = Server::alone(&[]);
    let elect = |arguments: &[&str]| {
        let mut elect = command(&server);
        elect.arg("elect").args(arguments);
        elect
    };
    let mut listens = Going::start(elect(&["-l", "e"]));
    let mut first = Going::start(elect(&["e", "one"]));
    let won = first.lines(2);
    assert!(won.starts_with("e/") && won.ends_with("\none\n"), "{won}");
    assert_eq!(listens.lines(2), won);
    let mut second = elect(&["e", "two", "--", "sh", "-c", "echo leads; read line; exit 9"]);
    second.stdin(Stdio::piped());
    let mut second = Going::start(second);
    waits_in_line(&server, "e", 2);
    signal(&first, Signal::TERM);
    assert_eq!(second.line(), "leads\n");
    // The candidate leads until the listener has printed its value.
    assert!(listens.lines(2).ends_with("\ntwo\n"));
    let listed = ask(&server, &["locks", "e"]).done();
    assert!(listed.starts_with("e\n  holds election since "), "{listed}");
    drop(second.child.stdin.take());
    assert_eq!(code(&mut second), 9);
    assert_eq!(ask(&server, &["elect", "e"]).code, 2);
}

#[test]
fn observer_survives_server_restarts() {
    let member = SingleMember::prepare();
    let server = member.start(&[]);
    let granted = ask(&server, &["lease", "grant", "600"]).done();
    let lease = granted.split_whitespace().nth(1).unwrap().to_owned();
    let key = format!("e/{lease}");
    ask(&server, &["put", "--lease", &lease, &key, "one"]).done();
    let mut elect = command(&server);
    elect.args(["elect", "-l", "e"]);
    let mut listens = Going::start(elect);
    assert_eq!(listens.lines(2), format!("{key}\none\n"));
    let address = server.address.clone();
    server.stop();
    // The server hangs up more often than one request is attempted.
    hang_up(&address, 6);
    let server = member.start(&[]);
    ask(&server, &["put", "--lease", &lease, &key, "two"]).done();
    assert_eq!(listens.lines(2), format!("{key}\ntwo\n"));
}

#[test]
fn waiter_notices_a_writer_downgrade_and_a_changed_limit() {
    let server = Server::alone(&[]);
    let granted = ask(&server, &["lease", "grant", "600"]).done();
    let lease = granted.split_whitespace().nth(1).unwrap().to_owned();
    let stands = |name: &str, rule: &str| {
        let (key, value) = (format!("{name}/{lease}"), format!("bowline:1 {rule}\nhere\n\n"));
        ask(&server, &["put", "--lease", &lease, &key, &value]).done();
    };
    stands("rw", "write");
    let mut reader = Going::start(lock(&server, &["rw", "--shared"]));
    waits_in_line(&server, "rw", 2);
    stands("rw", "read");
    assert!(reader.line().starts_with("rw/"));

    stands("s", "semaphore 1 1");
    let mut semaphore = command(&server);
    semaphore.args(["semaphore", "s", "1"]);
    let mut waits = Going::start(semaphore);
    waits_in_line(&server, "s", 2);
    let keys = ask(&server, &["get", "s/", "--prefix", "--keys-only"]).done();
    let own = keys.split_whitespace().find(|key| !key.ends_with(&lease)).unwrap();
    // The waiter's own key is changed first, so that the two keys have different limits for a while.
    ask(&server, &["put", "--ignore-lease", own, "bowline:1 semaphore 2 1\nhere\n\n"]).done();
    stands("s", "semaphore 2 1");
    assert!(waits.line().starts_with("s/"));
}

#[test]
fn holder_learns_of_its_loss_through_another_server() {
    let servers = Server::three();
    let all: Vec<_> = servers.iter().map(|server| server.address.clone()).collect();
    let mut lock = command_at(&all.join(","));
    lock.env_remove("BOWLINE_COMMAND_TIMEOUT").env_remove("BOWLINE_DIAL_TIMEOUT");
    // The connection's keepalive does not detect the failure, so only a renewal can.
    lock.args(["--keepalive-time", "600s", "lock", "m", "--ttl", "9", "--", "sh", "-c"]);
    lock.arg("echo $BOWLINE_LOCK_KEY; sleep 100; echo 'not reached'");
    let mut holds = Going::start(lock);
    let key = holds.line();
    assert!(key.starts_with("m/"), "{key}");
    servers[0].pause();
    let others = all[1..].join(",");
    let mut delete = command_at(&others);
    delete.args(["del", key.trim()]);
    assert_eq!(run(delete, b"").done(), "1\n");
    assert_eq!((holds.line(), code(&mut holds)), (String::new(), 123));
    servers[0].resume();
}
