//! The layers around all gRPC services, one in each file. A layer handles a request before the service, and the
//! response after the service. [`crate::grpc`] lists the layers.

pub(crate) mod anonymous_limit;
pub(crate) mod authorization;
pub(crate) mod availability;
pub(crate) mod body;
pub(crate) mod call_metrics;
pub(crate) mod compression;
pub(crate) mod connection;
pub(crate) mod cpu_permits;
pub(crate) mod deadline;
pub(crate) mod encode_under_permit;
pub(crate) mod reauth;
pub(crate) mod response_budget;
pub(crate) mod traffic;

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use http::{Request, Response};
use tonic::Status;
use tonic::body::Body;
use tower::{Layer, Service};
use tracing::Span;

/// One concern of all calls.
pub(crate) trait Middleware: Clone {
    /// State of a call, from its request to its response. Dropped early if the call is cancelled.
    type State: Unpin;

    /// Checks and changes a request.
    ///
    /// # Errors
    /// Fails if the call is rejected.
    fn request(&self, request: &mut Request<Body>) -> Result<Self::State, Status>;

    /// Changes the response.
    fn response(_: Self::State, response: Response<Body>) -> Response<Body> {
        response
    }

    /// Returns the tracing span of the call.
    fn span(_: &Self::State) -> Option<&Span> {
        None
    }

    /// Completes if the call must end before its response, with the status of the call.
    fn poll_cancelled(_: &mut Self::State, _: &mut Context<'_>) -> Poll<Status> {
        Poll::Pending
    }
}

/// The tower layer of a [`Middleware`].
#[derive(Clone)]
pub(crate) struct Around<M>(pub(crate) M);

impl<M: Clone, S> Layer<S> for Around<M> {
    type Service = Wrapped<M, S>;

    fn layer(&self, inner: S) -> Wrapped<M, S> {
        Wrapped { middleware: self.0.clone(), inner }
    }
}

/// A service behind a [`Middleware`].
#[derive(Clone)]
pub(crate) struct Wrapped<M, S> {
    middleware: M,
    inner: S,
}

impl<M, S> Service<Request<Body>> for Wrapped<M, S>
where
    M: Middleware,
    S: Service<Request<Body>, Response = Response<Body>, Error = Infallible>,
    S::Future: Unpin,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = WrappedCall<M, S::Future>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, mut request: Request<Body>) -> Self::Future {
        match self.middleware.request(&mut request) {
            Ok(state) => WrappedCall::Running(Some(state), self.inner.call(request)),
            Err(status) => WrappedCall::Rejected(Some(status)),
        }
    }
}

/// A call to a [`Wrapped`] service.
pub(crate) enum WrappedCall<M: Middleware, F> {
    Rejected(Option<Status>),
    Running(Option<M::State>, F),
}

impl<M, F> Future for WrappedCall<M, F>
where
    M: Middleware,
    F: Future<Output = Result<Response<Body>, Infallible>> + Unpin,
{
    type Output = Result<Response<Body>, Infallible>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        const ONCE: &str = "not polled after completion";
        if let Self::Running(state, future) = &mut *self {
            let mut state_now = state.take().expect(ONCE);
            let polled = {
                let _within = M::span(&state_now).map(Span::enter);
                Pin::new(future).poll(context)
            };
            if let Poll::Ready(response) = polled {
                return Poll::Ready(response.map(|response| M::response(state_now, response)));
            }
            let cancelled = M::poll_cancelled(&mut state_now, context);
            *state = Some(state_now);
            // Drops the call.
            *self = Self::Rejected(Some(ready!(cancelled)));
        }
        let Self::Rejected(status) = &mut *self else { unreachable!("see above") };
        Poll::Ready(Ok(status.take().expect(ONCE).into_http()))
    }
}

/// Replaces the body of a request.
pub(crate) fn replace_body(request: &mut Request<Body>, new: impl FnOnce(Body) -> Body) {
    let body = std::mem::take(request.body_mut());
    *request.body_mut() = new(body);
}
