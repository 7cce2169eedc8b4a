//! The protocol's messages, clients and servers, as `tests/protocol.rs` makes them from `proto`: not written by
//! hand, and not read by a person. One module a package, named as the protocol names it.

#![allow(missing_docs, unreachable_pub, dead_code, clippy::all, rust_2018_idioms)]

/// Keys, values and events.
pub mod mvccpb {
    include!("mvccpb.rs");
}

/// Users and roles.
pub mod authpb {
    include!("authpb.rs");
}

/// What a server of etcd answers.
pub mod etcdserverpb {
    include!("etcdserverpb.rs");
}

/// Locks.
pub mod v3lockpb {
    include!("v3lockpb.rs");
}

/// Elections.
pub mod v3electionpb {
    include!("v3electionpb.rs");
}

/// gRPC's own packages.
pub mod grpc {
    /// The health protocol.
    pub mod health {
        /// Its first version.
        pub mod v1 {
            include!("grpc.health.v1.rs");
        }
    }
}
