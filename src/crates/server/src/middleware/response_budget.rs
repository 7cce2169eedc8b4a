//! The memory budget for responses that clients have not read yet. Without the budget, a client could exhaust the
//! server's memory by sending requests on many streams and reading no response.
//!
//! ```text
//!   request ──▶ compute the response ──▶ fits the budget? ──▶ sent; its bytes are freed after the last byte is sent
//!                     ▲                        │ no: the response is discarded
//!                     └─ wait for free bytes ◀─┘
//! ```
//!
//! A response larger than the whole budget is sent when no other response is pending. Small responses are not counted,
//! because they need no more memory than the stream itself.

use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::BodyExt as _;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;
use tonic::Status;
use tonic::body::Body;

use crate::middleware::Middleware;
use crate::protocol::Method;
use crate::wire::Reason;

/// Budget for all counted responses, as gRPC messages, in bytes.
const BUDGET_BYTES: usize = 512 << 20;

/// Size from which a response is counted.
const COUNTED_BYTES: usize = 64 << 10;

/// Unit of accounting.
const UNIT_BYTES: usize = 1 << 10;

/// Budget for all watch responses that combine several pages of history, in bytes.
const GATHERED_BYTES: usize = 128 << 20;

/// A budget of a member.
#[derive(Clone)]
pub(crate) struct ResponseBudget(Arc<Semaphore>);

/// Keeps the [`Reservation`] of a response until its last byte is sent. Responses of watches are counted here, frame by
/// frame, against the given budget.
#[derive(Clone)]
pub(crate) struct KeepReservations(pub(crate) ResponseBudget);

impl Middleware for KeepReservations {
    type State = Option<ResponseBudget>;

    fn request(&self, request: &mut Request<Body>) -> Result<Self::State, Status> {
        let is_watch = Method::of(request).service == "etcdserverpb.Watch";
        Ok(is_watch.then(|| self.0.clone()))
    }

    fn response(of_watches: Self::State, response: Response<Body>) -> Response<Body> {
        if let Some(budget) = of_watches {
            return response.map(|body| budget.counting(body));
        }
        if let Some(reservation) = response.extensions().get::<ChunkReservation>().cloned() {
            return response.map(|body| reservation.by_body(body));
        }
        let reservation = response.extensions().get::<Reservation>().cloned();
        response.map(|body| match reservation {
            Some(reservation) => reservation.by_body(body),
            None => body,
        })
    }
}

/// The reservation of one response in the budget. It is held until the last part of the response is dropped.
#[derive(Clone, Debug)]
pub(crate) struct Reservation(Arc<OwnedSemaphorePermit>);

/// The reservation of the newest chunk of a stream. `None` for a small chunk.
#[derive(Clone, Debug, Default)]
pub(crate) struct ChunkReservation(Arc<Mutex<Option<Reservation>>>);

impl ChunkReservation {
    /// Sets the reservation of a chunk before the chunk is encoded. The frames of earlier chunks keep theirs.
    pub(crate) fn set(&self, reservation: Option<Reservation>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = reservation;
    }

    /// Returns a body whose frames keep the reservation of the chunk that they end with, until they are dropped.
    fn by_body(self, body: Body) -> Body {
        Body::new(body.map_frame(move |frame| {
            // The frame takes the reservation, so that a chunk that was sent does not count.
            let held = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
            frame.map_data(|bytes| match held {
                Some(held) => held.by(bytes),
                None => bytes,
            })
        }))
    }
}

/// Error: the budget has not enough free bytes at the moment.
#[derive(Debug)]
pub(crate) struct BudgetExhausted;

fn units(bytes: usize) -> u32 {
    (bytes.min(BUDGET_BYTES) / UNIT_BYTES) as u32
}

impl ResponseBudget {
    pub(crate) fn new() -> Self {
        Self(Arc::new(Semaphore::new(BUDGET_BYTES / UNIT_BYTES)))
    }

    /// Returns the budget for responses of watches.
    pub(crate) fn of_watches() -> Self {
        Self(Arc::new(Semaphore::new(GATHERED_BYTES / UNIT_BYTES)))
    }

    /// Makes the large frames of a body count against the budget until they are sent. A frame that does not fit the
    /// budget is sent without being counted.
    pub(crate) fn counting(self, body: Body) -> Body {
        Body::new(body.map_frame(move |frame| {
            frame.map_data(|bytes: Bytes| match self.keep(bytes.len(), None) {
                Ok(Some(held)) => held.by(bytes),
                Ok(None) | Err(BudgetExhausted) => bytes,
            })
        }))
    }

