//! Work that may take long without waiting for anything: ranges over many keys, and large messages. There are as many
//! threads as processors, and who asks for such things again and again would have them all: renewals of leases and questions
//! about health would wait. Here another thread goes on with what else this one has to do.
//!
//! That costs some microseconds, and so is not for what is nearly always short.

use std::pin::{Pin, pin};
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body as HttpBody, Frame, SizeHint};
use tokio::task::block_in_place;
use tonic::Status;
use tonic::body::Body;

/// From how many bytes on a message is large.
pub(super) const LARGE_BYTES: usize = 1 << 20;

/// What an answer carries whose message is large.
#[derive(Clone, Copy)]
pub(super) struct Large;

/// A future, aside where its steps may take long.
pub(super) async fn aside<F: Future>(is_long: bool, future: F) -> F::Output {
    let mut future = pin!(future);
    std::future::poll_fn(|context| match is_long {
        true => block_in_place(|| future.as_mut().poll(context)),
        false => future.as_mut().poll(context),
    })
    .await
}

/// A body whose messages are made aside.
pub(super) struct Aside(pub(super) Body);

impl HttpBody for Aside {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        block_in_place(|| Pin::new(&mut self.0).poll_frame(context))
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.0.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, channel};
    use std::time::Duration;

    use http_body_util::BodyExt as _;
    use tokio::runtime::Builder;

    use super::*;

    /// A body that holds its thread until it is told to end.
    struct Holds(Receiver<()>);

    impl HttpBody for Holds {
        type Data = Bytes;
        type Error = Status;

        fn poll_frame(
            self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
            let told = self.0.recv_timeout(Duration::from_secs(20));
            Poll::Ready(told.err().map(|_| Err(Status::internal("nobody else had a turn"))))
        }
    }

    /// What holds the only thread until another task has had its turn.
    fn beside(
        holds: impl Future<Output = Result<(), Status>> + Send + 'static,
        says: impl Fn() + Send + 'static,
    ) {
        let runtime = Builder::new_multi_thread().worker_threads(1).build().unwrap();
        runtime.block_on(async {
            let held = tokio::spawn(async move {
                tokio::spawn(async move { says() });
                holds.await
            });
            held.await.unwrap().unwrap();
        });
    }

    #[test]
    fn others_have_their_turn_beside_what_takes_long() {
        let (says, told) = channel();
        let holds = async move {
            let told = told.recv_timeout(Duration::from_secs(20));
            told.map_err(|_| Status::internal("nobody else had a turn"))
        };
        beside(aside(true, holds), move || says.send(()).unwrap());
        let (says, told) = channel();
        let body = Aside(Body::new(Holds(told)));
        beside(async move { body.collect().await.map(drop) }, move || says.send(()).unwrap());
    }
}
