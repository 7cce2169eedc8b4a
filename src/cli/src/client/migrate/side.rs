//! One of the two clusters: asked until it answers, for as long as it may be away.

use std::cell::Cell;
use std::io::{self, Write};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tonic::{Response, Status};

use crate::client::connect::{Client, Effect, Link};
use crate::client::failure::{Failure, passes};
use crate::generated::etcdserverpb as pb;

/// How long to wait before a cluster that is away is asked again.
const AGAIN: Duration = Duration::from_millis(300);

/// See the module.
#[derive(Debug)]
pub(crate) struct Side {
    /// What it is called.
    pub(crate) name: &'static str,
    pub(crate) client: Arc<Client>,
    /// How long it may be away; none for as long as it likes.
    patience: Cell<Option<Duration>>,
    /// The cluster's id, once it is known.
    cluster: Cell<u64>,
    /// The newest revision that it is known to have had.
    reached: Cell<i64>,
}

impl Side {
    /// One that must be there at once.
    pub(crate) fn new(name: &'static str, client: Arc<Client>) -> Self {
        let (patience, cluster, reached) = Default::default();
        let side = Self { name, client, patience, cluster, reached };
        side.may_be_away(Some(Duration::ZERO));
        side
    }

    /// It may be away for so long from now on.
    pub(crate) fn may_be_away(&self, patience: Option<Duration>) {
        self.patience.set(patience);
    }

    /// Asks what may be asked twice.
    pub(crate) async fn ask<T>(
        &self,
        call: impl AsyncFn(Link) -> Result<Response<T>, Status>,
    ) -> Result<T, Failure> {
        let mut away = Away::default();
        loop {
            match self.client.ask(Effect::Repeatable, &call).await {
                Ok(answer) => {
                    away.is_over(self);
                    return Ok(answer);
                }
                Err(failure) => away.wait(self, failure).await?,
            }
        }
    }

    /// The failure, and whose it is.
    pub(crate) fn named(&self, failure: Failure) -> Failure {
        let name = self.name;
        match failure {
            Failure::Refused(status) => Failure::Refused(Status::new(
                status.code(),
                format!("{name}: {}", status.message()),
            )),
            Failure::Timeout(limit) => {
                Failure::Failed(format!("{name}: no answer came within {limit:?}"))
            }
            Failure::Unknown(why) => Failure::Failed(format!("{name}: {why}")),
            other => other,
        }
    }

    /// The newest revision that it is known to have had. What it answers to what is asked now is no older.
    pub(crate) fn reached(&self) -> i64 {
        self.reached.get()
    }

    /// It has had this revision.
    pub(crate) fn has_reached(&self, revision: i64) {
        self.reached.set(self.reached.get().max(revision));
    }

    /// Sees by the header of an answer that this is still the same cluster, and that it has not gone back behind a
    /// revision that it had before it was asked.
    pub(crate) fn recognise(&self, header: &pb::ResponseHeader, had: i64) -> Result<(), Failure> {
        let name = self.name;
        if header.cluster_id == 0 {
            // It says nothing of it.
            return Ok(());
        }
        let cluster = self.cluster.replace(header.cluster_id);
        if cluster != 0 && cluster != header.cluster_id {
            let now = header.cluster_id;
            return Err(Failure::Failed(format!(
                "{name} is another cluster now: it was {cluster:x}, and {now:x} answers. Nothing more is done: begin \
                 anew with the right one"
            )));
        }
        if header.revision < had {
            let now = header.revision;
            return Err(Failure::Failed(format!(
                "{name} has gone back: it had revision {had}, and answers with {now}. It was restored from a backup, or \
                 another cluster stands in its place. Nothing more is done: begin anew; `bowline import --overwrite \
                 --delete` makes the target what the source is now"
            )));
        }
        self.has_reached(header.revision);
        Ok(())
    }

    /// The cluster's id, its revision and its term.
    pub(crate) async fn header(&self, key: &bytes::Bytes) -> Result<pb::ResponseHeader, Failure> {
        let request = pb::RangeRequest { key: key.clone(), count_only: true, ..Default::default() };
        let had = self.reached();
        let answer = self.ask(async |link: Link| link.kv().range(request.clone()).await).await?;
        let header = answer.header.unwrap_or_default();
        self.recognise(&header, had)?;
        Ok(header)
    }
}

/// Since when a cluster has not answered.
#[derive(Debug, Default)]
pub(crate) struct Away(Option<Instant>);

impl Away {
    /// Waits before the next attempt, unless this failure stays, or the cluster was away for too long.
    pub(crate) async fn wait(&mut self, side: &Side, failure: Failure) -> Result<(), Failure> {
        let since = self.0.unwrap_or_else(Instant::now);
        let is_over = side.patience.get().is_some_and(|patience| since.elapsed() >= patience);
        if is_over || !passes(&failure) {
            return Err(side.named(failure));
        }
        if self.0.is_none() {
            self.0 = Some(since);
            let why = failure.to_string().replace('\n', " ");
            note(&format!("{}: {why}: tries again", side.name));
        }
        tokio::time::sleep(AGAIN).await;
        Ok(())
    }

    /// It has answered.
    pub(crate) fn is_over(&self, side: &Side) {
        if let Some(since) = self.0 {
            let span = since.elapsed().as_secs_f64();
            note(&format!("{} answers again after {span:.1}s", side.name));
        }
    }
}

/// Says something on standard error.
pub(crate) fn note(words: &str) {
    // Where nobody reads it nothing is lost.
    drop(writeln!(io::stderr().lock(), "{words}"));
}
