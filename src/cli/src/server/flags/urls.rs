//! URLs in flags: where to listen, and what others are told.

use super::FlagError;
use super::options::{split, wrong};

/// A URL, as far as it matters here.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Url {
    /// Whether it is `https://`.
    pub(crate) is_secure: bool,
    /// `host:port`.
    pub(crate) address: String,
}

impl Url {
    fn parse(name: &'static str, url: &str) -> Result<Self, FlagError> {
        let (is_secure, rest) = match (url.strip_prefix("http://"), url.strip_prefix("https://")) {
            (Some(rest), _) => (false, rest),
            (_, Some(rest)) => (true, rest),
            (None, None) => {
                return Err(wrong(name, url, "of the form http://host:port or https://host:port"));
            }
        };
        let address = rest.trim_end_matches('/');
        let is_address = address.rsplit_once(':').is_some_and(|(host, port)| {
            !host.is_empty() && !host.contains('/') && port.parse::<u16>().is_ok()
        });
        if !is_address {
            return Err(wrong(name, url, "of the form http://host:port or https://host:port"));
        }
        Ok(Self { is_secure, address: address.to_owned() })
    }

    /// The host alone; an address of IPv6 without its brackets.
    pub(crate) fn host(&self) -> &str {
        let host = self.address.rsplit_once(':').map_or("", |(host, _)| host);
        host.trim_start_matches('[').trim_end_matches(']')
    }
}

/// What is served at an address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Offer {
    /// Everything.
    All,
    /// gRPC alone: what is asked over HTTP has addresses of its own.
    Grpc,
    /// What is asked over HTTP, JSON among it, and no gRPC.
    Http,
    /// Health and measurements alone.
    Health,
}

/// An address, and what is served there.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Door {
    pub(crate) url: Url,
    pub(crate) offer: Offer,
}

impl std::fmt::Display for Url {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let scheme = if self.is_secure { "https" } else { "http" };
        write!(f, "{scheme}://{}", self.address)
    }
}

/// The URLs of a list.
pub(super) fn urls(name: &'static str, list: &str) -> Result<Vec<Url>, FlagError> {
    let urls: Vec<_> =
        split(list).iter().map(|url| Url::parse(name, url)).collect::<Result<_, _>>()?;
    if urls.is_empty() {
        return Err(wrong(name, list, "at least one URL"));
    }
    Ok(urls)
}

/// The URL of a list that has one.
pub(super) fn single(name: &'static str, list: &str) -> Result<Url, FlagError> {
    match <[Url; 1]>::try_from(urls(name, list)?) {
        Ok([url]) => Ok(url),
        Err(_) => Err(wrong(name, list, "one URL: members have one address each")),
    }
}
