//! Tests of alarms that operators raise: responses, rejected requests, and the places where the alarms are reported.

use tonic::transport::Channel;
use tonic::{Code, Status};

use crate::requests::{delete, get, put};
use bowline_proto::{etcdserverpb as pb, v3lockpb};
use bowline_testkit::process::Server;
use pb::alarm_request::AlarmAction;
use pb::kv_client::KvClient;
use pb::lease_client::LeaseClient;
use pb::maintenance_client::MaintenanceClient;
use pb::{AlarmMember, AlarmType};
use v3lockpb::lock_client::LockClient;

fn alarm(member_id: u64, alarm: AlarmType) -> AlarmMember {
    AlarmMember { member_id, alarm: alarm.into() }
}

async fn ask(
    channel: &Channel,
    action: AlarmAction,
    member_id: u64,
    alarm: AlarmType,
) -> Result<Vec<AlarmMember>, Status> {
    let request = pb::AlarmRequest { action: action.into(), member_id, alarm: alarm.into() };
    let answer = MaintenanceClient::new(channel.clone()).alarm(request).await?;
    Ok(answer.into_inner().alarms)
}

async fn listed(channel: &Channel) -> Vec<AlarmMember> {
    ask(channel, AlarmAction::Get, 0, AlarmType::None).await.unwrap()
}

use AlarmAction::{Activate, Deactivate, Get};
use AlarmType::{Corrupt, None as Any, Nospace};

#[tokio::test]
async fn alarms_are_raised_listed_and_disarmed_as_in_etcd() {
    let server = Server::alone(&[]);
    let channel = server.channel().await;
    let ask = async |action, member, kind| ask(&channel, action, member, kind).await.unwrap();
    let (full, one, corrupt) = (alarm(0, Nospace), alarm(12345, Nospace), alarm(0, Corrupt));
    assert_eq!(ask(Activate, 0, Nospace).await, [full]);
    assert_eq!(ask(Activate, 0, Nospace).await, [full], "the alarm is active already");
    assert_eq!(ask(Activate, 12345, Nospace).await, [one], "whether such a member exists or not");
    assert_eq!(ask(Activate, 0, Any).await, []);
    assert_eq!(ask(Activate, 0, Corrupt).await, [corrupt]);
    assert_eq!(ask(Get, 0, Any).await, [full, corrupt, one]);
    assert_eq!(ask(Get, 12345, Nospace).await, [full, one], "whichever member is named");
    assert_eq!(ask(Get, 0, Corrupt).await, [corrupt]);
    assert_eq!(ask(Deactivate, 0, Nospace).await, [full]);
    assert_eq!(ask(Deactivate, 0, Nospace).await, []);
    assert_eq!(ask(Deactivate, 77, Nospace).await, []);
    assert_eq!(ask(Get, 0, Any).await, [corrupt, one]);
    assert_eq!(ask(Deactivate, 12345, Any).await, [one]);
    assert_eq!(ask(Activate, 12345, Nospace).await, [one]);
    assert_eq!(ask(Deactivate, 0, Any).await, [corrupt, one], "all alarms");
    assert_eq!(ask(Get, 0, Any).await, []);

    let mut maintenance = MaintenanceClient::new(channel.clone());
    for (action, alarm) in [(1, 7), (9, 1)] {
        let request = pb::AlarmRequest { action, member_id: 0, alarm };
        let refused = maintenance.alarm(request).await.unwrap_err();
        assert_eq!(refused.code(), Code::InvalidArgument, "{refused}");
    }
    for member in 1000..1256 {
        ask(Activate, member, Nospace).await;
    }
    let request = pb::AlarmRequest { action: Activate.into(), member_id: 1, alarm: Nospace.into() };
    let refused = maintenance.alarm(request).await.unwrap_err();
    assert_eq!(refused.code(), Code::ResourceExhausted, "{refused}");
    assert!(refused.message().contains("at most 256; clear some first"), "{refused}");
    assert_eq!(ask(Deactivate, 0, Any).await.len(), 256);
}

fn txn(op: impl Into<pb::RequestOp>) -> pb::TxnRequest {
    pb::TxnRequest { success: vec![op.into()], ..Default::default() }
}

/// Sends each kind of request that an alarm may forbid, and returns the results: requests that add, requests that
/// remove, and reads.
async fn tried(channel: &Channel, lease: i64) -> [Vec<Result<(), Status>>; 3] {
    let (mut kv, mut leases) = (KvClient::new(channel.clone()), LeaseClient::new(channel.clone()));
    let lock = v3lockpb::LockRequest { name: "door".into(), lease };
    let nested = txn(txn(put("k")));
    let adds = vec![
        kv.put(put("k")).await.map(drop),
        kv.txn(txn(put("k"))).await.map(drop),
        kv.txn(nested).await.map(drop),
        leases.lease_grant(pb::LeaseGrantRequest { ttl: 60, id: 0 }).await.map(drop),
        LockClient::new(channel.clone()).lock(lock).await.map(drop),
    ];
    let takes = vec![
        kv.delete_range(delete("none")).await.map(drop),
        kv.txn(txn(delete("none"))).await.map(drop),
        {
            let granted = pb::LeaseRevokeRequest { id: lease + 1 };
            leases.lease_revoke(granted).await.map(drop)
        },
        {
            let revision = kv.range(get("k")).await.unwrap().into_inner().header.unwrap().revision;
            kv.compact(pb::CompactionRequest { revision, physical: false }).await.map(drop)
        },
    ];
    let renewal = tokio_stream::iter([pb::LeaseKeepAliveRequest { id: lease }]);
    let mut renewed = leases.lease_keep_alive(renewal).await.unwrap().into_inner();
    assert_eq!(renewed.message().await.unwrap().unwrap().ttl, 600);
    let left = pb::LeaseTimeToLiveRequest { id: lease, keys: true };
    let looks = vec![
        kv.range(get("k")).await.map(drop),
        kv.range(pb::RangeRequest { serializable: true, ..get("k") }).await.map(drop),
        kv.txn(txn(get("k"))).await.map(drop),
        kv.txn(pb::TxnRequest::default()).await.map(drop),
        leases.lease_time_to_live(left).await.map(drop),
        leases.lease_leases(pb::LeaseLeasesRequest {}).await.map(drop),
    ];
    [adds, takes, looks]
}

