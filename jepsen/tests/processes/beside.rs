//! The server's program, which another member of the workspace makes.

use std::path::Path;
use std::process::Command;

use bowline_jepsen::fleet::Program;
use bowline_jepsen::{Over, Programs};

use crate::HARNESS;

/// The server beside the harness: with the whole workspace it is made before its tests; alone, it is made here.
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
    let built = cargo.output().expect("cargo is there");
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    Programs::beside(harness, None).of(Over::Server).expect("it was built").clone()
}
