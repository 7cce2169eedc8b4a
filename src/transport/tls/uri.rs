//! The URI that names a member in the member's certificate.

use std::fmt;

const SCHEME: &str = "bowline://";

/// The identity in a member's certificate: the URI `bowline://CLUSTER/MEMBER`. A member's
/// certificate has exactly one URI of this form among its alternative names. All characters except
/// letters, digits and `-._~` are percent-encoded.
///
/// ```
/// use bowline::cluster::MemberUri;
/// assert_eq!(MemberUri::new("shop", "node 1").to_string(), "bowline://shop/node%201");
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct MemberUri {
    /// The operator's name for the cluster. All members of a cluster have the same name of the
    /// cluster in their certificates. Clusters that share an authority must have different names.
    pub cluster: String,
    /// Name of the member.
    pub member: String,
}

impl MemberUri {
    /// Creates the identity of `member` in `cluster`.
    pub fn new(cluster: impl Into<String>, member: impl Into<String>) -> Self {
        Self { cluster: cluster.into(), member: member.into() }
    }

    /// Returns the identity if exactly one of the URIs is a member URI.
    pub(super) fn only<'a>(uris: impl IntoIterator<Item = &'a str>) -> Result<Self, String> {
        let mut ours = uris.into_iter().filter(|uri| uri.starts_with(SCHEME));
        match (ours.next(), ours.next()) {
            (Some(uri), None) => {
                Self::parse(uri).ok_or_else(|| format!("has the invalid URI {uri:?}"))
            }
            (None, _) => Err("has no URI of the form bowline://CLUSTER/MEMBER".to_owned()),
            (Some(one), Some(other)) => Err(format!("has the URIs {one:?} and {other:?}")),
        }
    }

    /// Returns whether any of the URIs is a member URI, valid or not.
    pub(super) fn is_in<'a>(uris: impl IntoIterator<Item = &'a str>) -> bool {
        uris.into_iter().any(|uri| uri.starts_with(SCHEME))
    }

    fn parse(uri: &str) -> Option<Self> {
        let (cluster, member) = uri.strip_prefix(SCHEME)?.split_once('/')?;
        let uri = Self { cluster: decoded(cluster)?, member: decoded(member)? };
        (!uri.cluster.is_empty() && !uri.member.is_empty()).then_some(uri)
    }
}

impl fmt::Display for MemberUri {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{SCHEME}{}/{}", encoded(&self.cluster), encoded(&self.member))
    }
}

fn is_plain(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-._~".contains(&byte)
}

fn encoded(text: &str) -> String {
    let byte = |byte: u8| match is_plain(byte) {
        true => char::from(byte).to_string(),
        false => format!("%{byte:02X}"),
    };
    text.bytes().map(byte).collect()
}

/// Decodes a percent-encoded text. Returns `None` unless it is encoded as this module would encode
/// it, so that each name has only one form.
fn decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let [first, after @ ..] = rest {
        rest = after;
        if *first == b'%' {
            let (digits, after) = rest.split_at_checked(2)?;
            bytes.push(u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?);
            rest = after;
        } else {
            bytes.push(*first);
        }
    }
    let found = String::from_utf8(bytes).ok()?;
    (encoded(&found) == text).then_some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn member_uri_has_one_form() {
        for (cluster, member) in [("shop", "n1"), ("a/b c", "ü%/."), ("~", "-_.")] {
            let uri = MemberUri::new(cluster, member);
            assert_eq!(MemberUri::parse(&uri.to_string()), Some(uri));
        }
        let wrong = [
            "bowline://shop",
            "bowline:///n1",
            "bowline://shop/",
            "bowline://shop/n1/x",
            "bowline://shop/n%311",
            "bowline://shop/n%2",
            "bowline://shop/%ff",
            "bowline://shop/%2f",
            "bowline://shop/n 1",
            "Bowline://shop/n1",
        ];
        for uri in wrong {
            assert_eq!(MemberUri::parse(uri), None, "{uri}");
        }
    }

    #[test]
    fn certificate_names_one_member() {
        let only = |uris: &[&str]| MemberUri::only(uris.iter().copied());
        let others = ["spiffe://shop/n2", "bowline://shop/n1"];
        assert_eq!(only(&others), Ok(MemberUri::new("shop", "n1")));
        assert!(only(&["https://shop/n1"]).unwrap_err().contains("has no URI"));
        assert!(only(&["bowline://shop/n1", "bowline://shop/n2"]).unwrap_err().contains("and"));
        assert!(only(&["bowline://shop"]).unwrap_err().contains("invalid URI"));
    }
}