#[tokio::test]
async fn alarm_rejects_only_forbidden_requests_on_all_servers() {
    let servers = Server::three();
    let mut channels = Vec::new();
    for server in &servers {
        channels.push(server.channel().await);
    }
    KvClient::new(channels[0].clone()).put(put("k")).await.unwrap();
    let leases = |server: usize| LeaseClient::new(channels[server].clone());
    leases(0).lease_grant(pb::LeaseGrantRequest { ttl: 600, id: 7 }).await.unwrap();
    for (kind, code, words) in [
        (Nospace, Code::ResourceExhausted, "etcdserver: mvcc: database space exceeded"),
        (Corrupt, Code::DataLoss, "etcdserver: corrupt cluster"),
    ] {
        ask(&channels[0], Activate, 0, kind).await.unwrap();
        for (server, channel) in channels.iter().enumerate() {
            assert_eq!(listed(channel).await, [alarm(0, kind)]);
            let code_and_text = |status: &Status| (status.code(), status.message().to_owned());
            let due = (code, words.to_owned());
            let [adds, takes, looks] = tried(channel, 7).await;
            for tried in &adds {
                assert_eq!(
                    code_and_text(tried.as_ref().unwrap_err()),
                    due,
                    "server {server}: {adds:?}"
                );
            }
            for tried in &takes {
                let is_due = match (kind, tried) {
                    (Nospace, Ok(())) => true,
                    // The request fails for another reason: there is no lease with that id, or the revision is already
                    // compacted.
                    (Nospace, Err(status)) => {
                        status.message().contains("lease not found")
                            || status.message().contains("has been compacted")
                    }
                    (_, tried) => tried.as_ref().is_err_and(|status| code_and_text(status) == due),
                };
                assert!(is_due, "server {server}: {takes:?}");
            }
            assert!(looks.iter().all(Result::is_ok), "server {server}: {looks:?}");
        }
        assert_eq!(ask(&channels[1], Deactivate, 0, kind).await.unwrap(), [alarm(0, kind)]);
        for channel in &channels {
            // The rejected requests have not raised any alarm.
            assert_eq!(listed(channel).await, []);
            KvClient::new(channel.clone()).put(put("k")).await.unwrap();
        }
    }
}

#[tokio::test]
async fn alarms_are_visible_in_status_health_and_metrics() {
    let server = Server::alone(&[]);
    let channel = server.channel().await;
    let mut maintenance = MaintenanceClient::new(channel.clone());
    let ask_http = |path: &str| server.http("GET", path, "");
    let is_well = |query: &str| {
        let (code, text) = ask_http(&format!("/health{query}"));
        code == 200 && text.contains(r#""health":"true""#)
    };
    let ill = |query: &str| {
        let (code, text) = ask_http(&format!("/health{query}"));
        assert!(code == 503 && text.contains(r#""health":"false""#), "{code}: {text}");
        text
    };
    assert!(is_well("") && ask_http("/readyz").0 == 200);
    ask(&channel, Activate, 0, Nospace).await.unwrap();
    ask(&channel, Activate, 31, Nospace).await.unwrap();
    assert!(ill("").contains("ALARM NOSPACE") && ill("?exclude=CORRUPT").contains("ALARM NOSPACE"));
    assert!(is_well("?exclude=NOSPACE") && ask_http("/readyz").0 == 200);
    let status = maintenance.status(pb::StatusRequest {}).await.unwrap().into_inner();
    assert_eq!(status.errors, ["alarm:NOSPACE ", "memberID:31 alarm:NOSPACE "]);
    ask(&channel, Activate, 0, Corrupt).await.unwrap();
    assert!(ill("").contains("ALARM CORRUPT") && ill("?exclude=NOSPACE").contains("ALARM CORRUPT"));
    assert!(is_well("?exclude=NOSPACE&exclude=CORRUPT"));
    let (code, text) = ask_http("/readyz");
    assert!(
        code == 503 && text.contains("[-]data_corruption failed: alarm activated: CORRUPT"),
        "{text}"
    );
    assert_eq!(ask_http("/livez").0, 200);
    let metrics = ask_http("/metrics").1;
    for sample in [
        r#"etcd_debugging_server_alarms{alarm_type="NOSPACE",server_id="0"} 1"#,
        r#"etcd_debugging_server_alarms{alarm_type="NOSPACE",server_id="1f"} 1"#,
        r#"etcd_debugging_server_alarms{alarm_type="CORRUPT",server_id="0"} 1"#,
    ] {
        assert!(metrics.contains(sample), "{sample}");
    }
    ask(&channel, Deactivate, 0, Any).await.unwrap();
    assert!(is_well("") && ask_http("/readyz").0 == 200);
    let status = maintenance.status(pb::StatusRequest {}).await.unwrap().into_inner();
    assert!(status.errors.is_empty());
    assert!(!ask_http("/metrics").1.contains("etcd_debugging_server_alarms{"));
}
