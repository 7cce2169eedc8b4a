//! The methods of the protocol, with what the layers need to know about each.

use std::collections::HashMap;
use std::sync::LazyLock;

use http::Request;
use prost_reflect::{DescriptorPool, MethodDescriptor};

use crate::permission::Permission;

/// Descriptors of the protocol's messages and services.
pub(crate) static PROTOCOL: LazyLock<DescriptorPool> = LazyLock::new(|| {
    DescriptorPool::decode(bowline_proto::DESCRIPTORS).expect("the generated descriptors are valid")
});

/// All methods, including those without a path in the gateway, sorted by path.
static METHODS: LazyLock<Vec<Method>> = LazyLock::new(|| {
    let methods = PROTOCOL.services().flat_map(|service| service.methods().collect::<Vec<_>>());
    let mut methods: Vec<_> = methods.map(Method::new).collect();
    methods.sort_by_cached_key(Method::path);
    methods.iter_mut().enumerate().for_each(|(index, method)| method.index = index);
    methods
});

static BY_PATH: LazyLock<HashMap<String, &Method>> =
    LazyLock::new(|| METHODS.iter().map(|method| (method.path(), method)).collect());

/// Stands for all methods that do not exist. Calls need no permission, because all of them fail.
static UNKNOWN: Method = Method {
    index: usize::MAX,
    service: String::new(),
    name: String::new(),
    streams_requests: false,
    streams_responses: false,
    permission: Permission::None,
    is_for_learners: true,
};

/// A method of the protocol.
#[derive(PartialEq, Eq, Debug)]
pub(crate) struct Method {
    /// Position in the list of all methods, sorted by path.
    pub(crate) index: usize,
    /// Full name of the service.
    pub(crate) service: String,
    pub(crate) name: String,
    /// Whether the request is a stream. The service checks the messages of a stream one by one.
    pub(crate) streams_requests: bool,
    /// Whether the response is a stream.
    pub(crate) streams_responses: bool,
    /// Permission that a call needs while authentication is on.
    pub(crate) permission: Permission,
    /// Whether learners may serve the method. Watches and linearizable ranges are checked by their services.
    pub(crate) is_for_learners: bool,
}

impl Method {
    fn new(method: MethodDescriptor) -> Self {
        let service = method.parent_service().full_name().to_owned();
        let name = method.name().to_owned();
        let is_for_learners = matches!(
            (&*service, &*name),
            ("grpc.health.v1.Health", _)
                | ("etcdserverpb.KV", "Range" | "RangeStream")
                | ("etcdserverpb.Watch", "Watch")
                | ("etcdserverpb.Maintenance", "Status" | "Snapshot")
        );
        Self {
            index: 0,
            streams_requests: method.is_client_streaming(),
            streams_responses: method.is_server_streaming(),
            permission: Permission::of(&service, &name),
            is_for_learners,
            service,
            name,
        }
    }

    /// Returns all methods of the protocol, sorted by path.
    pub(crate) fn all() -> &'static [Self] {
        &METHODS
    }

    /// Returns the method at a path.
    pub(crate) fn at(path: &str) -> &'static Self {
        BY_PATH.get(path).copied().unwrap_or(&UNKNOWN)
    }

    /// Returns the method of a request.
    pub(crate) fn of<T>(request: &Request<T>) -> &'static Self {
        let known = request.extensions().get().copied();
        known.unwrap_or_else(|| Self::at(request.uri().path()))
    }

    /// Stores the method of a request in the request, so that [`Method::of`] is fast.
    pub(crate) fn set<T>(request: &mut Request<T>) {
        let method = Self::at(request.uri().path());
        request.extensions_mut().insert(method);
    }

    /// Returns the path of the method's calls.
    pub(crate) fn path(&self) -> String {
        format!("/{}/{}", self.service, self.name)
    }

    /// Returns whether the requests or the responses are a stream.
    pub(crate) fn is_stream(&self) -> bool {
        self.streams_requests || self.streams_responses
    }
}
