//! HTTP requests other than gRPC: the JSON gateway, health, metrics and the version.

pub(crate) mod cors;
pub(crate) mod gateway;
pub(crate) mod metrics;
pub(crate) mod path;
pub(crate) mod plain;
pub(crate) mod probes;
pub(crate) mod process;
