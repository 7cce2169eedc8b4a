//! Checks whether the progress notifications of a server's watches are reliable.

use tonic::Code;

use crate::connect::Link;
use bowline_proto::etcdserverpb as pb;

/// First etcd version with reliable responses to progress requests: every event up to the response's revision has been
/// delivered. In older versions the response may overtake events.
const ORDERED_FROM: [u32; 3] = [3, 5, 10];

/// Queries the server's version, and returns whether its notifications are reliable. If the server does not answer,
/// they count as unreliable.
pub async fn is_ordered(link: &Link) -> bool {
    match link.maintenance().status(pb::StatusRequest {}).await {
        Ok(status) => is_ordered_version(&status.into_inner().version),
        // Bowline and recent etcd servers restrict this request to root. etcd before 3.3 also restricted it, and does
        // not know the request below.
        Err(status) if status.code() == Code::PermissionDenied => {
            let asked = link.auth().auth_status(pb::AuthStatusRequest {}).await;
            asked.map_or_else(|status| status.code() != Code::Unimplemented, |_| true)
        }
        Err(_) => false,
    }
}

fn is_ordered_version(version: &str) -> bool {
    let mut numbers = version.split(['.', '-', '+']).map_while(|number| number.parse().ok());
    let mut next = || numbers.next().unwrap_or_default();
    [next(), next(), next()] >= ORDERED_FROM
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_of_old_servers_is_not_trusted() {
        for (version, is_ordered) in [
            ("3.4.23", false),
            ("3.5.9", false),
            ("3.5.10", true),
            ("3.6.0-rc.1", true),
            ("4.0", true),
            ("", false),
        ] {
            assert_eq!(is_ordered_version(version), is_ordered, "{version}");
        }
    }
}
