//! Tests of tokens: after a token is invalidated, it permits nothing any more, wherever it was used before.

use std::time::{Duration, Instant};

use base64::prelude::{BASE64_STANDARD, Engine as _};
use bytes::Bytes;
use prost::Message;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Channel;
use tonic::{Code, Status, Streaming};

use crate::auth::{CHEAP, Raw, by, guarded, login};
use crate::requests::{get, put};
use bowline_proto::etcdserverpb as pb;
use bowline_testkit::process::Server;
use pb::auth_client::AuthClient;
use pb::kv_client::KvClient;
use pb::lease_client::LeaseClient;
use pb::watch_client::WatchClient;

const VOID: &str = "etcdserver: invalid auth token";
const DENIED: &str = "etcdserver: permission denied";

/// A watch stream that was opened with a token.
pub(crate) struct Watches {
    ask: mpsc::Sender<pb::WatchRequest>,
    responses: Streaming<pb::WatchResponse>,
}

impl Watches {
    pub(crate) async fn open(channel: &Channel, token: &str) -> Self {
        let (ask, asked) = mpsc::channel(8);
        let mut watch = WatchClient::new(channel.clone());
        let responses =
            watch.watch(by(token, ReceiverStream::new(asked))).await.unwrap().into_inner();
        Self { ask, responses }
    }

    pub(crate) async fn next(&mut self) -> pb::WatchResponse {
        let response =
            tokio::time::timeout(Duration::from_secs(60), self.responses.message()).await;
        response.expect("a response in time").unwrap().expect("the stream is open")
    }

    /// Creates another watch. Returns its ID, or the reason why it was rejected.
    pub(crate) async fn create(&mut self, key: &'static str) -> Result<i64, String> {
        let key = key.into();
        let create = pb::WatchCreateRequest { key, ..Default::default() };
        self.ask.send(create.into()).await.unwrap();
        let response = self.next().await;
        assert!(response.created, "{response:?}");
        match response.canceled {
            false => Ok(response.watch_id),
            true => {
                assert_eq!(response.watch_id, -1, "{response:?}");
                Err(response.cancel_reason)
            }
        }
    }
}

/// How long to retry if a token expires before it is used.
const LIMIT: Duration = Duration::from_secs(60);

/// Returns a token of the user, and a stream that was opened with it and has a first watch. Retries if a short-lived
/// token expires before that.
pub(crate) async fn signed_in(channel: &Channel, user: &str) -> (String, Watches) {
    let begun = Instant::now();
    loop {
        let token = login(channel, user).await.unwrap();
        let mut watches = Watches::open(channel, &token).await;
        match watches.create("app/a").await {
            Ok(id) => {
                assert_eq!(id, 0);
                return (token, watches);
            }
            Err(refused) => assert_eq!(refused, VOID),
        }
        assert!(begun.elapsed() < LIMIT, "every token expired too early");
    }
}

async fn new_password(channel: &Channel, root: &str, name: &str) {
    let (name, password) = (name.to_owned(), "another".to_owned());
    let change = pb::AuthUserChangePasswordRequest { name, password, ..Default::default() };
    AuthClient::new(channel.clone()).user_change_password(by(root, change)).await.unwrap();
}

async fn delete_user(channel: &Channel, root: &str, name: &str) {
    let delete = pb::AuthUserDeleteRequest { name: name.to_owned() };
    AuthClient::new(channel.clone()).user_delete(by(root, delete)).await.unwrap();
}

#[tokio::test]
async fn invalid_token_opens_no_watch_and_open_watches_follow_permissions() {
    let server = Server::alone(&CHEAP);
    let channel = guarded(&server).await;
    let root = login(&channel, "root").await.unwrap();
    let mut kv = KvClient::new(channel.clone());
    let rob = login(&channel, "rob").await.unwrap();
    let mut watches = Watches::open(&channel, &rob).await;
    let first = watches.create("app/a").await.unwrap();
    assert_eq!(watches.create("secret").await, Err(DENIED.to_owned()));
    // A new password of another user does not invalidate the tokens of this user.
    new_password(&channel, &root, "bob").await;
    let second = watches.create("app/b").await.unwrap();
    new_password(&channel, &root, "rob").await;
    assert_eq!(watches.create("app/c").await, Err(VOID.to_owned()));
    for (key, id) in [("app/a", first), ("app/b", second)] {
        kv.put(by(&root, put(key))).await.unwrap();
        let response = watches.next().await;
        assert_eq!((response.watch_id, response.events.len(), response.canceled), (id, 1, false));
    }
    // A new user with the same name does not get the deleted one's permissions.
    delete_user(&channel, &root, "rob").await;
    assert_eq!(watches.create("app/c").await, Err(VOID.to_owned()));
    kv.put(by(&root, put("app/a"))).await.unwrap();
    let response = watches.next().await;
    assert_eq!((response.watch_id, response.canceled, response.events.len()), (first, true, 0));
    assert_eq!(response.cancel_reason, DENIED);
}