    /// Returns a reservation for a response of `bytes`. Uses the reservation `kept` if it suffices. Returns `None` for
    /// a small response.
    pub(crate) fn keep(
        &self,
        bytes: usize,
        kept: Option<Reservation>,
    ) -> Result<Option<Reservation>, BudgetExhausted> {
        if bytes < COUNTED_BYTES {
            return Ok(None);
        }
        if let Some(kept) = kept.filter(|kept| kept.0.num_permits() >= units(bytes) as usize) {
            return Ok(Some(kept));
        }
        let held = Arc::clone(&self.0)
            .try_acquire_many_owned(units(bytes))
            .map_err(|_| BudgetExhausted)?;
        Ok(Some(Reservation(Arc::new(held))))
    }

    /// Waits for a reservation of `bytes`. Waiters are served in order.
    ///
    /// # Errors
    ///
    /// Fails if the budget is not available in time.
    pub(crate) async fn wait(&self, bytes: usize, until: Instant) -> Result<Reservation, Status> {
        let held = Arc::clone(&self.0).acquire_many_owned(units(bytes));
        match tokio::time::timeout_at(until, held).await {
            Ok(Ok(held)) => Ok(Reservation(Arc::new(held))),
            Ok(Err(_)) | Err(_) => Err(Reason::TooManyRequests.into()),
        }
    }

    /// Waits until the budget has some free bytes. Used before a request whose response cannot be discarded.
    ///
    /// # Errors
    ///
    /// Fails if no bytes become free in time.
    pub(crate) async fn wait_for_some(&self, until: Instant) -> Result<(), Status> {
        self.wait(COUNTED_BYTES, until).await.map(drop)
    }
}

impl Reservation {
    /// Returns bytes that keep the reservation until they are dropped.
    pub(crate) fn by(&self, bytes: Bytes) -> Bytes {
        Bytes::from_owner(Kept { bytes, _held: self.clone() })
    }

    /// Returns a body whose frames keep the reservation until they are dropped.
    pub(crate) fn by_body(self, body: Body) -> Body {
        Body::new(body.map_frame(move |frame| frame.map_data(|bytes| self.by(bytes))))
    }
}

struct Kept {
    bytes: Bytes,
    _held: Reservation,
}

impl AsRef<[u8]> for Kept {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use http_body_util::Full as Whole;

    use super::*;

    fn soon() -> Instant {
        Instant::now() + Duration::from_millis(20)
    }

    #[tokio::test]
    async fn response_keeps_its_budget_until_its_last_bytes_are_sent() {
        let room = ResponseBudget::new();
        assert!(room.keep(COUNTED_BYTES - 1, None).unwrap().is_none(), "a small one");
        // A response that is larger than the whole budget is admitted if no other response is pending.
        let held = room.keep(BUDGET_BYTES * 3, None).unwrap().unwrap();
        room.keep(COUNTED_BYTES, None).unwrap_err();
        assert_eq!(
            room.wait_for_some(soon()).await.unwrap_err().code(),
            tonic::Code::ResourceExhausted
        );
        let body = held.by_body(Body::new(Whole::new(Bytes::from_static(b"answer"))));
        let bytes = body.collect().await.unwrap().to_bytes();
        assert_eq!(bytes, "answer");
        room.keep(COUNTED_BYTES, None).unwrap_err();
        let some = bytes.slice(2..3);
        drop(bytes);
        room.keep(COUNTED_BYTES, None).unwrap_err();
        drop(some);
        assert!(room.keep(BUDGET_BYTES, None).unwrap().is_some());
    }

    #[tokio::test]
    async fn waiter_has_priority_and_keeps_its_reserved_budget() {
        let room = Arc::new(ResponseBudget::new());
        let half = room.keep(BUDGET_BYTES / 2, None).unwrap();
        let waits = tokio::spawn({
            let (room, until) = (Arc::clone(&room), Instant::now() + Duration::from_secs(20));
            async move { room.wait(BUDGET_BYTES, until).await }
        });
        while room.0.available_permits() > 0 {
            tokio::task::yield_now().await;
        }
        room.keep(COUNTED_BYTES, None).unwrap_err();
        drop(half);
        let kept = waits.await.unwrap().unwrap();
        // The response has grown beyond the whole budget, so it reserves the whole budget.
        let kept = room.keep(BUDGET_BYTES + 1, Some(kept)).unwrap();
        drop(kept);
        let kept = room.wait(BUDGET_BYTES / 4, soon()).await.unwrap();
        // The response has grown, and there is room.
        assert!(room.keep(BUDGET_BYTES / 2, Some(kept)).unwrap().is_some());
    }
}
