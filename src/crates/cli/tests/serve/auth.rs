//! Tests of users and roles: the permissions for every method and every kind of caller.

use base64::prelude::{BASE64_STANDARD, Engine as _};
use bytes::{Buf, BufMut, Bytes};
use prost_reflect::DescriptorPool;
use tokio::task::JoinSet;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::transport::Channel;
use tonic::{Code, Request, Status};

use crate::requests::{get, put};
use authpb::permission::Type;
use bowline_proto::authpb;
use bowline_proto::etcdserverpb as pb;
use bowline_proto::v3lockpb::LockRequest;
use bowline_proto::v3lockpb::lock_client::LockClient;
use bowline_testkit::process::Server;
use pb::auth_client::AuthClient;
use pb::cluster_client::ClusterClient;
use pb::kv_client::KvClient;
use pb::lease_client::LeaseClient;
use pb::maintenance_client::MaintenanceClient;
use pb::watch_client::WatchClient;

/// The fastest setting for password checks.
pub(crate) const CHEAP: [&str; 2] = ["--bcrypt-cost", "4"];

pub(crate) fn by<T>(token: &str, message: T) -> Request<T> {
    let mut request = Request::new(message);
    if !token.is_empty() {
        request.metadata_mut().insert("token", token.parse().unwrap());
    }
    request
}

fn assert_error<T: std::fmt::Debug>(result: Result<T, Status>, code: Code, words: &str) {
    let status = result.unwrap_err();
    assert_eq!((status.code(), status.message()), (code, words));
}

pub(crate) async fn login(channel: &Channel, name: &str) -> Result<String, Status> {
    let mut auth = AuthClient::new(channel.clone());
    let request = pb::AuthenticateRequest { name: name.into(), password: format!("{name}'s") };
    Ok(auth.authenticate(request).await?.into_inner().token)
}

/// Creates users and enables authentication: `root`, `ann` who may read and write below `app/`, `rob` who may read
/// there, and `bob` without a role. Passwords derive from the names.
pub(crate) async fn guarded(server: &Server) -> Channel {
    guard(server.channel().await).await
}

/// Like [`guarded`], for the server behind a channel.
pub(crate) async fn guard(channel: Channel) -> Channel {
    let mut auth = AuthClient::new(channel.clone());
    for name in ["root", "ann", "rob", "bob"] {
        let (name, password) = (name.to_owned(), format!("{name}'s"));
        let add = pb::AuthUserAddRequest { name, password, ..Default::default() };
        auth.user_add(add).await.unwrap();
    }
    for (role, perm_type) in [("app", Type::Readwrite), ("look", Type::Read)] {
        auth.role_add(pb::AuthRoleAddRequest { name: role.into() }).await.unwrap();
        let (key, range_end) = (b"app/".to_vec(), b"app0".to_vec());
        let perm = Some(authpb::Permission { perm_type: perm_type.into(), key, range_end });
        let grant = pb::AuthRoleGrantPermissionRequest { name: role.into(), perm };
        auth.role_grant_permission(grant).await.unwrap();
    }
    for (user, role) in [("root", "root"), ("ann", "app"), ("rob", "look")] {
        let grant = pb::AuthUserGrantRoleRequest { user: user.into(), role: role.into() };
        auth.user_grant_role(grant).await.unwrap();
    }
    auth.auth_enable(pb::AuthEnableRequest {}).await.unwrap();
    channel
}

async fn alone() -> (Server, Channel) {
    let server = Server::alone(&CHEAP);
    let channel = guarded(&server).await;
    (server, channel)
}

/// Sends messages without encoding.
pub(crate) struct Raw;

impl Codec for Raw {
    type Encode = Bytes;
    type Decode = Bytes;
    type Encoder = Raw;
    type Decoder = Raw;

    fn encoder(&mut self) -> Raw {
        Raw
    }

    fn decoder(&mut self) -> Raw {
        Raw
    }
}

impl Encoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, item: Bytes, to: &mut EncodeBuf<'_>) -> Result<(), Status> {
        to.put(item);
        Ok(())
    }
}