#[tokio::test]
async fn expired_token_opens_no_watch_on_an_open_stream() {
    let server = Server::alone(&[&CHEAP[..], &["--auth-token-ttl", "1"]].concat());
    let channel = guarded(&server).await;
    let (_, mut watches) = signed_in(&channel, "rob").await;
    // The pause is the TTL, plus the rest of the second in which the token was made.
    tokio::time::sleep(Duration::from_millis(2100)).await;
    assert_eq!(watches.create("app/b").await, Err(VOID.to_owned()));
    let begun = Instant::now();
    loop {
        let root = login(&channel, "root").await.unwrap();
        let Err(refused) = KvClient::new(channel.clone()).put(by(&root, put("app/a"))).await else {
            break;
        };
        assert_eq!(refused.message(), VOID);
        assert!(begun.elapsed() < LIMIT, "every token expired too early");
    }
    let response = watches.next().await;
    assert_eq!((response.watch_id, response.events.len()), (0, 1), "the first watch continues");
}

/// Clients (jetcd) log in again after an error about a watch, but not after an error about the stream.
#[tokio::test]
async fn stream_with_an_invalid_token_cancels_each_watch() {
    let server = Server::alone(&CHEAP);
    let channel = guarded(&server).await;
    let mut watches = Watches::open(&channel, "no token").await;
    for _ in 0..2 {
        assert_eq!(watches.create("app/a").await, Err(VOID.to_owned()));
    }
}

/// A stream may have been opened before authentication was enabled.
#[tokio::test]
async fn stream_opened_before_auth_rejects_anonymous_watches() {
    let server = Server::alone(&CHEAP);
    let mut watches = Watches::open(&server.channel().await, "").await;
    watches.create("app/a").await.unwrap();
    guarded(&server).await;
    let no_user = "etcdserver: user name is empty";
    assert_eq!(watches.create("app/a").await, Err(no_user.to_owned()));
}

#[tokio::test]
async fn invalid_token_renews_only_its_own_leases_on_an_open_stream() {
    let server = Server::alone(&CHEAP);
    let channel = guarded(&server).await;
    let root = login(&channel, "root").await.unwrap();
    let mut leases = LeaseClient::new(channel.clone());
    for id in [7, 8] {
        leases.lease_grant(by(&root, pb::LeaseGrantRequest { ttl: 600, id })).await.unwrap();
    }
    let rob = login(&channel, "rob").await.unwrap();
    let mut streams = Vec::new();
    for _ in 0..2 {
        let (ask, asked) = mpsc::channel(8);
        let response = leases.lease_keep_alive(by(&rob, ReceiverStream::new(asked))).await.unwrap();
        streams.push((ask, response.into_inner()));
    }
    async fn renew(
        (ask, responses): &mut (
            mpsc::Sender<pb::LeaseKeepAliveRequest>,
            Streaming<pb::LeaseKeepAliveResponse>,
        ),
        id: i64,
    ) -> Result<i64, (Code, String)> {
        ask.send(pb::LeaseKeepAliveRequest { id }).await.unwrap();
        let response = tokio::time::timeout(Duration::from_secs(60), responses.message()).await;
        let response = response.expect("a response in time");
        let code_and_text = |status: Status| (status.code(), status.message().to_owned());
        Ok(response.map_err(code_and_text)?.expect("the stream is open").ttl)
    }
    for stream in &mut streams {
        assert_eq!(renew(stream, 7).await, Ok(600));
    }
    new_password(&channel, &root, "rob").await;
    for stream in &mut streams {
        assert_eq!(renew(stream, 7).await, Ok(600), "the lease is renewed on this stream");
    }
    let void = Err((Code::Unauthenticated, VOID.to_owned()));
    assert_eq!(renew(&mut streams[0], 8).await, void);
    delete_user(&channel, &root, "rob").await;
    let denied = Err((Code::PermissionDenied, DENIED.to_owned()));
    assert_eq!(renew(&mut streams[1], 7).await, denied);
}

