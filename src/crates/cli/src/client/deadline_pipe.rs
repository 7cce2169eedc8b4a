//! The channel over which `bowline lock` sends the deadline of the command to its supervisor. `bowline lock` sends a
//! new deadline after each lease renewal. The supervisor ends the command at the deadline, even while `bowline lock` is
//! suspended.
//!
//! ```text
//!   bowline lock ──────── socket pair ───────► the supervisor's standard input
//!                 1. the first deadline, and the file descriptor of the command's standard input
//!                 2. the next deadline
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

use bowline_client::BootTime;

/// Encoded size of a deadline, in bytes.
const MOMENT_BYTES: usize = 8;

/// Maximum number of deadlines that are read at once. Only the last deadline counts.
const MOMENTS: usize = 64;

/// The sending end, in `bowline lock`.
#[derive(Debug)]
pub(crate) struct DeadlinePipe(UnixStream);

impl DeadlinePipe {
    /// Returns both ends of the channel. The second becomes the supervisor's standard input.
    pub(crate) fn new() -> io::Result<(Self, OwnedFd)> {
        let (own, supervisors) = UnixStream::pair()?;
        own.set_nonblocking(true)?;
        Ok((Self(own), supervisors.into()))
    }

    /// Sends the first message, which contains the deadline and the file descriptor of this process's standard input.
    pub(crate) fn begin(&self, until: BootTime) -> io::Result<()> {
        let stdin = io::stdin();
        let files = [stdin.as_fd()];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut with = SendAncillaryBuffer::new(&mut space);
        with.push(SendAncillaryMessage::ScmRights(&files));
        sendmsg(&self.0, &[IoSlice::new(&until.to_bytes())], &mut with, SendFlags::empty())?;
        Ok(())
    }

    /// Extends the deadline.
    pub(crate) fn extend(&self, until: BootTime) {
        // The write fails only if the supervisor itself is suspended or gone.
        drop((&self.0).write(&until.to_bytes()));
    }
}

/// The receiving end, in the supervisor.
#[derive(Debug)]
pub(crate) struct Deadline {
    line: tokio::net::UnixStream,
    until: BootTime,
}

impl Deadline {
    /// Receives the first message. Returns the channel and the command's standard input. Must be called within a
    /// runtime.
    pub(crate) fn receive() -> io::Result<(Self, OwnedFd)> {
        let line = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
        let mut word = [0; MOMENT_BYTES];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut with = RecvAncillaryBuffer::new(&mut space);
        let received =
            recvmsg(&line, &mut [IoSliceMut::new(&mut word)], &mut with, RecvFlags::empty())?;
        let mut files = with.drain().filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(mut files) => files.next(),
            _ => None,
        });
        let (MOMENT_BYTES, Some(stdin)) = (received.bytes, files.next()) else {
            return Err(io::Error::other(
                "the parent process closed the socket before the first message",
            ));
        };
        fcntl_setfd(&stdin, FdFlags::CLOEXEC)?;
        line.set_nonblocking(true)?;
        let line = tokio::net::UnixStream::from_std(line)?;
        Ok((Self { line, until: BootTime::from_bytes(word) }, stdin))
    }

    /// Waits until the deadline has passed or `bowline lock` has ended. Cancel safe.
    pub(crate) async fn pass(&mut self) {
        let mut words = [0; MOMENTS * MOMENT_BYTES];
        loop {
            let until = self.until;
            tokio::select! {
                // If a new deadline has arrived, it must be used even if the old deadline has passed.
                biased;
                received = self.line.read(&mut words) => match words[..received.unwrap_or_default()].as_chunks().0.last() {
                    Some(word) => self.until = BootTime::from_bytes(*word),
                    None => return,
                },
                () = until.come() => return,
            }
        }
    }
}
