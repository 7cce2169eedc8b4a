//! Tests of `--auth-token jwt`: any member, and etcd, can sign and verify tokens with keys from files.

use std::path::Path;
use std::time::Duration;

use base64::prelude::{BASE64_URL_SAFE_NO_PAD, Engine as _};
use serde_json::Value;
use tempfile::{TempDir, tempdir};
use tonic::transport::Channel;
use tonic::{Code, Status};

use crate::auth::{by, guard, guarded, login};
use crate::tokens::{Watches, signed_in};
use bowline_proto::etcdserverpb as pb;
use bowline_testkit::process::{Server, bowline, flags, free_ports};
use pb::auth_client::AuthClient;
use pb::kv_client::KvClient;

const VOID: &str = "etcdserver: invalid auth token";
const OLD: &str = "etcdserver: revision of auth store is old";
const DENIED: &str = "etcdserver: permission denied";

fn file(name: &str) -> String {
    let keys = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/serve/keys");
    keys.join(name).to_str().unwrap().to_owned()
}

/// Returns the flags for a kind of token. A key with an empty name is left out.
fn tokens(method: &str, private: &str, public: &str) -> [String; 2] {
    let option = |name: &str, key: &str| match key {
        "" => String::new(),
        key => format!(",{name}={}", file(key)),
    };
    let keys = [option("priv-key", private), option("pub-key", public)].concat();
    [format!("--auth-token=jwt,sign-method={method}{keys}"), "--bcrypt-cost=4".to_owned()]
}

async fn put(channel: &Channel, token: &str, key: &'static str) -> Result<(), (Code, String)> {
    let put = pb::PutRequest { key: key.into(), ..Default::default() };
    let done = KvClient::new(channel.clone()).put(by(token, put)).await;
    done.map(drop).map_err(|status: Status| (status.code(), status.message().to_owned()))
}

fn refused(code: Code, words: &str) -> Result<(), (Code, String)> {
    Err((code, words.to_owned()))
}

/// Returns the claims of a token without verifying its signature.
fn claims(token: &str) -> Value {
    let part = token.split('.').nth(1).unwrap();
    serde_json::from_slice(&BASE64_URL_SAFE_NO_PAD.decode(part).unwrap()).unwrap()
}

/// Changes the auth tables.
async fn add_role(channel: &Channel, token: &str) {
    let add = pb::AuthRoleAddRequest { name: "another".into() };
    AuthClient::new(channel.clone()).role_add(by(token, add)).await.unwrap();
}

#[tokio::test]
async fn jwt_is_valid_at_all_members_until_users_change() {
    let dirs: [TempDir; 3] = [(); 3].map(|()| tempdir().unwrap());
    let (peers, clients): ([u16; 3], [u16; 3]) = (free_ports(), free_ports());
    let keys = [("p256.pem", ""), ("p256.pem", "p256.pub.pem"), ("", "p256.pub.pem")];
    let start = |at: usize| {
        let (private, public) = keys[at];
        let more = tokens("ES256", private, public);
        let own = flags(at, &peers, clients[at], dirs[at].path());
        Server::start(&own, clients[at], &[&more[0], &more[1]])
    };
    let servers = [0, 1, 2].map(start).map(Server::ready);
    let first = guarded(&servers[0]).await;
    let (second, third) = (servers[1].channel().await, servers[2].channel().await);
    let only_checks = login(&third, "ann").await.unwrap_err();
    let words = "auth: token signing attempted with verify-only key";
    assert_eq!((only_checks.code(), only_checks.message()), (Code::Unknown, words));
    let wrong = pb::AuthenticateRequest { name: "ann".into(), password: "x".into() };
    let wrong = AuthClient::new(third.clone()).authenticate(wrong).await.unwrap_err();
    let words = "etcdserver: authentication failed, invalid user ID or password";
    assert_eq!(wrong.message(), words, "the error must not show whether the user has a password");
    let of_first = login(&first, "ann").await.unwrap();
    let of_second = login(&second, "ann").await.unwrap();
    assert_eq!(claims(&of_first)["username"], "ann");
    for token in [&of_first, &of_second] {
        for channel in [&first, &second, &third] {
            assert_eq!(put(channel, token, "app/a").await, Ok(()));
            assert_eq!(
                put(channel, token, "secret").await,
                refused(Code::PermissionDenied, DENIED)
            );
        }
    }
    let mut watches = Watches::open(&first, &of_first).await;
    watches.create("app/a").await.unwrap();
    let root = login(&first, "root").await.unwrap();
    add_role(&first, &root).await;
    assert_eq!(put(&first, &of_first, "app/a").await, refused(Code::InvalidArgument, OLD));
    assert_eq!(watches.create("app/a").await, Err(OLD.to_owned()));
    let again = login(&first, "ann").await.unwrap();
    assert_eq!(put(&first, &again, "app/a").await, Ok(()));
    assert_eq!(watches.next().await.events.len(), 1, "an open watch continues");
    let forged = [again.split_at(again.rfind('.').unwrap()).0, ".AAAA"].concat();
    assert_eq!(put(&first, &forged, "app/a").await, refused(Code::Unauthenticated, VOID));
}

