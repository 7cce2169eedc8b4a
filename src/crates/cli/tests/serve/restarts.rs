//! Tests of restarts with changed flags that matter only at the first start, and of first starts in directories that
//! are in use.

use std::path::Path;

use tempfile::tempdir;

use crate::members::{Cluster, add, until};
use bowline_proto::etcdserverpb as pb;
use bowline_testkit::process::{Server, SingleMember, bowline, flags, free_ports};

/// The log line for first-start flags that have changed.
const DIFFERS: &str = "configured members or token differ from the data directory";

/// Returns a member's flags with some of them changed or added.
fn changed(mut flags: Vec<String>, changes: &[String]) -> Vec<String> {
    for change in changes {
        let (name, _) = change.split_once('=').unwrap();
        flags.retain(|flag| flag.split_once('=').is_none_or(|(known, _)| known != name));
        flags.push(change.clone());
    }
    flags
}

/// Writes a key over JSON.
fn put(server: &Server) {
    let (code, body) = server.http("POST", "/v3/kv/put", r#"{"key":"aw==","value":"dg=="}"#);
    assert_eq!(code, 200, "{body}");
}

fn has_key(server: &Server) {
    let (code, body) = server.http("POST", "/v3/kv/range", r#"{"key":"aw=="}"#);
    assert!(code == 200 && body.contains(r#""count":"1""#), "{code} {body}");
}

/// Runs a server that must fail to start. Returns its log.
fn refused(flags: &[String]) -> String {
    let output = bowline().arg("serve").args(flags).output().unwrap();
    assert!(!output.status.success());
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn member_with_data_ignores_changed_bootstrap_flags() {
    let dir = tempdir().unwrap();
    let [peer, client, other] = free_ports::<3>();
    let usual = flags(0, &[peer], client, dir.path());
    let start = |flags: &[String]| Server::start(flags, client, &[]).ready();
    let first = start(&usual);
    put(&first);
    first.stop();
    let list = |names: &str| format!("--initial-cluster={names}");
    let own = format!("m0=http://127.0.0.1:{peer}");
    for (change, warnings) in [
        ("--initial-cluster-state=existing".to_owned(), 0),
        ("--initial-cluster-token=another".to_owned(), 1),
        (list(&format!("{own},m1=http://127.0.0.1:{other}")), 1),
    ] {
        let server = start(&changed(usual.clone(), std::slice::from_ref(&change)));
        has_key(&server);
        let (status, log) = server.stop();
        assert!(status.success(), "{change}: {log}");
        assert_eq!(log.matches(DIFFERS).count(), warnings, "{change}: {log}");
    }
    let renamed = ["--name=other".to_owned(), list(&format!("other=http://127.0.0.1:{peer}"))];
    let log = refused(&changed(usual.clone(), &renamed));
    assert!(
        log.contains(r#"the directory belongs to member "m0", but this node is named "other""#),
        "{log}"
    );
    has_key(&start(&usual));
}

#[test]
fn members_restart_one_by_one_with_a_list_that_is_ahead_of_the_cluster() {
    let dirs = [(); 3].map(|()| tempdir().unwrap());
    let (peers, clients): ([u16; 4], [u16; 3]) = (free_ports(), free_ports());
    let start = |at: usize, peers: &[u16], state: &str| {
        let flags = flags(at, peers, clients[at], dirs[at].path());
        let state = format!("--initial-cluster-state={state}");
        Server::start(&changed(flags, &[state]), clients[at], &[])
    };
    let servers = [0, 1, 2].map(|at| start(at, &peers[..3], "new")).map(Server::ready);
    put(&servers[0]);
    let mut servers = servers.map(Some);
    for state in ["new", "existing"] {
        for at in 0..3 {
            servers[at].take().unwrap().stop();
            put(servers[(at + 1) % 3].as_ref().unwrap());
            let server = start(at, &peers, state).ready();
            has_key(&server);
            servers[at] = Some(server);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn rejoined_member_restarts_with_the_list_of_the_founders() {
    let dirs = [(); 4].map(|()| tempdir().unwrap());
    let (peers, clients): ([u16; 3], [u16; 3]) = (free_ports(), free_ports());
    let start = |at: usize, dir: &Path, state: &str| {
        let state = format!("--initial-cluster-state={state}");
        let flags = changed(flags(at, &peers, clients[at], dir), &[state]);
        Server::start(&flags, clients[at], &[])
    };
    let servers = [0, 1, 2].map(|at| start(at, dirs[at].path(), "new")).map(Server::ready);
    let [first, _second, third] = servers;
    put(&first);
    let mut cluster = Cluster::new(first.channel().await);
    let list = pb::MemberListRequest { linearizable: true };
    let members = cluster.member_list(list).await.unwrap().into_inner().members;
    let id = members.iter().find(|member| member.name == "m2").unwrap().id;
    cluster.member_remove(pb::MemberRemoveRequest { id }).await.unwrap();
    // As in etcd, the exit code keeps a service manager from restarting a removed member.
    for removed in [third, start(2, dirs[2].path(), "new")] {
        let (status, log) = removed.ended();
        assert!(status.success() && log.contains("removed from the cluster"), "{status}: {log}");
    }
    let id = add(&mut cluster, peers[2], false).await.unwrap().member.unwrap().id;
    let again = start(2, dirs[3].path(), "existing").ready();
    until(&mut cluster, id, |member| member.name == "m2" && !member.is_learner).await;
    again.stop();
    let again = start(2, dirs[3].path(), "new").ready();
    has_key(&again);
}

#[test]
fn new_member_rejects_a_directory_with_etcd_data() {
    let member = SingleMember::prepare();
    for part in ["wal", "snap"] {
        std::fs::create_dir_all(member.dir.path().join("member").join(part)).unwrap();
    }
    let log = refused(&member.flags);
    assert!(log.contains("holds data of etcd") && log.contains("`bowline import`"), "{log}");
    let ignoring = member.start(&["--ignore-etcd-data"]);
    put(&ignoring);
    ignoring.stop();
    has_key(&member.start(&[]));
}

#[test]
fn joining_member_needs_another_member_in_its_list() {
    let SingleMember { dir, flags, .. } = SingleMember::prepare();
    let joins = ["--initial-cluster-state=existing".to_owned()];
    let log = refused(&changed(flags, &joins));
    assert!(log.contains("name the other members, too, with --initial-cluster"), "{log}");
    assert!(std::fs::read_dir(dir.path()).unwrap().next().is_none(), "nothing was written");
}
