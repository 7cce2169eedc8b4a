//! The terminal, where there is one: typing that is not shown.

use std::io;

use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcsetattr};

/// The terminal does not show what is typed, until this is dropped.
pub(crate) struct Silence(Termios);

impl Silence {
    /// From now on.
    pub(crate) fn begin() -> io::Result<Self> {
        let before = tcgetattr(io::stdin())?;
        let mut silent = before.clone();
        silent.local_modes.remove(LocalModes::ECHO);
        tcsetattr(io::stdin(), OptionalActions::Now, &silent)?;
        Ok(Self(before))
    }
}

impl Drop for Silence {
    fn drop(&mut self) {
        // If the terminal has gone there is nothing to restore.
        tcsetattr(io::stdin(), OptionalActions::Now, &self.0).ok();
    }
}

/// Does something while the terminal does not show what is typed.
pub(crate) fn without_echo<T>(read: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    let _silence = Silence::begin()?;
    read()
}