#[tokio::test]
async fn jwt_expires_despite_use() {
    let [method, cost] = tokens("HS256", "rsa.pub.pem", "");
    let server = Server::alone(&[&format!("{method},ttl=2s"), &cost]);
    let channel = guarded(&server).await;
    let (ann, mut watches) = signed_in(&channel, "ann").await;
    let used = async {
        loop {
            match put(&channel, &ann, "app/b").await {
                Ok(()) => tokio::time::sleep(Duration::from_millis(20)).await,
                ended => return ended,
            }
        }
    };
    let ended = tokio::time::timeout(Duration::from_secs(60), used).await;
    assert_eq!(ended.expect("the watch does not end"), refused(Code::Unauthenticated, VOID));
    assert_eq!(watches.create("app/b").await, Err(VOID.to_owned()));
}

/// The same changes of users in the same order lead to the same auth revision in etcd and in Bowline, so each accepts
/// the other's tokens.
#[tokio::test]
async fn jwt_of_etcd_is_valid_here_and_vice_versa() {
    let cases = [
        ("RS256", "rsa1.pem", "rsa.pub.pem"),
        ("RS512", "rsa.pem", "rsa.pub.pem"),
        ("PS256", "rsa.pem", "rsa.pub.pem"),
        ("ES256", "p256.pem", "p256.pub.pem"),
        ("ES384", "p384.pem", ""),
        ("HS384", "rsa.pub.pem", ""),
    ];
    for (method, private, public) in cases {
        let more = tokens(method, private, public);
        let Some(etcd) = Server::etcd(&[&more[0], &more[1]]) else { return };
        let server = Server::alone(&[&more[0], &more[1]]);
        let ours = guarded(&server).await;
        let theirs = Channel::from_shared(format!("http://{}", etcd.address)).unwrap();
        let theirs = guard(theirs.connect().await.unwrap()).await;
        let made = [login(&ours, "ann").await.unwrap(), login(&theirs, "ann").await.unwrap()];
        let [here, there] = made.each_ref().map(|token| claims(token));
        assert_eq!(here["revision"], there["revision"], "{method}");
        let kinds =
            |claims: &Value| claims.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
        assert_eq!(kinds(&here), kinds(&there), "{method}");
        for token in &made {
            for channel in [&ours, &theirs] {
                assert_eq!(put(channel, token, "app/a").await, Ok(()), "{method}");
                assert_eq!(put(channel, token, "x").await, refused(Code::PermissionDenied, DENIED));
            }
        }
        for channel in [&ours, &theirs] {
            let root = login(channel, "root").await.unwrap();
            add_role(channel, &root).await;
            for token in &made {
                let outdated = put(channel, token, "app/a").await;
                assert_eq!(outdated, refused(Code::InvalidArgument, OLD), "{method}");
            }
        }
    }
}

#[test]
fn unusable_jwt_keys_are_rejected_before_startup() {
    let dir = tempdir().unwrap();
    let data = dir.path().join("data");
    for (flags, words) in [
        (tokens("RS256", "none.pem", ""), "the keys of --auth-token: cannot read"),
        (tokens("RS256", "p256.pem", ""), "p256.pem: the key cannot be used for RS256"),
        (tokens("ES256", "p256.pem", "p256.other.pub.pem"), "is not the public key of"),
    ] {
        let mut command = bowline();
        command.arg("serve").arg(format!("--data-dir={}", data.display()));
        command.args(
            ["listen", "advertise"].map(|at| format!("--{at}-client-urls=http://127.0.0.1:0")),
        );
        let output = command.args(&flags).output().unwrap();
        let printed = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && printed.contains(words), "{words:?}: {printed}");
        assert!(!data.exists(), "{words:?}: nothing was written");
    }
}
