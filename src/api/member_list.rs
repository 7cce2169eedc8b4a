//! [`MemberList`]: the founding members of a cluster, in one line of text.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

use crate::model::is_address;

/// The founding members of a cluster as text: `n1=host:port,n2=host:port`. A member with several
/// addresses is listed once for each of them, as in etcd. Pass the list to
/// [`Config::members`](crate::Config::members).
///
/// ```
/// use bowline::{Config, cluster::MemberList};
///
/// let members: MemberList = "n1=10.0.0.1:7700,n2=10.0.0.2:7700,n3=n3.example:7700".parse()?;
/// assert_eq!(members.iter().next(), Some(("n1", "10.0.0.1:7700")));
/// let config = Config::new("/var/lib/app", "n1").members(members);
/// let error = "n1=10.0.0.1".parse::<MemberList>().unwrap_err();
/// assert_eq!(error.to_string(), "invalid member \"n1=10.0.0.1\": expected name=host:port");
/// # let _ = config;
/// # Ok::<(), bowline::cluster::ParseMemberListError>(())
/// ```
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct MemberList(Vec<(String, String)>);

/// A text that is not a [`MemberList`].
#[derive(Clone, PartialEq, Eq, Hash, Debug, Error)]
#[error("invalid member {0:?}: expected name=host:port")]
pub struct ParseMemberListError(String);

impl MemberList {
    /// Returns the name of each member, and its address or addresses, separated by commas.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, address)| (name.as_str(), address.as_str()))
    }
}

impl FromStr for MemberList {
    type Err = ParseMemberListError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut members: Vec<(String, String)> = Vec::new();
        for entry in text.split(',').map(str::trim) {
            let (name, address) = entry
                .split_once('=')
                .map(|(name, address)| (name.trim(), address.trim()))
                .filter(|(name, address)| !name.is_empty() && is_address(address))
                .ok_or_else(|| ParseMemberListError(entry.to_owned()))?;
            match members.iter_mut().find(|(other, _)| other == name) {
                Some((_, addresses)) => {
                    addresses.push(',');
                    addresses.push_str(address);
                }
                None => members.push((name.to_owned(), address.to_owned())),
            }
        }
        Ok(Self(members))
    }
}

/// Writes the text that [`MemberList::from_str`] reads.
impl fmt::Display for MemberList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = "";
        for (name, addresses) in self.iter() {
            for address in addresses.split(',') {
                write!(f, "{separator}{name}={address}")?;
                separator = ",";
            }
        }
        Ok(())
    }
}

impl IntoIterator for MemberList {
    type Item = (String, String);
    type IntoIter = std::vec::IntoIter<(String, String)>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn member_lists_round_trip_and_keep_their_order() {
        let text = "b=h:2,a=h:1,a=[::1]:3";
        let members: MemberList = text.parse().unwrap();
        assert_eq!(members.iter().collect::<Vec<_>>(), [("b", "h:2"), ("a", "h:1,[::1]:3")]);
        assert_eq!(members.to_string(), text);
        assert_eq!(" a = h:1 , b=h:2 ".parse::<MemberList>().unwrap().to_string(), "a=h:1,b=h:2");
    }

    #[test]
    fn invalid_member_is_named() {
        for (text, bad) in [
            ("", ""),
            ("a=h:1,", ""),
            ("h:1", "h:1"),
            ("a=h:1,b=h", "b=h"),
            ("=h:1", "=h:1"),
            ("a=http://h:1", "a=http://h:1"),
        ] {
            let why = text.parse::<MemberList>().unwrap_err();
            assert_eq!(why, ParseMemberListError(bad.to_owned()), "{text}");
        }
    }
}
