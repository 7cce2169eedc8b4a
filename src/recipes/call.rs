//! [`Call`]: the return type of most methods of the recipes, with an optional deadline. [`Until`]
//! is the deadline of a running call.

use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use crate::api::{Client, Effect, Error};
use crate::model::Moment;
use crate::node::Shared;

type Running<'a, T, E> = Pin<Box<dyn Future<Output = Result<T, E>> + Send + 'a>>;

/// A call of a recipe. A call does nothing until it is awaited or passed to
/// [`Blocking::block`](crate::Blocking::block).
///
/// By default a call ends at [`Config::call_deadline`](crate::Config::call_deadline).
/// [`Call::deadline`] changes the deadline. Calls that wait for other participants have no default
/// deadline; their documentation says so.
#[must_use = "a call does nothing until it is awaited"]
pub struct Call<'a, T, E = Error> {
    shared: Arc<Shared>,
    deadline: Option<Duration>,
    run: Box<dyn FnOnce(Until) -> Running<'a, T, E> + Send + 'a>,
}

impl<'a, T, E> Call<'a, T, E> {
    /// Creates a call with the configured default deadline.
    pub(crate) fn new<F>(client: &Client, run: impl FnOnce(Until) -> F + Send + 'a) -> Self
    where
        F: Future<Output = Result<T, E>> + Send + 'a,
    {
        let mut call = Self::endless(client, run);
        call.deadline = Some(client.shared.settings.call_deadline);
        call
    }

    /// Creates a call that waits for other participants and has no default deadline.
    pub(crate) fn endless<F>(client: &Client, run: impl FnOnce(Until) -> F + Send + 'a) -> Self
    where
        F: Future<Output = Result<T, E>> + Send + 'a,
    {
        let shared = Arc::clone(&client.shared);
        Self { shared, deadline: None, run: Box::new(|until| Box::pin(run(until))) }
    }

    /// Limits how long the call may take. After `timeout` the call fails with [`Error::Deadline`].
    /// The node checks deadlines at its ticks, four times per heartbeat, so the call may end up to
    /// 25 ms late with the default [`Config::heartbeat`](crate::Config::heartbeat). If the result
    /// arrives before the check, the call returns it.
    #[doc(alias = "timeout")]
    pub fn deadline(mut self, timeout: Duration) -> Self {
        self.deadline = Some(timeout);
        self
    }
}

impl<'a, T, E> IntoFuture for Call<'a, T, E> {
    type Output = Result<T, E>;
    type IntoFuture = Running<'a, T, E>;

    fn into_future(self) -> Self::IntoFuture {
        let deadline = self.deadline.map(|timeout| self.shared.now() + timeout);
        (self.run)(Until { shared: self.shared, deadline })
    }
}

impl<T, E> std::fmt::Debug for Call<'_, T, E> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Call").field("deadline", &self.deadline).finish_non_exhaustive()
    }
}

/// The deadline of a call.
#[derive(Clone)]
pub(crate) struct Until {
    shared: Arc<Shared>,
    deadline: Option<Moment>,
}

impl Until {
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
    /// Waiting longer has no benefit: a change usually arrives within a heartbeat.
    const PAUSE_MAX: Duration = Duration::from_millis(100);
    shared.now() + shared.settings.heartbeat.min(PAUSE_MAX)
}