impl Decoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        Ok(Some(from.copy_to_bytes(from.remaining())))
    }
}

/// As with etcd, so that clients can detect that a server lacks a method.
#[tokio::test]
async fn unknown_method_is_unimplemented_for_every_caller() {
    let (_server, channel) = alone().await;
    let bob = login(&channel, "bob").await.unwrap();
    for token in ["", "not a token", &bob] {
        for path in [
            "/etcdserverpb.KV/Nothing",
            "/etcdserverpb.Nothing/Range",
            "//etcdserverpb.KV/Range",
            "/etcdserverpb.KV/Range/",
            "/etcdserverpb.kv/range",
            "/nothing",
        ] {
            let mut grpc = tonic::client::Grpc::new(channel.clone());
            grpc.ready().await.unwrap();
            let answer = grpc.unary(by(token, Bytes::new()), path.parse().unwrap(), Raw).await;
            let status = answer.unwrap_err();
            assert_eq!(status.code(), Code::Unimplemented, "{path} with {token:?}: {status:?}");
            assert!(status.message().contains(path), "{status:?}");
        }
    }
}

/// Covers every method, including methods added later. Without a user every method fails, and methods for root fail for
/// other users.
#[tokio::test]
async fn every_method_rejects_anonymous_callers_and_operator_methods_require_root() {
    let (_server, channel) = alone().await;
    let bob = login(&channel, "bob").await.unwrap();
    let pool = DescriptorPool::decode(bowline_proto::DESCRIPTORS);
    let (mut methods, mut for_root) = (0, 0);
    for service in pool.unwrap().services() {
        if service.full_name().starts_with("grpc.health") {
            continue;
        }
        for method in service.methods() {
            if method.is_client_streaming() || method.is_server_streaming() {
                continue;
            }
            methods += 1;
            let path = format!("/{}/{}", service.full_name(), method.name());
            let call = |token: &str| {
                let mut grpc = tonic::client::Grpc::new(channel.clone());
                let (request, path) = (by(token, Bytes::new()), path.parse().unwrap());
                async move {
                    grpc.ready().await.unwrap();
                    grpc.unary(request, path, Raw).await
                }
            };
            if method.name() == "AuthStatus" {
                // As in etcd since 3.7, this call needs no valid token.
                for token in ["", "not a token", &bob] {
                    call(token).await.expect(&path);
                }
                continue;
            }
            let status = call("").await.expect_err(&path);
            if method.name() == "Authenticate" {
                assert_eq!(
                    status.message(),
                    "etcdserver: authentication failed, invalid user ID or password"
                );
                continue;
            }
            let refused = status.code() == Code::InvalidArgument;
            assert!(refused, "{path}: {status:?}");
            let status = call("not a token").await.expect_err(&path);
            assert_eq!(status.message(), "etcdserver: invalid auth token", "{path}");
            let of_keys = ["KV", "Lease", "Lock", "Election"].contains(&service.name());
            let of_all = ["MemberList", "Alarm", "Status"].contains(&method.name());
            if !of_keys && !of_all {
                for_root += 1;
                let status = call(&bob).await.expect_err(&path);
                assert_eq!(status.message(), "etcdserver: permission denied", "{path}");
            } else if of_all {
                call(&bob).await.expect(&path);
            }
        }
    }
    assert!(methods > 40 && for_root > 20, "{methods} methods, {for_root} for root");
}

