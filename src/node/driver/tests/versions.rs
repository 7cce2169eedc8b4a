//! Tests that the cluster version is raised only when all members support the new version. A member
//! that was downgraded in the meantime would have to stop.

use super::*;
use crate::model::{ClusterVersion, Hello};

/// A future cluster version. So far, only one version exists.
const NEXT: ClusterVersion = ClusterVersion(2);

/// Returns three nodes, led by the first. The second supports only the first version.
fn with_an_older_one() -> Three {
    let mut three = Three::led_by(0, |node, settings| {
        settings.supported_version = if node == 1 { ClusterVersion::FIRST } else { NEXT };
    });
    three.pass(500);
    three
}

/// Connects a node to the first one, as a build that supports this version.
fn connects(three: &Three, node: usize, supported_version: ClusterVersion) {
    let hello = three.nodes[node].driver.identity.hello(id(0));
    three.push(0, Input::Connected(id(node), Hello { supported_version, ..hello }));
}

fn version(three: &Three) -> ClusterVersion {
    three.shared(0).state.status.borrow().version
}

fn all_run(three: &Three) -> bool {
    (0..3).all(|node| three.shared(node).stop_reason().is_none())
}

#[test]
fn disconnected_peer_supports_no_version() {
    let mut three = with_an_older_one();
    three.push(0, Input::Disconnected(id(2)));
    three.pass(50);
    connects(&three, 1, NEXT);
    three.pass(1_500);
    assert_eq!(version(&three), ClusterVersion::FIRST);
    assert!(all_run(&three));
    connects(&three, 2, NEXT);
    three.pass(500);
    assert_eq!(version(&three), NEXT);
}

#[test]
fn version_upgrade_is_not_proposed_again_after_a_leader_change() {
    let mut three = with_an_older_one();
    for other in [1, 2] {
        three.hub.cut(id(0), id(other));
        three.hub.cut(id(other), id(0));
    }
    connects(&three, 1, NEXT);
    three.until("nobody else leads", |three| {
        (1..3).any(|node| three.shared(node).state.status.borrow().role == Role::Leader)
    });
    // The second node was downgraded.
    connects(&three, 1, ClusterVersion::FIRST);
    three.hub.heal_all();
    three.leader();
    three.pass(2_000);
    assert!(all_run(&three));
    assert_eq!(version(&three), ClusterVersion::FIRST);
}
