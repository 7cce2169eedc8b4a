//! Tests of the commands for files and processes of this machine: snapshots, test clusters, shell completions.

use std::fs;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tempfile::tempdir;

use crate::ask::{Going, ask, command_at, run};
use bowline_testkit::process::{Server, bowline, flags, free_ports};

#[test]
fn snapshot_is_saved_inspected_and_restored() {
    let place = tempdir().unwrap();
    let server = Server::alone(&[]);
    for key in ["a", "b", "c"] {
        ask(&server, &["put", key, "v"]).done();
    }
    let file = place.path().join("today.snap");
    let path = file.to_str().unwrap();
    let saved = ask(&server, &["snapshot", "save", path]).done();
    assert!(saved.starts_with(&format!("Snapshot saved at {path}\n")), "{saved}");
    assert!(!place.path().join("today.snap.part").exists());
    let status = ask(&server, &["-w", "json", "snapshot", "status", path]).done();
    assert!(status.contains("\"keys\":3"), "{status}");
    let new = place.path().join("new");
    let restore = ["snapshot", "restore", path, "--dir", new.to_str().unwrap(), "--name", "a"];
    assert!(ask(&server, &restore).done().contains("restored"));
    let nowhere = ask(&server, &["snapshot", "save", "/no/such/place/x.snap"]);
    assert_eq!(nowhere.code, 1);
    assert!(nowhere.err.contains("/no/such/place"), "{}", nowhere.err);
    let mut bytes = fs::read(&file).unwrap();
    bytes[100] ^= 1;
    fs::write(&file, bytes).unwrap();
    assert_eq!(ask(&server, &["snapshot", "status", path]).code, 1);
}

#[test]
fn restored_data_is_served_without_more_flags() {
    let place = tempdir().unwrap();
    let server = Server::alone(&[]);
    ask(&server, &["put", "k", "v"]).done();
    let file = place.path().join("a.snap");
    let new = place.path().join("new");
    let [file, data] = [&file, &new].map(|path| path.to_str().unwrap());
    ask(&server, &["snapshot", "save", file]).done();
    let [peer, client] = free_ports();
    for scheme in ["", "http://", "https://"] {
        drop(fs::remove_dir_all(&new));
        let member = format!("m0={scheme}127.0.0.1:{peer}");
        let restore =
            ["snapshot", "restore", file, "--dir", data, "--name", "m0", "--member", &member];
        ask(&server, &restore).done();
        let restored = Server::start(&flags(0, &[peer], client, &new), client, &[]).ready();
        assert_eq!(ask(&restored, &["get", "k"]).done(), "k\nv\n");
    }
}

#[test]
fn snapshot_has_no_timeout_unless_a_limit_is_given() {
    let place = tempdir().unwrap();
    let server = Server::alone(&[]);
    let save = |more: &[&str]| {
        // A request to the second endpoint would fail.
        let mut save = command_at(&format!("{},127.0.0.1:1", server.address));
        save.env_remove("BOWLINE_COMMAND_TIMEOUT").args(["snapshot", "save"]);
        save.arg(place.path().join("a.snap")).args(more);
        save
    };
    server.pause();
    let limited = run(save(&["--command-timeout", "500ms"]), b"");
    assert_eq!(limited.code, 1, "{limited:?}");
    assert!(limited.err.contains("no response within 500ms"), "{limited:?}");
    let mut interrupted = Going::start(save(&[]));
    let mut patient = Going::start(save(&[]));
    // The pause is longer than the timeout of other requests, which must not apply to the download.
    std::thread::sleep(Duration::from_secs(6));
    kill_process(Pid::from_child(&interrupted.child), Signal::INT).unwrap();
    assert_eq!(interrupted.child.wait().unwrap().code(), Some(130));
    server.resume();
    assert!(patient.line().starts_with("Snapshot saved"));
    let names = fs::read_dir(place.path()).unwrap().map(|entry| entry.unwrap().file_name());
    assert_eq!(names.collect::<Vec<_>>(), ["a.snap"]);
}

