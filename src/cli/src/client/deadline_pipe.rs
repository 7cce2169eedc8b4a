//! What the one that holds tells the keeper of its command: until when the command may run, anew with each renewal. So it
//! is ended in time also where the one that holds stands still, and cannot do so.
//!
//! ```text
//!   bowline lock ──────── a socket ────────► its keeper's standard input
//!                 a moment, and with it the command's own standard input
//!                 a moment
//!                 ...
//! ```

use std::io::{self, IoSlice, IoSliceMut, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;

use rustix::io::{FdFlags, fcntl_setfd};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use tokio::io::AsyncReadExt;

use super::session::Moment;

/// How long a moment is.
const MOMENT_BYTES: usize = 8;

/// How many are read at a time: only the last one counts.
const MOMENTS: usize = 64;

/// The end of the one that holds.
#[derive(Debug)]
pub(crate) struct DeadlinePipe(UnixStream);

impl DeadlinePipe {
    /// Both ends: the other one is to become the keeper's standard input.
    pub(crate) fn new() -> io::Result<(Self, OwnedFd)> {
        let (own, supervisors) = UnixStream::pair()?;
        own.set_nonblocking(true)?;
        Ok((Self(own), supervisors.into()))
    }

    /// The first word: until when, and this process's standard input.
    pub(crate) fn begin(&self, until: Moment) -> io::Result<()> {
        let stdin = io::stdin();
        let files = [stdin.as_fd()];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut with = SendAncillaryBuffer::new(&mut space);
        with.push(SendAncillaryMessage::ScmRights(&files));
        sendmsg(&self.0, &[IoSlice::new(&until.to_bytes())], &mut with, SendFlags::empty())?;
        Ok(())
    }

    /// The command may run until then.
    pub(crate) fn extend(&self, until: Moment) {
        // A keeper that has no room for it stands still itself, or is gone.
        drop((&self.0).write(&until.to_bytes()));
    }
}

/// The keeper's end.
#[derive(Debug)]
pub(crate) struct Deadline {
    line: tokio::net::UnixStream,
    until: Moment,
}

impl Deadline {
    /// Hears the first word. Gives the command's standard input, too. To be called within a runtime.
    pub(crate) fn hear() -> io::Result<(Self, OwnedFd)> {
        let line = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
        let mut word = [0; MOMENT_BYTES];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut with = RecvAncillaryBuffer::new(&mut space);
        let heard =
            recvmsg(&line, &mut [IoSliceMut::new(&mut word)], &mut with, RecvFlags::empty())?;
        let mut files = with.drain().filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(mut files) => files.next(),
            _ => None,
        });
        let (MOMENT_BYTES, Some(stdin)) = (heard.bytes, files.next()) else {
            return Err(io::Error::other("whoever holds has said nothing"));
        };
        fcntl_setfd(&stdin, FdFlags::CLOEXEC)?;
        line.set_nonblocking(true)?;
        let line = tokio::net::UnixStream::from_std(line)?;
        Ok((Self { line, until: Moment::from_bytes(word) }, stdin))
    }

    /// Waits until it has passed, or whoever holds is gone. May be dropped, and called again.
    pub(crate) async fn pass(&mut self) {
        let mut words = [0; MOMENTS * MOMENT_BYTES];
        loop {
            let until = self.until;
            tokio::select! {
                // What was said comes before what it was.
                biased;
                heard = self.line.read(&mut words) => match words[..heard.unwrap_or_default()].as_chunks().0.last() {
                    Some(word) => self.until = Moment::from_bytes(*word),
                    None => return,
                },
                () = until.come() => return,
            }
        }
    }
}
