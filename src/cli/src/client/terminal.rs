//! The terminal, where there is one: typing that is not shown.

use std::io;

use rustix::termios::{LocalModes, OptionalActions, tcgetattr, tcsetattr};

/// Does something while the terminal does not show what is typed.
pub(crate) fn without_echo<T>(read: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    let before = tcgetattr(io::stdin())?;
    let mut silent = before.clone();
    silent.local_modes.remove(LocalModes::ECHO);
    tcsetattr(io::stdin(), OptionalActions::Now, &silent)?;
    let result = read();
    tcsetattr(io::stdin(), OptionalActions::Now, &before)?;
    result
}
