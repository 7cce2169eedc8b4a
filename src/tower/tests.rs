//! Tests of the layers, around a service that answers each request with its number.

use std::convert::Infallible;
use std::future::{IntoFuture as _, Ready, ready};
use std::time::Duration;

use tower::util::ServiceFn;
use tower::{ServiceExt as _, service_fn};
use tower_layer::Layer;
use tower_service::Service;

use super::{FenceLayer, FenceRejection, LeaderLayer, NotLeader};
use crate::model::{Op, Revision};
use crate::recipes::{FenceError, Token};
use crate::testing::{self, Cluster, ClusterOptions};
use crate::{Blocking, Config, Error, Node};

type Answer = Result<u64, String>;

type Echo = ServiceFn<fn(u64) -> Ready<Result<Answer, Infallible>>>;

fn echo() -> Echo {
    service_fn(|request| ready(Ok(Ok(request))))
}

/// Sends a request through a layer.
fn ask<L>(layer: &L, request: u64) -> Answer
where
    L: Layer<Echo>,
    L::Service: Service<u64, Response = Answer, Error = Infallible>,
{
    layer.layer(echo()).oneshot(request).block().unwrap()
}

fn elsewhere(_: &u64, why: NotLeader) -> Answer {
    Err(why.location().unwrap_or("no leader").to_owned())
}

/// Asks all members through the layers of their nodes, after all have applied the same state.
fn ask_all(cluster: &Cluster, layer: impl Fn(&Node) -> ElsewhereLayer) -> Vec<Answer> {
    let revisions = cluster.running().map(|(_, node)| node.client().revision());
    cluster.all_at(revisions.max().unwrap()).block().unwrap();
    cluster.running().map(|(_, node)| ask(&layer(node), 7)).collect()
}

type ElsewhereLayer = LeaderLayer<fn(&u64, NotLeader) -> Answer>;

fn of_jobs(node: &Node) -> ElsewhereLayer {
    LeaderLayer::new(node, "jobs", elsewhere)
}

#[test]
fn only_the_elected_leader_admits_requests() {
    let cluster = Cluster::start(3).block().unwrap();
    let no_leader = Err("no leader".to_owned());
    assert_eq!(
        ask_all(&cluster, of_jobs),
        [no_leader.clone(), no_leader.clone(), no_leader.clone()]
    );

    let campaign = |member: usize| {
        let election = cluster.node(member).session().block().unwrap().election("jobs");
        election.campaign(format!("at {member}")).enqueue().unwrap()
    };
    let first = campaign(1).block().unwrap();
    let at = |member: usize| Err(format!("at {member}"));
    assert_eq!(ask_all(&cluster, of_jobs), [at(1), Ok(7), at(1)]);
    let second = campaign(2);
    first.resign().block().unwrap();
    let second = second.block().unwrap();
    assert_eq!(ask_all(&cluster, of_jobs), [at(2), at(2), Ok(7)]);
    second.resign().block().unwrap();
    assert_eq!(ask_all(&cluster, of_jobs), [no_leader.clone(), no_leader.clone(), no_leader]);
}

#[test]
fn cut_off_leader_rejects_before_the_next_leader_admits() {
    let options = ClusterOptions::new(3).configure(|c| c.session_ttl(Duration::from_secs(2)));
    let cluster = options.start().block().unwrap();
    let campaign = |member: usize| {
        let election = cluster.node(member).session().block().unwrap().election("jobs");
        election.campaign(format!("at {member}")).enqueue().unwrap()
    };
    let first = campaign(0).block().unwrap();
    let second = campaign(1);
    let (old, new) = (of_jobs(cluster.node(0)), of_jobs(cluster.node(1)));
    cluster.partition(&[0]);
    let second = second.block().unwrap();
    assert!(second.is_leader());
    // The old leader is partitioned and does not know the new leader. It must not name itself.
    assert_eq!((ask(&old, 7), ask(&new, 7)), (Err("no leader".to_owned()), Ok(7)));
    let view = cluster.node(0).election_view("jobs");
    assert_eq!(view.leader().unwrap().value, "at 0");
    assert_eq!(view.leader_elsewhere(), None);
    drop(first);
}

#[test]
fn leader_of_the_consensus_is_another_condition() {
    let options = ClusterOptions::new(3).configure(|config| config.endpoints(["http://here"]));
    let cluster = options.start().block().unwrap();
    let leader = cluster.leader().block().unwrap();
    for (_, node) in cluster.running() {
        node.wait_for(|status| status.members.iter().all(|m| !m.endpoints.is_empty())).block();
    }
    let of_consensus =
        |node: &Node| -> ElsewhereLayer { LeaderLayer::of_consensus(node, elsewhere) };
    for (member, answer) in ask_all(&cluster, of_consensus).into_iter().enumerate() {
        let expected = if member == leader { Ok(7) } else { Err("http://here".to_owned()) };
        assert_eq!(answer, expected, "member {member}");
    }
    assert!(ask_all(&cluster, of_jobs).iter().all(Result::is_err));
}

