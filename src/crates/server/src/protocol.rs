//! Descriptors of the protocol: its services, methods and messages.

use std::sync::LazyLock;

use prost_reflect::{DescriptorPool, MethodDescriptor};

/// Descriptors of the protocol's messages and services.
pub(super) static PROTOCOL: LazyLock<DescriptorPool> = LazyLock::new(|| {
    DescriptorPool::decode(bowline_proto::DESCRIPTORS).expect("the generated descriptors are valid")
});

/// Returns all methods of the protocol, including those without a path in the gateway.
pub(super) fn methods() -> impl Iterator<Item = MethodDescriptor> {
    PROTOCOL.services().flat_map(|service| service.methods().collect::<Vec<_>>())
}
