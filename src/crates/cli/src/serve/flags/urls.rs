//! Parses URLs in flags: addresses to listen on and to advertise.

use bowline_server::{Endpoint, ListenerScope};
use std::collections::BTreeSet;

use super::error::FlagError;
use super::parse::{split, wrong};

/// A URL with a scheme and an address.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Url {
    /// Whether the scheme is `https://` or `unixs://`.
    pub(crate) is_secure: bool,
    /// Whether the scheme is `unix://` or `unixs://`: a Unix socket.
    is_file: bool,
    /// `host:port`, or the path of a Unix socket.
    pub(crate) address: String,
}

impl Url {
    fn parse(name: &'static str, url: &str) -> Result<Self, FlagError> {
        const MUST: &str = "of the form http://host:port or https://host:port";
        let (scheme, rest) = url.split_once("://").ok_or_else(|| wrong(name, url, MUST))?;
        let (is_secure, is_file) = match scheme {
            "http" => (false, false),
            "https" => (true, false),
            "unix" => (false, true),
            "unixs" => (true, true),
            _ => return Err(wrong(name, url, MUST)),
        };
        if is_file && (name.contains("peer") || name == "initial-cluster") {
            return Err(wrong(name, url, "http:// or https://: members connect over TCP"));
        }
        let address = rest.trim_end_matches('/');
        let is_address = address.rsplit_once(':').is_some_and(|(host, port)| {
            !host.is_empty() && !host.contains('/') && port.parse::<u16>().is_ok()
        });
        if !(is_address || is_file && !address.is_empty()) {
            return Err(wrong(name, url, MUST));
        }
        Ok(Self { is_secure, is_file, address: without_needless_brackets(address) })
    }

    /// Returns the host, an IPv6 address without its brackets, or `localhost` for a Unix socket.
    pub(crate) fn host(&self) -> &str {
        if self.is_file {
            return "localhost";
        }
        let host = self.address.rsplit_once(':').map_or("", |(host, _)| host);
        host.trim_start_matches('[').trim_end_matches(']')
    }
}

/// Removes brackets around addresses that are not IPv6, as Go does. Helm charts add them to any address.
fn without_needless_brackets(address: &str) -> String {
    let inside = address.strip_prefix('[').and_then(|rest| rest.split_once("]:"));
    match inside {
        Some((host, port)) if !host.contains(':') => format!("{host}:{port}"),
        _ => address.to_owned(),
    }
}

/// An address to listen on, and its services.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Door {
    pub(crate) url: Url,
    pub(crate) scope: ListenerScope,
}

impl Door {
    /// Returns the address in the server's form. As in etcd, `unix://host:port` is a file of that name in the server's
    /// working directory.
    pub(crate) fn endpoint(&self) -> Endpoint {
        let endpoint = match self.url.is_file {
            true => Endpoint::unix(&self.url.address),
            false => Endpoint::tcp(&self.url.address),
        };
        endpoint.secure(self.url.is_secure).scope(self.scope)
    }
}

impl std::fmt::Display for Url {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let scheme = match (self.is_file, self.is_secure) {
            (false, false) => "http",
            (false, true) => "https",
            (true, false) => "unix",
            (true, true) => "unixs",
        };
        write!(f, "{scheme}://{}", self.address)
    }
}

/// Parses a comma-separated list of URLs.
pub(super) fn urls(name: &'static str, list: &str) -> Result<Vec<Url>, FlagError> {
    let urls: Vec<_> =
        split(list).iter().map(|url| Url::parse(name, url)).collect::<Result<_, _>>()?;
    if urls.is_empty() {
        return Err(wrong(name, list, "at least one URL"));
    }
    Ok(urls)
}

/// Returns the addresses of URLs in the library's form: sorted and without duplicates.
pub(crate) fn addresses<'a>(urls: impl IntoIterator<Item = &'a Url>) -> String {
    let addresses: BTreeSet<&str> = urls.into_iter().map(|url| url.address.as_str()).collect();
    addresses.into_iter().collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_ipv6_addresses_keep_their_brackets() {
        for (url, address) in [
            ("http://[10.0.0.1]:2379", "10.0.0.1:2379"),
            ("https://[localhost]:2379/", "localhost:2379"),
            ("http://[::1]:2379", "[::1]:2379"),
            ("http://[fe80::1%eth0]:2379", "[fe80::1%eth0]:2379"),
            ("http://10.0.0.1:2379", "10.0.0.1:2379"),
            ("unix:///run/[x]:1", "/run/[x]:1"),
        ] {
            assert_eq!(Url::parse("listen-client-urls", url).unwrap().address, address, "{url}");
        }
    }
}
