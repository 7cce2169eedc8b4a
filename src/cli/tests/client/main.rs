//! The commands that ask a server, as processes, against servers that are processes.

#[path = "../../src/generated/mod.rs"]
#[allow(dead_code, reason = "the server's half is not used here")]
mod generated;
#[path = "../serve/ports.rs"]
mod ports;
#[path = "../serve/process.rs"]
#[allow(dead_code, reason = "shared with the server's own tests")]
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
