//! [`FenceLayer`]: rejects requests with outdated fencing tokens.

use std::future::Future;
use std::mem;
use std::pin::Pin;
use std::task::{Context, Poll};

use thiserror::Error as ThisError;
use tower_layer::Layer;
use tower_service::Service;

use crate::recipes::{FenceError, StoredFence, Token};

/// Checks the fencing token of each request with a [`StoredFence`], and admits the request only if
/// no later holder of the lock has sent a request before. The store contains the highest token. So
/// all processes of the service share this token, which survives their restarts.
///
/// The function `token` finds the token of a request, for example in a header: `Fn(&mut Request) ->
/// Option<Token>`. The function may also store the token in the request for the handler. The
/// function `reject` answers the requests that are not admitted: `Fn(&Request, FenceRejection) ->
/// Response`.
///
/// The token is checked before the request reaches the inner service. If a later holder sends a
/// request while an admitted request is being handled, both are handled at the same time. A handler
/// that writes to the store prevents this with [`StoredFence::condition`]:
///
/// ```
/// # use bowline::{Error, Node, Op, Token, lock::StoredFence, tower::{FenceLayer, FenceRejection}};
/// use http::{Request, Response};
///
/// fn token(request: &mut Request<String>) -> Option<Token> {
///     let token = request.headers().get("fencing-token")?.to_str().ok()?.parse().ok()?;
///     request.extensions_mut().insert::<Token>(token);
///     Some(token)
/// }
///
/// # fn program(node: &Node, reject: fn(&Request<String>, FenceRejection) -> Response<String>) {
/// let fence = node.client().fence("fences/importer");
/// let layer = FenceLayer::new(fence, token, reject);
/// # }
///
/// /// Called by the handler. Returns false if a later holder was admitted meanwhile.
/// async fn import(node: &Node, fence: &StoredFence, token: Token) -> Result<bool, Error> {
///     let txn = node.client().txn().when(fence.condition(token)).then(Op::put("imported", "7"));
///     Ok(txn.commit().await?.succeeded)
/// }
/// ```
#[derive(Clone, Debug)]
pub struct FenceLayer<T, R> {
    fence: StoredFence,
    token: T,
    reject: R,
}

/// The reason why a [`FenceLayer`] has not admitted a request. The inner service was not called.
#[derive(Clone, PartialEq, Eq, Debug, ThisError)]
#[non_exhaustive]
pub enum FenceRejection {
    /// The request has no valid token.
    #[error("request rejected: no valid fencing token")]
    NoToken,
    /// The fence did not admit the token: it is outdated, or the store could not be asked.
    #[error("request rejected: {0}")]
    NotAdmitted(FenceError),
}

impl<T, R> FenceLayer<T, R> {
    /// Creates a layer with this fence and these functions.
    pub fn new(fence: StoredFence, token: T, reject: R) -> Self {
        Self { fence, token, reject }
    }
}

impl<S, T: Clone, R: Clone> Layer<S> for FenceLayer<T, R> {
    type Service = FenceService<S, T, R>;

    fn layer(&self, inner: S) -> Self::Service {
        FenceService { inner, layer: self.clone() }
    }
}

/// The service of a [`FenceLayer`].
#[derive(Clone, Debug)]
pub struct FenceService<S, T, R> {
    inner: S,
    layer: FenceLayer<T, R>,
}

impl<S, T, R, Request> Service<Request> for FenceService<S, T, R>
where
    S: Service<Request> + Clone + Send + 'static,
    S::Future: Send,
    T: Fn(&mut Request) -> Option<Token>,
    R: Fn(&Request, FenceRejection) -> S::Response + Clone + Send + 'static,
    Request: Send + 'static,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<S::Response, S::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, mut request: Request) -> Self::Future {
        // `poll_ready` was called on this instance, so call this instance and leave the clone in
        // its place.
        let clone = self.inner.clone();
        let mut ready = mem::replace(&mut self.inner, clone);
        let token = (self.layer.token)(&mut request).ok_or(FenceRejection::NoToken);
        let (fence, reject) = (self.layer.fence.clone(), self.layer.reject.clone());
        Box::pin(async move {
            let admitted = match token {
                Ok(token) => fence.admit(token).await.map_err(FenceRejection::NotAdmitted),
                Err(rejection) => Err(rejection),
            };
            match admitted {
                Ok(()) => ready.call(request).await,
                Err(why) => Ok(reject(&request, why)),
            }
        })
    }
}
