//! Tests of the crate `bowline_client` against servers.

use std::time::Duration;

use bowline_client::proto::etcdserverpb as pb;
use bowline_client::{Client, Effect, Error, Options, Session, Watch};
use bowline_testkit::process::{Server, SingleMember};

fn endpoint(server: &Server) -> String {
    format!("http://{}", server.address)
}

fn put(key: &'static str, value: &'static str) -> pb::RequestOp {
    pb::PutRequest { key: key.into(), value: value.into(), ..Default::default() }.into()
}

#[tokio::test(flavor = "multi_thread")]
async fn library_client_calls_and_reports_effects() {
    let server = Server::alone(&[]);
    let client = Client::connect([endpoint(&server)]).await.unwrap();
    client.put("a", "1").await.unwrap();
    assert_eq!(client.get("a").await.unwrap().unwrap().value, "1");
    assert_eq!(client.delete("a").await.unwrap().deleted, 1);
    assert!(client.get("a").await.unwrap().is_none());

    // A rejected transaction changes nothing.
    let twice = vec![put("b", "1"), put("b", "2")];
    let rejected = client.txn(pb::TxnRequest { success: twice, ..Default::default() }).await;
    assert_eq!(rejected.unwrap_err().effect(), Effect::NotApplied);
    // A server that does not answer leaves the outcome open.
    let options =
        Options { call_timeout: Duration::from_millis(300), ..Options::new([endpoint(&server)]) };
    let hasty = Client::new(options).unwrap();
    hasty.get("a").await.unwrap();
    server.pause();
    assert_eq!(hasty.put("b", "1").await.unwrap_err().effect(), Effect::Unknown);
    server.resume();
    drop(server);
    let unreachable = client.put("b", "1").await.unwrap_err();
    assert_ne!(unreachable.effect(), Effect::Applied, "{unreachable:?}");
    let unreachable = client.put("b", "1").await.unwrap_err();
    assert!(matches!(unreachable, Error::Unreachable(_)), "{unreachable:?}");
    assert_eq!(unreachable.effect(), Effect::NotApplied);
    assert!(matches!(Client::new(Options::new([""; 0])), Err(Error::Config(_))));
}

#[tokio::test(flavor = "multi_thread")]
async fn library_watch_continues_after_a_restart_of_its_server() {
    let member = SingleMember::prepare();
    let server = member.start(&[]);
    let client = Client::connect([endpoint(&server)]).await.unwrap();
    let first = client.put("w", "1").await.unwrap().header.unwrap().revision;
    let request =
        pb::WatchCreateRequest { key: "w".into(), start_revision: first, ..Default::default() };
    let mut watch = Watch::new(&client, request);
    let mut seen = Vec::new();
    let mut next = async |count: usize| {
        while seen.len() < count {
            let events = watch.next().await.unwrap().events;
            seen.extend(events.into_iter().map(|event| event.kv.unwrap().value));
        }
        (seen.clone(), watch.next_revision())
    };
    assert_eq!(next(1).await.1, first + 1);
    drop(server.stop());
    let server = member.start(&[]);
    client.put("w", "2").await.unwrap();
    client.put("w", "3").await.unwrap();
    let (all, revision) = next(3).await;
    assert_eq!((all, revision), (vec!["1".into(), "2".into(), "3".into()], first + 3));

    // A watch of compacted changes ends with an error.
    let request = pb::CompactionRequest { revision: first + 2, physical: true };
    let call = async |link: bowline_client::Link| link.kv().compact(request).await;
    client.call(bowline_client::CallKind::Repeatable, call).await.unwrap();
    let request =
        pb::WatchCreateRequest { key: "w".into(), start_revision: first, ..Default::default() };
    let error = Watch::new(&client, request).next().await.unwrap_err();
    assert!(matches!(&error, Error::Canceled(answer) if answer.compact_revision == first + 2));
    drop(server);
}

#[tokio::test(flavor = "multi_thread")]
async fn library_lock_excludes_until_its_session_is_lost() {
    let server = Server::alone(&[]);
    let client = Client::connect([endpoint(&server)]).await.unwrap();
    let open = async || Session::open(&client, Duration::from_secs(6)).await.unwrap();
    let (one, two) = (open().await, open().await);
    let held = one.run(one.lock("nightly")).await.unwrap().unwrap();

    // The second session waits until the first releases the lock. Its token is higher.
    let waits = two.run(two.lock("nightly"));
    let releases = async {
        tokio::time::sleep(Duration::from_millis(300)).await;
        let (key, token, compare) = (held.key().clone(), held.token(), held.compare());
        held.release(&client).await.unwrap();
        (key, token, compare)
    };
    let (second, (key, token, compare)) = tokio::join!(waits, releases);
    let second = second.unwrap().unwrap();
    assert!(second.token() > token && client.get(key).await.unwrap().is_none());

    // A transaction under the released lock changes nothing.
    let guarded = |compare| pb::TxnRequest {
        compare: vec![compare],
        success: vec![put("x", "1")],
        ..Default::default()
    };
    assert!(!client.txn(guarded(compare)).await.unwrap().succeeded);
    assert!(client.txn(guarded(second.compare())).await.unwrap().succeeded);

    // Without renewals, the session is lost before the server ends the lease.
    server.pause();
    let lost = two.run(std::future::pending::<()>()).await.unwrap_err();
    assert!(matches!(lost, Error::Lost(_)), "{lost:?}");
    server.resume();
    one.close().await.unwrap();
    two.close().await.unwrap();
    assert!(client.get(second.key().clone()).await.unwrap().is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn library_client_logs_in() {
    let server = Server::alone(&[]);
    let client = Client::connect([endpoint(&server)]).await.unwrap();
    let link = client.link().await.unwrap();
    let (name, password) = ("root".to_owned(), "secret".to_owned());
    let user = pb::AuthUserAddRequest { name, password, ..Default::default() };
    link.auth().user_add(user).await.unwrap();
    let grant = pb::AuthUserGrantRoleRequest { user: "root".into(), role: "root".into() };
    let role = pb::AuthRoleAddRequest { name: "root".into() };
    // The call fails if the cluster already has the role.
    drop(link.auth().role_add(role).await);
    link.auth().user_grant_role(grant).await.unwrap();
    link.auth().auth_enable(pb::AuthEnableRequest {}).await.unwrap();

    let rejected = client.put("k", "1").await.unwrap_err();
    assert!(matches!(rejected, Error::Refused(_)), "{rejected:?}");
    let options = |password: &str| Options::new([endpoint(&server)]).user("root", password);
    let client = Client::new(options("secret")).unwrap();
    client.put("k", "1").await.unwrap();
    let wrong = Client::new(options("wrong")).unwrap().get("k").await.unwrap_err();
    assert_eq!(wrong.effect(), Effect::NotApplied, "{wrong:?}");
}
