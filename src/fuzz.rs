//! The doors of fuzzers: everything that reads bytes which somebody else has written, as plain functions.
//!
//! Not part of the public interface: feature `fuzzing`, for `tests/fuzz` and its twin `tests/fuzzing.rs`.
//! A target is a function of bytes that panics when a promise is broken. What it does stands in the file
//! `fuzz.rs` of the folder whose bytes they are. Those that take bytes as orders ("commit two entries, flip
//! a bit, open") draw them from a [`Feed`], and put the checksums right that no fuzzer would guess.

use crate::{check, codec, consensus, snapshot, transport, wal};

/// How far some bytes have come. Where all are refused nothing is tested.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Came {
    /// They meant something, and what they meant was judged.
    Through,
    /// They were refused with an error.
    Refused,
}

/// One thing to fuzz.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// The name of its corpus and of its binary.
    pub name: &'static str,
    /// Panics if a promise is broken.
    pub run: fn(&[u8]) -> Came,
    /// Bytes to begin with, made of what the library itself writes.
    pub seeds: fn() -> Vec<Vec<u8>>,
}

/// All whose code is in the library. Those that compare with the naive model are in `tests/fuzz`.
pub const TARGETS: [Target; 9] = [
    Target { name: "log_records", run: wal::fuzz::records, seeds: wal::fuzz::record_seeds },
    Target { name: "log_directory", run: wal::fuzz::directory, seeds: wal::fuzz::directory_seeds },
    Target { name: "snapshots", run: snapshot::fuzz::snapshots, seeds: snapshot::fuzz::seeds },
    Target { name: "frames", run: transport::fuzz::frames, seeds: transport::fuzz::frame_seeds },
    Target { name: "handshake", run: transport::fuzz::handshake, seeds: transport::fuzz::seeds },
    Target { name: "messages", run: codec::fuzz::messages, seeds: codec::fuzz::message_seeds },
    Target { name: "gate", run: consensus::fuzz::gate, seeds: consensus::fuzz::seeds },
    Target { name: "commands", run: codec::fuzz::commands, seeds: codec::fuzz::command_seeds },
    Target { name: "histories", run: check::fuzz::histories, seeds: check::fuzz::seeds },
];

/// Bytes that are drawn from as if they were chance. At their end all numbers are 0.
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

    /// Everything that is left.
    pub(crate) fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.rest)
    }

    pub(crate) fn byte(&mut self) -> u8 {
        let Some((byte, rest)) = self.rest.split_first() else { return 0 };
        self.rest = rest;
        *byte
    }

    /// A number below `end`: of one byte where that will do.
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        let number = if end <= 256 { u64::from(self.byte()) } else { self.number() };
        number % end
    }

    /// True once in so many times.
    pub(crate) fn once_in(&mut self, times: u64) -> bool {
        self.below(times) == times - 1
    }

    /// Eight bytes.
    pub(crate) fn number(&mut self) -> u64 {
        u64::from_le_bytes(std::array::from_fn(|_| self.byte()))
    }

    /// Mostly `value` or a neighbour of it, and now and then one of the numbers that things go wrong at.
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

    /// Up to `max` of the bytes as they are, `max` below 65,536.
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
