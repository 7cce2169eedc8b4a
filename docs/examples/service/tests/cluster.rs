//! Tests of the service in a cluster of three members inside this process.

mod http_client;

use std::sync::Arc;
use std::time::Duration;

use bowline::Node;
use bowline::testing::{Cluster, ClusterOptions};
use flag_service::service::{self, ServiceError};
use http_client::{Events, get, put, send, until};
use serde_json::json;
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// The service on one member.
struct Instance {
    url: String,
    stop: oneshot::Sender<()>,
    running: JoinHandle<Result<(), ServiceError>>,
}

impl Instance {
    async fn start(node: Arc<Node>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let (stop, stopped) = oneshot::channel();
        let stopped = async move { _ = stopped.await };
        let running = tokio::spawn(service::run(node, listener, url.clone(), stopped));
        Self { url, stop, running }
    }

    fn at(&self, path: &str) -> String {
        format!("{}{path}", self.url)
    }

    /// Stops the service in order, and waits for its end.
    async fn stop(self) {
        self.stop.send(()).unwrap();
        self.running.await.unwrap().unwrap();
    }
}

async fn start(session_ttl: Duration) -> (Cluster, Vec<Instance>) {
    let options = ClusterOptions::new(3).configure(move |config| config.session_ttl(session_ttl));
    let cluster = options.start().await.unwrap();
    let mut instances = Vec::new();
    for member in 0..3 {
        instances.push(Instance::start(cluster.shared_node(member)).await);
    }
    (cluster, instances)
}

const SHORT: Duration = Duration::from_secs(2);
const LONG: Duration = Duration::from_secs(600);

/// Waits until exactly one of these members serves the leader's route, and returns its number. The
/// others name it.
async fn leader_among(instances: &[Instance], members: &[usize]) -> usize {
    until("one leader that all know", async || {
        let mut leaders = Vec::new();
        let mut named = Vec::new();
        for &member in members {
            let answer = get(instances[member].at("/sweeper")).await;
            match answer.status {
                200 => leaders.push(member),
                421 => named.push(answer.header("leader").to_owned()),
                503 => return None,
                other => panic!("status {other}: {answer:?}"),
            }
        }
        assert!(leaders.len() < 2, "two leaders: {leaders:?}");
        let leader = leaders.pop()?;
        named.iter().all(|url| *url == instances[leader].url).then_some(leader)
    })
    .await
}

