//! [`Kv`]: reads, writes and watches of keys, and leases.

use std::time::Duration;

use bowline::Filter;
use bowline::{Client, Op, SortOrder, SortTarget};
use pyo3::exceptions::PyValueError;
use pyo3::{FromPyObject, PyResult, pyclass, pymethods};

use crate::args::{Data, Keys, LeaseNumber, Seconds, revision};
use crate::call::Call;
use crate::process::Owned;
use crate::rows::{Answer, Row};
use crate::stream::Stream;
use crate::txn::{Condition, Step, transaction};

/// The keys of a cluster, through one node.
#[pyclass(frozen, module = "bowline._native")]
pub(crate) struct Kv {
    client: Owned<Client>,
}

impl Kv {
    pub(crate) fn new(client: Client) -> Self {
        Self { client: Owned::new(client) }
    }
}

/// How a read is done: the consistency, an earlier revision, and the deadline.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
struct ReadOptions {
    revision: Option<u64>,
    at_least: Option<u64>,
    local: bool,
    timeout: Option<Seconds>,
}

/// Which rows a range returns, in which order.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
struct RowOptions {
    limit: Option<u64>,
    sort_by: Option<String>,
    descending: bool,
    keys_only: bool,
    count_only: bool,
}

/// How a put is done.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
struct PutOptions {
    lease: Option<LeaseNumber>,
    keep_lease: bool,
    ttl: Option<Seconds>,
    prev_kv: bool,
    timeout: Option<Seconds>,
}

/// Applies the options that all reads have.
macro_rules! read {
    ($call:expr, $options:expr) => {{
        let (mut call, options) = ($call, $options);
        if let Some(revision) = revision(options.revision) {
            call = call.revision(revision);
        }
        if let Some(at_least) = revision(options.at_least) {
            call = call.at_least(at_least);
        }
        if options.local {
            call = call.local();
        }
        timed!(call, options.timeout)
    }};
}

/// Sets the deadline of a call, if there is one.
macro_rules! timed {
    ($call:expr, $timeout:expr) => {{
        match $timeout {
            Some(Seconds(timeout)) => $call.deadline(timeout),
            None => $call,
        }
    }};
}

#[pymethods]
impl Kv {
    fn with_prefix(&self, prefix: Data) -> PyResult<Self> {
        Ok(Self::new(self.client.get()?.with_prefix(prefix.0)))
    }

    fn revision(&self) -> PyResult<u64> {
        Ok(self.client.get()?.revision().get())
    }

    fn get(&self, key: Data, options: ReadOptions) -> PyResult<Call> {
        let call = read!(self.client.get()?.get(key.0), options);
        Ok(Call::new(async move { call.await.map(|row| row.map(Row)) }))
    }

    fn range(&self, keys: Keys, rows: RowOptions, options: ReadOptions) -> PyResult<Call> {
        let mut call = read!(self.client.get()?.range(keys.0), options);
        if let Some(limit) = rows.limit {
            call = call.limit(limit);
        }
        if rows.keys_only {
            call = call.keys_only();
        }
        if rows.count_only {
            call = call.count_only();
        }
        let target = match rows.sort_by.as_deref() {
            None | Some("key") => SortTarget::Key,
            Some("version") => SortTarget::Version,
            Some("create_revision") => SortTarget::Create,
            Some("mod_revision") => SortTarget::Mod,
            Some("value") => SortTarget::Value,
            Some(other) => {
                return Err(PyValueError::new_err(format!("invalid sort_by: {other}")));
            }
        };
        if rows.sort_by.is_some() || rows.descending {
            let order = if rows.descending { SortOrder::Descend } else { SortOrder::Ascend };
            call = call.sort(target, order);
        }
        Ok(Call::new(async move { call.await.map(Answer::Range) }))
    }

    fn put(&self, key: Data, value: Data, options: PutOptions) -> PyResult<Call> {
        let mut call = timed!(self.client.get()?.put(key.0, value.0), options.timeout);
        if let Some(LeaseNumber(lease)) = options.lease {
            call = call.lease(lease);
        }
        if let Some(Seconds(ttl)) = options.ttl {
            call = call.ttl(ttl);
        }
        if options.keep_lease {
            call = call.keep_lease();
        }
        if options.prev_kv {
            call = call.prev_kv();
        }
        Ok(Call::new(async move { call.await.map(Answer::Put) }))
    }

    fn delete(&self, keys: Keys, prev_kv: bool, timeout: Option<Seconds>) -> PyResult<Call> {
        let mut call = timed!(self.client.get()?.delete(keys.0), timeout);
        if prev_kv {
            call = call.prev_kv();
        }
        Ok(Call::new(async move { call.await.map(Answer::Delete) }))
    }

    fn txn(
        &self,
        when: Vec<Condition>,
        then: Vec<Step>,
        or_else: Vec<Step>,
        timeout: Option<Seconds>,
    ) -> PyResult<Call> {
        let txn = transaction(when, then, or_else);
        let mut call = timed!(self.client.get()?.txn(), timeout).when_all(txn.compares);
        call = txn.success.into_iter().fold(call, |call, op: Op| call.then(op));
        call = txn.failure.into_iter().fold(call, |call, op: Op| call.or_else(op));
        Ok(Call::new(async move { call.commit().await.map(Answer::Txn) }))
    }

    fn compact(&self, revision: u64) -> PyResult<Call> {
        let client = self.client.get()?.clone();
        Ok(Call::new(async move {
            client.compact(revision.into()).await.map(|revision| revision.get())
        }))
    }

    fn watch(
        &self,
        keys: Keys,
        start_revision: Option<u64>,
        prev_kv: bool,
        kind: Option<String>,
        timeout: Option<Seconds>,
    ) -> PyResult<Call> {
        let mut call = timed!(self.client.get()?.watch(keys.0), timeout);
        if let Some(start) = revision(start_revision) {
            call = call.from(start);
        }
        if prev_kv {
            call = call.prev_kv();
        }
        call = match kind.as_deref() {
            None => call,
            Some("put") => call.filter(Filter::NoDelete),
            Some("delete") => call.filter(Filter::NoPut),
            Some(other) => {
                return Err(PyValueError::new_err(format!("invalid kind: {other}")));
            }
        };
        Ok(Call::new(async move { call.await.map(Stream::of_watch) }))
    }

    fn grant(&self, ttl: Seconds, timeout: Option<Seconds>) -> PyResult<Call> {
        let call = timed!(self.client.get()?.grant(ttl.0), timeout);
        Ok(Call::new(async move { call.await.map(Answer::Lease) }))
    }

    fn renew(&self, lease: LeaseNumber) -> PyResult<Call> {
        let client = self.client.get()?.clone();
        Ok(Call::new(async move { client.renew(lease.0).await.map(|ttl| ttl.as_secs_f64()) }))
    }

    fn revoke(&self, lease: LeaseNumber) -> PyResult<Call> {
        let client = self.client.get()?.clone();
        Ok(Call::new(async move { client.revoke(lease.0).await.map(Answer::Revoked) }))
    }

    fn time_to_live(&self, lease: LeaseNumber) -> PyResult<Call> {
        let client = self.client.get()?.clone();
        Ok(Call::new(async move {
            let left = client.lease_time_to_live(lease.0).await?;
            Ok::<_, bowline::Error>(left.as_ref().map(Duration::as_secs_f64))
        }))
    }
}