#[tokio::test]
async fn keys_are_accessible_only_with_a_permission() {
    let (_server, channel) = alone().await;
    let mut kv = KvClient::new(channel.clone());
    let (root, ann, rob, bob) = (
        login(&channel, "root").await.unwrap(),
        login(&channel, "ann").await.unwrap(),
        login(&channel, "rob").await.unwrap(),
        login(&channel, "bob").await.unwrap(),
    );
    kv.put(by(&root, put("secret"))).await.unwrap();
    kv.put(by(&ann, put("app/a"))).await.unwrap();
    let denied = "etcdserver: permission denied";
    assert_error(kv.put(by(&rob, put("app/a"))).await, Code::PermissionDenied, denied);
    assert_error(kv.put(by(&ann, put("secret"))).await, Code::PermissionDenied, denied);
    assert_error(
        kv.put(by("", put("app/a"))).await,
        Code::InvalidArgument,
        "etcdserver: user name is empty",
    );
    for serializable in [false, true] {
        let read = |key| pb::RangeRequest { serializable, ..get(key) };
        assert_eq!(kv.range(by(&rob, read("app/a"))).await.unwrap().into_inner().count, 1);
        assert_error(kv.range(by(&rob, read("secret"))).await, Code::PermissionDenied, denied);
        assert_error(kv.range(by(&bob, read("app/a"))).await, Code::PermissionDenied, denied);
        let all = pb::RangeRequest { range_end: "\0".into(), count_only: true, ..read("\0") };
        assert_error(kv.range(by(&ann, all.clone())).await, Code::PermissionDenied, denied);
        assert_eq!(kv.range(by(&root, all)).await.unwrap().into_inner().count, 2);
    }
    // One transaction has nested operations, and one only compares.
    let inner = pb::TxnRequest { failure: vec![get("secret").into()], ..Default::default() };
    let outer = pb::TxnRequest { success: vec![inner.into()], ..Default::default() };
    assert_error(kv.txn(by(&ann, outer.clone())).await, Code::PermissionDenied, denied);
    kv.txn(by(&root, outer)).await.unwrap();
    let compare = pb::Compare { key: "secret".into(), ..Default::default() };
    let peek = pb::TxnRequest { compare: vec![compare], ..Default::default() };
    assert_error(kv.txn(by(&ann, peek)).await, Code::PermissionDenied, denied);
    let compact = pb::CompactionRequest { revision: 2, physical: false };
    assert_error(kv.compact(by(&ann, compact)).await, Code::PermissionDenied, denied);
    kv.compact(by(&root, compact)).await.unwrap();
}

#[tokio::test]
async fn lease_calls_require_permission_for_the_attached_keys() {
    let (_server, channel) = alone().await;
    let (root, ann) =
        (login(&channel, "root").await.unwrap(), login(&channel, "ann").await.unwrap());
    let mut leases = LeaseClient::new(channel.clone());
    let mut kv = KvClient::new(channel);
    let grant = pb::LeaseGrantRequest { ttl: 60, id: 7 };
    assert_error(
        leases.lease_grant(by("", grant)).await,
        Code::InvalidArgument,
        "etcdserver: user name is empty",
    );
    leases.lease_grant(by(&ann, grant)).await.unwrap();
    kv.put(by(&root, pb::PutRequest { lease: 7, ..put("secret") })).await.unwrap();
    let denied = "etcdserver: permission denied";
    let attach = pb::PutRequest { lease: 7, ..put("app/a") };
    assert_error(kv.put(by(&ann, attach)).await, Code::PermissionDenied, denied);
    let revoke = pb::LeaseRevokeRequest { id: 7 };
    assert_error(leases.lease_revoke(by(&ann, revoke)).await, Code::PermissionDenied, denied);
    let named = pb::LeaseTimeToLiveRequest { id: 7, keys: true };
    assert_error(leases.lease_time_to_live(by(&ann, named)).await, Code::PermissionDenied, denied);
    let left = pb::LeaseTimeToLiveRequest { id: 7, keys: false };
    assert!(leases.lease_time_to_live(by(&ann, left)).await.unwrap().into_inner().ttl > 0);
    let list = pb::LeaseLeasesRequest {};
    assert_error(leases.lease_leases(by(&ann, list)).await, Code::PermissionDenied, denied);
    let all = leases.lease_leases(by(&root, pb::LeaseLeasesRequest {})).await.unwrap().into_inner();
    assert_eq!(all.leases.len(), 1);
    let again = pb::LeaseKeepAliveRequest { id: 7 };
    assert_error(
        leases.lease_keep_alive(by("", tokio_stream::once(again))).await,
        Code::InvalidArgument,
        "etcdserver: user name is empty",
    );
    let mut hers = leases.lease_keep_alive(by(&ann, tokio_stream::once(again))).await.unwrap();
    assert_error(hers.get_mut().message().await, Code::PermissionDenied, denied);
    let mut roots = leases.lease_keep_alive(by(&root, tokio_stream::once(again))).await.unwrap();
    assert!(roots.get_mut().message().await.unwrap().unwrap().ttl > 0);
    kv.put(by(&root, put("secret"))).await.unwrap();
    let mut hers = leases.lease_keep_alive(by(&ann, tokio_stream::once(again))).await.unwrap();
    assert!(
        hers.get_mut().message().await.unwrap().unwrap().ttl > 0,
        "no key is attached to it now"
    );
    leases.lease_revoke(by(&root, revoke)).await.unwrap();
    let all = leases.lease_leases(by(&ann, list)).await.unwrap().into_inner();
    assert_eq!(all.leases, [], "nothing is hidden any more");
}

