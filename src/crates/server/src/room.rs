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

use std::sync::Arc;

use bytes::Bytes;
use http_body_util::BodyExt as _;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;
use tonic::Status;
use tonic::body::Body;

use super::wire::Reason;

/// Budget for all counted responses, as gRPC messages, in bytes.
const ROOM_BYTES: usize = 512 << 20;

/// Size from which a response is counted.
const COUNTED_BYTES: usize = 64 << 10;

/// Unit of accounting.
const UNIT_BYTES: usize = 1 << 10;

/// Budget for all watch responses that combine several pages of history, in bytes.
const GATHERED_BYTES: usize = 128 << 20;

/// A budget of a member.
#[derive(Clone)]
pub(super) struct Room(Arc<Semaphore>);

/// The reservation of one response in the budget. It is held until the last part of the response is dropped.
#[derive(Clone, Debug)]
pub(super) struct Held(Arc<OwnedSemaphorePermit>);

/// Error: the budget has not enough free bytes at the moment.
#[derive(Debug)]
pub(super) struct Full;

fn units(bytes: usize) -> u32 {
    (bytes.min(ROOM_BYTES) / UNIT_BYTES) as u32
}

impl Room {
    pub(super) fn new() -> Self {
        Self(Arc::new(Semaphore::new(ROOM_BYTES / UNIT_BYTES)))
    }

    /// Returns the budget for responses of watches.
    pub(super) fn of_watches() -> Self {
        Self(Arc::new(Semaphore::new(GATHERED_BYTES / UNIT_BYTES)))
    }

    /// Makes the large frames of a body count against the budget until they are sent. A frame that does not fit the
    /// budget is sent without being counted.
    pub(super) fn counting(self, body: Body) -> Body {
        Body::new(body.map_frame(move |frame| {
            frame.map_data(|bytes: Bytes| match self.keep(bytes.len(), None) {
                Ok(Some(held)) => held.by(bytes),
                Ok(None) | Err(Full) => bytes,
            })
        }))
    }

    /// Returns a reservation for a response of `bytes`. Uses the reservation `kept` if it suffices. Returns `None` for
    /// a small response.
    pub(super) fn keep(&self, bytes: usize, kept: Option<Held>) -> Result<Option<Held>, Full> {
        if bytes < COUNTED_BYTES {
            return Ok(None);
        }
        if let Some(kept) = kept.filter(|kept| kept.0.num_permits() >= units(bytes) as usize) {
            return Ok(Some(kept));
        }
        let held = Arc::clone(&self.0).try_acquire_many_owned(units(bytes)).map_err(|_| Full)?;
        Ok(Some(Held(Arc::new(held))))
    }

    /// Waits for a reservation of `bytes`. Waiters are served in order.
    ///
    /// # Errors
    ///
    /// Fails if the budget is not available in time.
    pub(super) async fn wait(&self, bytes: usize, until: Instant) -> Result<Held, Status> {
        let held = Arc::clone(&self.0).acquire_many_owned(units(bytes));
        match tokio::time::timeout_at(until, held).await {
            Ok(Ok(held)) => Ok(Held(Arc::new(held))),
            Ok(Err(_)) | Err(_) => Err(Reason::TooManyRequests.into()),
        }
    }

    /// Waits until the budget has some free bytes. Used before a request whose response cannot be discarded.
    ///
    /// # Errors
    ///
    /// Fails if no bytes become free in time.
    pub(super) async fn wait_for_some(&self, until: Instant) -> Result<(), Status> {
        self.wait(COUNTED_BYTES, until).await.map(drop)
    }
}

impl Held {
    /// Returns bytes that keep the reservation until they are dropped.
    pub(super) fn by(&self, bytes: Bytes) -> Bytes {
        Bytes::from_owner(Kept { bytes, _held: self.clone() })
    }

    /// Returns a body whose frames keep the reservation until they are dropped.
    pub(super) fn by_body(self, body: Body) -> Body {
        Body::new(body.map_frame(move |frame| frame.map_data(|bytes| self.by(bytes))))
    }
}

struct Kept {
    bytes: Bytes,
    _held: Held,
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
        let room = Room::new();
        assert!(room.keep(COUNTED_BYTES - 1, None).unwrap().is_none(), "a small one");
        // Larger than the whole budget, and the only one.
        let held = room.keep(ROOM_BYTES * 3, None).unwrap().unwrap();
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
        assert!(room.keep(ROOM_BYTES, None).unwrap().is_some());
    }

    #[tokio::test]
    async fn waiter_has_priority_and_keeps_its_reserved_budget() {
        let room = Arc::new(Room::new());
        let half = room.keep(ROOM_BYTES / 2, None).unwrap();
        let waits = tokio::spawn({
            let (room, until) = (Arc::clone(&room), Instant::now() + Duration::from_secs(20));
            async move { room.wait(ROOM_BYTES, until).await }
        });
        while room.0.available_permits() > 0 {
            tokio::task::yield_now().await;
        }
        room.keep(COUNTED_BYTES, None).unwrap_err();
        drop(half);
        let kept = waits.await.unwrap().unwrap();
        // The response has grown beyond the whole budget, which counts as all of it.
        let kept = room.keep(ROOM_BYTES + 1, Some(kept)).unwrap();
        drop(kept);
        let kept = room.wait(ROOM_BYTES / 4, soon()).await.unwrap();
        // The response has grown, and there is room.
        assert!(room.keep(ROOM_BYTES / 2, Some(kept)).unwrap().is_some());
    }
}