/// Returns how many calls of a method have begun, according to a metrics page.
fn begun(metrics: &str, method: &str) -> u64 {
    let label = format!("grpc_server_started_total{{grpc_method=\"{method}\"");
    let line = metrics.lines().find(|line| line.starts_with(&label)).unwrap();
    line.rsplit(' ').next().unwrap().parse().unwrap()
}

/// Waits until this number of calls have begun, whether they were accepted or rejected.
pub(crate) async fn until_begun(server: &Server, method: &str, calls: u64) {
    let waits = async {
        while begun(&server.http("GET", "/metrics", "").1, method) < calls {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), waits).await.expect("the headers do not arrive");
}

/// The headers arrive while the token is valid, the message after it was invalidated.
#[tokio::test]
async fn message_after_its_token_expired_has_no_effect() {
    let server = Server::alone(&CHEAP);
    let channel = guarded(&server).await;
    let root = login(&channel, "root").await.unwrap();
    let mut auth = AuthClient::new(channel.clone());
    let begin = |token: &str, path: &'static str| {
        let (send, message) = mpsc::channel::<Bytes>(1);
        let request = by(token, ReceiverStream::new(message));
        let channel = channel.clone();
        let answer = tokio::spawn(async move {
            let mut grpc = tonic::client::Grpc::new(channel);
            grpc.ready().await.unwrap();
            grpc.client_streaming(request, path.parse().unwrap(), Raw).await.map(drop)
        });
        (send, answer)
    };
    let ann = login(&channel, "ann").await.unwrap();
    // A second root user is about to lose the role.
    let grant = pb::AuthUserGrantRoleRequest { user: "bob".into(), role: "root".into() };
    auth.user_grant_role(by(&root, grant)).await.unwrap();
    let bob = login(&channel, "bob").await.unwrap();
    let puts = [begin(&ann, "/etcdserverpb.KV/Put"), begin(&bob, "/etcdserverpb.KV/Put")];
    let adds = begin(&bob, "/etcdserverpb.Cluster/MemberAdd");
    until_begun(&server, "Put", 2).await;
    until_begun(&server, "MemberAdd", 1).await;
    new_password(&channel, &root, "ann").await;
    let revoke = pb::AuthUserRevokeRoleRequest { name: "bob".into(), role: "root".into() };
    auth.user_revoke_role(by(&root, revoke)).await.unwrap();
    let add =
        pb::MemberAddRequest { peer_ur_ls: vec!["http://127.0.0.1:9".into()], is_learner: true };
    let messages =
        [put("app/late").encode_to_vec(), put("app/late").encode_to_vec(), add.encode_to_vec()];
    let expected = [
        (Code::Unauthenticated, VOID),
        (Code::PermissionDenied, DENIED),
        (Code::PermissionDenied, DENIED),
    ];
    for (((send, answer), message), expected) in
        puts.into_iter().chain([adds]).zip(messages).zip(expected)
    {
        send.send(message.into()).await.unwrap();
        drop(send);
        let answer = tokio::time::timeout(Duration::from_secs(60), answer).await;
        let refused = answer.expect("a response in time").unwrap().unwrap_err();
        assert_eq!((refused.code(), refused.message()), expected);
    }
    let found = KvClient::new(channel.clone())
        .range(by(&root, get("app/late")))
        .await
        .unwrap()
        .into_inner();
    assert_eq!(found.count, 0);
    let list = pb::MemberListRequest::default();
    let mut cluster = pb::cluster_client::ClusterClient::new(channel.clone());
    assert_eq!(cluster.member_list(by(&root, list)).await.unwrap().into_inner().members.len(), 1);
}

