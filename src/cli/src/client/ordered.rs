//! Whether a server's word about how far a watch has come can be believed.

use tonic::Code;

use super::connect::Link;
use crate::generated::etcdserverpb as pb;

/// From which version on the answer to a question for progress says what it should: that all up to its revision has
/// been told. Before, it may overtake what it speaks of.
const ORDERED_SINCE: [u32; 3] = [3, 5, 10];

/// Asks a server; one that does not say is not believed.
pub(crate) async fn is_ordered(link: &Link) -> bool {
    match link.maintenance().status(pb::StatusRequest {}).await {
        Ok(status) => is_ordered_version(&status.into_inner().version),
        // Bowline denies it to all but root, and new servers of etcd do. So did those before 3.3, which do not know this
        // question.
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
    [next(), next(), next()] >= ORDERED_SINCE
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_word_of_old_servers_about_progress_is_not_believed() {
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
