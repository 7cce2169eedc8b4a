//! TLS settings of connections.

use std::fmt::Display;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::crypto::CryptoProvider;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use tonic::transport::{ClientTlsConfig, Endpoint, Identity};

use crate::error::{Error, root_cause};
use crate::options::Tls;
use crate::verifier::Verifier;

/// Files in which operating systems keep their trusted CA certificates.
const SYSTEM_AUTHORITIES: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

fn provider(options: &Tls) -> Arc<CryptoProvider> {
    let default = || Arc::new(rustls::crypto::ring::default_provider());
    options.provider.clone().unwrap_or_else(default)
}

/// Configures an endpoint for TLS.
pub(crate) fn secured(endpoint: Endpoint, options: &Tls) -> Result<Endpoint, Error> {
    // tonic can get a provider only through the process default. If a default is set already, it is the same provider.
    drop(provider(options).as_ref().clone().install_default());
    let mut config = ClientTlsConfig::new();
    if let (Some(cert), Some(key)) = (&options.cert, &options.key) {
        config = config.identity(Identity::from_pem(read(cert)?, read(key)?));
    }
    let secured = endpoint.tls_config_with_verifier(config, verifier(options)?);
    secured.map_err(|error| unusable(root_cause(&error)))
}

fn unusable(error: impl Display) -> Error {
    Error::Config(format!("the files of the CA, the certificate and the key: {error}"))
}

/// Returns the verifier of the server's certificate.
fn verifier(options: &Tls) -> Result<Arc<Verifier>, Error> {
    let provider = provider(options);
    if options.skip_verify {
        return Ok(Arc::new(Verifier::of_any(provider)));
    }
    let path = authorities(options)?;
    let trusted = CertificateDer::pem_slice_iter(&read(&path)?).flatten().collect();
    let verifier = Verifier::new(trusted, provider);
    Ok(Arc::new(verifier.map_err(|why| unusable(format!("{}: {why}", path.display())))?))
}

fn authorities(options: &Tls) -> Result<PathBuf, Error> {
    if let Some(file) = &options.cacert {
        return Ok(file.clone());
    }
    if let Some(file) = std::env::var_os("SSL_CERT_FILE") {
        return Ok(file.into());
    }
    let found = SYSTEM_AUTHORITIES.iter().map(PathBuf::from).find(|path| path.exists());
    found.ok_or_else(|| {
        let why = "this system has no list of trusted authorities: name one in SSL_CERT_FILE";
        Error::Config(why.to_owned())
    })
}

fn read(path: &Path) -> Result<Vec<u8>, Error> {
    fs::read(path).map_err(|error| Error::File(path.display().to_string(), error))
}
