//! Tests whether each kind of caller is permitted to call each method, by a table. The table must contain every
//! method.

use std::collections::BTreeSet;
use std::time::Duration;

use bytes::Bytes;
use prost::Message;
use prost_reflect::{DescriptorPool, DynamicMessage, MethodDescriptor, SerializeOptions};
use tonic::transport::Channel;
use tonic::{Code, Request, Status};

use crate::auth::{CHEAP, Raw, by, guarded, login};
use crate::requests::{delete, get, put};
use bowline_proto::authpb;
use bowline_proto::etcdserverpb as pb;
use bowline_proto::v3electionpb as election;
use bowline_proto::v3lockpb as lock;
use bowline_testkit::process::{Server, http_with};
use pb::compare::{CompareResult, TargetUnion};

/// How long to wait for the first response of a stream.
const SILENCE: Duration = Duration::from_secs(60);

/// A lease with a key outside `app/`, and one without keys.
const LEASE_OUTSIDE: i64 = 7;
const LEASE_BARE: i64 = 8;

/// The permission that a call requires of its caller.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Needs {
    /// No user.
    Nothing,
    /// Any user.
    User,
    /// Permission to read below `app/`.
    Read,
    /// Permission to write below `app/`.
    Write,
    /// Permission to read and write below `app/`.
    Both,
    Root,
}

/// The kinds of callers: the name, and the permissions below `app/`.
const CALLERS: [(&str, &str); 7] = [
    ("nobody", ""),
    ("stranger", ""),
    ("bob", ""),
    ("rob", "r"),
    ("wes", "w"),
    ("ann", "rw"),
    ("root", "rw"),
];

impl Needs {
    /// Returns the error message for this caller, or `None` if the call is permitted.
    fn rejection(self, caller: &str, rights: &str) -> Option<&'static str> {
        let may = |right: char| rights.contains(right);
        let is_in = match self {
            Self::Nothing => return None,
            Self::User => true,
            Self::Read => may('r'),
            Self::Write => may('w'),
            Self::Both => may('r') && may('w'),
            Self::Root => false,
        };
        match caller {
            "nobody" => Some("etcdserver: user name is empty"),
            "stranger" => Some("etcdserver: invalid auth token"),
            "root" => None,
            _ if is_in => None,
            _ => Some("etcdserver: permission denied"),
        }
    }
}

