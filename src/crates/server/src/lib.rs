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
//!   listen       accepts connections, with HTTP/1 and HTTP/2 on one port; `socket` has TCP and Unix sockets,
//!     │          `gone` detects clients that have disconnected
//!   greet        detects TLS and performs the handshake; `tls` has the certificates
//!     │
//!   dispatch     routes requests: to `grpc`, to `gateway`, which offers the same services in JSON, or to `http_side`
//!     │
//!   grpc         the list of the layers through which every call passes; `middleware` has the layers
//!     │
//!   services     creates the services, each with the state that it needs, and limits the sizes of messages
//!     │
//!   kv ...       one file per gRPC service
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

mod address;
mod alarms;
mod auth;
mod cluster;
#[doc(hidden)]
pub mod crypto;
mod dispatch;
mod driven;
mod election;
mod endpoint;
mod gateway;
mod gone;
mod greet;
mod grpc;
mod health;
mod http_side;
mod identity;
mod kv;
mod leader;
mod lease;
mod lease_ids;
mod line;
mod listen;
mod lock;
mod maintenance;
mod member;
mod metrics;
mod middleware;
mod newcomers;
mod no_space;
mod password;
mod permission;
mod probes;
mod process;
mod protocol;
mod server;
mod services;
mod settings;
mod snapshot;
mod socket;
mod tls;
mod token;
mod watch;
mod wire;

pub use endpoint::{Endpoint, ListenerScope};
pub use listen::{BindError, Listeners};
pub use member::{CLUSTER_VERSION, CLUSTER_VERSION_SHORT, VERSION};
pub use server::{RunningServer, Server, ServerError};
pub use settings::Settings;
pub use tls::{Certificate, ServerTls, TlsError, TlsSettings, self_signed};
pub use token::{Algorithm, JwtSettings, TokenError, Tokens};