/// Between the check of a token and the change, a password is hashed, after other passwords in a queue.
#[tokio::test]
async fn token_that_expires_during_hashing_changes_nothing() {
    let server = Server::alone(&["--bcrypt-cost", "12"]);
    let channel = server.channel().await;
    let mut auth = AuthClient::new(channel.clone());
    let hashed = |password: &str| BASE64_STANDARD.encode(bcrypt::hash(password, 4).unwrap());
    for name in ["root", "bob"] {
        let (name, hashed_password) = (name.to_owned(), hashed(&format!("{name}'s")));
        let add = pb::AuthUserAddRequest { name, hashed_password, ..Default::default() };
        auth.user_add(add).await.unwrap();
    }
    let grant = pb::AuthUserGrantRoleRequest { user: "root".into(), role: "root".into() };
    auth.user_grant_role(grant).await.unwrap();
    auth.auth_enable(pb::AuthEnableRequest {}).await.unwrap();
    let root = login(&channel, "root").await.unwrap();
    let change = |password: &str| {
        let (name, password) = ("bob".to_owned(), password.to_owned());
        let change = pb::AuthUserChangePasswordRequest { name, password, ..Default::default() };
        let (mut auth, request) = (AuthClient::new(channel.clone()), by(&root, change));
        tokio::spawn(async move { auth.user_change_password(request).await.map(drop) })
    };
    // Other changes in between do not affect the result.
    let changes = change("bob's");
    until_begun(&server, "UserChangePassword", 1).await;
    auth.role_add(by(&root, pb::AuthRoleAddRequest { name: "other".into() })).await.unwrap();
    changes.await.unwrap().unwrap();
    login(&channel, "bob").await.unwrap();
    // There are enough logins to keep the hashing queue busy for a while.
    let (_, metrics) = server.http("GET", "/metrics", "");
    let logins = begun(&metrics, "Authenticate");
    for _ in 0..4 {
        let channel = channel.clone();
        tokio::spawn(async move { login(&channel, "nobody").await.unwrap_err() });
    }
    until_begun(&server, "Authenticate", logins + 4).await;
    let changes = change("stolen");
    let adds = {
        let (name, password) = ("eve".to_owned(), "eve's".to_owned());
        let add = pb::AuthUserAddRequest { name, password, ..Default::default() };
        let (mut auth, request) = (AuthClient::new(channel.clone()), by(&root, add));
        tokio::spawn(async move { auth.user_add(request).await.map(drop) })
    };
    until_begun(&server, "UserChangePassword", 2).await;
    until_begun(&server, "UserAdd", 3).await;
    let (name, hashed_password) = ("root".to_owned(), hashed("another"));
    let rotate = pb::AuthUserChangePasswordRequest { name, hashed_password, ..Default::default() };
    auth.user_change_password(by(&root, rotate)).await.unwrap();
    for in_flight in [changes, adds] {
        let refused = in_flight.await.unwrap().unwrap_err();
        assert_eq!((refused.code(), refused.message()), (Code::Unauthenticated, VOID));
    }
    login(&channel, "bob").await.expect("bob's password is unchanged");
    login(&channel, "eve").await.unwrap_err();
}

/// The request arrives while the member is paused. When the member answers, it has the newer auth table.
#[tokio::test]
async fn lagging_member_shows_no_users_to_an_invalid_token() {
    let servers = Server::three();
    let channel = guarded(&servers[0]).await;
    let root = login(&channel, "root").await.unwrap();
    let mut lags = None;
    for server in &servers[1..] {
        let channel = server.channel().await;
        let mut maintenance = pb::maintenance_client::MaintenanceClient::new(channel.clone());
        let status = maintenance.status(by(&root, pb::StatusRequest {})).await;
        let status = status.unwrap().into_inner();
        if status.leader != status.header.unwrap().member_id {
            lags = Some((server, channel));
        }
    }
    let (lags, to) = lags.expect("there are two followers");
    lags.pause();
    let asks = {
        let (mut auth, root) = (AuthClient::new(to), root.clone());
        tokio::spawn(async move {
            let list = pb::AuthUserListRequest {};
            let get = pb::AuthUserGetRequest { name: "root".into() };
            let role = pb::AuthRoleGetRequest { role: "root".into() };
            let mut others = [auth.clone(), auth.clone()];
            let [two, three] = &mut others;
            tokio::join!(
                async { auth.user_list(by(&root, list)).await.map(drop) },
                async { two.user_get(by(&root, get)).await.map(drop) },
                async { three.role_get(by(&root, role)).await.map(drop) },
            )
        })
    };
    new_password(&channel, &root, "root").await;
    lags.resume();
    let answers = tokio::time::timeout(Duration::from_secs(60), asks).await;
    let (list, get, role) = answers.expect("responses in time").unwrap();
    for answer in [list, get, role] {
        let refused = answer.unwrap_err();
        assert_eq!((refused.code(), refused.message()), (Code::Unauthenticated, VOID));
    }
}
