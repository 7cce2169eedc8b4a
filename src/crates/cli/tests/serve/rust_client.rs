//! Runs a Rust program that uses the crate `etcd-client` (`src/crates/cli/tests/etcd-client`). The crate's build script calls
//! `protoc` to compile etcd's protocol. `protoc` may not be installed, so this test binary runs in place of `protoc`.

use std::ffi::OsStr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use protox::Compiler;
use tempfile::tempdir;

use bowline_testkit::process::{Server, skip};

/// The variable with the arguments of `protoc`, one a line.
const PROTOC_ARGS: &str = "BOWLINE_TEST_PROTOC_ARGS";

/// Does what the build script needs of `protoc`: compiles the files into one descriptor set.
#[test]
fn test_binary_acts_as_protoc() {
    let Ok(args) = std::env::var(PROTOC_ARGS) else { return };
    let (mut includes, mut files, mut out) = (Vec::new(), Vec::new(), None);
    let mut args = args.lines();
    while let Some(arg) = args.next() {
        match arg {
            "-I" => includes.extend(args.next()),
            "-o" => out = args.next(),
            "--include_imports" | "--include_source_info" => {}
            file => files.push(file),
        }
    }
    let mut compiler = Compiler::new(includes).unwrap();
    compiler.include_imports(true).include_source_info(true).open_files(files).unwrap();
    std::fs::write(out.unwrap(), compiler.encode_file_descriptor_set()).unwrap();
}

/// Writes a script that runs the test above in place of `protoc`.
fn protoc(dir: &Path) -> PathBuf {
    let (path, this) = (dir.join("protoc"), std::env::current_exe().unwrap());
    let words = format!(
        "#!/bin/sh\n{PROTOC_ARGS}=$(printf '%s\\n' \"$@\") exec '{}' --exact rust_client::test_binary_acts_as_protoc\n",
        this.display()
    );
    std::fs::write(&path, words).unwrap();
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
    path
}

/// Builds the program. Returns `None` if its dependencies are neither here nor can be downloaded.
fn program(protoc: &OsStr) -> Option<PathBuf> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/etcd-client");
    let mut fetch = Command::new(env!("CARGO"));
    let fetched = fetch.args(["fetch", "--locked"]).current_dir(&source).output().unwrap();
    if !fetched.status.success() {
        let why = String::from_utf8_lossy(&fetched.stderr);
        skip(&format!("the crate etcd-client cannot be downloaded: {why}"));
        return None;
    }
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).join("etcd-client");
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["build", "--locked", "--target-dir"]).arg(&target).current_dir(source);
    let built = cargo.env("PROTOC", protoc).output().unwrap();
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    Some(target.join("debug/etcd-client-program"))
}

#[test]
fn program_with_the_etcd_client_crate_works() {
    let dir = tempdir().unwrap();
    let Some(program) = program(protoc(dir.path()).as_os_str()) else { return };
    let server = Server::alone(&["--bcrypt-cost=4"]);
    let output = Command::new(program).arg(&server.address).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
