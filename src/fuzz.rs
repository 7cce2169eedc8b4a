//! Fuzz targets for every parser of untrusted bytes.
//!
//! `cargo test --workspace --lib fuzz` runs the targets as tests. With `--cfg fuzzing`, which cargo-fuzz sets,
//! and the feature `sim`, this hidden module exports the targets for `tests/fuzz`. A target is a
//! function that takes bytes, and panics if the parser violates one of its guarantees. The
//! implementation of a target is in the file `fuzz.rs` of the folder that parses the bytes. Some
//! targets interpret the bytes as a list of operations ("commit two entries, flip a bit, open").
//! These targets read the operations from a [`Feed`]. Such targets also correct the checksums in
//! their data, because a fuzzer would hardly find valid checksums.

use crate::{codec, consensus, snapshot, transport, wal};

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
    /// Returns the initial inputs, which consist of data that the library itself writes.
    pub seeds: fn() -> Vec<Vec<u8>>,
}

/// All targets whose code is in the library. Further targets are in `src/crates/testkit`.
pub const TARGETS: [Target; 8] = [
    Target { name: "log_records", run: wal::fuzz::records, seeds: wal::fuzz::record_seeds },
    Target { name: "log_directory", run: wal::fuzz::directory, seeds: wal::fuzz::directory_seeds },
    Target { name: "snapshots", run: snapshot::fuzz::snapshots, seeds: snapshot::fuzz::seeds },
    Target { name: "frames", run: transport::fuzz::frames, seeds: transport::fuzz::frame_seeds },
    Target { name: "handshake", run: transport::fuzz::handshake, seeds: transport::fuzz::seeds },
    Target { name: "messages", run: codec::fuzz::messages, seeds: codec::fuzz::message_seeds },
    Target { name: "gate", run: consensus::fuzz::gate, seeds: consensus::fuzz::seeds },
    Target { name: "commands", run: codec::fuzz::commands, seeds: codec::fuzz::command_seeds },
];

/// Derives choices for a target from the bytes of the input. When the input is used up, all numbers
/// are 0.
#[derive(Debug)]
pub(crate) struct Feed<'a> {
    rest: &'a [u8],
}

impl<'a> Feed<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// Returns all remaining bytes.
    pub(crate) fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.rest)
    }

    pub(crate) fn byte(&mut self) -> u8 {
        let Some((byte, rest)) = self.rest.split_first() else { return 0 };
        self.rest = rest;
        *byte
    }

    /// Returns a number below `end`. Consumes one byte if `end` is at most 256, and eight bytes
    /// otherwise.
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        let number = if end <= 256 { u64::from(self.byte()) } else { self.number() };
        number % end
    }

    /// Returns true with a probability of one in `times`.
    pub(crate) fn once_in(&mut self, times: u64) -> bool {
        self.below(times) == times - 1
    }

    /// Returns a number made of the next eight bytes.
    pub(crate) fn number(&mut self) -> u64 {
        u64::from_le_bytes(std::array::from_fn(|_| self.byte()))
    }

    /// Returns `value` or a number close to it in most cases, and a typical edge case such as 0 or
    /// the maximum otherwise.
    pub(crate) fn near(&mut self, value: u64) -> u64 {
        match self.byte() {
            choice @ 0..208 => value.wrapping_add(u64::from(choice % 8)).saturating_sub(2),
            208..216 => 0,
            216..224 => u64::MAX - u64::from(self.byte() % 3),
            224..240 => 1 << (self.byte() % 64),
            240..248 => u64::from(self.byte()),
            _ => self.number(),
        }
    }

    /// Returns up to `max` of the remaining bytes unchanged. `max` must be below 65,536.
    pub(crate) fn bytes(&mut self, max: usize) -> &'a [u8] {
        let wanted = match max {
            0..256 => self.below(max as u64 + 1) as usize,
            _ => usize::from(u16::from_le_bytes([self.byte(), self.byte()])) % (max + 1),
        };
        let (bytes, rest) = self.rest.split_at(wanted.min(self.rest.len()));
        self.rest = rest;
        bytes
    }
}

#[cfg(test)]
mod tests {
    mod library {
        use crate::fuzz::TARGETS;

        bowline_testkit::fuzz_tests! {
            TARGETS,
            records_of_the_log_in_any_order_are_refused_or_a_log: "log_records",
            damaged_log_is_rejected_or_reads_as_written: "log_directory",
            a_snapshot_of_any_bytes_is_refused_or_a_state: "snapshots",
            a_stream_is_the_frames_that_are_cut_out_of_it: "frames",
            only_who_belongs_comes_through_the_handshake: "handshake",
            a_message_has_one_encoding: "messages",
            no_message_of_a_peer_breaks_a_member: "gate",
            every_command_that_can_be_read_can_be_applied: "commands",
        }
    }

    mod outside {
        use bowline_testkit::fuzz::TARGETS;

        bowline_testkit::fuzz_tests! {
            TARGETS,
            transactions_do_what_the_naive_model_does: "transactions",
            a_range_is_a_filter_of_all_rows: "ranges",
            a_history_of_any_bytes_is_refused_or_has_one_verdict: "histories",
        }
    }
}
