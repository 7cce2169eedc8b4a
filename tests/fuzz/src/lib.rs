//! The crate that cargo-fuzz runs. Its targets are plain functions: the targets of `bowline::fuzz`,
//! and the targets of `store`, which compare the store with the naive model of `tests`.
//! `tests/fuzzing.rs` runs the same targets as ordinary tests.

#[allow(dead_code, reason = "shared with other tests")]
#[path = "../../histories/mod.rs"]
mod histories;
#[allow(dead_code, reason = "shared with other tests")]
#[path = "../../naive/mod.rs"]
mod naive;
mod store;
#[allow(dead_code, reason = "shared with other tests")]
#[path = "../../subject/mod.rs"]
mod subject;

/// Runs the target with this name.
///
/// # Panics
/// Panics if the target has found an error, or if no target has this name.
pub fn run(name: &str, data: &[u8]) {
    let mut targets = bowline::fuzz::TARGETS.iter().chain(&store::TARGETS);
    let target = targets.find(|target| target.name == name).expect("a target of this name");
    let _how_far = (target.run)(data);
}
