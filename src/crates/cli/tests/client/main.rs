//! Runs the client commands as processes against servers that are processes.

#[path = "../serve/ports.rs"]
mod ports;
#[path = "../serve/process.rs"]
#[allow(dead_code, reason = "shared with the server tests")]
mod process;

mod ask;
mod failover;
mod keys;
mod local;
mod locks;
mod migrate;
mod operate;
mod passwords;
mod restores;
mod same;
mod sockets;
