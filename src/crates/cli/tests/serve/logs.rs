//! Tests of the outputs to which a server writes its log, and of the rotation of log files.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use flate2::read::GzDecoder;
use tempfile::tempdir;

use bowline_testkit::process::{Server, SingleMember, bowline, flags, free_ports};

const READY: &str = "ready to serve client requests";
const STOPPED: &str = "the member has stopped cleanly";

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Starts a server and stops it when it is ready. Returns what it wrote to standard error.
fn run(member: &SingleMember, more: &[&str]) -> String {
    let (status, log) = member.start(more).stop();
    assert!(status.success(), "{log}");
    log
}

#[test]
fn log_is_written_to_stderr_and_files() {
    let (member, logs) = (SingleMember::prepare(), tempdir().unwrap());
    let paths = ["a.log", "b.log"].map(|name| logs.path().join(name));
    let outputs = format!("--log-outputs=stderr,{},{}", text(&paths[0]), text(&paths[1]));
    let log = run(&member, &[&outputs, "--log-format=json"]);
    for log in [log, fs::read_to_string(&paths[0]).unwrap(), fs::read_to_string(&paths[1]).unwrap()]
    {
        for words in [READY, STOPPED] {
            assert_eq!(log.matches(words).count(), 1, "{words:?} in {log}");
        }
        for line in log.lines() {
            let line: serde_json::Value = serde_json::from_str(line).expect(line);
            assert!(line["level"].is_string() && line["msg"].is_string(), "{line}");
        }
    }
}

#[test]
fn log_file_is_appended_and_stderr_gets_only_the_ready_line() {
    let (member, logs) = (SingleMember::prepare(), tempdir().unwrap());
    let path = logs.path().join("etcd.log");
    let outputs = format!("--log-outputs={}", text(&path));
    for starts in 1..=2 {
        let log = run(&member, &[&outputs]);
        assert_eq!(log.lines().count(), 1, "{log}");
        assert!(log.contains(READY), "{log}");
        let log = fs::read_to_string(&path).unwrap();
        assert_eq!(log.matches(STOPPED).count(), starts, "{log}");
    }
}

#[test]
fn unopenable_log_file_fails_the_start_with_the_reason() {
    let (SingleMember { dir, flags, .. }, logs) = (SingleMember::prepare(), tempdir().unwrap());
    let missing = logs.path().join("missing").join("etcd.log");
    let cases: [(&Path, &[&str], &str); 4] = [
        (logs.path(), &[], "Is a directory"),
        (&missing, &[], "No such file or directory"),
        (logs.path(), &["--enable-log-rotation"], "Is a directory"),
        (Path::new("/dev/null"), &["--enable-log-rotation"], "only regular files can be rotated"),
    ];
    for (path, more, why) in cases {
        let outputs = format!("--log-outputs=stderr,{}", text(path));
        let done = bowline().arg("serve").args(&flags).arg(outputs).args(more).output().unwrap();
        let log = String::from_utf8(done.stderr).unwrap();
        assert_eq!(done.status.code(), Some(1), "{log}");
        let words = format!("cannot open the log file {}: {why}", path.display());
        assert!(log.contains(&words), "{log}");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0, "the data directory is unchanged");
    }
}

#[test]
fn failed_start_is_logged_to_file_and_stderr() {
    let (member, logs) = (SingleMember::prepare(), tempdir().unwrap());
    let _taken = std::net::TcpListener::bind(("127.0.0.1", member.client)).unwrap();
    for format in ["console", "json"] {
        let path = logs.path().join(format);
        let mut command = bowline();
        command.arg("serve").args(&member.flags);
        command.arg(format!("--log-outputs={}", text(&path))).arg(format!("--log-format={format}"));
        let done = command.output().unwrap();
        let log = String::from_utf8(done.stderr).unwrap();
        assert_eq!(done.status.code(), Some(1), "{log}");
        for log in [log, fs::read_to_string(&path).unwrap()] {
            assert_eq!(log.matches("cannot listen for clients").count(), 1, "{format}: {log}");
        }
    }
}

#[test]
fn log_file_is_rotated_at_its_size_limit() {
    const MIB: usize = 1 << 20;
    let (dir, logs) = (tempdir().unwrap(), tempdir().unwrap());
    let path = logs.path().join("new").join("etcd.log");
    fs::create_dir(path.parent().unwrap()).unwrap();
    let old = "x".repeat(MIB - 1) + "\n";
    fs::write(&path, &old).unwrap();
    let yaml = dir.path().join("etcd.yaml");
    let data = dir.path().join("data");
    let [peer, client] = free_ports();
    let mut file = File::create(&yaml).unwrap();
    for flag in flags(0, &[peer], client, &data) {
        let (name, value) = flag.trim_start_matches('-').split_once('=').unwrap();
        writeln!(file, "{name}: '{value}'").unwrap();
    }
    writeln!(file, "log-outputs: ['{}']\nenable-log-rotation: true", text(&path)).unwrap();
    writeln!(file, "log-rotation-config-json: '{{\"maxsize\": 1, \"compress\": true}}'").unwrap();
    let server = Server::start(&[format!("--config-file={}", text(&yaml))], client, &[]).ready();
    let begun = Instant::now();
    let rotated = loop {
        let found: Vec<_> =
            fs::read_dir(path.parent().unwrap()).unwrap().map(Result::unwrap).collect();
        let rotated =
            found.iter().map(|found| found.path()).find(|path| path.extension().unwrap() == "gz");
        match rotated {
            Some(rotated) if found.len() == 2 => break rotated,
            _ => assert!(begun.elapsed() < Duration::from_secs(60), "{found:?}"),
        }
        std::thread::yield_now();
    };
    assert!(server.stop().0.success());
    let mut text = String::new();
    GzDecoder::new(File::open(rotated).unwrap()).read_to_string(&mut text).unwrap();
    assert!(text == old, "{} bytes were rotated", text.len());
    let log = fs::read_to_string(&path).unwrap();
    assert!(log.contains(READY) && log.contains(STOPPED), "{log}");
}

#[test]
fn full_log_disk_loses_only_log_lines() {
    let log = run(&SingleMember::prepare(), &["--log-outputs=/dev/full,stderr"]);
    assert!(log.contains(READY) && log.contains(STOPPED), "{log}");
}
