//! Runs the client commands as processes against servers that are processes.

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
