//! Accepts etcd's feature gates, and explains why each has no effect here.

use super::error::FlagError;
use super::parse::{split, wrong};
use super::values::Values;

/// The gates of etcd 3.7, and why each changes nothing.
const GATES: [(&str, &str); 11] = [
    ("AllAlpha", "there are no experimental features"),
    ("AllBeta", "there are no experimental features"),
    ("StopGRPCServiceOnDefrag", "defragmentation does nothing, and does not block requests"),
    ("TxnModeWriteWithSharedBuffer", "transactions do not copy the write buffer"),
    ("InitialCorruptCheck", "replicas compare their digests continuously, from the first entry on"),
    ("CompactHashCheck", "replicas compare their digests continuously"),
    ("LeaseCheckpoint", "a new leader gives every lease its full TTL"),
    ("LeaseCheckpointPersist", "a new leader gives every lease its full TTL"),
    ("FastLeaseKeepAlive", "renewals do not wait until the member has applied the newest entry"),
    ("PriorityRequest", "leases expire under any load"),
    ("SetMemberLocalAddr", "a member is identified by its certificate, not by its address"),
];

/// The gate that cannot be enabled.
const TRACING: &str = "DistributedTracing";

/// Returns a warning for each enabled gate that has no effect.
///
/// # Errors
/// Fails at the first gate that etcd does not have or that is not supported.
pub(super) fn idle(values: &Values) -> Result<Vec<String>, FlagError> {
    const NAME: &str = "feature-gates";
    let list = values.get(NAME).unwrap_or_default();
    let mut idle = Vec::new();
    for gate in split(list) {
        let must = "of the form name=true,name=false";
        let (name, value) = gate.split_once('=').ok_or_else(|| wrong(NAME, list, must))?;
        let is_on = match value {
            "true" => true,
            "false" => false,
            _ => return Err(wrong(NAME, list, must)),
        };
        match GATES.iter().find(|(gate, _)| *gate == name) {
            Some((_, why)) if is_on => {
                idle.push(format!("the feature gate {name} has no effect: {why}"));
            }
            Some(_) => {}
            None if name == TRACING && !is_on => {}
            None if name == TRACING => {
                return Err(FlagError::Refused {
                    name: NAME,
                    instead: "tracing export is not supported: use --log-level debug",
                });
            }
            None => {
                return Err(FlagError::Together(format!(
                    "--{NAME}: etcd 3.7 has no feature gate {name:?}"
                )));
            }
        }
    }
    Ok(idle)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gates(list: &str) -> Result<Vec<String>, FlagError> {
        idle(&Values::read(&[format!("--feature-gates={list}")], std::iter::empty())?)
    }

    #[test]
    fn only_feature_gates_of_etcd_are_accepted() {
        assert_eq!(gates("").unwrap(), [""; 0]);
        assert_eq!(gates("InitialCorruptCheck=false,DistributedTracing=false").unwrap(), [""; 0]);
        let idle = gates("StopGRPCServiceOnDefrag=true,CompactHashCheck=true").unwrap();
        assert_eq!(
            idle,
            [
                "the feature gate StopGRPCServiceOnDefrag has no effect: defragmentation does nothing, and does not block \
                 requests",
                "the feature gate CompactHashCheck has no effect: replicas compare their digests continuously",
            ]
        );
        for (list, words) in [
            ("Flying=true", "etcd 3.7 has no feature gate \"Flying\""),
            ("CompactHashCheck", "of the form name=true"),
            ("CompactHashCheck=maybe", "of the form name=true"),
            ("DistributedTracing=true", "use --log-level debug"),
        ] {
            let error = gates(list).unwrap_err().to_string();
            assert!(error.contains(words), "{error:?} lacks {words:?}");
        }
    }
}
