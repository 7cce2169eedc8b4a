//! Descriptors of the protocol: its services, methods and messages.

use std::sync::LazyLock;

use prost_reflect::{DescriptorPool, MethodDescriptor};

/// Descriptors of the protocol's messages and services.
pub(crate) static PROTOCOL: LazyLock<DescriptorPool> = LazyLock::new(|| {
    DescriptorPool::decode(bowline_proto::DESCRIPTORS).expect("the generated descriptors are valid")
});

/// Returns all methods of the protocol, including those without a path in the gateway.
pub(crate) fn methods() -> impl Iterator<Item = MethodDescriptor> {
    PROTOCOL.services().flat_map(|service| service.methods().collect::<Vec<_>>())
}

/// Prefix of the methods of the health service.
pub(crate) const HEALTH: &str = "/grpc.health.v1.";

/// Methods with request streams, whose messages the service checks one by one.
const REQUEST_STREAMS: [&str; 2] =
    ["/etcdserverpb.Watch/Watch", "/etcdserverpb.Lease/LeaseKeepAlive"];

/// Returns whether a method has a request stream.
pub(crate) fn has_request_stream(path: &str) -> bool {
    REQUEST_STREAMS.contains(&path)
}

/// Returns the service in the path of a method.
pub(crate) fn service_of(path: &str) -> &str {
    path.trim_start_matches('/').split('/').next().unwrap_or_default()
}
