//! Couples a response stream with the work that produces it, so that dropping the stream stops the work.

use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::sync::mpsc;
use tokio::sync::mpsc::error::SendError;
use tokio_stream::Stream;
use tonic::Status;

/// Maximum number of responses waiting for a client before the work blocks. Kept small, because responses may be large
/// and streams many.
const WAITING_MAX: usize = 16;

/// Responses that are sent together, with nothing in between.
type Row<T> = Vec<Result<T, Status>>;

/// The sending side, for the work.
#[derive(Clone, Debug)]
pub(crate) struct ResponseSender<T>(mpsc::Sender<Row<T>>);

impl<T> ResponseSender<T> {
    /// Sends one response.
    ///
    /// # Errors
    /// Fails if the stream was dropped.
    pub(crate) async fn send(&self, answer: Result<T, Status>) -> Result<(), SendError<Row<T>>> {
        self.0.send(vec![answer]).await
    }

    /// Reserves a slot for the fragments of a response, so that other responses are sent before or after all of them.
    ///
    /// # Errors
    /// Fails if the stream was dropped.
    pub(crate) async fn slot(&self) -> Result<ResponseSlot<'_, T>, SendError<()>> {
        self.0.reserve().await.map(ResponseSlot)
    }
}

/// A reserved slot for one row.
pub(crate) struct ResponseSlot<'a, T>(mpsc::Permit<'a, Row<T>>);

impl<T> ResponseSlot<'_, T> {
    pub(crate) fn send(self, row: Vec<Result<T, Status>>) {
        self.0.send(row);
    }
}

/// The work of a stream. Its result ends the stream.
type Work = Pin<Box<dyn Future<Output = Result<(), Status>> + Send>>;

/// A stream of responses that runs the work that produces them.
pub(crate) struct ResponseStream<T> {
    answers: mpsc::Receiver<Row<T>>,
    /// Remainder of the row that is being sent.
    row: std::vec::IntoIter<Result<T, Status>>,
    /// `None` when the work is done.
    work: Option<Work>,
    /// Error of the work, to be sent after all responses.
    last: Option<Status>,
}

impl<T> ResponseStream<T> {
    /// Returns the responses of `work`. The stream ends when the work ends.
    pub(crate) fn by<F>(work: impl FnOnce(ResponseSender<T>) -> F) -> Pin<Box<Self>>
    where
        F: Future<Output = Result<(), Status>> + Send + 'static,
    {
        Self::with_slots(WAITING_MAX, work)
    }

    fn with_slots<F>(rows_max: usize, work: impl FnOnce(ResponseSender<T>) -> F) -> Pin<Box<Self>>
    where
        F: Future<Output = Result<(), Status>> + Send + 'static,
    {
        let (sender, answers) = mpsc::channel(rows_max);
        let (row, work) =
            (Vec::new().into_iter(), Some(Box::pin(work(ResponseSender(sender))) as Work));
        Box::pin(Self { answers, row, work, last: None })
    }
}

impl<T> Stream for ResponseStream<T> {
    type Item = Result<T, Status>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = &mut *self;
        if let Some(work) = &mut this.work
            && let Poll::Ready(ended) = work.as_mut().poll(context)
        {
            this.work = None;
            this.last = ended.err();
            // From now on, responses that other tasks of the work still send are discarded.
            this.answers.close();
        }
        loop {
            if let Some(answer) = this.row.next() {
                return Poll::Ready(Some(answer));
            }
            match this.answers.poll_recv(context) {
                Poll::Ready(Some(row)) => this.row = row.into_iter(),
                Poll::Ready(None) => return Poll::Ready(this.last.take().map(Err)),
                Poll::Pending => return Poll::Pending,
            }
        }
    }
}

/// No reference into the struct is ever pinned.
impl<T> Unpin for ResponseStream<T> {}

#[cfg(test)]
mod tests {
    use tokio_stream::StreamExt;

    use super::*;

    #[tokio::test]
    async fn fragments_of_one_response_are_never_interleaved() {
        for rows_max in [1, 2, 16] {
            let driven = ResponseStream::with_slots(rows_max, |answers| async move {
                let rows = async {
                    for first in [10, 20, 30] {
                        let pieces = vec![Ok(first), Ok(first + 1), Ok(first + 2)];
                        answers.slot().await.unwrap().send(pieces);
                    }
                };
                let others = async {
                    for other in 1..=3 {
                        answers.send(Ok(other)).await.unwrap();
                    }
                };
                tokio::join!(rows, others);
                Err(Status::aborted("last"))
            });
            let mut received: Vec<_> = driven.collect().await;
            assert_eq!(received.pop().unwrap().unwrap_err().message(), "last");
            let received: Vec<i32> = received.into_iter().map(Result::unwrap).collect();
            let rows: Vec<_> =
                received.iter().filter(|received| **received >= 10).copied().collect();
            assert_eq!(rows, [10, 11, 12, 20, 21, 22, 30, 31, 32]);
            for first in [10, 20, 30] {
                let at = received.iter().position(|received| *received == first).unwrap();
                assert_eq!(received[at..at + 3], [first, first + 1, first + 2], "{received:?}");
            }
        }
    }
}
