//! etcd's feature gates: what each would switch, and how that is here.

use super::options::{split, wrong};
use super::{FlagError, Values};

/// A gate of etcd 3.6, and why it changes nothing.
const GATES: [(&str, &str); 9] = [
    ("AllAlpha", "there is nothing unfinished to be switched on"),
    ("AllBeta", "there is nothing unfinished to be switched on"),
    ("StopGRPCServiceOnDefrag", "there is nothing to defragment: nobody waits"),
    ("TxnModeWriteWithSharedBuffer", "transactions copy nothing"),
    ("InitialCorruptCheck", "replicas compare their digests from the first entry on"),
    ("CompactHashCheck", "replicas compare their digests all the time"),
    ("LeaseCheckpoint", "a new leader gives every lease its full TTL"),
    ("LeaseCheckpointPersist", "a new leader gives every lease its full TTL"),
    ("SetMemberLocalAddr", "a member is known by its certificate, not by its address"),
];

/// What cannot be switched on.
const TRACING: &str = "DistributedTracing";

/// The gates that are switched on, and that change nothing.
///
/// # Errors
/// The first that is none of etcd's, or is not offered.
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
                idle.push(format!("the feature gate {name} changes nothing: {why}"));
            }
            Some(_) => {}
            None if name == TRACING && !is_on => {}
            None if name == TRACING => {
                return Err(FlagError::Refused {
                    name: NAME,
                    instead: "there is no exporter of traces: use --log-level debug",
                });
            }
            None => {
                return Err(FlagError::Together(format!(
                    "--{NAME}: there is no gate {name:?} in etcd 3.6"
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
    fn gates_of_etcd_may_be_named_and_no_others() {
        assert_eq!(gates("").unwrap(), [""; 0]);
        assert_eq!(gates("InitialCorruptCheck=false,DistributedTracing=false").unwrap(), [""; 0]);
        let idle = gates("StopGRPCServiceOnDefrag=true,CompactHashCheck=true").unwrap();
        assert_eq!(
            idle,
            [
                "the feature gate StopGRPCServiceOnDefrag changes nothing: there is nothing to defragment: nobody waits",
                "the feature gate CompactHashCheck changes nothing: replicas compare their digests all the time",
            ]
        );
        for (list, words) in [
            ("Flying=true", "there is no gate \"Flying\" in etcd 3.6"),
            ("CompactHashCheck", "of the form name=true"),
            ("CompactHashCheck=maybe", "of the form name=true"),
            ("DistributedTracing=true", "use --log-level debug"),
        ] {
            let error = gates(list).unwrap_err().to_string();
            assert!(error.contains(words), "{error:?} lacks {words:?}");
        }
    }
}