#[tokio::test]
async fn watch_requires_read_permission_and_ends_when_it_is_revoked() {
    let (_server, channel) = alone().await;
    let (root, rob) =
        (login(&channel, "root").await.unwrap(), login(&channel, "rob").await.unwrap());
    let mut watch = WatchClient::new(channel.clone());
    let create = |key: &'static str, end: &'static str| {
        let (key, range_end) = (key.into(), end.into());
        pb::WatchRequest::from(pb::WatchCreateRequest { key, range_end, ..Default::default() })
    };
    let (ask, asked) = tokio::sync::mpsc::channel(8);
    let asked = tokio_stream::wrappers::ReceiverStream::new(asked);
    let mut responses = watch.watch(by(&rob, asked)).await.unwrap().into_inner();
    // The ranges extend to the end of all keys, as in GHSA-xg4h-6gfc-h4m8.
    for (key, end) in [("secret", ""), ("app/", "\0"), ("app/a", "\0"), ("", "\0")] {
        ask.send(create(key, end)).await.unwrap();
        let rejection = responses.message().await.unwrap().unwrap();
        assert!(
            rejection.created && rejection.canceled && rejection.watch_id == -1,
            "{rejection:?}"
        );
        assert_eq!(rejection.cancel_reason, "etcdserver: permission denied");
    }
    ask.send(create("app/", "app0")).await.unwrap();
    assert!(!responses.message().await.unwrap().unwrap().canceled);
    let mut kv = KvClient::new(channel.clone());
    kv.put(by(&root, put("app/a"))).await.unwrap();
    assert_eq!(responses.message().await.unwrap().unwrap().events.len(), 1);
    // A change of another user has no effect on rob. Then rob loses the role.
    let mut auth = AuthClient::new(channel);
    let role = |user: &str, role: &str| pb::AuthUserRevokeRoleRequest {
        name: user.to_owned(),
        role: role.to_owned(),
    };
    auth.user_revoke_role(by(&root, role("ann", "app"))).await.unwrap();
    kv.put(by(&root, put("app/a"))).await.unwrap();
    assert_eq!(responses.message().await.unwrap().unwrap().events.len(), 1);
    auth.user_revoke_role(by(&root, role("rob", "look"))).await.unwrap();
    kv.put(by(&root, put("app/a"))).await.unwrap();
    let ended = responses.message().await.unwrap().unwrap();
    assert!(ended.canceled && ended.events.is_empty(), "{ended:?}");
    assert_eq!(ended.cancel_reason, "etcdserver: permission denied");
}

