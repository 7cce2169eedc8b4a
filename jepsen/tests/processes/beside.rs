//! Finds the `bowline` binary, which another package of the workspace builds.

use std::path::Path;
use std::process::Command;

use bowline_jepsen::fleet::Program;
use bowline_jepsen::{Over, Programs};

use crate::HARNESS;

/// Returns the server in the directory of the harness. A build of the whole workspace has built it before these
/// tests; otherwise it is built here.
pub(crate) fn server() -> Program {
    let harness = Path::new(HARNESS);
    if let Ok(program) = Programs::beside(harness, None).of(Over::Server) {
        return program.clone();
    }
    let profile = harness.parent().expect("it is in a directory of its profile");
    let target = profile.parent().expect("which is in a directory for all of them");
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["build", "-p", "bowline-cli", "--bin", "bowline", "--target-dir"]).arg(target);
    if profile.ends_with("release") {
        cargo.arg("--release");
    }
    let built = cargo.output().expect("cargo runs");
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    Programs::beside(harness, None).of(Over::Server).expect("it was built").clone()
}
