//! Waiting until a node serves linearizable calls.

use std::sync::Arc;
use std::time::Duration;

use crate::node::Shared;

use super::Error;
use super::call::{awaited, deadline_option};

/// A call that waits until a node serves linearizable calls; see
/// [`Node::ready`](super::Node::ready).
#[derive(Clone)]
#[must_use = "a call does nothing until it is awaited"]
pub struct ReadyCall {
    shared: Arc<Shared>,
    deadline: Option<Duration>,
}

impl ReadyCall {
    pub(crate) fn new(shared: &Arc<Shared>) -> Self {
        Self { shared: Arc::clone(shared), deadline: None }
    }

    deadline_option! {
        /// Sets the maximum time to wait. `Duration::MAX` waits until the node serves or stops.
    }

    async fn run(self) -> Result<(), Error> {
        let deadline = self.shared.deadline(self.deadline);
        Ok(self.shared.read_barrier(deadline).await?)
    }
}

impl std::fmt::Debug for ReadyCall {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ReadyCall").field("deadline", &self.deadline).finish_non_exhaustive()
    }
}

awaited!(ReadyCall -> Result<(), Error>);
