//! etcd's v3 protocol on a [`bowline::Node`] of the embedding program.
//!
//! The program keeps using its node, and clients of etcd in any language use the same keys, leases, locks and
//! elections. The server runs on threads of its own, so it keeps serving when the program's executor is blocked.
//!
//! ```
//! use std::sync::Arc;
//!
//! use bowline::{Blocking, Config, Node};
//! use bowline_server::Server;
//! # let dir = tempfile::tempdir()?;
//! # let data = dir.path();
//!
//! let node = Arc::new(Node::start(Config::new(data, "solo")).block()?);
//! let server = Server::new(&node).listen("127.0.0.1:0").start().block()?;
//! server.opened().block(); // there is a leader, and clients are accepted
//! println!("etcd clients can use http://{}", server.addresses()[0]);
//!
//! // `etcdctl lock job` waits until the guard is released.
//! let session = node.session().block()?;
//! let guard = session.mutex("job").lock().block()?;
//! guard.release().block()?;
//!
//! server.shutdown().block();
//! node.shutdown().block();
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! How a request travels:
//!
//! ```text
//!   server       builds, starts and stops a server
//!     │
//!   listen       accepts connections, with HTTP/1 and HTTP/2 on one port, and performs TLS handshakes; `tls` has the
//!     │          certificates
//!   dispatch     routes requests: to `grpc`, or to `web`, which offers the same services in JSON, and health and metrics
//!     │
//!   grpc         the list of the layers through which every call passes; `middleware` has the layers
//!     │
//!   services     one file per gRPC service, and their queues, response streams and passwords
//!     │
//!   member       the library's node, and the clients that act on behalf of callers
//!     │
//!   identity     identifies a caller by token or certificate; `permission` has the permission that each method needs
//!     │
//!   wire         converts requests, responses and errors
//! ```
//!
//! Each file imports only files below it. The crate uses only the library's public interface.
//! `docs/etcd-compatibility.md` lists the differences from etcd.

mod alarms;
mod calls;
#[doc(hidden)]
pub mod crypto;
mod dispatch;
mod endpoint;
mod grpc;
mod identity;
mod leader;
mod listen;
mod member;
mod middleware;
mod no_space;
mod permission;
mod protocol;
mod server;
mod services;
mod settings;
mod tls;
mod token;
mod version;
mod web;
mod wire;

pub use endpoint::{Endpoint, ListenerScope};
pub use listen::{BindError, Listeners};
pub use member::{CLUSTER_VERSION, CLUSTER_VERSION_SHORT, VERSION};
pub use server::{RunningServer, Server, ServerError};
pub use settings::{LearnerCalls, LearnerSettings, Origins, Settings, WebSettings};
pub use tls::{Certificate, ServerTls, TlsError, TlsSettings, self_signed};
pub use token::{Algorithm, JwtSettings, TokenError, Tokens};
pub use version::EtcdVersion;

#[cfg(doctest)]
#[doc = include_str!("../../../../docs/operating/outside.md")]
struct Outside;
