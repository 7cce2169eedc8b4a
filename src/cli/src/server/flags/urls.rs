//! URLs in flags: where to listen, and what others are told.

use std::collections::BTreeSet;
use std::path::Path;

use super::FlagError;
use super::options::{split, wrong};

/// A URL, as far as it matters here.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Url {
    /// Whether it is `https://` or `unixs://`.
    pub(crate) is_secure: bool,
    /// Whether it is `unix://` or `unixs://`: a socket file.
    is_file: bool,
    /// `host:port`, or the path of a socket file.
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

    /// The path of a socket file, if it is one: as in etcd, `unix://host:port` is a file of that name where the server runs.
    pub(crate) fn path(&self) -> Option<&Path> {
        self.is_file.then(|| Path::new(&self.address))
    }

    /// The host alone; an address of IPv6 without its brackets. Of a socket file this machine.
    pub(crate) fn host(&self) -> &str {
        if self.is_file {
            return "localhost";
        }
        let host = self.address.rsplit_once(':').map_or("", |(host, _)| host);
        host.trim_start_matches('[').trim_end_matches(']')
    }
}

/// Charts write brackets around any address, in case it is one of IPv6: Go takes them off.
fn without_needless_brackets(address: &str) -> String {
    let inside = address.strip_prefix('[').and_then(|rest| rest.split_once("]:"));
    match inside {
        Some((host, port)) if !host.contains(':') => format!("{host}:{port}"),
        _ => address.to_owned(),
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
        let scheme = match (self.is_file, self.is_secure) {
            (false, false) => "http",
            (false, true) => "https",
            (true, false) => "unix",
            (true, true) => "unixs",
        };
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

/// The addresses of URLs as the library takes those of a member: each once, in an order that does not depend on the flag's.
pub(crate) fn addresses<'a>(urls: impl IntoIterator<Item = &'a Url>) -> String {
    let addresses: BTreeSet<&str> = urls.into_iter().map(|url| url.address.as_str()).collect();
    addresses.into_iter().collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_addresses_of_ipv6_keep_their_brackets() {
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
