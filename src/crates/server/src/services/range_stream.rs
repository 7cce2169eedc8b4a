//! `KV.RangeStream`: a range in chunks, so that the memory of a stream does not depend on the size of its range.
//!
//! ```text
//!   first chunk ──▶ chunk ──▶ ... ──▶ last chunk
//!   pins the        read when the     has the header, `more` and `count`
//!   revision        client has room
//! ```
//!
//! All chunks are read at the revision of the first one. The user must have permission for the whole range when each
//! chunk is read. Every failure ends the stream with an error, also between two chunks.

use std::future::pending;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bowline::{KeyRange, Revision, kv::RangeCall};
use bytes::Bytes;
use prost::Message as _;
use tokio::time::Instant;
use tokio_stream::Stream;
use tonic::Status;

use crate::identity::Identity;
use crate::leader::Leaderless;
use crate::member::Member;
use crate::middleware::response_budget::{
    BudgetExhausted, ChunkReservation, Reservation, ResponseBudget,
};
use crate::wire::{key_range, range_response, refused, revision};
use bowline_proto::etcdserverpb::{RangeRequest, RangeResponse, RangeStreamResponse};

/// Number of rows in the first chunk, as in etcd. The number is doubled with every chunk.
const FIRST_ROWS: u64 = 10;

/// Maximum number of rows in a chunk. Chunks of small rows end here, because rows need more memory than their bytes.
const CHUNK_ROWS_MAX: u64 = 1 << 14;

/// A range that is read chunk by chunk.
pub(crate) struct ChunkReader {
    member: Arc<Member>,
    budget: ResponseBudget,
    who: Identity,
    request: RangeRequest,
    /// Whole range, for which the user must have permission.
    keys: KeyRange,
    /// Position after the last chunk; `None` before the first one.
    position: Option<Position>,
    /// Maximum number of rows in the next chunk.
    rows_max: u64,
}

/// Position of a reader within its range.
#[derive(Clone, Copy)]
struct Position {
    /// Revision at which all rows are read.
    pinned: Revision,
    /// Newest revision of the store when the stream began.
    newest: Revision,
    /// Number of rows in the chunks so far.
    rows: u64,
}

/// A chunk that was read.
pub(crate) struct Chunk {
    response: RangeResponse,
    reservation: Option<Reservation>,
    /// Reader of the next chunk, or `None` after the last one.
    rest: Option<ChunkReader>,
}

impl ChunkReader {
    pub(crate) fn new(
        member: &Arc<Member>,
        budget: &ResponseBudget,
        who: Identity,
        request: RangeRequest,
    ) -> Self {
        let keys = key_range(request.key.clone(), request.range_end.clone());
        let (member, budget) = (Arc::clone(member), budget.clone());
        Self { member, budget, who, request, keys, position: None, rows_max: FIRST_ROWS }
    }

    /// Reads the next chunk. If the response budget has no room for the chunk, waits for room and reads it again.
    ///
    /// # Errors
    /// Fails if the range cannot be read, for example because the pinned revision was compacted, if the user lacks
    /// permission, or if the budget has no room in time.
    pub(crate) async fn read(mut self) -> Result<Chunk, Status> {
        let until = Instant::now() + self.member.settings().request_timeout();
        let mut kept = None;
        loop {
            let (response, next) = self.read_rows().await?;
            let bytes = response.encoded_len();
            match self.budget.keep(bytes, kept) {
                Ok(reservation) => {
                    let rest = next.map(|(from, position)| {
                        self.request.key = from;
                        self.position = Some(position);
                        self.rows_max = (self.rows_max * 2).min(CHUNK_ROWS_MAX);
                        self
                    });
                    return Ok(Chunk { response, reservation, rest });
                }
                Err(BudgetExhausted) => drop(response),
            }
            kept = Some(self.budget.wait(bytes, until).await?);
        }
    }

