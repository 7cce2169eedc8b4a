//! Tests of a server that listens on a Unix socket, and of commands that connect to that socket.

use std::os::unix::fs::FileTypeExt;

use tempfile::tempdir;

use crate::ask::{command_at, run};
use bowline_testkit::process::{Server, flags, free_ports};

#[test]
fn clients_connect_over_a_unix_socket() {
    let (dir, [peer, client]) = (tempdir().unwrap(), free_ports());
    let path = dir.path().join("s");
    let url = format!("unix://{}", path.display());
    let flags: Vec<_> = flags(0, &[peer], client, &dir.path().join("data"))
        .into_iter()
        .map(|flag| match flag.strip_prefix("--listen-client-urls=") {
            Some(http) => format!("--listen-client-urls={url},{http}"),
            None => flag,
        })
        .collect();
    let start = || Server::start(&flags, client, &[]).ready();
    let server = start();
    assert!(path.metadata().unwrap().file_type().is_socket());
    let ask = |arguments: &[&str]| {
        let mut command = command_at(&url);
        command.args(arguments);
        run(command, b"").done()
    };
    ask(&["put", "k", "v"]);
    assert_eq!(ask(&["get", "k", "--print-value-only"]), "v\n");
    assert!(ask(&["endpoint", "health"]).contains("is healthy"));
    // A killed server leaves its socket file, which the next one replaces.
    drop(server);
    assert!(path.exists());
    let server = start();
    assert_eq!(ask(&["get", "k", "--print-value-only"]), "v\n");
    let (status, printed) = server.stop();
    assert!(status.success(), "{printed}");
    assert!(!path.exists(), "the file is deleted at the end");
}