type Row = (&'static str, Needs, Bytes);

fn row(path: &'static str, needs: Needs, message: impl Message) -> Row {
    (path, needs, message.encode_to_vec().into())
}

fn txn(op: impl Into<pb::RequestOp>) -> pb::TxnRequest {
    pb::TxnRequest { failure: vec![op.into()], ..never() }
}

/// Returns a transaction whose comparison of a key below `app/` fails.
fn never() -> pb::TxnRequest {
    pb::TxnRequest { compare: vec![compare("app/never")], ..Default::default() }
}

/// Compares the create revision with 1, at which no key was created.
fn compare(key: &str) -> pb::Compare {
    pb::Compare::new(key.to_owned(), CompareResult::Equal, TargetUnion::CreateRevision(1))
}

fn watch(key: &str, range_end: &str) -> pb::WatchRequest {
    let create = pb::WatchCreateRequest {
        key: key.to_owned().into(),
        range_end: range_end.to_owned().into(),
        ..Default::default()
    };
    create.into()
}

/// Returns the calls that concern keys.
fn rows_of_keys(caller: &str) -> Vec<Row> {
    use Needs::{Both, Read, Root, User, Write};
    let (range, to_put) = ("/etcdserverpb.KV/Range", "/etcdserverpb.KV/Put");
    let stream = "/etcdserverpb.KV/RangeStream";
    let (to_delete, transact) = ("/etcdserverpb.KV/DeleteRange", "/etcdserverpb.KV/Txn");
    let until = |end: &str| pb::RangeRequest { range_end: end.to_owned().into(), ..get("app/") };
    let count = pb::RangeRequest { count_only: true, ..get("secret") };
    let local = pb::RangeRequest { serializable: true, ..get("secret") };
    let lock_name = |dir: &str| Bytes::from(format!("{dir}/l-{caller}"));
    let campaign = |dir: &str| election::CampaignRequest {
        name: format!("{dir}/c-{caller}").into(),
        lease: LEASE_BARE,
        value: "v".into(),
    };
    let leader = |dir: &str| election::LeaderKey {
        name: format!("{dir}/e").into(),
        key: format!("{dir}/e/1").into(),
        rev: 1,
        lease: LEASE_BARE,
    };
    let lead = |dir: &str| election::LeaderRequest { name: format!("{dir}/e").into() };
    let nested = |op: pb::RequestOp| txn(txn(txn(op)));
    let outside = pb::TxnRequest { compare: vec![compare("secret")], ..Default::default() };
    vec![
        row(range, Read, get("app/a")),
        row(range, Read, until("app0")),
        row(range, Root, until("app1")),
        row(range, Root, until("\0")),
        row(range, Root, get("secret")),
        row(range, Root, count),
        row(range, Root, local),
        row(stream, Read, get("app/a")),
        row(stream, Read, until("app0")),
        row(stream, Root, until("app1")),
        row(stream, Root, get("secret")),
        row(to_put, Write, put("app/a")),
        row(to_put, Both, pb::PutRequest { prev_kv: true, ..put("app/a") }),
        row(to_put, Root, put("secret")),
        row(to_put, Root, put("app0")),
        row(to_put, Root, pb::PutRequest { lease: LEASE_OUTSIDE, ..put("app/a") }),
        row(to_delete, Write, delete("app/x")),
        row(to_delete, Both, pb::DeleteRangeRequest { prev_kv: true, ..delete("app/x") }),
        row(to_delete, Root, delete("secret/x")),
        row(to_delete, Root, pb::DeleteRangeRequest { range_end: "b".into(), ..delete("app/x") }),
        row(transact, User, pb::TxnRequest::default()),
        row(transact, Read, never()),
        row(transact, Root, outside),
        row(transact, Read, txn(get("app/a"))),
        row(transact, Both, txn(put("app/a"))),
        row(transact, Both, nested(put("app/a").into())),
        row(transact, Root, nested(put("secret").into())),
        row(transact, Root, nested(get("secret").into())),
        row(transact, Root, nested(delete("secret/x").into())),
        row(transact, Root, nested(pb::PutRequest { lease: LEASE_OUTSIDE, ..put("app/a") }.into())),
        row(
            "/etcdserverpb.KV/Compact",
            Root,
            pb::CompactionRequest { revision: 1, physical: false },
        ),
        row("/etcdserverpb.Watch/Watch", Read, watch("app/", "app0")),
        row("/etcdserverpb.Watch/Watch", Root, watch("app/", "\0")),
        row("/etcdserverpb.Watch/Watch", Root, watch("secret", "")),
        row("/v3lockpb.Lock/Lock", Both, lock::LockRequest { name: lock_name("app"), lease: 0 }),
        row("/v3lockpb.Lock/Lock", Root, lock::LockRequest { name: lock_name("no"), lease: 0 }),
        row("/v3lockpb.Lock/Unlock", Write, lock::UnlockRequest { key: "app/l".into() }),
        row("/v3lockpb.Lock/Unlock", Root, lock::UnlockRequest { key: "secret/l".into() }),
        row("/v3electionpb.Election/Campaign", Both, campaign("app")),
        row("/v3electionpb.Election/Campaign", Root, campaign("no")),
        row(
            "/v3electionpb.Election/Proclaim",
            Both,
            election::ProclaimRequest { leader: Some(leader("app")), value: "v".into() },
        ),
        row(
            "/v3electionpb.Election/Proclaim",
            Root,
            election::ProclaimRequest { leader: Some(leader("no")), value: "v".into() },
        ),
        row("/v3electionpb.Election/Leader", Read, lead("app")),
        row("/v3electionpb.Election/Leader", Root, lead("no")),
        row("/v3electionpb.Election/Observe", Read, lead("app")),
        row("/v3electionpb.Election/Observe", Root, lead("no")),
        row(
            "/v3electionpb.Election/Resign",
            Both,
            election::ResignRequest { leader: Some(leader("app")) },
        ),
        row(
            "/v3electionpb.Election/Resign",
            Root,
            election::ResignRequest { leader: Some(leader("no")) },
        ),
    ]
}

/// Returns the calls that concern leases, members and the server.
fn rows_of_servers() -> Vec<Row> {
    use Needs::{Nothing, Root, User};
    let left = |keys| pb::LeaseTimeToLiveRequest { id: LEASE_OUTSIDE, keys };
    let alarm = |action: pb::alarm_request::AlarmAction| pb::AlarmRequest {
        action: action.into(),
        ..Default::default()
    };
    vec![
        row("/etcdserverpb.Lease/LeaseGrant", User, pb::LeaseGrantRequest { ttl: 60, id: 0 }),
        row("/etcdserverpb.Lease/LeaseRevoke", Root, pb::LeaseRevokeRequest { id: LEASE_OUTSIDE }),
        row("/etcdserverpb.Lease/LeaseRevoke", User, pb::LeaseRevokeRequest { id: 99 }),
        row("/etcdserverpb.Lease/LeaseKeepAlive", User, pb::LeaseKeepAliveRequest { id: 8 }),
        row("/etcdserverpb.Lease/LeaseTimeToLive", User, left(false)),
        row("/etcdserverpb.Lease/LeaseTimeToLive", Root, left(true)),
        row("/etcdserverpb.Lease/LeaseLeases", Root, pb::LeaseLeasesRequest {}),
        row("/etcdserverpb.Cluster/MemberList", User, pb::MemberListRequest { linearizable: true }),
        row("/etcdserverpb.Cluster/MemberAdd", Root, pb::MemberAddRequest::default()),
        row("/etcdserverpb.Cluster/MemberRemove", Root, pb::MemberRemoveRequest { id: 99 }),
        row("/etcdserverpb.Cluster/MemberUpdate", Root, pb::MemberUpdateRequest::default()),
        row("/etcdserverpb.Cluster/MemberPromote", Root, pb::MemberPromoteRequest { id: 99 }),
        row("/etcdserverpb.Maintenance/Alarm", User, alarm(pb::alarm_request::AlarmAction::Get)),
        // An alarm request without a type raises nothing and disarms nothing.
        row(
            "/etcdserverpb.Maintenance/Alarm",
            Root,
            alarm(pb::alarm_request::AlarmAction::Activate),
        ),
        row(
            "/etcdserverpb.Maintenance/Alarm",
            Root,
            alarm(pb::alarm_request::AlarmAction::Deactivate),
        ),
        row("/etcdserverpb.Maintenance/Status", User, pb::StatusRequest {}),
        row("/etcdserverpb.Maintenance/Defragment", Root, pb::DefragmentRequest {}),
        row("/etcdserverpb.Maintenance/Hash", Root, pb::HashRequest {}),
        row("/etcdserverpb.Maintenance/HashKV", Root, pb::HashKvRequest::default()),
        row("/etcdserverpb.Maintenance/Snapshot", Root, pb::SnapshotRequest {}),
        row("/etcdserverpb.Maintenance/MoveLeader", Root, pb::MoveLeaderRequest { target_id: 99 }),
        row("/etcdserverpb.Maintenance/Downgrade", Root, pb::DowngradeRequest::default()),
        ("/grpc.health.v1.Health/Check", Nothing, Bytes::new()),
        ("/grpc.health.v1.Health/Watch", Nothing, Bytes::new()),
    ]
}

/// Returns the calls that concern users. Calls that would change something name a user or role that does not exist.
fn rows_of_users(caller: &str) -> Vec<Row> {
    use Needs::{Nothing, Root, User};
    let unknown = || "nobody".to_owned();
    let permission = authpb::Permission { key: b"secret".to_vec(), ..Default::default() };
    vec![
        row("/etcdserverpb.Auth/AuthEnable", Root, pb::AuthEnableRequest {}),
        row("/etcdserverpb.Auth/AuthStatus", Nothing, pb::AuthStatusRequest {}),
        row(
            "/etcdserverpb.Auth/Authenticate",
            Nothing,
            pb::AuthenticateRequest { name: "root".into(), password: "guess".into() },
        ),
        row(
            "/etcdserverpb.Auth/UserAdd",
            Root,
            pb::AuthUserAddRequest { name: format!("of-{caller}"), ..Default::default() },
        ),
        row("/etcdserverpb.Auth/UserGet", Root, pb::AuthUserGetRequest { name: "root".into() }),
        row("/etcdserverpb.Auth/UserGet", User, pb::AuthUserGetRequest { name: caller.into() }),
        row("/etcdserverpb.Auth/UserList", Root, pb::AuthUserListRequest {}),
        row("/etcdserverpb.Auth/UserDelete", Root, pb::AuthUserDeleteRequest { name: unknown() }),
        row(
            "/etcdserverpb.Auth/UserChangePassword",
            Root,
            pb::AuthUserChangePasswordRequest {
                name: unknown(),
                password: "x".into(),
                ..Default::default()
            },
        ),
        row(
            "/etcdserverpb.Auth/UserGrantRole",
            Root,
            pb::AuthUserGrantRoleRequest { user: unknown(), role: "root".into() },
        ),
        row(
            "/etcdserverpb.Auth/UserRevokeRole",
            Root,
            pb::AuthUserRevokeRoleRequest { name: unknown(), role: "root".into() },
        ),
        row("/etcdserverpb.Auth/RoleAdd", Root, pb::AuthRoleAddRequest { name: "app".into() }),
        row("/etcdserverpb.Auth/RoleGet", Root, pb::AuthRoleGetRequest { role: "root".into() }),
        row("/etcdserverpb.Auth/RoleList", Root, pb::AuthRoleListRequest {}),
        row("/etcdserverpb.Auth/RoleDelete", Root, pb::AuthRoleDeleteRequest { role: unknown() }),
        row(
            "/etcdserverpb.Auth/RoleGrantPermission",
            Root,
            pb::AuthRoleGrantPermissionRequest { name: unknown(), perm: Some(permission) },
        ),
        row(
            "/etcdserverpb.Auth/RoleRevokePermission",
            Root,
            pb::AuthRoleRevokePermissionRequest { role: unknown(), ..Default::default() },
        ),
        // This call must be the last one, because as root it disables authentication.
        row("/etcdserverpb.Auth/AuthDisable", Root, pb::AuthDisableRequest {}),
    ]
}

/// Makes a call. Returns whether it succeeded; for a stream, the first response counts.
async fn hear(channel: &Channel, path: &str, token: &str, message: Bytes) -> Result<(), Status> {
    let mut grpc = tonic::client::Grpc::new(channel.clone());
    grpc.ready().await.unwrap();
    // The request stream stays open.
    let (more, asked) = tokio::sync::mpsc::channel(1);
    more.send(message).await.unwrap();
    let asked = tokio_stream::wrappers::ReceiverStream::new(asked);
    let request: Request<_> = by(token, asked);
    // A method with a single request expects the end of the request stream.
    let streams = ["/etcdserverpb.Watch/Watch", "/etcdserverpb.Lease/LeaseKeepAlive"];
    let more = streams.contains(&path).then_some(more);
    let first = async {
        let answers = grpc.streaming(request, path.parse().unwrap(), Raw).await?;
        answers.into_inner().message().await
    };
    let Ok(answer) = tokio::time::timeout(SILENCE, first).await else {
        return Err(Status::deadline_exceeded("nothing was heard"));
    };
    drop(more);
    let answer = answer?;
    if path == "/etcdserverpb.Watch/Watch" {
        let response = pb::WatchResponse::decode(answer.unwrap()).unwrap();
        if response.canceled {
            return Err(Status::permission_denied(response.cancel_reason));
        }
    }
    Ok(())
}

/// Makes the same call in JSON, for methods that do not stream. Returns the error message.
fn hear_json(server: &Server, method: &MethodDescriptor, token: &str, message: Bytes) -> String {
    let names = [("Compact", "compaction"), ("DeleteRange", "deleterange")];
    let name = names.iter().find(|(name, _)| *name == method.name());
    let name = name.map_or(method.name().to_lowercase(), |(_, path)| (*path).to_owned());
    let message = DynamicMessage::decode(method.input(), message).unwrap();
    let mut json = serde_json::Serializer::new(Vec::new());
    message.serialize_with_options(&mut json, &SerializeOptions::new()).unwrap();
    let body = String::from_utf8(json.into_inner()).unwrap();
    let header =
        if token.is_empty() { String::new() } else { format!("Authorization: {token}\r\n") };
    http_with(&server.address, "POST", &format!("/v3/kv/{name}"), &header, &body).1.text()
}

async fn tokens(channel: &Channel) -> Vec<String> {
    let mut tokens = vec![String::new(), "not a token".to_owned()];
    for (name, _) in &CALLERS[2..] {
        tokens.push(login(channel, name).await.unwrap());
    }
    tokens
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_method_is_open_only_to_the_users_of_the_table() {
    let server = Server::alone(&CHEAP);
    let channel = guarded(&server).await;
    let root = login(&channel, "root").await.unwrap();
    let mut auth = pb::auth_client::AuthClient::new(channel.clone());
    let add = pb::AuthUserAddRequest {
        name: "wes".into(),
        password: "wes's".into(),
        ..Default::default()
    };
    auth.user_add(by(&root, add)).await.unwrap();
    auth.role_add(by(&root, pb::AuthRoleAddRequest { name: "fill".into() })).await.unwrap();
    let perm_type = authpb::permission::Type::Write.into();
    let (key, range_end) = (b"app/".to_vec(), b"app0".to_vec());
    let perm = Some(authpb::Permission { perm_type, key, range_end });
    let grant = pb::AuthRoleGrantPermissionRequest { name: "fill".into(), perm };
    auth.role_grant_permission(by(&root, grant)).await.unwrap();
    let grant = pb::AuthUserGrantRoleRequest { user: "wes".into(), role: "fill".into() };
    auth.user_grant_role(by(&root, grant)).await.unwrap();
    let mut leases = pb::lease_client::LeaseClient::new(channel.clone());
    for id in [LEASE_OUTSIDE, LEASE_BARE] {
        leases.lease_grant(by(&root, pb::LeaseGrantRequest { ttl: 3600, id })).await.unwrap();
    }
    let mut kv = pb::kv_client::KvClient::new(channel.clone());
    kv.put(by(&root, pb::PutRequest { lease: LEASE_OUTSIDE, ..put("secret") })).await.unwrap();
    let pool = DescriptorPool::decode(bowline_proto::DESCRIPTORS);
    let methods: Vec<_> = pool
        .unwrap()
        .services()
        .flat_map(|service| service.methods().collect::<Vec<_>>())
        .map(|method| {
            (format!("/{}/{}", method.parent_service().full_name(), method.name()), method)
        })
        .collect();
    let all: BTreeSet<_> = methods.iter().map(|(path, _)| path.as_str()).collect();
    let mut named = BTreeSet::new();
    let (mut asked, mut wrong) = (0, Vec::new());
    for ((caller, rights), token) in CALLERS.iter().zip(tokens(&channel).await) {
        // Both elections need leaders, so that the permitted `Resign` calls succeed.
        for name in ["app/e/1", "no/e/1"] {
            kv.put(by(&root, put(name))).await.unwrap();
        }
        let rows = [rows_of_keys(caller), rows_of_servers(), rows_of_users(caller)].concat();
        for (path, needs, message) in rows {
            named.insert(path);
            let expected = needs.rejection(caller, rights);
            let method = &methods.iter().find(|(name, _)| name == path).expect(path).1;
            let received = hear(&channel, path, &token, message.clone()).await;
            let words = received.as_ref().err().map(|status| status.message().to_owned());
            let rejections = ["user name is empty", "invalid auth token", "permission denied"];
            let rejection =
                words.filter(|words| rejections.iter().any(|rejection| words.contains(rejection)));
            asked += 1;
            if rejection.as_deref() != expected {
                wrong
                    .push(format!("{caller} at {path}, {needs:?}: {received:?}, not {expected:?}"));
            }
            if received.as_ref().is_err_and(|status| status.code() == Code::DeadlineExceeded) {
                wrong.push(format!("{caller} at {path}: {received:?}"));
            }
            if expected.is_some() && received.is_err_and(|status| status.code() == Code::Unknown) {
                wrong.push(format!("{caller} at {path}: refused with no code of its own"));
            }
            if method.parent_service().name() == "KV" && method.name() != "RangeStream" {
                let answer_text = hear_json(&server, method, &token, message);
                let is_right = match expected {
                    Some(words) => answer_text.contains(words),
                    None => rejections.iter().all(|rejection| !answer_text.contains(rejection)),
                };
                asked += 1;
                if !is_right {
                    wrong.push(format!("{caller} at {path} in JSON, {needs:?}: {answer_text}"));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{} of {asked}:\n{}", wrong.len(), wrong.join("\n"));
    assert_eq!(named, all, "every method is in the table");
    let (status, answer_text) = server.stop();
    assert!(status.success() && !answer_text.contains("panicked"), "{answer_text}");
}
