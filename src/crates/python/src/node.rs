//! [`Node`] and [`Session`]: a member of a cluster in this process, and its sessions.

use std::path::PathBuf;
use std::sync::Arc;

use bowline::cluster::{MemberList, MemberRole, ParseMemberListError, PeerTls};
use bowline::{Config, HealthStatus, NodeId, Role};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::types::{PyAnyMethods, PyDict};
use pyo3::{Bound, IntoPyObjectExt, Py, PyAny, PyResult, Python, pyclass, pymethods};

use crate::args::{Data, Seconds};
use crate::call::Call;
use crate::errors::Failure;
use crate::kv::Kv;
use crate::lock::{Election, Lock, Source};
use crate::process::Owned;
use crate::queue::Queue;

/// A running node.
#[pyclass(frozen, module = "bowline._native")]
pub(crate) struct Node {
    node: Owned<Arc<bowline::Node>>,
}

/// Applies the settings of `Node(...)`, by their names.
fn configure(mut config: Config, settings: &Bound<'_, PyDict>) -> PyResult<Config> {
    for (name, value) in settings {
        let name: String = name.extract()?;
        let text = || value.extract::<String>();
        let texts = || value.extract::<Vec<String>>();
        let seconds = || value.extract::<Seconds>().map(|seconds| seconds.0);
        config = match name.as_str() {
            "members" => match value.extract::<String>() {
                Ok(text) => {
                    let members: MemberList =
                        text.parse().map_err(|error: ParseMemberListError| {
                            PyValueError::new_err(error.to_string())
                        })?;
                    config.members(members)
                }
                Err(_) => config.members(value.extract::<Vec<(String, String)>>()?),
            },
            "join" => config.join(texts()?),
            "replacing" => config.replacing(text()?),
            "join_deadline" => config.join_deadline(seconds()?),
            "advertise" => config.advertise(text()?),
            "listen" => config.listen(text()?),
            "endpoints" => config.endpoints(texts()?),
            "cluster_token" => config.cluster_token(text()?),
            "insecure_peers" => config.insecure_peers(value.extract()?),
            "peer_tls" => {
                let (ca, cert, key): (PathBuf, PathBuf, PathBuf) = value.extract()?;
                config.peer_tls(PeerTls::new(ca, cert, key))
            }
            "heartbeat" => config.heartbeat(seconds()?),
            "election_timeout" => config.election_timeout(seconds()?),
            "session_ttl" => config.session_ttl(seconds()?),
            "drift_percent" => config.drift_percent(value.extract()?),
            "call_deadline" => config.call_deadline(seconds()?),
            "label" => config.label(text()?),
            "quota_bytes" => config.quota_bytes(value.extract()?),
            "snapshot_log_bytes" => config.snapshot_log_bytes(value.extract()?),
            other => return Err(PyTypeError::new_err(format!("unknown setting {other}"))),
        };
    }
    Ok(config)
}

fn member(id: u64) -> PyResult<NodeId> {
    NodeId::new(id).ok_or_else(|| PyValueError::new_err("a member id is at least 1"))
}

fn role(role: MemberRole) -> &'static str {
    match role {
        MemberRole::Voter => "voter",
        MemberRole::Learner => "learner",
        _ => "other",
    }
}

#[pymethods]
impl Node {
    /// Starts a node.
    #[staticmethod]
    fn start(data_dir: PathBuf, name: String, settings: &Bound<'_, PyDict>) -> PyResult<Call> {
        let config = configure(Config::new(data_dir, name), settings)?;
        Ok(Call::new(async move {
            let node = bowline::Node::start(config).await?;
            Ok::<_, Failure>(Node { node: Owned::new(Arc::new(node)) })
        }))
    }

    fn kv(&self) -> PyResult<Kv> {
        Ok(Kv::new(self.node.get()?.client()))
    }

    fn lock(&self, kind: &str, name: Data, limit: u32, permits: u32) -> PyResult<Lock> {
        Lock::new(self.own_session()?, kind, name, (limit, permits))
    }

    fn election(&self, name: Data) -> PyResult<Election> {
        Ok(Election::new(self.own_session()?, name))
    }

    fn queue(&self, name: Data, limit: Option<u64>, attempts_max: Option<u64>) -> PyResult<Queue> {
        Ok(Queue::new(self.own_session()?, name, limit, attempts_max))
    }

    fn open_session(
        &self,
        ttl: Option<Seconds>,
        label: Option<String>,
        lock_delay: Option<Seconds>,
        timeout: Option<Seconds>,
    ) -> PyResult<Call> {
        let mut call = self.node.get()?.open_session();
        if let Some(Seconds(ttl)) = ttl {
            call = call.ttl(ttl);
        }
        if let Some(label) = label {
            call = call.label(label);
        }
        if let Some(Seconds(delay)) = lock_delay {
            call = call.lock_delay(delay);
        }
        if let Some(Seconds(timeout)) = timeout {
            call = call.deadline(timeout);
        }
        Ok(Call::new(async move {
            let session = call.await?;
            Ok::<_, bowline::Error>(Session { session: Owned::new(session) })
        }))
    }