#[tokio::test]
async fn lock_requires_permission_for_its_key_prefix() {
    let (_server, channel) = alone().await;
    let (ann, rob) = (login(&channel, "ann").await.unwrap(), login(&channel, "rob").await.unwrap());
    let mut locks = LockClient::new(channel);
    let lock = |name: &'static str| LockRequest { name: name.into(), lease: 0 };
    let held = locks.lock(by(&ann, lock("app/l"))).await.unwrap().into_inner();
    assert!(held.key.starts_with(b"app/l/"));
    let denied = "etcdserver: permission denied";
    assert_error(locks.lock(by(&rob, lock("app/l"))).await, Code::PermissionDenied, denied);
    assert_error(locks.lock(by(&ann, lock("other"))).await, Code::PermissionDenied, denied);
    let no_user = "etcdserver: user name is empty";
    assert_error(locks.lock(by("", lock("app/l"))).await, Code::InvalidArgument, no_user);
}

#[tokio::test]
async fn password_change_or_auth_disable_invalidates_tokens() {
    let (_server, channel) = alone().await;
    let (root, ann) =
        (login(&channel, "root").await.unwrap(), login(&channel, "ann").await.unwrap());
    let mut auth = AuthClient::new(channel.clone());
    let mut kv = KvClient::new(channel.clone());
    let failed = "etcdserver: authentication failed, invalid user ID or password";
    assert_error(login(&channel, "eve").await, Code::InvalidArgument, failed);
    let (name, password) = ("ann".to_owned(), "new".to_owned());
    let wrong = pb::AuthenticateRequest { name: name.clone(), password: "ann".to_owned() };
    assert_error(auth.authenticate(wrong).await, Code::InvalidArgument, failed);
    let own = pb::AuthUserGetRequest { name: name.clone() };
    assert_eq!(auth.user_get(by(&ann, own)).await.unwrap().into_inner().roles, ["app"]);
    let change = pb::AuthUserChangePasswordRequest { name, password, ..Default::default() };
    let denied = "etcdserver: permission denied";
    assert_error(
        auth.user_change_password(by(&ann, change.clone())).await,
        Code::PermissionDenied,
        denied,
    );
    auth.user_change_password(by(&root, change)).await.unwrap();
    let void = "etcdserver: invalid auth token";
    assert_error(kv.put(by(&ann, put("app/a"))).await, Code::Unauthenticated, void);
    assert_error(login(&channel, "ann").await, Code::InvalidArgument, failed);
    assert_error(
        auth.user_delete(by(&root, pb::AuthUserDeleteRequest { name: "root".into() })).await,
        Code::InvalidArgument,
        "etcdserver: invalid auth management",
    );
    auth.auth_disable(by(&root, pb::AuthDisableRequest {})).await.unwrap();
    kv.put(by("", put("anything"))).await.unwrap();
    kv.put(by(&ann, put("anything"))).await.expect("tokens are ignored");
}

#[tokio::test]
async fn users_are_replicated_to_all_members() {
    let servers = Server::three();
    guarded(&servers[0]).await;
    // A login reads the newest users, even at a member that lags.
    let mut tokens = Vec::new();
    for server in &servers {
        tokens.push(login(&server.channel().await, "ann").await.unwrap());
    }
    for (at, token) in tokens.iter().enumerate() {
        assert!(!token.contains("ann"), "the token must not contain the name");
        let (channel, other) = (servers[at].channel().await, &servers[(at + 1) % 3]);
        let mut elsewhere = KvClient::new(other.channel().await);
        elsewhere.put(by(token, put("app/a"))).await.expect("every member accepts the token");
        ClusterClient::new(channel.clone())
            .member_list(by(token, pb::MemberListRequest { linearizable: true }))
            .await
            .unwrap();
        let snapshot = MaintenanceClient::new(channel)
            .snapshot(by(token, pb::SnapshotRequest {}))
            .await
            .unwrap_err();
        assert_eq!(snapshot.code(), Code::PermissionDenied);
    }
}

