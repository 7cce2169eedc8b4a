//! [`Until`]: the deadline of a running call that consists of several requests.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use crate::model::Moment;
use crate::node::Shared;

use super::{Client, Effect, Error};

/// The deadline of a call.
#[derive(Clone)]
pub(crate) struct Until {
    shared: Arc<Shared>,
    deadline: Option<Moment>,
}

impl Until {
    /// Creates the value for a deadline, or for no deadline.
    pub(crate) fn new(shared: Arc<Shared>, deadline: Option<Moment>) -> Self {
        Self { shared, deadline }
    }

    /// Returns the default deadline of a call that starts now.
    pub(crate) fn of_call(client: &Client) -> Self {
        let shared = Arc::clone(&client.shared);
        let deadline = Some(shared.now() + shared.settings.call_deadline);
        Self { shared, deadline }
    }

    /// Returns the given deadline.
    pub(crate) fn by(shared: &Arc<Shared>, deadline: Moment) -> Self {
        Self { shared: Arc::clone(shared), deadline: Some(deadline) }
    }

    /// Returns how long a single request of the call may take.
    pub(crate) fn left(&self) -> Duration {
        match self.deadline {
            Some(deadline) => deadline.since(self.shared.now()),
            None => self.shared.settings.call_deadline,
        }
    }

    /// Reports whether the deadline has passed.
    pub(crate) fn is_over(&self) -> bool {
        self.deadline.is_some_and(|deadline| self.shared.now() >= deadline)
    }

    /// Returns the output of the future, unless the deadline passes first.
    ///
    /// # Errors
    /// Returns [`Error::Deadline`] with the effect "not applied". So the future must not change the
    /// store.
    pub(crate) async fn within<T>(&self, future: impl Future<Output = T>) -> Result<T, Error> {
        let Some(deadline) = self.deadline else { return Ok(future.await) };
        tokio::select! {
            biased;
            output = future => Ok(output),
            () = self.shared.sleep_until(deadline) => match self.shared.stop_reason() {
                Some(reason) => Err(Error::Stopped { reason, effect: Effect::NotApplied }),
                None => Err(Error::Deadline { effect: Effect::NotApplied }),
            },
        }
    }

    /// Waits for a short time before a retry.
    pub(crate) async fn pause(&self) {
        pause(&self.shared).await;
    }
}

/// Waits for a short time before a retry.
pub(crate) async fn pause(shared: &Shared) {
    shared.sleep_until(after_pause(shared)).await;
}

/// Returns the time of the next retry.
pub(crate) fn after_pause(shared: &Shared) -> Moment {
    /// Maximum pause before a retry. A change usually arrives within a heartbeat, so a longer pause
    /// has no benefit.
    const PAUSE_MAX: Duration = Duration::from_millis(100);
    shared.now() + shared.settings.heartbeat.min(PAUSE_MAX)
}
