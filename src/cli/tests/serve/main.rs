//! `bowline serve`, as a process, asked by a client of gRPC, over HTTP, and by etcd's own tools where they are
//! installed.

#[path = "../../src/generated/mod.rs"]
mod generated;

mod differential;
mod gateway;
mod kv;
mod lease;
mod locks;
mod operate;
mod process;
mod snapshot;
mod tools;
mod watch;
