//! The crate that cargo-fuzz runs. Its targets are plain functions: the targets of `bowline::fuzz`, and those of
//! `bowline_testkit::fuzz`. `cargo test --workspace --lib fuzz` runs the same targets as ordinary tests.

use bowline_testkit::fuzz as outside;

/// Runs the target with this name.
///
/// # Panics
/// Panics if the target has found an error, or if no target has this name.
pub fn run(name: &str, data: &[u8]) {
    if let Some(target) = bowline::fuzz::TARGETS.iter().find(|target| target.name == name) {
        (target.run)(data);
    } else {
        let target = outside::TARGETS.iter().find(|target| target.name == name);
        (target.expect("a target of this name").run)(data);
    }
}
