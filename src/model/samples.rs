//! Ids and times for tests.

use std::time::Duration;

use super::{LeaseId, Moment, NodeId};

pub(crate) fn node(id: u64) -> NodeId {
    NodeId::new(id).expect("not 0")
}

pub(crate) fn lease(id: u64) -> LeaseId {
    LeaseId::new(id).expect("not 0")
}

pub(crate) fn at(ms: u64) -> Moment {
    Moment::since_boot(Duration::from_millis(ms))
}
