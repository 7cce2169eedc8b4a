//! Runs the target `messages` of `bowline::fuzz` in libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| bowline_fuzz::run("messages", data));
