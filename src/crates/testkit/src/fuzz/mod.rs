//! Fuzz targets outside the library, and a player that runs fuzz targets as ordinary tests.

mod histories;
mod player;
mod store;

pub use player::{assert_complete, play};

/// The outcome of one run of a target. If every input is rejected, the target tests nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Came {
    /// The input was accepted and its result was checked.
    Through,
    /// The input was rejected with an error.
    Refused,
}

/// A fuzz target.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Name of the target, which is also the name of its corpus and of its binary.
    pub name: &'static str,
    /// The function to run. Panics if the tested code violates one of its guarantees.
    pub run: fn(&[u8]) -> Came,
    /// Returns the initial inputs.
    pub seeds: fn() -> Vec<Vec<u8>>,
}

/// The targets that compare the store with the naive model, and the target for the checkers.
pub const TARGETS: [Target; 3] = [
    Target { name: "transactions", run: store::transactions, seeds: store::transaction_seeds },
    Target { name: "ranges", run: store::ranges, seeds: store::range_seeds },
    Target { name: "histories", run: histories::histories, seeds: histories::seeds },
];

/// Declares one test for each target of a list, and one test that no target and no binary for it is missing.
#[macro_export]
macro_rules! fuzz_tests {
    ($targets:expr, $($test:ident: $name:literal,)*) => {
        $(#[test]
        fn $test() {
            let target = $targets.iter().find(|target| target.name == $name).expect("a target");
            let accepts = |bytes: &[u8]| format!("{:?}", (target.run)(bytes)) == "Through";
            $crate::fuzz::play(target.name, accepts, target.seeds);
        })*

        #[test]
        fn every_target_has_a_test_and_a_binary() {
            let names = $targets.map(|target| target.name);
            $crate::fuzz::assert_complete(&names, &[$($name),*]);
        }
    };
}