/// Puts a flag whose time has come, and waits until the leader has switched it off. Returns how
/// many flags the leader has switched off.
async fn sweeps(leader: &Instance, name: &str) -> u64 {
    let flag = leader.at(&format!("/flags/{name}"));
    assert_eq!(put(&flag, &[], r#"{"on": true, "off_at": 1}"#).await.status, 200);
    until("the flag is off", async || {
        (get(&flag).await.json() == json!({ "on": false })).then_some(())
    })
    .await;
    until("the report counts it", async || {
        let report = get(leader.at("/sweeper")).await.json();
        report["switched_off"].as_u64().filter(|count| *count > 0)
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn flags_change_by_compare_and_set_on_any_process() {
    let (_cluster, instances) = start(LONG).await;
    let flag = |member: usize| instances[member].at("/flags/dark-mode");
    assert_eq!(get(flag(0)).await.status, 404);
    let made = put(flag(0), &[("if-none-match", "*")], r#"{"on": true}"#).await;
    assert_eq!(made.status, 200, "{made:?}");
    let again = put(flag(1), &[("if-none-match", "*")], r#"{"on": true}"#).await;
    assert_eq!((again.status, again.json()["effect"].clone()), (412, json!("not applied")));

    let read = get(flag(2)).await;
    assert_eq!((read.json(), read.header("etag")), (json!({ "on": true }), made.header("etag")));
    let change = [("if-match", read.header("etag"))];
    assert_eq!(put(flag(2), &change, r#"{"on": false}"#).await.status, 200);
    let late = put(flag(0), &change, r#"{"on": true}"#).await;
    assert_eq!((late.status, late.header("etag")), (412, get(flag(1)).await.header("etag")));
    let flags = get(instances[1].at("/flags")).await.json();
    assert_eq!(flags, json!({ "dark-mode": { "on": false } }));

    assert_eq!(put(flag(0), &[("if-match", "new")], r#"{"on": true}"#).await.status, 400);
    let long = instances[0].at(&format!("/flags/{}", "x".repeat(10_000)));
    assert_eq!(put(long, &[], r#"{"on": true}"#).await.status, 413);
}

#[tokio::test(flavor = "multi_thread")]
async fn probes_and_metrics_answer() {
    let (_cluster, instances) = start(LONG).await;
    for instance in &instances {
        assert_eq!(get(instance.at("/healthz")).await.status, 200);
        assert_eq!(get(instance.at("/readyz")).await.status, 200);
        let metrics = get(instance.at("/metrics")).await;
        assert!(metrics.body.contains("bowline_requests_total{"), "{}", metrics.body);
    }
    let leader = leader_among(&instances, &[0, 1, 2]).await;
    for (member, instance) in instances.iter().enumerate() {
        let reported = get(instance.at("/leader")).await.json();
        assert_eq!(reported["elected"], json!(instances[leader].url));
        assert_eq!(reported["elected_here"], json!(member == leader));
        assert!(reported["consensus"].is_string(), "{reported}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn another_process_takes_the_job_over_when_the_leader_is_killed() {
    let (mut cluster, instances) = start(SHORT).await;
    let leader = leader_among(&instances, &[0, 1, 2]).await;
    assert_eq!(sweeps(&instances[leader], "first").await, 1);

    let handle = cluster.shared_node(leader);
    cluster.kill(leader).await;
    let others: Vec<usize> = (0..3).filter(|member| *member != leader).collect();
    let next = leader_among(&instances, &others).await;
    // The first flag was off already.
    assert_eq!(sweeps(&instances[next], "second").await, 1);

    // The killed process comes back. A handle from before does not disturb it.
    cluster.restart(leader).await.unwrap();
    cluster.node(leader).ready().await.unwrap();
    drop(handle);
    let restarted = Instance::start(cluster.shared_node(leader)).await;
    assert_eq!(get(restarted.at("/flags/second")).await.json(), json!({ "on": false }));
    assert_eq!(get(restarted.at("/sweeper")).await.status, 421);
}

#[tokio::test(flavor = "multi_thread")]
async fn paused_leader_rejects_requests_when_its_time_is_over() {
    let (cluster, instances) = start(SHORT).await;
    let leader = leader_among(&instances, &[0, 1, 2]).await;
    // The node's own threads are paused, and cannot notice that the session is over.
    cluster.pause(leader);
    let others: Vec<usize> = (0..3).filter(|member| *member != leader).collect();
    leader_among(&instances, &others).await;
    assert_eq!(get(instances[leader].at("/sweeper")).await.status, 503);
    cluster.resume(leader);
}

#[tokio::test(flavor = "multi_thread")]
async fn cut_off_leader_is_not_ready_and_stops_the_job() {
    let (cluster, instances) = start(SHORT).await;
    let leader = leader_among(&instances, &[0, 1, 2]).await;
    cluster.partition(&[leader]);
    let others: Vec<usize> = (0..3).filter(|member| *member != leader).collect();
    let next = leader_among(&instances, &others).await;

    let cut_off = &instances[leader];
    assert_eq!(get(cut_off.at("/sweeper")).await.status, 503);
    assert_eq!(get(cut_off.at("/readyz")).await.status, 503);
    assert_eq!(get(cut_off.at("/healthz")).await.status, 200, "a restart would not help");
    assert_eq!(get(cut_off.at("/flags")).await.status, 503);
    // The write waits in the process, and may be applied if the partition heals in time.
    let written = put(cut_off.at("/flags/late"), &[], r#"{"on": true}"#).await;
    let effect = written.json()["effect"].clone();
    let expected = if written.status == 504 { "unknown" } else { "not applied" };
    assert!([503, 504].contains(&written.status), "{written:?}");
    assert_eq!(effect, json!(expected));
    sweeps(&instances[next], "meanwhile").await;

    cluster.heal();
    until("ready again", async || (get(cut_off.at("/readyz")).await.status == 200).then_some(()))
        .await;
    assert_eq!(leader_among(&instances, &[0, 1, 2]).await, next);
    assert_eq!(get(cut_off.at("/flags/meanwhile")).await.json(), json!({ "on": false }));
}

#[tokio::test(flavor = "multi_thread")]
async fn late_importer_changes_nothing() {
    let (cluster, instances) = start(LONG).await;
    let mut tokens = Vec::new();
    for member in 0..2 {
        let session = cluster.node(member).session().await.unwrap();
        let guard = session.mutex("importer").lock().await.unwrap();
        tokens.push(guard.token().to_string());
        guard.release().await.unwrap();
    }
    let import = async |member: usize, token: &str, body: &str| {
        let headers = [("fencing-token", token)];
        send("PATCH", &instances[member].at("/flags"), &headers, body).await.unwrap()
    };
    let body = |on: bool| json!({ "a": { "on": on }, "b": { "on": on } }).to_string();
    assert_eq!(import(0, "none", &body(false)).await.status, 428);
    assert_eq!(import(0, &tokens[0], &body(false)).await.status, 200);
    assert_eq!(import(1, &tokens[1], &body(true)).await.status, 200);
    for member in 0..3 {
        let late = import(member, &tokens[0], &body(false)).await;
        assert_eq!(late.status, 412, "{late:?}");
        assert!(late.body.contains("lower than the highest token seen"), "{late:?}");
    }
    let flags = get(instances[2].at("/flags")).await.json();
    assert_eq!(flags, json!({ "a": { "on": true }, "b": { "on": true } }));
}

#[tokio::test(flavor = "multi_thread")]
async fn events_continue_after_the_last_one_seen() {
    let (_cluster, instances) = start(LONG).await;
    let mut events = Events::open(&instances[0].at("/events"), None).await;
    for (name, on) in [("a", true), ("b", false), ("c", true)] {
        let flag = instances[1].at(&format!("/flags/{name}"));
        assert_eq!(put(flag, &[], &json!({ "on": on }).to_string()).await.status, 200);
    }
    let (id, first) = events.next().await.unwrap();
    assert_eq!(first[0], json!({ "name": "a", "flag": { "on": true } }));
    drop(events);

    // On another process. One event may carry several changes.
    let mut events = Events::open(&instances[2].at("/events"), Some(&id)).await;
    let mut names: Vec<_> = first.as_array().unwrap().clone();
    while names.len() < 3 {
        names.extend(events.next().await.unwrap().1.as_array().unwrap().clone());
    }
    let names: Vec<_> = names.iter().map(|change| change["name"].clone()).collect();
    assert_eq!(names, ["a", "b", "c"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn stopped_leader_resigns_and_ends_its_streams() {
    // With this session, another process leads soon only if the leader resigns.
    let (_cluster, mut instances) = start(LONG).await;
    let leader = leader_among(&instances, &[0, 1, 2]).await;
    let mut events = Events::open(&instances[leader].at("/events"), None).await;
    let stopped = instances.remove(leader);
    let url = stopped.url.clone();
    stopped.stop().await;
    assert_eq!(events.next().await, None);
    assert!(send("GET", &format!("{url}/healthz"), &[], "").await.is_err());
    let next = leader_among(&instances, &[0, 1]).await;
    sweeps(&instances[next], "afterwards").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn service_ends_with_an_error_if_its_node_stops() {
    let (mut cluster, mut instances) = start(LONG).await;
    cluster.kill(0).await;
    let ended = instances.remove(0).running.await.unwrap();
    assert!(matches!(ended, Err(ServiceError::NodeStopped(_))), "{ended:?}");
}
