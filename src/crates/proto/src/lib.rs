//! etcd's v3 protocol: the messages, clients and servers that `tests/protocol.rs` generates from the files in `proto`,
//! and their descriptors. Each protobuf package is a module with the same name.

#![allow(missing_docs, unreachable_pub, clippy::all, rust_2018_idioms)]

mod convert;

/// A serialized `FileDescriptorSet` of all packages.
pub const DESCRIPTORS: &[u8] = include_bytes!("generated/descriptors.bin");

/// Keys, values and events.
pub mod mvccpb {
    include!("generated/mvccpb.rs");
}

/// Users and roles.
pub mod authpb {
    include!("generated/authpb.rs");
}

/// etcd's services and their messages.
pub mod etcdserverpb {
    include!("generated/etcdserverpb.rs");
}

impl etcdserverpb::AlarmMember {
    /// Formats the alarm for people as etcd does; Go omits a zero member id.
    pub fn description(&self) -> String {
        let member = match self.member_id {
            0 => String::new(),
            id => format!("memberID:{id} "),
        };
        format!("{member}alarm:{} ", self.alarm().as_str_name())
    }
}

/// Locks.
pub mod v3lockpb {
    include!("generated/v3lockpb.rs");
}

/// Elections.
pub mod v3electionpb {
    include!("generated/v3electionpb.rs");
}

/// gRPC's own packages.
pub mod grpc {
    /// The health protocol.
    pub mod health {
        /// Version 1.
        pub mod v1 {
            include!("generated/grpc.health.v1.rs");
        }
    }
}
