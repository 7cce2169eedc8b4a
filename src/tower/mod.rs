//! [Tower](https://docs.rs/tower) layers for services that embed a node, such as axum and tonic
//! services. Requires the crate feature `tower`.
//!
//! - [`LeaderLayer`] admits requests only while this process is the leader.
//! - [`FenceLayer`] admits requests of the current holder of a lock, and rejects those of earlier
//!   holders.
//!
//! Both layers work with any request and response. A function of yours answers the rejected
//! requests:
//!
//! ```
//! # use bowline::{Node, tower::{LeaderLayer, NotLeader}};
//! use http::{Request, Response, StatusCode};
//!
//! fn not_leader(_: &Request<String>, why: NotLeader) -> Response<String> {
//!     let mut response = Response::new(why.to_string());
//!     *response.status_mut() = match why.leader {
//!         Some(_) => StatusCode::MISDIRECTED_REQUEST, // the text names the leader
//!         None => StatusCode::SERVICE_UNAVAILABLE,
//!     };
//!     response
//! }
//!
//! # fn program(node: &Node) -> LeaderLayer<impl Fn(&Request<String>, NotLeader) -> Response<String>> {
//! // In axum: Router::new().route(..).route_layer(leaders_only)
//! let leaders_only = LeaderLayer::new(node, "sweeper", not_leader);
//! # leaders_only
//! # }
//! ```
//!
//! `docs/examples/service` is an axum service that uses both layers.

mod fence;
mod leader;
#[cfg(test)]
mod tests;

pub use fence::{FenceLayer, FenceRejection, FenceService};
pub use leader::{LeaderFuture, LeaderLayer, LeaderService, NotLeader};