    /// Reads the rows of a chunk. Returns the first key and the position of the next chunk, unless this is the last.
    async fn read_rows(&self) -> Result<(RangeResponse, Option<(Bytes, Position)>), Status> {
        let limit = u64::try_from(self.request.limit).ok().filter(|limit| *limit > 0);
        let sent = self.position.map_or(0, |position| position.rows);
        let left = limit.map_or(u64::MAX, |limit| limit - sent);
        let mut call = self.call(self.request.key.clone())?;
        if self.request.count_only {
            call = call.count_only();
        } else {
            let bytes_max = self.member.settings().request_bytes_max as u64;
            call = call.limit(self.rows_max.min(left)).limit_bytes(bytes_max);
        }
        let reply = call.await.map_err(refused)?;
        // The users and roles are now at least as new as the rows.
        self.member.may_still_read(&self.who, &self.keys)?;
        let newest = self.position.map_or(reply.revision, |position| position.newest);
        let pinned = match self.position {
            Some(position) => position.pinned,
            None => revision(self.request.revision).unwrap_or(newest),
        };
        let rows = sent + reply.kvs.len() as u64;
        let after = reply.kvs.last().map(|last| Bytes::from([&last.key[..], b"\0"].concat()));
        let mut response = range_response(reply);
        let position = Position { pinned, newest, rows };
        if !self.request.count_only {
            match after.filter(|_| response.more) {
                Some(from) if limit != Some(rows) => {
                    (response.more, response.count) = (false, 0);
                    return Ok((response, Some((from, position))));
                }
                Some(from) => response.count = (rows + self.count(from, pinned).await?) as i64,
                None => response.count = rows as i64,
            }
        }
        response.header = self.member.header(newest);
        Ok((response, None))
    }

    /// Returns the call for the rows from a key on: for the first chunk as the user requested it, and for later chunks
    /// at the pinned revision.
    fn call(&self, from: Bytes) -> Result<RangeCall, Status> {
        let keys = key_range(from, self.request.range_end.clone());
        let mut call = match self.position {
            // The range of a chunk is not the range for which the user must have permission.
            Some(position) => self.member.client().range(keys).revision(position.pinned).local(),
            None => {
                let mut call = self.member.client_of(&self.who)?.range(keys);
                if let Some(revision) = revision(self.request.revision) {
                    call = call.revision(revision);
                }
                if self.request.serializable { call.local() } else { call }
            }
        };
        if self.request.keys_only {
            call = call.keys_only();
        }
        Ok(call)
    }

    /// Returns the number of rows from a key on.
    async fn count(&self, from: Bytes, pinned: Revision) -> Result<u64, Status> {
        let keys = key_range(from, self.request.range_end.clone());
        let call = self.member.client().range(keys).revision(pinned).count_only().local();
        Ok(call.await.map_err(refused)?.count)
    }
}

type Reading = Pin<Box<dyn Future<Output = Result<Chunk, Status>> + Send>>;

/// The chunks of a range. A chunk is read when the stream is polled, which happens when the client has room for it.
pub(crate) struct ChunkStream {
    first: Option<RangeResponse>,
    /// `None` after the last chunk and after an error.
    reading: Option<Reading>,
    /// Completes if the stream must end because there is no leader.
    leaderless: Pin<Box<dyn Future<Output = Status> + Send>>,
    reservation: ChunkReservation,
}

impl ChunkStream {
    /// Returns the stream that begins with this chunk. With `leaderless`, it ends when there is no leader.
    pub(crate) fn new(first: Chunk, leaderless: Option<Arc<Leaderless>>) -> Self {
        let reservation = ChunkReservation::default();
        let Chunk { response, reservation: held, rest } = first;
        reservation.set(held);
        let leaderless = Box::pin(async move {
            match leaderless {
                Some(leaderless) => leaderless.lost().await,
                None => pending().await,
            }
        });
        let reading = rest.map(|rest| Box::pin(rest.read()) as Reading);
        Self { first: Some(response), reading, leaderless, reservation }
    }

    /// Returns whether chunks follow the first one.
    pub(crate) fn has_more(&self) -> bool {
        self.reading.is_some()
    }

    /// Returns the reservation of the newest chunk, which changes with every chunk.
    pub(crate) fn reservation(&self) -> ChunkReservation {
        self.reservation.clone()
    }
}

fn message(response: RangeResponse) -> RangeStreamResponse {
    RangeStreamResponse { range_response: Some(response) }
}

impl Stream for ChunkStream {
    type Item = Result<RangeStreamResponse, Status>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = &mut *self;
        if let Some(first) = this.first.take() {
            return Poll::Ready(Some(Ok(message(first))));
        }
        let Some(reading) = &mut this.reading else { return Poll::Ready(None) };
        let read = match this.leaderless.as_mut().poll(context) {
            Poll::Ready(status) => Err(status),
            Poll::Pending => ready!(reading.as_mut().poll(context)),
        };
        this.reading = None;
        Poll::Ready(Some(read.map(|Chunk { response, reservation, rest }| {
            this.reservation.set(reservation);
            this.reading = rest.map(|rest| Box::pin(rest.read()) as Reading);
            message(response)
        })))
    }
}
