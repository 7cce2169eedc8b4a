//! [`Owned`]: a value that only the process that created it may use. [`PerProcess`]: a value that each process creates.
//!
//! A fork copies the memory of a node, but not its threads. In the child process a call would wait
//! forever, and even a drop could wait for a lock that a thread of the parent held at the time of
//! the fork. So a child process can neither use nor drop the value.

use std::process;
use std::sync::{Arc, Mutex, PoisonError};

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

/// A value that each process creates when it first uses it.
pub(crate) struct PerProcess<T> {
    // A fork keeps the interpreter lock, so a mutex that is locked only by attached threads is unlocked in the child.
    created: Mutex<Option<(u32, Arc<T>)>>,
}

impl<T> PerProcess<T> {
    pub(crate) const fn new() -> Self {
        Self { created: Mutex::new(None) }
    }

    /// Returns the value of this process. The caller is attached to the interpreter.
    pub(crate) fn get_or_try_init<E>(
        &self,
        create: impl FnOnce() -> Result<T, E>,
    ) -> Result<Arc<T>, E> {
        let mut created = self.created.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((process, value)) = &*created
            && *process == process::id()
        {
            return Ok(Arc::clone(value));
        }
        let value = Arc::new(create()?);
        // The child process must not drop the value of its parent.
        std::mem::forget(created.replace((process::id(), Arc::clone(&value))));
        Ok(value)
    }

    /// Like `get_or_try_init`, for a value whose creation cannot fail.
    pub(crate) fn get_or_init(&self, create: impl FnOnce() -> T) -> Arc<T> {
        let created = self.get_or_try_init(|| Ok::<_, std::convert::Infallible>(create()));
        created.unwrap_or_else(|never| match never {})
    }
}