#[test]
fn snapshot_file_is_private_and_spares_other_files() {
    use std::os::unix::fs::PermissionsExt;
    let place = tempdir().unwrap();
    let server = Server::alone(&[]);
    let at = |name: &str| place.path().join(name);
    // Another process that saves to the same name has created this file.
    fs::write(at("a.snap.part"), "of another").unwrap();
    ask(&server, &["snapshot", "save", at("a.snap").to_str().unwrap()]).done();
    assert_eq!(fs::metadata(at("a.snap")).unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(fs::read(at("a.snap.part")).unwrap(), b"of another");
    fs::create_dir(at("b.snap")).unwrap();
    assert_eq!(ask(&server, &["snapshot", "save", at("b.snap").to_str().unwrap()]).code, 1);
    let names = fs::read_dir(place.path()).unwrap().map(|entry| entry.unwrap().file_name());
    let mut names: Vec<_> = names.collect();
    names.sort();
    assert_eq!(names, ["a.snap", "a.snap.part", "b.snap"]);
}

/// Returns the first of six free ports in a row, two for each of three servers. These ports are below the ports that
/// the operating system assigns and that other tests use. Each test starts its search at another port.
fn six_ports(test: u32) -> u16 {
    let is_free = |port| std::net::TcpListener::bind(("127.0.0.1", port)).is_ok();
    let some = u16::try_from((std::process::id() * 97 + 185 * test) % 370).unwrap();
    let mut firsts = (0..370).map(|step| 29_000 + (some + step) % 370 * 10);
    firsts.find(|first| (*first..first + 6).all(is_free)).unwrap()
}

#[test]
fn up_command_starts_a_cluster_and_keeps_its_data() {
    let place = tempdir().unwrap();
    let first = six_ports(0);
    let port = first.to_string();
    let up = || {
        let mut up = bowline();
        up.args(["up", "--nodes", "3", "--port", &port, "--dir"]).arg(place.path());
        up.stderr(std::process::Stdio::null());
        let mut up = Going::start(up);
        let line = up.line();
        let endpoints = line.trim().strip_prefix("3 servers are ready: --endpoints ").unwrap();
        let endpoints = endpoints.to_owned();
        (up, endpoints)
    };
    let ask = |endpoints: &str, arguments: &[&str]| {
        let mut command = command_at(endpoints);
        command.args(arguments);
        run(command, b"").done()
    };
    let (mut first, endpoints) = up();
    assert_eq!(endpoints.split(',').count(), 3);
    ask(&endpoints, &["put", "k", "v"]);
    let health = ask(&endpoints, &["endpoint", "health"]);
    assert_eq!(health.lines().count(), 3, "{health}");
    kill_process(Pid::from_child(&first.child), Signal::INT).unwrap();
    assert_eq!(first.child.wait().unwrap().code(), Some(0));

    let (mut again, endpoints) = up();
    assert_eq!(ask(&endpoints, &["get", "k"]), "k\nv\n");
    kill_process(Pid::from_child(&again.child), Signal::TERM).unwrap();
    assert_eq!(again.child.wait().unwrap().code(), Some(0));
    let mut unreachable = command_at(&endpoints);
    unreachable.args(["get", "k"]);
    assert_eq!(run(unreachable, b"").code, 4, "no server runs");
}

/// The certificates are created at each start, and earlier ones become useless.
#[test]
fn up_command_with_tls_names_the_client_certificates() {
    let place = tempdir().unwrap();
    let port = six_ports(1).to_string();
    let up = || {
        let mut up = bowline();
        up.args(["up", "--tls", "--nodes", "3", "--port", &port, "--dir"]).arg(place.path());
        up.stderr(std::process::Stdio::null());
        let mut up = Going::start(up);
        let line = up.line();
        let flags = line.trim().strip_prefix("3 servers are ready: ").unwrap();
        (up, flags.split(' ').map(str::to_owned).collect::<Vec<_>>())
    };
    let ask = |program: &str, flags: &[String], what: &[&str]| {
        let mut command = match program {
            "bowline" => bowline(),
            other => std::process::Command::new(other),
        };
        command.env("ETCDCTL_API", "3").args(what).args(flags);
        command.output().map(|output| (output.status.success(), output.stdout))
    };
    let stop = |mut up: Going| {
        kill_process(Pid::from_child(&up.child), Signal::TERM).unwrap();
        assert_eq!(up.child.wait().unwrap().code(), Some(0));
    };
    let (first, flags) = up();
    let names: Vec<_> = flags.iter().step_by(2).map(String::as_str).collect();
    assert_eq!(names, ["--endpoints", "--cacert", "--cert", "--key"]);
    assert!(flags[1].split(',').all(|url| url.starts_with("https://127.0.0.1:")), "{flags:?}");
    assert!(ask("bowline", &flags, &["put", "k", "v"]).unwrap().0);
    let members = ask("bowline", &flags, &["member", "list"]).unwrap().1;
    let members = String::from_utf8(members).unwrap();
    assert_eq!(members.matches("https://127.0.0.1:").count(), 6, "{members}");
    // The same request is sent with etcdctl, if it is installed.
    if let Ok(found) = ask("etcdctl", &flags, &["get", "k"]) {
        assert_eq!(found, (true, b"k\nv\n".to_vec()));
    }
    let refused = |flags: &[String]| {
        let patient = ["--command-timeout", "60s", "--dial-timeout", "60s"];
        let asked = bowline().args(["get", "k"]).args(patient).args(flags).output().unwrap();
        assert!(!asked.status.success(), "{asked:?}");
        String::from_utf8(asked.stderr).unwrap()
    };
    // The rejection may arrive after the client has started to send.
    let is_rejection = |why: &str| {
        ["received fatal alert: ", "the connection broke"].iter().any(|words| why.contains(words))
    };
    let why = refused(&flags[..4]);
    assert!(is_rejection(&why), "a client without a certificate was not rejected: {why}");
    use std::os::unix::fs::PermissionsExt;
    for key in ["client.key", "node1.key"] {
        let mode = fs::metadata(place.path().join("tls").join(key)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{key}");
    }
    let old: Vec<_> = ["client.pem", "client.key"]
        .map(|name| {
            let (from, to) = (place.path().join("tls").join(name), place.path().join(name));
            fs::copy(from, &to).unwrap();
            to.to_str().unwrap().to_owned()
        })
        .into();
    // A second start must not replace the certificates of the running servers.
    let mut twice = bowline();
    twice.args(["up", "--tls", "--nodes", "3", "--port", &port, "--dir"]).arg(place.path());
    let twice = run(twice, b"");
    assert!(
        twice.code == 1 && twice.err.contains("is the cluster already running?"),
        "{}",
        twice.err
    );
    assert!(ask("bowline", &flags, &["get", "k"]).unwrap().0);
    stop(first);

    let (again, flags) = up();
    assert_eq!(ask("bowline", &flags, &["get", "k"]).unwrap(), (true, b"k\nv\n".to_vec()));
    let mut before: Vec<_> = flags[..4].to_vec();
    for (name, path) in ["--cert", "--key"].into_iter().zip(old) {
        before.extend([name.to_owned(), path]);
    }
    let why = refused(&before);
    assert!(is_rejection(&why), "a certificate of the old authority was not rejected: {why}");
    stop(again);
}

#[test]
fn each_command_has_a_manual_page() {
    let place = tempdir().unwrap();
    let pages = place.path().join("man1");
    let mut man = bowline();
    man.arg("man").arg(&pages);
    assert_eq!(run(man, b"").done(), "");
    let page = |name: &str| fs::read_to_string(pages.join(name)).unwrap();
    assert!(page("bowline.1").contains(".TH bowline 1"));
    for name in ["put", "import", "lease-grant", "snapshot-save", "serve", "check"] {
        let text = page(&format!("bowline-{name}.1"));
        // Global options are described only on the main page.
        assert!(text.contains("SYNOPSIS") && !text.contains("cacert\\fR <"), "{name}: {text}");
    }
    assert!(page("bowline-serve.1").contains("initial\\-cluster\\-state"));
    assert!(page("bowline-import.1").contains("until\\-caught\\-up"));
    assert!(!pages.join("bowline-supervised-child.1").exists());
    let mut nowhere = bowline();
    nowhere.args(["man", "/dev/null/x"]);
    assert_eq!(run(nowhere, b"").code, 1);
}

#[test]
fn shell_completions_cover_commands_and_flags() {
    for shell in ["bash", "zsh", "fish"] {
        let mut completion = bowline();
        completion.args(["completion", shell]);
        let text = run(completion, b"").done();
        assert!(text.contains("keep-alive") && text.contains("endpoints"), "{shell}");
    }
}

#[test]
fn version_matches_etcdctl() {
    let mut version = command_at("127.0.0.1:1");
    version.arg("version");
    let printed = run(version, b"").done();
    let own = env!("CARGO_PKG_VERSION");
    let expected = format!("etcdctl version: 3.7.3\nAPI version: 3.7\nbowline version: {own}\n");
    assert_eq!(printed, expected);
}
