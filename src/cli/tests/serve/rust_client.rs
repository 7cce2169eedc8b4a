//! A program in Rust that uses the crate `etcd-client` (`src/cli/tests/etcd-client`). The crate's build compiles etcd's
//! protocol with `protoc`: where that is not there the test says so and passes.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::tempdir;

use crate::process::Server;

/// The program; none where it cannot be built.
fn program() -> Option<PathBuf> {
    let protoc = std::env::var_os("PROTOC").unwrap_or_else(|| "protoc".into());
    if Command::new(&protoc).arg("--version").output().is_err() {
        // Past the test harness, which would keep it to itself.
        let words = "SKIPPED: the crate etcd-client is built with protoc, which is not installed \
                     (Debian: protobuf-compiler; or name it with PROTOC)";
        drop(writeln!(io::stderr(), "{words}"));
        return None;
    }
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/etcd-client");
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).join("etcd-client");
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["build", "--locked", "--target-dir"]).arg(&target).current_dir(source);
    let built = cargo.env("PROTOC", protoc).output().unwrap();
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    Some(target.join("debug/etcd-client-program"))
}

#[test]
fn a_program_with_the_crate_etcd_client_finds_what_it_knows() {
    let Some(program) = program() else { return };
    let dir = tempdir().unwrap();
    let server = Server::alone(&dir, &["--bcrypt-cost=4"]);
    let output = Command::new(program).arg(&server.address).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
