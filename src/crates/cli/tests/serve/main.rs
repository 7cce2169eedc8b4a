//! Tests of `bowline serve` as a process, called over gRPC, over HTTP, and by etcd's own tools if they are installed.

mod alarms;
mod auth;
mod browsers;
mod compression;
mod contenders;
mod crew;
mod differential;
mod doors;
mod gateway;
mod go;
mod hostile;
mod jwt;
mod kv;
mod lease;
mod ledger;
mod library;
mod locks;
mod logs;
mod members;
mod metrics;
mod office;
mod operate;
mod p521;
#[allow(dead_code, reason = "shared with the command tests")]
mod projects;
mod restarts;
mod revisions;
mod rights;
mod rust_client;
mod self_signed;
mod snapshot;
mod tls;
mod tls_members;
mod tokens;
mod tools;
mod watch;
