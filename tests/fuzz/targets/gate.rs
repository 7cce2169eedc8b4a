//! The target `gate` of `bowline::fuzz`, for libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| bowline_fuzz::run("gate", data));
