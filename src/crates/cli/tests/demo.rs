//! Runs the demo through `bowline`. The tests of `bowline-demo` cover the demo itself.

use std::process::{Command, Stdio};

#[test]
fn bowline_demo_starts_processes_of_its_own_program() {
    let dir = tempfile::TempDir::with_prefix("bowline-cli-demo-").unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_bowline"))
        .args(["demo", "--nodes", "1", "--seconds", "1"])
        .env("TMPDIR", dir.path())
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let story = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{story}{}", String::from_utf8_lossy(&output.stderr));
    assert!(story.contains("Nothing was lost."), "{story}");
}