/// As in etcd, an empty password allows no login.
#[tokio::test]
async fn user_with_an_empty_password_cannot_log_in() {
    let (_server, channel) = alone().await;
    let root = login(&channel, "root").await.unwrap();
    let mut auth = AuthClient::new(channel.clone());
    let add = |name: &str, options| pb::AuthUserAddRequest {
        name: name.to_owned(),
        options,
        ..Default::default()
    };
    let without = Some(authpb::UserAddOptions { no_password: true });
    auth.user_add(by(&root, add("none", without))).await.unwrap();
    auth.user_add(by(&root, add("empty", None))).await.unwrap();
    let change = |name: &str, password: &str| {
        let (name, password) = (name.to_owned(), password.to_owned());
        by(&root, pb::AuthUserChangePasswordRequest { name, password, ..Default::default() })
    };
    auth.user_change_password(change("ann", "")).await.unwrap();
    // The user `none` still has no password.
    auth.user_change_password(change("none", "none's")).await.unwrap();
    let failed = "etcdserver: authentication failed, invalid user ID or password";
    for name in ["none", "empty", "ann"] {
        for password in [String::new(), format!("{name}'s")] {
            let request = pb::AuthenticateRequest { name: name.to_owned(), password };
            assert_error(auth.authenticate(request).await, Code::InvalidArgument, failed);
        }
    }
    // The other users can log in again with a new password.
    for name in ["empty", "ann"] {
        auth.user_change_password(change(name, &format!("{name}'s"))).await.unwrap();
        login(&channel, name).await.unwrap();
    }
}

#[tokio::test]
async fn concurrent_auth_changes_all_apply_while_leases_are_granted() {
    let (_server, channel) = alone().await;
    let (root, bob) =
        (login(&channel, "root").await.unwrap(), login(&channel, "bob").await.unwrap());
    let mut asked = JoinSet::new();
    for at in 0..32 {
        let mut auth = AuthClient::new(channel.clone());
        let add = by(&root, pb::AuthRoleAddRequest { name: format!("role-{at}") });
        asked.spawn(async move { auth.role_add(add).await.map(drop) });
        let mut leases = LeaseClient::new(channel.clone());
        let grant = by(&bob, pb::LeaseGrantRequest { ttl: 100, id: 0 });
        asked.spawn(async move { leases.lease_grant(grant).await.map(drop) });
        let mut maintenance = MaintenanceClient::new(channel.clone());
        let action = pb::alarm_request::AlarmAction::Deactivate.into();
        let end = by(&root, pb::AlarmRequest { action, ..Default::default() });
        asked.spawn(async move { maintenance.alarm(end).await.map(drop) });
    }
    let ended = asked.join_all().await;
    let refused: Vec<_> = ended.into_iter().filter_map(Result::err).collect();
    assert!(refused.is_empty(), "{} of them: {:?}", refused.len(), refused[0]);
    let list = by(&root, pb::AuthRoleListRequest {});
    let roles = AuthClient::new(channel).role_list(list).await.unwrap().into_inner().roles;
    assert_eq!(roles.iter().filter(|role| role.starts_with("role-")).count(), 32);
}

#[tokio::test]
async fn unknown_permission_type_and_costly_hash_are_rejected() {
    let (_server, channel) = alone().await;
    let root = login(&channel, "root").await.unwrap();
    let mut auth = AuthClient::new(channel.clone());
    let perm = authpb::Permission { perm_type: 3, key: b"secret".to_vec(), range_end: Vec::new() };
    let grant = pb::AuthRoleGrantPermissionRequest { name: "look".into(), perm: Some(perm) };
    let refused = auth.role_grant_permission(by(&root, grant)).await.unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument);
    assert!(refused.message().contains("unknown permission type 3"), "{refused:?}");
    let look = pb::AuthRoleGetRequest { role: "look".into() };
    assert_eq!(auth.role_get(by(&root, look)).await.unwrap().into_inner().perm.len(), 1);
    let hash = format!("$2b$31${}", ".".repeat(53));
    let hashed_password = BASE64_STANDARD.encode(hash);
    let name = "dear".to_owned();
    let add = pb::AuthUserAddRequest { name, hashed_password, ..Default::default() };
    let refused = auth.user_add(by(&root, add)).await.unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument);
    assert!(refused.message().contains("--bcrypt-cost"), "{refused:?}");
}
