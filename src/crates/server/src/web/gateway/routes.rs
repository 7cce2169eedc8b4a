//! Maps the gateway's paths to methods.

use prost_reflect::MethodDescriptor;

use crate::protocol::PROTOCOL;

/// Paths below [`PREFIXES`] and their methods.
const ROUTES: &[(&str, &str, &str)] = &[
    ("kv/range", "etcdserverpb.KV", "Range"),
    ("kv/put", "etcdserverpb.KV", "Put"),
    ("kv/deleterange", "etcdserverpb.KV", "DeleteRange"),
    ("kv/txn", "etcdserverpb.KV", "Txn"),
    ("kv/compaction", "etcdserverpb.KV", "Compact"),
    ("watch", "etcdserverpb.Watch", "Watch"),
    ("lease/grant", "etcdserverpb.Lease", "LeaseGrant"),
    ("lease/revoke", "etcdserverpb.Lease", "LeaseRevoke"),
    ("kv/lease/revoke", "etcdserverpb.Lease", "LeaseRevoke"),
    ("lease/keepalive", "etcdserverpb.Lease", "LeaseKeepAlive"),
    ("lease/timetolive", "etcdserverpb.Lease", "LeaseTimeToLive"),
    ("kv/lease/timetolive", "etcdserverpb.Lease", "LeaseTimeToLive"),
    ("lease/leases", "etcdserverpb.Lease", "LeaseLeases"),
    ("kv/lease/leases", "etcdserverpb.Lease", "LeaseLeases"),
    ("cluster/member/add", "etcdserverpb.Cluster", "MemberAdd"),
    ("cluster/member/remove", "etcdserverpb.Cluster", "MemberRemove"),
    ("cluster/member/update", "etcdserverpb.Cluster", "MemberUpdate"),
    ("cluster/member/list", "etcdserverpb.Cluster", "MemberList"),
    ("cluster/member/promote", "etcdserverpb.Cluster", "MemberPromote"),
    ("maintenance/alarm", "etcdserverpb.Maintenance", "Alarm"),
    ("maintenance/status", "etcdserverpb.Maintenance", "Status"),
    ("maintenance/defragment", "etcdserverpb.Maintenance", "Defragment"),
    ("maintenance/hash", "etcdserverpb.Maintenance", "Hash"),
    ("maintenance/hashkv", "etcdserverpb.Maintenance", "HashKV"),
    ("maintenance/snapshot", "etcdserverpb.Maintenance", "Snapshot"),
    ("maintenance/transfer-leadership", "etcdserverpb.Maintenance", "MoveLeader"),
    ("maintenance/downgrade", "etcdserverpb.Maintenance", "Downgrade"),
    ("auth/enable", "etcdserverpb.Auth", "AuthEnable"),
    ("auth/disable", "etcdserverpb.Auth", "AuthDisable"),
    ("auth/status", "etcdserverpb.Auth", "AuthStatus"),
    ("auth/authenticate", "etcdserverpb.Auth", "Authenticate"),
    ("auth/user/add", "etcdserverpb.Auth", "UserAdd"),
    ("auth/user/get", "etcdserverpb.Auth", "UserGet"),
    ("auth/user/list", "etcdserverpb.Auth", "UserList"),
    ("auth/user/delete", "etcdserverpb.Auth", "UserDelete"),
    ("auth/user/changepw", "etcdserverpb.Auth", "UserChangePassword"),
    ("auth/user/grant", "etcdserverpb.Auth", "UserGrantRole"),
    ("auth/user/revoke", "etcdserverpb.Auth", "UserRevokeRole"),
    ("auth/role/add", "etcdserverpb.Auth", "RoleAdd"),
    ("auth/role/get", "etcdserverpb.Auth", "RoleGet"),
    ("auth/role/list", "etcdserverpb.Auth", "RoleList"),
    ("auth/role/delete", "etcdserverpb.Auth", "RoleDelete"),
    ("auth/role/grant", "etcdserverpb.Auth", "RoleGrantPermission"),
    ("auth/role/revoke", "etcdserverpb.Auth", "RoleRevokePermission"),
    ("lock/lock", "v3lockpb.Lock", "Lock"),
    ("lock/unlock", "v3lockpb.Lock", "Unlock"),
    ("election/campaign", "v3electionpb.Election", "Campaign"),
    ("election/proclaim", "v3electionpb.Election", "Proclaim"),
    ("election/leader", "v3electionpb.Election", "Leader"),
    ("election/observe", "v3electionpb.Election", "Observe"),
    ("election/resign", "v3electionpb.Election", "Resign"),
];

/// The second prefix is older; clients still use it.
const PREFIXES: [&str; 2] = ["/v3/", "/v3beta/"];

/// Returns the part of a path below the gateway's prefix.
pub(crate) fn below(path: &str) -> Option<&str> {
    PREFIXES.iter().find_map(|prefix| path.strip_prefix(prefix))
}

pub(crate) fn method(path: &str) -> Option<MethodDescriptor> {
    let below = below(path)?;
    let (_, service, method) = ROUTES.iter().find(|(route, _, _)| *route == below)?;
    let service = PROTOCOL.get_service_by_name(service)?;
    service.methods().find(|found| found.name() == *method)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_method_has_a_gateway_path() {
        let named: BTreeSet<_> = ROUTES
            .iter()
            .map(|(path, _, _)| method(&format!("/v3/{path}")).expect(path).full_name().to_owned())
            .collect();
        let services =
            PROTOCOL.services().filter(|service| service.package_name() != "grpc.health.v1");
        let all: BTreeSet<_> = services
            .flat_map(|service| {
                service.methods().map(|method| method.full_name().to_owned()).collect::<Vec<_>>()
            })
            // etcd has no path for this method either.
            .filter(|name| name != "etcdserverpb.KV.RangeStream")
            .collect();
        assert_eq!(named, all);
        assert_eq!(method("/v3beta/kv/put").unwrap().name(), "Put");
        for path in ["/v3/kv", "/v3/", "/kv/put", "/v2/kv/put", "/v3/kv/put/"] {
            assert!(method(path).is_none(), "{path}");
        }
    }
}
