//! [`Owned`]: a value that only the process that created it may use.
//!
//! A fork copies the memory of a node, but not its threads. In the child process a call would wait
//! forever, and even a drop could wait for a lock that a thread of the parent held at the time of
//! the fork. So a child process can neither use nor drop the value.

use std::process;

use crate::errors::Failure;

/// A value of this process.
pub(crate) struct Owned<T> {
    value: Option<T>,
    process: u32,
}

impl<T> Owned<T> {
    pub(crate) fn new(value: T) -> Self {
        Self { value: Some(value), process: process::id() }
    }

    /// Returns the value, or an error in a forked child process.
    pub(crate) fn get(&self) -> Result<&T, Failure> {
        match &self.value {
            Some(value) if self.process == process::id() => Ok(value),
            _ => Err(Failure::forked(self.process)),
        }
    }
}

impl<T> Drop for Owned<T> {
    fn drop(&mut self) {
        if self.process != process::id() {
            std::mem::forget(self.value.take());
        }
    }
}
