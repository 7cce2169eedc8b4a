//! The release of etcd that a server announces.

/// Release of etcd that a server announces to its clients. Some clients use newer calls only if the announced release
/// has them. The server serves the same calls in any case.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[non_exhaustive]
pub enum EtcdVersion {
    /// etcd 3.6, for clients and tools that do not know later releases.
    V3_6,
    /// etcd 3.7.
    #[default]
    V3_7,
}

impl EtcdVersion {
    /// Returns the version of the server, such as `3.7.3`.
    pub const fn server(self) -> &'static str {
        match self {
            Self::V3_6 => "3.6.9",
            Self::V3_7 => "3.7.3",
        }
    }

    /// Returns the version of the cluster, such as `3.7.0`.
    pub const fn cluster(self) -> &'static str {
        match self {
            Self::V3_6 => "3.6.0",
            Self::V3_7 => "3.7.0",
        }
    }

    /// Returns the version of the cluster without the patch number, such as `3.7`.
    pub const fn short(self) -> &'static str {
        match self {
            Self::V3_6 => "3.6",
            Self::V3_7 => "3.7",
        }
    }
}