type FindToken = fn(&mut u64) -> Option<Token>;
type Reject = fn(&u64, FenceRejection) -> Answer;

/// Returns a layer for requests whose number is their token. Request 0 has no token.
fn fenced(node: &Node) -> FenceLayer<FindToken, Reject> {
    fn token(request: &mut u64) -> Option<Token> {
        (*request > 0).then(|| Token::new(Revision(*request), 0))
    }
    fn reject(_: &u64, why: FenceRejection) -> Answer {
        match why {
            FenceRejection::NoToken => Err("no token".to_owned()),
            FenceRejection::NotAdmitted(FenceError::StaleToken(why)) => {
                Err(format!("after {}", why.highest))
            }
            FenceRejection::NotAdmitted(why) => Err(why.to_string()),
        }
    }
    FenceLayer::new(node.client().fence("fence"), token, reject)
}

#[test]
fn stale_tokens_are_rejected_also_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let start = || Node::start(Config::new(dir.path(), "solo")).block().unwrap();
    let node = start();
    let layer = fenced(&node);
    assert_eq!(ask(&layer, 0), Err("no token".to_owned()));
    assert_eq!(ask(&layer, 17), Ok(17));
    assert_eq!(ask(&layer, 17), Ok(17));
    assert_eq!(ask(&layer, 23), Ok(23));
    assert_eq!(ask(&layer, 17), Err("after 23.0".to_owned()));
    assert!(testing::shutdown(node).block().hanging.is_empty());
    assert!(ask(&layer, 99).unwrap_err().contains("stopped"));

    let node = start();
    let layer = fenced(&node);
    assert_eq!(ask(&layer, 17), Err("after 23.0".to_owned()));
    assert_eq!(ask(&layer, 23), Ok(23));
    node.client().put("fence", "mine").block().unwrap();
    assert!(ask(&layer, 23).unwrap_err().contains("the value of the fence is not a token: mine"));
    assert!(testing::shutdown(node).block().hanging.is_empty());
}

#[test]
fn admitted_request_that_is_overtaken_writes_nothing() {
    let cluster = Cluster::start(3).block().unwrap();
    let token = |number| Token::new(Revision(number), 0);
    let fence = |member: usize| cluster.node(member).client().fence("fence");
    fence(0).admit(token(17)).block().unwrap();
    let write = |member: usize, number| {
        let txn = cluster.node(member).client().txn().when(fence(member).condition(token(number)));
        txn.then(Op::put("k", number.to_string())).commit().block().unwrap().succeeded
    };
    assert!(write(0, 17));
    fence(1).admit(token(18)).block().unwrap();
    assert!(!write(0, 17));
    assert!(write(2, 18));
}

#[test]
fn concurrent_tokens_on_all_members_end_with_the_highest() {
    let cluster = Cluster::start(3).block().unwrap();
    let token = |number: usize| Token::new(Revision(number as u64), 0);
    let fence = |member: usize| cluster.node(member).client().fence("fence");
    let calls = (1..=30).map(|i| fence(i % 3).admit(token(i * 7 % 31)).into_future());
    let runtime = tokio::runtime::Builder::new_multi_thread().build().unwrap();
    let calls: Vec<_> = calls.map(|call| runtime.spawn(call)).collect();
    for call in calls {
        let outcome = runtime.block_on(call).unwrap();
        assert!(matches!(outcome, Ok(()) | Err(FenceError::StaleToken(_))), "{outcome:?}");
    }
    for member in 0..3 {
        assert_eq!(fence(member).highest().block(), Ok(Some(token(30))));
        let late = fence(member).admit(token(29)).block();
        assert!(matches!(late, Err(FenceError::StaleToken(_))), "{late:?}");
    }
}

#[test]
fn fence_without_a_quorum_admits_nothing() {
    let options = ClusterOptions::new(3).configure(|c| c.call_deadline(Duration::from_secs(1)));
    let cluster = options.start().block().unwrap();
    let layer = fenced(cluster.node(0));
    assert_eq!(ask(&layer, 17), Ok(17));
    cluster.partition(&[0]);
    let error = cluster.node(0).client().fence("fence").admit(Token::new(Revision(17), 0)).block();
    let Err(FenceError::Store(error)) = error else { panic!("{error:?}") };
    assert!(matches!(error, Error::Deadline { .. }), "{error}");
    assert!(ask(&layer, 17).unwrap_err().contains("deadline exceeded"));
}
