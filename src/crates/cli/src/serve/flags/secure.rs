//! Parses the TLS flags: which certificates the server presents, and which ones it requires.
//!
//! A combination of flags that would admit more clients than it appears to is rejected. A certificate has no effect on
//! an http:// URL. Like etcd, the server ignores the certificate with a warning if another URL uses it.

use std::path::{Path, PathBuf};

use bowline::cluster::{PeerProof, PeerTls};
use bowline_server::{Certificate, ListenerScope, TlsSettings};
use rustls::SupportedCipherSuite;
use rustls::crypto::ring;
use rustls::pki_types::ServerName;
use rustls::version::{TLS12, TLS13};

use super::error::FlagError;
use super::parse::{number, split, switch, wrong};
use super::urls::{Door, Url};
use super::values::Values;

fn file(values: &Values, name: &'static str) -> Option<PathBuf> {
    values.get(name).map(PathBuf::from)
}

/// Returns a certificate and its key, which must be given together.
fn pair(
    values: &Values,
    cert: &'static str,
    key: &'static str,
) -> Result<Option<(PathBuf, PathBuf)>, FlagError> {
    match (file(values, cert), file(values, key)) {
        (None, None) => Ok(None),
        (Some(cert), Some(key)) => Ok(Some((cert, key))),
        _ => Err(FlagError::Together(format!("--{cert} and --{key} require each other"))),
    }
}

/// Returns the TLS settings for `doors`, or `None` if no URL is https://, and warnings.
pub(super) fn client_tls(
    values: &Values,
    doors: &[Door],
) -> Result<(Option<TlsSettings>, Vec<String>), FlagError> {
    let urls: Vec<&Url> = doors.iter().map(|door| &door.url).collect();
    let files = pair(values, "cert-file", "key-file")?;
    let makes_own = switch(values, "auto-tls")?;
    let years = number(values, "self-signed-cert-validity", 1, 1, 100)?;
    let authorities = file(values, "trusted-ca-file");
    let names_users = switch(values, "client-cert-auth")?;
    let revoked = file(values, "client-crl-file");
    let hosts = split(values.get("client-cert-allowed-hostname").unwrap_or_default());
    for (needs, name) in [
        (names_users, "client-cert-auth"),
        (revoked.is_some(), "client-crl-file"),
        (!hosts.is_empty(), "client-cert-allowed-hostname"),
    ] {
        if needs && authorities.is_none() {
            return Err(FlagError::Together(format!(
                "--{name} requires --trusted-ca-file, which names the trusted authorities"
            )));
        }
    }
    let is_name = |host: String| {
        let must = "host names or addresses";
        let name = ServerName::try_from(host.clone());
        name.map_err(|_| wrong("client-cert-allowed-hostname", &host, must))
    };
    let hosts = hosts.into_iter().map(is_name).collect::<Result<Vec<_>, _>>()?;
    let (versions, suites) = ciphers(values)?;
    let mut warnings = Vec::new();
    for url in urls.iter().filter(|url| !url.is_secure) {
        if files.is_some() || makes_own {
            warnings.push(format!("{url} is not encrypted: certificates apply to https:// only"));
        }
        if authorities.is_some() {
            warnings.push(format!(
                "no client certificates are required at {url}, which is not encrypted"
            ));
        }
    }
    let none_asks =
        doors.iter().all(|door| door.scope == ListenerScope::Health || !door.url.is_secure);
    if authorities.is_some() && none_asks {
        let name = if names_users { "client-cert-auth" } else { "trusted-ca-file" };
        return Err(FlagError::Together(format!(
            "--{name} requires client certificates, but none of --listen-client-urls is https://: use https:// \
                 there, or omit --trusted-ca-file and the flags that depend on it"
        )));
    }
    let Some(secure) = urls.iter().find(|url| url.is_secure) else {
        return Ok((None, warnings));
    };
    if files.is_some() && makes_own {
        warnings.push("--auto-tls has no effect together with --cert-file".to_owned());
    }
    let certificate = match files {
        Some((cert, key)) => Certificate::Files { cert, key },
        None if makes_own => {
            let secure = urls.iter().filter(|url| url.is_secure);
            Certificate::SelfSigned {
                hosts: secure.map(|url| url.host().to_owned()).collect(),
                years,
            }
        }
        None => {
            return Err(FlagError::Together(format!(
                "{secure} is https://: it requires --cert-file and --key-file, or --auto-tls for a test"
            )));
        }
    };
    let tls =
        TlsSettings { certificate, authorities, revoked, hosts, names_users, versions, suites };
    Ok((Some(tls), warnings))
}

