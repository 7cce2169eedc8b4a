//! A range that arrives in chunks.

use std::sync::Arc;

use tonic::{Response, Status, Streaming};

use crate::connect::{CallKind, Client, Link, words};
use crate::error::{Error, StatusMeaning};
use bowline_proto::etcdserverpb as pb;

/// The chunks of a range, all of one revision; see [`Client::range_stream`].
#[derive(Debug)]
pub struct RangeStream {
    client: Arc<Client>,
    chunks: Streaming<pb::RangeStreamResponse>,
    link: Link,
    /// Whether the last chunk has arrived. Only the last chunk has a header.
    is_complete: bool,
}

impl Client {
    /// Opens a stream of the rows of a range, in key order. Neither side holds the whole range in memory. Servers of etcd
    /// before 3.7 do not have this call.
    ///
    /// ```no_run
    /// # async fn program() -> Result<(), bowline_client::Error> {
    /// use bowline_client::{Client, prefix_end, proto::etcdserverpb::RangeRequest};
    ///
    /// let client = Client::connect(["http://127.0.0.1:2379"]).await?;
    /// let (key, range_end) = ("jobs/".into(), prefix_end(b"jobs/"));
    /// let request = RangeRequest { key, range_end, ..Default::default() };
    /// let mut stream = client.range_stream(request).await?;
    /// while let Some(chunk) = stream.next().await? {
    ///     println!("{} rows", chunk.kvs.len());
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Returns an error if no server answers, or if the server rejects the request.
    pub async fn range_stream(
        self: &Arc<Self>,
        request: pb::RangeRequest,
    ) -> Result<RangeStream, Error> {
        let open = async |link: Link| {
            let chunks = link.kv().range_stream(request.clone()).await?.into_inner();
            Ok(Response::new((chunks, link)))
        };
        let (chunks, link) = self.call(CallKind::Repeatable, open).await?;
        Ok(RangeStream { client: Arc::clone(self), chunks, link, is_complete: false })
    }
}

impl RangeStream {
    /// Waits for the next chunk, at most for the timeout of a call. Returns `None` after the last chunk. The header,
    /// `more` and `count` of the range are in the last chunk.
    ///
    /// # Errors
    /// Returns an error if the stream ended before its last chunk, for example because the server has failed, because
    /// its revision was compacted, or because the user has lost the permission. The chunks received so far are then
    /// only a part of the range.
    pub async fn next(&mut self) -> Result<Option<pb::RangeResponse>, Error> {
        let limit = self.client.options().call_timeout;
        let status = match tokio::time::timeout(limit, self.chunks.message()).await {
            Ok(Ok(Some(chunk))) => {
                let chunk = chunk.range_response.unwrap_or_default();
                self.is_complete |= chunk.header.is_some();
                return Ok(Some(chunk));
            }
            Ok(Ok(None)) if self.is_complete => return Ok(None),
            Ok(Ok(None)) => {
                Status::unavailable("the server ended the stream before its last chunk")
            }
            Ok(Err(status)) => status,
            Err(_) => {
                self.client.leave(&self.link).await;
                return Err(Error::Timeout(limit));
            }
        };
        if StatusMeaning::of(&status) != StatusMeaning::Refused {
            self.client.leave(&self.link).await;
        }
        Err(Error::Refused(Status::new(status.code(), words(&status))))
    }

    /// Waits for all chunks, and returns them as one response.
    ///
    /// # Errors
    /// Returns an error if the stream ended before its last chunk.
    pub async fn collect(mut self) -> Result<pb::RangeResponse, Error> {
        let mut rows = Vec::new();
        let mut last = pb::RangeResponse::default();
        while let Some(mut chunk) = self.next().await? {
            rows.append(&mut chunk.kvs);
            last = chunk;
        }
        Ok(pb::RangeResponse { kvs: rows, ..last })
    }
}
