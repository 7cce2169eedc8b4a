//! Runs the target `ranges` of `store` in libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| bowline_fuzz::run("ranges", data));