type Ciphers = (Vec<&'static rustls::SupportedProtocolVersion>, Vec<SupportedCipherSuite>);

fn ciphers(values: &Values) -> Result<Ciphers, FlagError> {
    let version = |name| match values.get(name).unwrap_or_default() {
        "" => Ok(None),
        "TLS1.2" => Ok(Some(2)),
        "TLS1.3" => Ok(Some(3)),
        other => Err(wrong(name, other, "TLS1.2 or TLS1.3: older versions are insecure")),
    };
    let least = version("tls-min-version")?.unwrap_or(2);
    let most = version("tls-max-version")?.unwrap_or(3);
    if most < least {
        return Err(FlagError::Together(
            "--tls-max-version must not be below --tls-min-version".to_owned(),
        ));
    }
    let versions = [(2, &TLS12), (3, &TLS13)].into_iter();
    let versions: Vec<_> =
        versions.filter(|(v, _)| (least..=most).contains(v)).map(|(_, version)| version).collect();
    let wanted = values.get("cipher-suites").unwrap_or_default();
    let wanted = split(wanted);
    let all = ring::ALL_CIPHER_SUITES;
    if wanted.is_empty() {
        return Ok((versions, all.to_vec()));
    }
    if least == 3 {
        return Err(FlagError::Together(
            "--cipher-suites applies to TLS 1.2, which --tls-min-version excludes".to_owned(),
        ));
    }
    let is_new = |suite: &SupportedCipherSuite| suite.tls13().is_some();
    // As in etcd, the suites of TLS 1.3 cannot be chosen.
    let mut suites: Vec<_> = all.iter().copied().filter(is_new).collect();
    for name in &wanted {
        // Go accepts both names of these suites.
        let long = match name.strip_suffix("_POLY1305") {
            Some(_) => format!("{name}_SHA256"),
            None => name.to_owned(),
        };
        let found = all.iter().find(|suite| {
            let own = format!("{:?}", suite.suite());
            own == long || own.replace("TLS13_", "TLS_") == long
        });
        match found {
            Some(suite) if is_new(suite) => {}
            Some(suite) => suites.push(*suite),
            None => {
                let known = all.iter().filter(|suite| !is_new(suite));
                let known: Vec<_> = known.map(|suite| format!("{:?}", suite.suite())).collect();
                return Err(FlagError::Together(format!(
                    "--cipher-suites: unknown suite {name}; supported are {}",
                    known.join(", ")
                )));
            }
        }
    }
    Ok((versions, suites))
}

/// Returns the TLS files for connections between members, or `None` if their URLs are http://.
pub(super) fn peer_tls(
    values: &Values,
    urls: &[(&str, Url)],
    data_dir: &Path,
    warnings: &mut Vec<String>,
) -> Result<Option<PeerTls>, FlagError> {
    let files = pair(values, "peer-cert-file", "peer-key-file")?;
    for (own, other) in
        [("peer-cert-file", "peer-client-cert-file"), ("peer-key-file", "peer-client-key-file")]
    {
        if file(values, other).is_some_and(|other| file(values, own) != Some(other)) {
            return Err(FlagError::Together(format!(
                "--{other} and --{own} must name the same file: a member has one certificate, for both directions"
            )));
        }
    }
    let authorities = file(values, "peer-trusted-ca-file");
    let revoked = file(values, "peer-crl-file");
    let asks = switch(values, "peer-client-cert-auth")?;
    let makes_own = switch(values, "peer-auto-tls")?;
    let migrates = switch(values, "peer-tls-migration")?;
    if migrates && (!urls[0].1.is_secure || makes_own) {
        return Err(FlagError::Together(format!(
            "--peer-tls-migration requires the member's certificates and https:// in --{}: it is for members that \
             move from http:// to https://",
            urls[0].0
        )));
    }
    // During a migration to TLS, members that have not been migrated may still be listed with http://.
    let is_odd = |url: &Url| url.is_secure != urls[0].1.is_secure;
    let odd =
        urls.iter().find(|(name, url)| is_odd(url) && !(migrates && *name == "initial-cluster"));
    if let Some((name, url)) = odd {
        return Err(FlagError::Together(format!(
            "--{name} has {url}, and --{} has {}: all peer URLs must be https://, or none",
            urls[0].0, urls[0].1
        )));
    }
    let (name, url) = &urls[0];
    let any = files.is_some() || authorities.is_some() || revoked.is_some() || asks;
    if !url.is_secure {
        if makes_own {
            warnings.push(format!(
                "--peer-auto-tls has no effect: --{name} has {url}, which is not encrypted"
            ));
        }
        return match any {
            false => Ok(None),
            true => Err(FlagError::Together(format!(
                "peer certificates are given, but --{name} has {url}: use https://, because the members would not use \
                 TLS otherwise"
            ))),
        };
    }
    if makes_own && any {
        return Err(FlagError::Together(
            "--peer-auto-tls and peer certificates cannot be used together: omit --peer-auto-tls, which authenticates \
             nobody, or the certificates"
                .to_owned(),
        ));
    }
    if makes_own {
        // etcd uses the same directory.
        let own = data_dir.join("fixtures").join("peer");
        return Ok(Some(PeerTls::unproven(own.join("cert.pem"), own.join("key.pem"))));
    }
    let (Some((cert, key)), Some(authorities)) = (files, authorities) else {
        return Err(FlagError::Together(format!(
            "--{name} has {url}: it requires --peer-cert-file, --peer-key-file and --peer-trusted-ca-file. The \
             member's certificate should contain the URI bowline://CLUSTER/MEMBER: see docs/operating/certificates.md"
        )));
    };
    let files = PeerTls::new(authorities, cert, key).proof(PeerProof::OwnKind);
    let files = if migrates { files.migrating() } else { files };
    Ok(Some(match revoked {
        Some(revoked) => files.crl(revoked),
        None => files,
    }))
}

#[cfg(test)]
mod tests {
    use super::super::options::Options;
    use super::*;

    fn options(arguments: &[&str]) -> Result<Options, FlagError> {
        let mut arguments: Vec<_> = arguments.iter().map(|&argument| argument.to_owned()).collect();
        arguments.push("--advertise-client-urls=https://h:1".to_owned());
        Options::new(&Values::read(&arguments, std::iter::empty())?)
    }

    const SECURE: &str = "--listen-client-urls=https://h:1";
    const FILES: [&str; 2] = ["--cert-file=c", "--key-file=k"];

    #[test]
    fn insecure_tls_combinations_are_rejected() {
        let peers = ["listen-peer-urls", "initial-advertise-peer-urls"];
        let peers = peers.map(|name| format!("--{name}=https://h:2"));
        let cases: &[(&[&str], &str)] = &[
            (&[SECURE], "it requires --cert-file and --key-file, or --auto-tls"),
            (&[SECURE, FILES[0]], "--cert-file and --key-file require each other"),
            (&[SECURE, FILES[1]], "--cert-file and --key-file require each other"),
            (&[SECURE, FILES[0], FILES[1], "--client-cert-auth"], "requires --trusted-ca-file"),
            (&["--client-cert-auth"], "--client-cert-auth requires --trusted-ca-file"),
            (&["--client-crl-file=x"], "--client-crl-file requires --trusted-ca-file"),
            (&["--client-cert-allowed-hostname=h"], "requires --trusted-ca-file"),
            (
                &["--client-cert-allowed-hostname=h!", "--trusted-ca-file=x"],
                "host names or addresses",
            ),
            (
                &["--client-cert-auth", "--trusted-ca-file=x"],
                "--client-cert-auth requires client certificates",
            ),
            (
                &["--trusted-ca-file=x", FILES[0], FILES[1]],
                "--trusted-ca-file requires client certificates",
            ),
            (&["--client-cert-auth=maybe"], "must be true or false"),
            (&["--tls-min-version=TLS1.1"], "older versions are insecure"),
            (&["--tls-min-version=TLS1.3", "--tls-max-version=TLS1.2"], "must not be below"),
            (&["--cipher-suites=TLS_RSA_WITH_AES_128_CBC_SHA"], "unknown suite TLS_RSA_WITH_AES"),
            (
                &["--cipher-suites=TLS_AES_128_GCM_SHA256", "--tls-min-version=TLS1.3"],
                "applies to TLS 1.2",
            ),
            (&["--self-signed-cert-validity=0"], "1 to 100 years"),
            // Members.
            (&["--listen-peer-urls=https://h:2"], "must be https://, or none"),
            (&[&peers[0], &peers[1]], "requires --peer-cert-file, --peer-key-file and"),
            (&["--peer-client-cert-auth"], "use https://"),
            (&["--peer-trusted-ca-file=x"], "use https://"),
            (&["--peer-cert-file=c", "--peer-key-file=k"], "use https://"),
            (&["--peer-cert-file=c"], "--peer-cert-file and --peer-key-file require each other"),
            (&["--peer-tls-migration"], "--peer-tls-migration requires the member's certificates"),
            (
                &[&peers[0], &peers[1], "--peer-tls-migration", "--peer-auto-tls"],
                "--peer-tls-migration requires the member's certificates",
            ),
            (&["--peer-client-cert-file=c"], "and --peer-cert-file must name the same file"),
            (
                &["--peer-cert-file=c", "--peer-key-file=k", "--peer-client-key-file=c"],
                "and --peer-key-file must name the same file",
            ),
        ];
        for (arguments, words) in cases {
            let error = options(arguments).unwrap_err().to_string();
            assert!(error.contains(words), "{arguments:?}: {error:?} lacks {words:?}");
        }
    }

    #[test]
    fn unused_certificates_of_plain_urls_cause_a_warning() {
        let mixed = "--listen-client-urls=https://[::1]:1,http://127.0.0.1:2";
        let options_of = |more: &[&str]| options(&[&[mixed], &FILES[..], more].concat()).unwrap();
        let mixed = options_of(&["--trusted-ca-file=a"]);
        assert_eq!(
            mixed.listen_clients.iter().map(Url::host).collect::<Vec<_>>(),
            ["::1", "127.0.0.1"]
        );
        let tls = mixed.client_tls.as_ref().unwrap();
        let (cert, key) = ("c".into(), "k".into());
        assert_eq!(tls.certificate, Certificate::Files { cert, key });
        assert!(!tls.names_users && tls.authorities.is_some());
        assert_eq!(mixed.warnings.len(), 2, "{:?}", mixed.warnings);
        let plain = options(&FILES).unwrap();
        assert!(plain.client_tls.is_none());
        assert_eq!(
            plain.warnings,
            ["http://localhost:2379 is not encrypted: certificates apply to https:// only"]
        );
        let made = options(&[SECURE, "--auto-tls"]).unwrap().client_tls.unwrap();
        assert_eq!(
            made.certificate,
            Certificate::SelfSigned { hosts: vec!["h".to_owned()], years: 1 }
        );
    }

    #[test]
    fn peer_certificate_may_be_given_once_or_twice() {
        let peers = ["listen-peer-urls", "initial-advertise-peer-urls"];
        let peers = peers.map(|name| format!("--{name}=https://h:2"));
        let files = ["cert-file=c", "key-file=k", "trusted-ca-file=a"];
        let files = files.map(|file| format!("--peer-{file}"));
        let twice = ["cert-file=c", "key-file=k"].map(|file| format!("--peer-client-{file}"));
        let all = ["--initial-cluster=default=https://h:2".to_owned()].into_iter().chain(peers);
        let all: Vec<_> = all.chain(files).chain(twice).collect();
        let all: Vec<_> = all.iter().map(String::as_str).collect();
        assert!(options(&all).unwrap().settings.peers_use_tls);
        // During the migration, other members may still be listed with http://.
        let mixed = "--initial-cluster=default=https://h:2,other=http://i:2";
        let mixed = [&all[1..], &[mixed]].concat();
        assert!(options(&mixed).unwrap_err().to_string().contains("must be https://, or none"));
        let migrating = [&mixed[..], &["--peer-tls-migration"]].concat();
        assert!(options(&migrating).unwrap().settings.peers_use_tls);
    }

    #[test]
    fn tls_versions_and_ciphers_follow_the_flags() {
        let tls = |more: &[&str]| {
            let tls = options(&[&[SECURE], &FILES[..], more].concat()).unwrap().client_tls.unwrap();
            (tls.versions.len(), tls.suites.len())
        };
        assert_eq!(tls(&[]), (2, 9));
        assert_eq!(tls(&["--tls-min-version=TLS1.3"]), (1, 9));
        assert_eq!(tls(&["--tls-max-version=TLS1.2"]), (1, 9));
        let chosen = "--cipher-suites=TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305, \
                      TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,TLS_AES_128_GCM_SHA256";
        assert_eq!(tls(&[chosen]), (2, 5));
    }
}
