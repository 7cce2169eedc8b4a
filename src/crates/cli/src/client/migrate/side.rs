//! One of the two clusters of an import. Requests that fail because the cluster is unreachable are retried.

use std::cell::Cell;
use std::io::{self, Write};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tonic::{Response, Status};

use crate::client::connect::{CallKind, Client, Link};
use crate::client::failure::{Failure, passes};
use bowline_proto::etcdserverpb as pb;

/// Pause before a retry.
const RETRY_DELAY: Duration = Duration::from_millis(300);

/// A cluster as the source or target of an import.
#[derive(Debug)]
pub(crate) struct Side {
    /// Name of the cluster in messages.
    pub(crate) name: &'static str,
    pub(crate) client: Arc<Client>,
    /// Maximum time that the cluster may be unreachable; `None` for no limit.
    patience: Cell<Option<Duration>>,
    /// Cluster id, or 0 before the first response.
    cluster: Cell<u64>,
    /// Newest revision that the cluster is known to have reached.
    reached: Cell<i64>,
}

impl Side {
    /// Returns a cluster whose requests fail at once if it is unreachable.
    pub(crate) fn new(name: &'static str, client: Arc<Client>) -> Self {
        let (patience, cluster, reached) = Default::default();
        let side = Self { name, client, patience, cluster, reached };
        side.set_outage_limit(Some(Duration::ZERO));
        side
    }

    /// Sets how long the cluster may be unreachable from now on.
    pub(crate) fn set_outage_limit(&self, patience: Option<Duration>) {
        self.patience.set(patience);
    }

    /// Sends a request that is safe to repeat. Retries while the cluster may be unreachable.
    pub(crate) async fn ask<T>(
        &self,
        call: impl AsyncFn(Link) -> Result<Response<T>, Status>,
    ) -> Result<T, Failure> {
        let mut away = Away::default();
        loop {
            match self.client.ask(CallKind::Repeatable, &call).await {
                Ok(answer) => {
                    away.is_over(self);
                    return Ok(answer);
                }
                Err(failure) => away.wait(self, failure).await?,
            }
        }
    }

    /// Adds the name of the cluster to the text of a failure.
    pub(crate) fn named(&self, failure: Failure) -> Failure {
        let name = self.name;
        match failure {
            Failure::Refused(status) => Failure::Refused(Status::new(
                status.code(),
                format!("{name}: {}", status.message()),
            )),
            Failure::Timeout(limit) => {
                Failure::Failed(format!("{name}: no response within {limit:?}"))
            }
            Failure::Unknown(why) => Failure::Failed(format!("{name}: {why}")),
            other => other,
        }
    }

    /// Returns the newest revision that the cluster is known to have reached. A linearizable response to a request
    /// sent after this call has at least this revision.
    pub(crate) fn reached(&self) -> i64 {
        self.reached.get()
    }

    /// Records that the cluster has reached a revision.
    pub(crate) fn has_reached(&self, revision: i64) {
        self.reached.set(self.reached.get().max(revision));
    }

    /// Checks a response header: the cluster must still be the same cluster, and its revision must not be below `had`.
    /// `had` is a revision that the caller, before it sent the request, knew the cluster to have reached.
    pub(crate) fn recognise(&self, header: &pb::ResponseHeader, had: i64) -> Result<(), Failure> {
        let name = self.name;
        if header.cluster_id == 0 {
            // The header has no cluster id.
            return Ok(());
        }
        let cluster = self.cluster.replace(header.cluster_id);
        if cluster != 0 && cluster != header.cluster_id {
            let now = header.cluster_id;
            return Err(Failure::Failed(format!(
                "{name} is another cluster now: its ID was {cluster:x}, and is {now:x}. The import was stopped: start \
                 again with the right cluster"
            )));
        }
        if header.revision < had {
            let now = header.revision;
            return Err(Failure::Failed(format!(
                "{name} has gone back: it was at revision {had}, and is at {now}. It was restored from a backup, or \
                 replaced with another cluster. The import was stopped: start again, with `bowline import --overwrite \
                 --delete` to make the target equal to the source as it is now"
            )));
        }
        self.has_reached(header.revision);
        Ok(())
    }

    /// Returns the cluster's id, revision and term.
    pub(crate) async fn header(&self, key: &bytes::Bytes) -> Result<pb::ResponseHeader, Failure> {
        let request = pb::RangeRequest { key: key.clone(), count_only: true, ..Default::default() };
        let had = self.reached();
        let answer = self.ask(async |link: Link| link.kv().range(request.clone()).await).await?;
        let header = answer.header.unwrap_or_default();
        self.recognise(&header, had)?;
        Ok(header)
    }
}

/// Time since which a cluster has not answered.
#[derive(Debug, Default)]
pub(crate) struct Away(Option<Instant>);

impl Away {
    /// Waits before the next attempt. Fails if the failure is permanent or the cluster was unreachable for too long.
    pub(crate) async fn wait(&mut self, side: &Side, failure: Failure) -> Result<(), Failure> {
        let since = self.0.unwrap_or_else(Instant::now);
        let is_over = side.patience.get().is_some_and(|patience| since.elapsed() >= patience);
        if is_over || !passes(&failure) {
            return Err(side.named(failure));
        }
        if self.0.is_none() {
            self.0 = Some(since);
            let why = failure.to_string().replace('\n', " ");
            note(&format!("{}: {why}: retrying", side.name));
        }
        tokio::time::sleep(RETRY_DELAY).await;
        Ok(())
    }

    /// Reports that the cluster has answered again.
    pub(crate) fn is_over(&self, side: &Side) {
        if let Some(since) = self.0 {
            let span = since.elapsed().as_secs_f64();
            note(&format!("{} is reachable again after {span:.1}s", side.name));
        }
    }
}

/// Prints a note on standard error.
pub(crate) fn note(words: &str) {
    // An error of standard error itself cannot be reported.
    drop(writeln!(io::stderr().lock(), "{words}"));
}
