//! What most methods of the recipes return: a call that does nothing until it is awaited, may be dropped
//! at any time, and may be given a deadline. And [`Until`], the deadline as the code inside sees it.

use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use crate::api::{Client, Effect, Error};
use crate::model::Moment;
use crate::node::Shared;

type Running<'a, T, E> = Pin<Box<dyn Future<Output = Result<T, E>> + Send + 'a>>;

/// A call of a recipe. It does nothing until it is awaited (or until [`Blocking::block`](crate::Blocking::block)
/// blocks on it).
///
/// Calls that ask and change end at the configuration's
/// [deadline of a call](crate::Config::call_deadline) unless [`Call::deadline`] says otherwise; those
/// that wait for others to do something say in their own words that they wait without end.
#[must_use = "a call does nothing until it is awaited"]
pub struct Call<'a, T, E = Error> {
    shared: Arc<Shared>,
    deadline: Option<Duration>,
    run: Box<dyn FnOnce(Until) -> Running<'a, T, E> + Send + 'a>,
}

impl<'a, T, E> Call<'a, T, E> {
    /// A call that ends at the configuration's deadline.
    pub(crate) fn new<F>(client: &Client, run: impl FnOnce(Until) -> F + Send + 'a) -> Self
    where
        F: Future<Output = Result<T, E>> + Send + 'a,
    {
        let mut call = Self::endless(client, run);
        call.deadline = Some(client.shared.settings.call_deadline);
        call
    }

    /// A call that waits for others, without end.
    pub(crate) fn endless<F>(client: &Client, run: impl FnOnce(Until) -> F + Send + 'a) -> Self
    where
        F: Future<Output = Result<T, E>> + Send + 'a,
    {
        let shared = Arc::clone(&client.shared);
        Self { shared, deadline: None, run: Box::new(|until| Box::pin(run(until))) }
    }

    /// How long the call may take: then it ends with [`Error::Deadline`]. The node looks at its ticks whether
    /// the time is up, four times a heartbeat: up to 25 ms late at the default
    /// [`Config::heartbeat`](crate::Config::heartbeat). What has come by then is given.
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

/// When a call ends.
#[derive(Clone)]
pub(crate) struct Until {
    shared: Arc<Shared>,
    deadline: Option<Moment>,
}

impl Until {
    /// The end of a call that begins now, by the configuration.
    pub(crate) fn of_call(client: &Client) -> Self {
        let shared = Arc::clone(&client.shared);
        let deadline = Some(shared.now() + shared.settings.call_deadline);
        Self { shared, deadline }
    }

    /// The end of a call that has a deadline.
    pub(crate) fn by(shared: &Arc<Shared>, deadline: Moment) -> Self {
        Self { shared: Arc::clone(shared), deadline: Some(deadline) }
    }

    /// How long a single request of the call may take.
    pub(crate) fn left(&self) -> Duration {
        match self.deadline {
            Some(deadline) => deadline.since(self.shared.now()),
            None => self.shared.settings.call_deadline,
        }
    }

    /// Whether the time is up.
    pub(crate) fn is_over(&self) -> bool {
        self.deadline.is_some_and(|deadline| self.shared.now() >= deadline)
    }

    /// What the future comes to, unless that takes too long.
    ///
    /// # Errors
    /// [`Error::Deadline`] that says that nothing was changed: for waiting only.
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

    /// Lets a little time pass before something is tried again.
    pub(crate) async fn pause(&self) {
        pause(&self.shared).await;
    }
}

/// Lets a little time pass before something is tried again.
pub(crate) async fn pause(shared: &Shared) {
    shared.sleep_until(after_pause(shared)).await;
}

/// When something may be tried again that has just failed.
pub(crate) fn after_pause(shared: &Shared) -> Moment {
    /// A heartbeat is what news take to come at the least.
    const PAUSE_MAX: Duration = Duration::from_millis(100);
    shared.now() + shared.settings.heartbeat.min(PAUSE_MAX)
}
