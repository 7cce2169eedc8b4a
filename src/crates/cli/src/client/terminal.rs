//! Reads passwords from the terminal without echo.

use std::io::{self, BufRead, IsTerminal, Write};

use rustix::process::Signal;
use rustix::termios::{LocalModes, OptionalActions, SpecialCodeIndex, Termios};
use rustix::termios::{tcgetattr, tcsetattr};

use super::failure::Failure;
use super::options::Login;
use super::supervisor::ended_by;

/// Turns off echo, line editing and signal keys of the terminal until this value is dropped. Signal keys are read as
/// input, so that they cannot end the process before the terminal is restored.
struct Silence {
    before: Termios,
}

impl Silence {
    fn begin() -> io::Result<Self> {
        let before = tcgetattr(io::stdin())?;
        let mut silent = before.clone();
        silent.local_modes.remove(LocalModes::ECHO | LocalModes::ICANON | LocalModes::ISIG);
        silent.special_codes[SpecialCodeIndex::VMIN] = 1;
        silent.special_codes[SpecialCodeIndex::VTIME] = 0;
        tcsetattr(io::stdin(), OptionalActions::Now, &silent)?;
        Ok(Self { before })
    }

    /// Reads a line from the terminal.
    fn line(&self) -> Result<String, Failure> {
        let failed = |error| Failure::Local("cannot read the password".to_owned(), error);
        let means = |key: u8, what| key == self.before.special_codes[what];
        let mut line = Vec::new();
        loop {
            let mut key = [0];
            let count = rustix::io::read(io::stdin(), &mut key);
            match (count.map_err(|error| failed(error.into()))?, key[0]) {
                (0, _) => return Err(failed(io::ErrorKind::UnexpectedEof.into())),
                (_, b'\n' | b'\r') => break,
                (_, key) if means(key, SpecialCodeIndex::VINTR) => {
                    return Err(Failure::Exit(ended_by(Signal::INT)));
                }
                (_, key) if means(key, SpecialCodeIndex::VQUIT) => {
                    return Err(Failure::Exit(ended_by(Signal::QUIT)));
                }
                (_, key) if means(key, SpecialCodeIndex::VEOF) => {
                    return Err(failed(io::ErrorKind::UnexpectedEof.into()));
                }
                (_, key) if means(key, SpecialCodeIndex::VKILL) => line.clear(),
                (_, key) if means(key, SpecialCodeIndex::VERASE) => {
                    // The last character may consist of several bytes, all of which are removed.
                    while line.pop().is_some_and(|byte| byte & 0xc0 == 0x80) {}
                }
                (_, key) => line.push(key),
            }
        }
        String::from_utf8(line).map_err(|error| failed(io::Error::other(error)))
    }
}

impl Drop for Silence {
    fn drop(&mut self) {
        // The call fails only if the terminal no longer exists. In that case nothing needs to be restored.
        tcsetattr(io::stdin(), OptionalActions::Now, &self.before).ok();
        drop(io::stderr().lock().write_all(b"\n"));
    }
}

/// Completes the login: prompts for a missing password once, before any timeout starts. `variable` is the environment
/// variable that the error text suggests instead.
pub(crate) fn known(login: Option<Login>, variable: &str) -> Result<Option<Login>, Failure> {
    let Some(Login { name, password: None }) = login else { return Ok(login) };
    if !io::stdin().is_terminal() {
        return Err(Failure::Usage(format!("the password of {name} is missing: set {variable}")));
    }
    let password = Some(secret(&format!("Password of {name}: "))?);
    Ok(Some(Login { name, password }))
}

/// Prompts for a secret. If standard input is a terminal, the secret is not echoed.
pub(crate) fn secret(prompt: &str) -> Result<String, Failure> {
    let failed = |error| Failure::Local("cannot read the password".to_owned(), error);
    let silence = io::stdin().is_terminal().then(Silence::begin).transpose().map_err(failed)?;
    let prompted = io::stderr().lock().write_all(prompt.as_bytes());
    prompted.map_err(failed)?;
    match silence {
        Some(silence) => silence.line(),
        None => read_line().map_err(failed),
    }
}

/// Reads a line from standard input. Returns an empty string at the end of the input.
pub(crate) fn read_line() -> io::Result<String> {
    let mut line = String::new();
    io::stdin().lock().read_line(&mut line)?;
    Ok(line.trim_end_matches(['\r', '\n']).to_owned())
}
