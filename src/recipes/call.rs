//! [`Call`]: the return type of most methods of the recipes, with an optional deadline.

use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use crate::api::{Client, Error, deadline_option};
use crate::node::Shared;

pub(crate) use crate::api::{Until, after_pause, pause};

type Running<'a, T, E> = Pin<Box<dyn Future<Output = Result<T, E>> + Send + 'a>>;

/// A call of a recipe. A call does nothing until it is awaited or passed to
/// [`Blocking::block`](crate::Blocking::block).
///
/// By default a call ends at [`Config::call_deadline`](crate::Config::call_deadline).
/// [`Call::deadline`] changes the deadline. Calls that wait for other participants have no default
/// deadline, which their documentation states.
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
        let mut call = Self::without_deadline(client, run);
        call.deadline = Some(client.shared.settings.call_deadline);
        call
    }

    /// Creates a call that waits for other participants and has no default deadline.
    pub(crate) fn without_deadline<F>(
        client: &Client,
        run: impl FnOnce(Until) -> F + Send + 'a,
    ) -> Self
    where
        F: Future<Output = Result<T, E>> + Send + 'a,
    {
        let shared = Arc::clone(&client.shared);
        Self { shared, deadline: None, run: Box::new(|until| Box::pin(run(until))) }
    }

    deadline_option! {
        /// Limits how long the call may take. After `timeout` the call fails with [`Error::Deadline`].
        /// The node checks deadlines only four times per heartbeat. So the call may end up to 25 ms
        /// after the deadline, with the default [`Config::heartbeat`](crate::Config::heartbeat). If the
        /// result arrives after the deadline but before the next check, the call returns the result.
    }
}

impl<'a, T, E> IntoFuture for Call<'a, T, E> {
    type Output = Result<T, E>;
    type IntoFuture = Running<'a, T, E>;

    fn into_future(self) -> Self::IntoFuture {
        let deadline = self.deadline.map(|timeout| self.shared.now() + timeout);
        (self.run)(Until::new(self.shared, deadline))
    }
}

impl<T, E> std::fmt::Debug for Call<'_, T, E> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Call").field("deadline", &self.deadline).finish_non_exhaustive()
    }
}
