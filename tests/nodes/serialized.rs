//! The types that programs log and return from endpoints can be serialized.

use bowline::testing::Cluster;
use bowline::{Blocking, HealthStatus, Token};
use serde::Serialize;

fn json(value: impl Serialize) -> serde_json::Value {
    serde_json::to_value(value).unwrap()
}

#[test]
fn health_status_and_locks_are_serialized() {
    let cluster = Cluster::start(1).block().unwrap();
    let node = cluster.node(0);
    node.ready().block().unwrap();
    for status in [HealthStatus::NoQuorum, HealthStatus::CatchingUp] {
        assert_eq!(json(status), status.as_str());
    }
    let session = node.session().block().unwrap();
    let guard = session.mutex("jobs").lock().block().unwrap();

    let health = json(node.health());
    assert_eq!((&health["status"], &health["leads"]), (&"healthy".into(), &true.into()));
    assert!(health["silent"].is_f64() && health["in_touch"].is_f64(), "{health}");
    let status = json(node.status());
    assert_eq!((&status["role"], &status["id"]), (&"leader".into(), &1.into()));
    let lock = json(node.locks().of("jobs").unwrap());
    let entry = &lock["queue"][0];
    assert_eq!((&lock["name"], &entry["holds"]), (&"jobs".into(), &true.into()));
    assert_eq!(entry["lease"], session.lease().to_string());
    let token = json(guard.token());
    assert_eq!(serde_json::from_value::<Token>(token).unwrap(), guard.token());
}
