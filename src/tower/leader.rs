//! [`LeaderLayer`]: admits requests only on the leader.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use thiserror::Error as ThisError;
use tower_layer::Layer;
use tower_service::Service;

use crate::api::{Client, Node};
use crate::model::IntoBytes;
use crate::node::Role;
use crate::recipes::ElectionView;

/// Admits requests only while this process is the leader. The function `reject` answers all other
/// requests: `Fn(&Request, NotLeader) -> Response`.
///
/// There are two kinds of leader. [`LeaderLayer::new`] checks for the leader of an election, which
/// is the process that does your program's work ([`Node::leader_task`]). Use
/// [`LeaderLayer::of_consensus`] only for requests about the cluster itself.
///
/// The layer checks once, before the request reaches the inner service, from local memory and
/// without waiting. The layer keeps requests away from processes that are not meant to serve them.
/// The layer does not protect data: a process that is paused after the check may continue although
/// another process leads. To protect data, write with the conditions of
/// [`ElectionView::still_leader`].
#[derive(Clone, Debug)]
pub struct LeaderLayer<R> {
    kind: LeaderKind,
    reject: R,
}

/// The leader that a layer admits.
#[derive(Clone, Debug)]
enum LeaderKind {
    /// The leader of an election.
    Elected(ElectionView),
    /// The leader of the consensus.
    Consensus(Client),
}

/// The request was rejected, because this process is not the leader. Nothing was changed.
#[derive(Clone, PartialEq, Eq, Debug, ThisError)]
#[error("request rejected: this process is not the leader{}", location(leader.as_ref()))]
#[non_exhaustive]
pub struct NotLeader {
    /// Location of the leader. For [`LeaderLayer::new`] this is the value with which the leader
    /// campaigns, so campaign with the address at which your process serves requests. For
    /// [`LeaderLayer::of_consensus`] this is the leader's first
    /// [endpoint](crate::Config::endpoints).
    ///
    /// `None` if there is no leader, or its location is unknown. The value comes from the local
    /// replica, which may lag behind, and a leader that has crashed is named until its session
    /// expires. It is never a location at which this node campaigned.
    pub leader: Option<Bytes>,
}

fn location(leader: Option<&Bytes>) -> String {
    match leader {
        Some(leader) => format!("; the leader is {}", leader.escape_ascii()),
        None => "; no leader is known".to_owned(),
    }
}

impl NotLeader {
    /// Returns the location of the leader as text, if it is known and UTF-8.
    pub fn location(&self) -> Option<&str> {
        std::str::from_utf8(self.leader.as_ref()?).ok()
    }
}

impl<R> LeaderLayer<R> {
    /// Admits requests while a task of this node leads the election `election`; see
    /// [`ElectionView::is_leader`]. Any task and any session of this node counts.
    pub fn new(node: &Node, election: impl IntoBytes, reject: R) -> Self {
        Self { kind: LeaderKind::Elected(node.election_view(election)), reject }
    }

    /// Admits requests while this node is the leader of the consensus ([`Node::is_leader`]). A deposed
    /// leader may admit requests until it has noticed the new leader.
    pub fn of_consensus(node: &Node, reject: R) -> Self {
        Self { kind: LeaderKind::Consensus(node.client()), reject }
    }
}

impl LeaderKind {
    fn check(&self) -> Result<(), NotLeader> {
        match self {
            LeaderKind::Elected(view) if view.is_leader() => Ok(()),
            LeaderKind::Elected(view) => {
                Err(NotLeader { leader: view.leader_elsewhere().map(|leader| leader.value) })
            }
            LeaderKind::Consensus(client) => {
                let status = client.shared.state.status.borrow();
                if status.role == Role::Leader {
                    return Ok(());
                }
                let leader = status.members.iter().find(|member| Some(member.id) == status.leader);
                let endpoint = leader.and_then(|leader| leader.endpoints.first());
                Err(NotLeader { leader: endpoint.map(|url| Bytes::from(url.clone())) })
            }
        }
    }
}

impl<S, R: Clone> Layer<S> for LeaderLayer<R> {
    type Service = LeaderService<S, R>;

    fn layer(&self, inner: S) -> Self::Service {
        LeaderService { inner, layer: self.clone() }
    }
}

/// The service of a [`LeaderLayer`].
#[derive(Clone, Debug)]
pub struct LeaderService<S, R> {
    inner: S,
    layer: LeaderLayer<R>,
}

impl<S, R, Request> Service<Request> for LeaderService<S, R>
where
    S: Service<Request>,
    R: Fn(&Request, NotLeader) -> S::Response,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = LeaderFuture<S::Future, S::Response>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request) -> Self::Future {
        LeaderFuture(match self.layer.kind.check() {
            Ok(()) => Answering::Admitted(Box::pin(self.inner.call(request))),
            Err(why) => Answering::Rejected(Some((self.layer.reject)(&request, why))),
        })
    }
}

/// The future of a [`LeaderService`].
#[derive(Debug)]
pub struct LeaderFuture<F, Response>(Answering<F, Response>);

#[derive(Debug)]
enum Answering<F, Response> {
    Admitted(Pin<Box<F>>),
    /// The response, until it has been returned.
    Rejected(Option<Response>),
}

/// The response is never pinned.
impl<F, Response> Unpin for LeaderFuture<F, Response> {}

impl<F, Response, E> Future for LeaderFuture<F, Response>
where
    F: Future<Output = Result<Response, E>>,
{
    type Output = Result<Response, E>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match &mut self.0 {
            Answering::Admitted(inner) => inner.as_mut().poll(context),
            Answering::Rejected(response) => {
                Poll::Ready(Ok(response.take().expect("the future was polled after its end")))
            }
        }
    }
}