    fn ready(&self, timeout: Option<Seconds>) -> PyResult<Call> {
        let mut call = self.node.get()?.ready();
        if let Some(Seconds(timeout)) = timeout {
            call = call.deadline(timeout);
        }
        Ok(Call::new(async move { call.await }))
    }

    fn shutdown(&self) -> PyResult<Call> {
        let node = Arc::clone(self.node.get()?);
        Ok(Call::new(async move {
            node.shutdown().await;
            Ok::<_, Failure>(())
        }))
    }

    /// Returns the fields of `Health`.
    fn health(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let health = self.node.get()?.health();
        let (alive, serving) = (health.is_alive(), health.is_serving());
        let status: HealthStatus = health.status;
        let text = health.to_string();
        (status.as_str(), alive, serving, health.leads, health.leader, health.behind, text)
            .into_py_any(py)
    }

    /// Returns the fields of `NodeStatus`.
    fn status(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let status = self.node.get()?.status();
        let state = match status.role {
            Role::Founding => "founding",
            Role::Restoring => "restoring",
            Role::Follower => "follower",
            Role::Candidate => "candidate",
            Role::Leader => "leader",
            Role::Stopped => "stopped",
            _ => "other",
        };
        let members: Vec<_> = status
            .members
            .into_iter()
            .map(|at| (at.id.get(), at.name, at.address, at.endpoints, role(at.role)))
            .collect();
        let (id, term) = (status.id.get(), status.term.get());
        let leader = status.leader.map(|leader| leader.get());
        (id, status.name, state, term, leader, status.revision.get(), members).into_py_any(py)
    }

    fn metrics(&self) -> PyResult<String> {
        Ok(self.node.get()?.metrics().to_prometheus())
    }

    fn transfer_leadership(&self, to: Option<u64>) -> PyResult<Call> {
        let (node, to) = (Arc::clone(self.node.get()?), to.map(member).transpose()?);
        Ok(Call::new(async move { node.transfer_leadership(to).await }))
    }

    fn promote(&self, id: u64) -> PyResult<Call> {
        let (node, id) = (Arc::clone(self.node.get()?), member(id)?);
        Ok(Call::new(async move { node.promote(id).await }))
    }

    fn remove_member(&self, id: u64) -> PyResult<Call> {
        let (node, id) = (Arc::clone(self.node.get()?), member(id)?);
        Ok(Call::new(async move { node.remove_member(id).await }))
    }

    fn backup(&self, file: PathBuf) -> PyResult<Call> {
        let node = Arc::clone(self.node.get()?);
        Ok(Call::new(async move { node.backup(file).await.map(|_| ()) }))
    }
}

impl Node {
    fn own_session(&self) -> Result<Source, Failure> {
        Ok(Source::Own(Arc::clone(self.node.get()?)))
    }
}

/// A session that the program has opened.
#[pyclass(frozen, module = "bowline._native")]
pub(crate) struct Session {
    session: Owned<bowline::Session>,
}

#[pymethods]
impl Session {
    fn lease(&self) -> PyResult<u64> {
        Ok(self.session.get()?.lease().get())
    }

    fn ttl(&self) -> PyResult<f64> {
        Ok(self.session.get()?.ttl().as_secs_f64())
    }

    fn end(&self) -> PyResult<Option<String>> {
        Ok(self.session.get()?.end().map(|end| end.to_string()))
    }

    fn wait_ended(&self) -> PyResult<Call> {
        let session = self.session.get()?.clone();
        Ok(Call::new(async move { Ok::<_, Failure>(session.ended().await.to_string()) }))
    }

    fn close(&self) -> PyResult<Call> {
        let session = self.session.get()?.clone();
        Ok(Call::new(async move { session.close().await }))
    }

    fn lock(&self, kind: &str, name: Data, limit: u32, permits: u32) -> PyResult<Lock> {
        Lock::new(self.source()?, kind, name, (limit, permits))
    }

    fn election(&self, name: Data) -> PyResult<Election> {
        Ok(Election::new(self.source()?, name))
    }

    fn queue(&self, name: Data, limit: Option<u64>, attempts_max: Option<u64>) -> PyResult<Queue> {
        Ok(Queue::new(self.source()?, name, limit, attempts_max))
    }
}

impl Session {
    fn source(&self) -> Result<Source, Failure> {
        Ok(Source::Given(self.session.get()?.clone()))
    }
}
