//! The answers of a call that streams, and the work that makes them: one thing, so that the work ends when nobody
//! waits for the answers any more.

use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::sync::mpsc;
use tokio_stream::Stream;
use tonic::Status;

/// How many answers may wait for a client before the work waits too.
const WAITING_MAX: usize = 128;

/// Where the work puts its answers.
pub(super) type Answers<T> = mpsc::Sender<Result<T, Status>>;

/// Ends with what the stream ends with.
type Work = Pin<Box<dyn Future<Output = Result<(), Status>> + Send>>;

/// Answers as they are made. Whoever drops it stops the work.
pub(super) struct Driven<T> {
    answers: mpsc::Receiver<Result<T, Status>>,
    /// `None` when it is done.
    work: Option<Work>,
    /// What the work has ended with, to be said after all answers.
    last: Option<Status>,
}

impl<T> Driven<T> {
    /// The answers of some work, which ends the stream when it ends.
    pub(super) fn by<F>(work: impl FnOnce(Answers<T>) -> F) -> Pin<Box<Self>>
    where
        F: Future<Output = Result<(), Status>> + Send + 'static,
    {
        let (sender, answers) = mpsc::channel(WAITING_MAX);
        Box::pin(Self { answers, work: Some(Box::pin(work(sender))), last: None })
    }
}

impl<T> Stream for Driven<T> {
    type Item = Result<T, Status>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = &mut *self;
        if let Some(work) = &mut this.work
            && let Poll::Ready(ended) = work.as_mut().poll(context)
        {
            this.work = None;
            this.last = ended.err();
            // What other tasks of the work would still say comes too late.
            this.answers.close();
        }
        match this.answers.poll_recv(context) {
            Poll::Ready(None) => Poll::Ready(this.last.take().map(Err)),
            other => other,
        }
    }
}
