//! Tests of snapshots over the network: the file that a client receives is a backup that can be restored.

use std::fs;
use std::path::Path;
use std::process::Stdio;

use serde_json::Value;
use sha2::{Digest, Sha256};
use tempfile::tempdir;

use crate::tools::etcdctl;
use bowline_proto::etcdserverpb as pb;
use bowline_testkit::process::{Server, SingleMember, bowline, flags, free_ports};
use pb::maintenance_client::MaintenanceClient;

/// Runs a `bowline` command that must succeed and print one JSON object.
fn object(arguments: &[&str]) -> Value {
    let output = bowline().args(arguments).arg("--json").output().unwrap();
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {complaint}");
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Writes so much data that a snapshot needs several messages.
fn fill(server: &Server) {
    let value = "AAAA".repeat(2000);
    for key in ["YQ==", "Yg==", "Yw==", "ZA==", "ZQ==", "Zg==", "Zw==", "aA=="] {
        let put = format!(r#"{{"key":"{key}","value":"{value}"}}"#);
        assert_eq!(server.http("POST", "/v3/kv/put", &put).0, 200);
    }
}

fn has_name_of_a_snapshot(dir: &Path) -> bool {
    let names = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name());
    names.into_iter().any(|name| name.to_string_lossy().starts_with("snap-sent"))
}

#[tokio::test]
async fn snapshot_is_streamed_with_its_hash_and_restores_a_cluster() {
    let (member, place) = (SingleMember::prepare(), tempdir().unwrap());
    let server = member.start(&[]);
    fill(&server);
    let mut maintenance = MaintenanceClient::new(server.channel().await);
    let sent = maintenance.snapshot(pb::SnapshotRequest {}).await.unwrap();
    let (mut sent, mut received) = (sent.into_inner(), Vec::new());
    let (mut blobs, mut last) = (Vec::new(), 0);
    while let Some(part) = sent.message().await.unwrap() {
        received.extend_from_slice(&part.blob);
        blobs.push((part.remaining_bytes, part.blob.len() as u64));
        last = part.blob.len();
    }
    assert!(blobs.len() >= 3 && last == 32, "{blobs:?}");
    let before_hash = received.len() - 32;
    assert_eq!(before_hash % 512, 0);
    assert_eq!(received[before_hash..], Sha256::digest(&received[..before_hash])[..]);
    for (at, (remaining, _)) in blobs.iter().enumerate() {
        let after: u64 = blobs[at + 1..].iter().map(|(_, bytes)| bytes).sum();
        assert_eq!(*remaining, after.saturating_sub(32), "{blobs:?}");
    }
    assert!(!has_name_of_a_snapshot(member.dir.path()), "nothing is left behind");

    let file = place.path().join("sent.db");
    fs::write(&file, &received).unwrap();
    let file = file.to_str().unwrap();
    let found = object(&["snapshot", "status", file]);
    assert_eq!((&found["sound"], &found["keys"]), (&Value::from(true), &Value::from(8)));
    let data = place.path().join("data");
    let data_text = data.to_str().unwrap();
    let [peer, client] = free_ports();
    let member = format!("m0=127.0.0.1:{peer}");
    let restore =
        ["snapshot", "restore", file, "--dir", data_text, "--name", "m0", "--member", &member];
    object(&restore);
    let restored = Server::start(&flags(0, &[peer], client, &data), client, &[]).ready();
    let count = restored.http(
        "POST",
        "/v3/kv/range",
        r#"{"key":"AA==","range_end":"AA==","count_only":true}"#,
    );
    assert!(count.1.ends_with(r#""count":"8"}"#), "{count:?}");

    // A snapshot that differs from what was sent is rejected.
    for (at, what) in [(received.len() / 2, "a byte in it"), (before_hash - 1, "its padding")] {
        let mut bytes = received.clone();
        bytes[at] ^= 1;
        fs::write(place.path().join("bad.db"), bytes).unwrap();
        let verify = ["snapshot", "status", place.path().join("bad.db").to_str().unwrap()]
            .map(str::to_owned);
        let status = bowline().args(verify).stderr(Stdio::null()).stdout(Stdio::null()).status();
        assert_eq!(status.unwrap().code(), Some(1), "{what}");
    }
}

#[test]
fn etcdctl_saves_a_snapshot_and_bowline_reads_it() {
    let (member, place) = (SingleMember::prepare(), tempdir().unwrap());
    let server = member.start(&[]);
    fill(&server);
    let Some(mut save) = etcdctl(&server) else { return };
    let file = place.path().join("saved.db");
    let output = save.args(["snapshot", "save"]).arg(&file).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(object(&["snapshot", "status", file.to_str().unwrap()])["keys"], Value::from(8));
    assert!(!has_name_of_a_snapshot(member.dir.path()));
}
