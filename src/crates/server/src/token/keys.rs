//! Loads keys for JWTs from files, in the formats that etcd accepts, and checks that they fit the configured algorithm.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use ring::rand::SystemRandom;
use ring::signature::{
    ECDSA_P256_SHA256_FIXED, ECDSA_P256_SHA256_FIXED_SIGNING, ECDSA_P384_SHA384_FIXED,
    ECDSA_P384_SHA384_FIXED_SIGNING, ED25519, EcdsaKeyPair, EcdsaSigningAlgorithm, Ed25519KeyPair,
    KeyPair, RSA_PKCS1_2048_8192_SHA256, RSA_PKCS1_2048_8192_SHA384, RSA_PKCS1_2048_8192_SHA512,
    RSA_PKCS1_SHA256, RSA_PKCS1_SHA384, RSA_PKCS1_SHA512, RSA_PSS_2048_8192_SHA256,
    RSA_PSS_2048_8192_SHA384, RSA_PSS_2048_8192_SHA512, RSA_PSS_SHA256, RSA_PSS_SHA384,
    RSA_PSS_SHA512, RsaEncoding, RsaKeyPair, UnparsedPublicKey, VerificationAlgorithm,
};
use ring::{error::KeyRejected, hmac};
use rustls::pki_types::pem::{PemObject, SectionKind};
use rustls::pki_types::{AlgorithmIdentifier, CertificateDer, PrivateKeyDer, alg_id};
use thiserror::Error;
use webpki::EndEntityCert;
use yasna::models::ObjectIdentifier;

use crate::token::settings::{Algorithm, JwtSettings};

/// Maximum size of a key file, in bytes.
const FILE_BYTES_MAX: u64 = 64 << 10;

/// Minimum length of an RSA key, in bits.
const RSA_BITS_MIN: usize = 2048;

/// Object identifiers of elliptic curve keys and of two curves.
const EC_KEY: [u64; 6] = [1, 2, 840, 10045, 2, 1];
const P256: [u64; 7] = [1, 2, 840, 10045, 3, 1, 7];
const P384: [u64; 5] = [1, 3, 132, 0, 34];

/// Reason why token keys cannot be used.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum TokenError {
    /// A key file cannot be read.
    #[error("cannot read the key file {}: {source}", path.display())]
    File {
        /// Path of the file.
        path: PathBuf,
        /// Error of the file system.
        source: io::Error,
    },
    /// A key file has invalid contents.
    #[error("invalid key file {}: {why}", path.display())]
    Content {
        /// Path of the file.
        path: PathBuf,
        /// The reason.
        why: String,
    },
    /// The files have keys of different pairs.
    #[error("the token keys do not match: {} is not the public key of {}", public.display(), private.display())]
    Mismatch {
        /// File of the public key.
        public: PathBuf,
        /// File of the private key.
        private: PathBuf,
    },
}

/// The keys that sign and verify tokens.
pub(crate) enum Key {
    /// The same key signs and verifies.
    Shared(hmac::Key),
    Pair {
        signs: Option<Signs>,
        checks: UnparsedPublicKey<Vec<u8>>,
    },
}

/// The signing key.
pub(crate) enum Signs {
    Rsa(Box<RsaKeyPair>, &'static dyn RsaEncoding),
    Ec(EcdsaKeyPair),
    Ed(Ed25519KeyPair),
}

/// The kinds of keys that an algorithm needs: the format and algorithm for signing, and the algorithm and identifier
/// for verifying.
struct Kind {
    signs: Family,
    checks: &'static dyn VerificationAlgorithm,
    mark: AlgorithmIdentifier,
}

enum Family {
    Rsa(&'static dyn RsaEncoding),
    /// With the object identifier of the curve.
    Ec(&'static EcdsaSigningAlgorithm, &'static [u64]),
    Ed,
}

fn kind(algorithm: Algorithm) -> Result<Kind, hmac::Algorithm> {
    let rsa = |signs: &'static dyn RsaEncoding, checks: &'static dyn VerificationAlgorithm| Kind {
        signs: Family::Rsa(signs),
        checks,
        mark: alg_id::RSA_ENCRYPTION,
    };
    Ok(match algorithm {
        Algorithm::Hs256 => return Err(hmac::HMAC_SHA256),
        Algorithm::Hs384 => return Err(hmac::HMAC_SHA384),
        Algorithm::Hs512 => return Err(hmac::HMAC_SHA512),
        Algorithm::Rs256 => rsa(&RSA_PKCS1_SHA256, &RSA_PKCS1_2048_8192_SHA256),
        Algorithm::Rs384 => rsa(&RSA_PKCS1_SHA384, &RSA_PKCS1_2048_8192_SHA384),
        Algorithm::Rs512 => rsa(&RSA_PKCS1_SHA512, &RSA_PKCS1_2048_8192_SHA512),
        Algorithm::Ps256 => rsa(&RSA_PSS_SHA256, &RSA_PSS_2048_8192_SHA256),
        Algorithm::Ps384 => rsa(&RSA_PSS_SHA384, &RSA_PSS_2048_8192_SHA384),
        Algorithm::Ps512 => rsa(&RSA_PSS_SHA512, &RSA_PSS_2048_8192_SHA512),
        Algorithm::Es256 => Kind {
            signs: Family::Ec(&ECDSA_P256_SHA256_FIXED_SIGNING, &P256),
            checks: &ECDSA_P256_SHA256_FIXED,
            mark: alg_id::ECDSA_P256,
        },
        Algorithm::Es384 => Kind {
            signs: Family::Ec(&ECDSA_P384_SHA384_FIXED_SIGNING, &P384),
            checks: &ECDSA_P384_SHA384_FIXED,
            mark: alg_id::ECDSA_P384,
        },
        Algorithm::EdDsa => Kind { signs: Family::Ed, checks: &ED25519, mark: alg_id::ED25519 },
    })
}

impl Key {
    /// Loads the configured keys.
    ///
    /// # Errors
    /// Fails if a file cannot be used.
    pub(crate) fn load(options: &JwtSettings) -> Result<Self, TokenError> {
        let JwtSettings { algorithm, public, private, .. } = options;
        let private_bytes = private.as_deref().map(read).transpose()?;
        let kind = match kind(*algorithm) {
            Ok(kind) => kind,
            Err(shared) => {
                let (path, secret) = (private.clone(), private_bytes.unwrap_or_default());
                return match secret.is_empty() {
                    false => Ok(Self::Shared(hmac::Key::new(shared, &secret))),
                    true => Err(content(&path.unwrap_or_default(), "the file is empty".to_owned())),
                };
            }
        };
        let unfit = |path: &Path| {
            let path = path.to_owned();
            let name = algorithm.name();
            move |why: String| content(&path, format!("the key cannot be used for {name}: {why}"))
        };
        let signs = match (private, private_bytes) {
            (Some(path), Some(bytes)) => {
                let key = PrivateKeyDer::from_pem_slice(&bytes)
                    .map_err(|_| content(path, "no private key in the file".to_owned()))?;
                Some(Signs::new(&kind.signs, &key).map_err(unfit(path))?)
            }
            _ => None,
        };
        let shown = match public {
            Some(path) => {
                let info = public_key(&read(path)?).map_err(|why| content(path, why))?;
                Some(kind.bits(&info).map_err(unfit(path))?)
            }
            None => None,
        };
        let own = signs.as_ref().map(|signs| signs.public().to_vec());
        if let (Some(own), Some(shown), Some(private), Some(public)) =
            (&own, &shown, private, public)
            && own != shown
        {
            let (public, private) = (public.clone(), private.clone());
            return Err(TokenError::Mismatch { public, private });
        }
        // The flags guarantee at least one key.
        let bits = own.or(shown).unwrap_or_default();
        Ok(Self::Pair { signs, checks: UnparsedPublicKey::new(kind.checks, bits) })
    }

    /// Returns a signature, or `None` without a signing key.
    pub(crate) fn sign(&self, text: &[u8]) -> Option<Vec<u8>> {
        let random = SystemRandom::new();
        match self {
            Self::Shared(key) => Some(hmac::sign(key, text).as_ref().to_vec()),
            Self::Pair { signs, .. } => match signs.as_ref()? {
                Signs::Rsa(key, encoding) => {
                    let mut signature = vec![0; key.public().modulus_len()];
                    key.sign(*encoding, &random, text, &mut signature).ok()?;
                    Some(signature)
                }
                Signs::Ec(key) => Some(key.sign(&random, text).ok()?.as_ref().to_vec()),
                Signs::Ed(key) => Some(key.sign(text).as_ref().to_vec()),
            },
        }
    }

    /// Returns whether the signature was made with this key.
    pub(crate) fn verify(&self, text: &[u8], signature: &[u8]) -> bool {
        match self {
            Self::Shared(key) => hmac::verify(key, text, signature).is_ok(),
            Self::Pair { checks, .. } => checks.verify(text, signature).is_ok(),
        }
    }
}

impl Signs {
    fn new(family: &Family, key: &PrivateKeyDer<'_>) -> Result<Self, String> {
        let rejected = |why: KeyRejected| why.to_string();
        let random = SystemRandom::new();
        match (family, key) {
            (Family::Rsa(encoding), PrivateKeyDer::Pkcs1(key)) => {
                let key = RsaKeyPair::from_der(key.secret_pkcs1_der()).map_err(rejected)?;
                Ok(Self::Rsa(Box::new(key), *encoding))
            }
            (Family::Rsa(encoding), PrivateKeyDer::Pkcs8(key)) => {
                let key = RsaKeyPair::from_pkcs8(key.secret_pkcs8_der()).map_err(rejected)?;
                Ok(Self::Rsa(Box::new(key), *encoding))
            }
            (Family::Ec(algorithm, _), PrivateKeyDer::Pkcs8(key)) => {
                let key = EcdsaKeyPair::from_pkcs8(algorithm, key.secret_pkcs8_der(), &random);
                Ok(Self::Ec(key.map_err(rejected)?))
            }
            (Family::Ec(algorithm, curve), PrivateKeyDer::Sec1(key)) => {
                let wrapped = wrapped(curve, key.secret_sec1_der());
                let key = EcdsaKeyPair::from_pkcs8(algorithm, &wrapped, &random);
                Ok(Self::Ec(key.map_err(rejected)?))
            }
            (Family::Ed, PrivateKeyDer::Pkcs8(key)) => {
                let key = Ed25519KeyPair::from_pkcs8_maybe_unchecked(key.secret_pkcs8_der());
                Ok(Self::Ed(key.map_err(rejected)?))
            }
            _ => Err("wrong kind of key".to_owned()),
        }
    }

    /// Returns the matching public key.
    fn public(&self) -> &[u8] {
        match self {
            Self::Rsa(key, _) => key.public_key().as_ref(),
            Self::Ec(key) => key.public_key().as_ref(),
            Self::Ed(key) => key.public_key().as_ref(),
        }
    }
}

impl Kind {
    /// Extracts the public key from its DER encoding with metadata.
    fn bits(&self, info: &[u8]) -> Result<Vec<u8>, String> {
        let parts = yasna::parse_der(info, |reader| {
            reader.read_sequence(|fields| {
                let mark = fields.next().read_tagged_der()?;
                let (bits, _) = fields.next().read_bitvec_bytes()?;
                Ok((mark.value().to_vec(), bits))
            })
        });
        let (mark, bits) = parts.map_err(|_| "malformed key".to_owned())?;
        if mark != self.mark.as_ref() {
            return Err("wrong kind of key".to_owned());
        }
        if let Family::Rsa(_) = self.signs {
            let modulus = yasna::parse_der(&bits, |reader| {
                reader.read_sequence(|fields| {
                    let (modulus, _) = fields.next().read_bigint_bytes()?;
                    fields.next().read_bigint_bytes()?;
                    Ok(modulus)
                })
            });
            let modulus = modulus.map_err(|_| "malformed key".to_owned())?;
            if modulus.len() * 8 < RSA_BITS_MIN {
                return Err(format!("the key has fewer than {RSA_BITS_MIN} bits"));
            }
        }
        Ok(bits)
    }
}

fn content(path: &Path, why: String) -> TokenError {
    TokenError::Content { path: path.to_owned(), why }
}

fn read(path: &Path) -> Result<Vec<u8>, TokenError> {
    let failed = |source| TokenError::File { path: path.to_owned(), source };
    let mut bytes = Vec::new();
    let file = File::open(path).map_err(failed)?;
    file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return Err(failed(io::Error::other(format!(
            "the file has more than {FILE_BYTES_MAX} bytes"
        ))));
    }
    Ok(bytes)
}

/// Returns the first public key of a file, or that of its first certificate.
fn public_key(pem: &[u8]) -> Result<Vec<u8>, String> {
    for part in <(SectionKind, Vec<u8>)>::pem_slice_iter(pem) {
        match part.map_err(|error| error.to_string())? {
            (SectionKind::PublicKey, info) => return Ok(info),
            (SectionKind::Certificate, cert) => {
                let cert = CertificateDer::from(cert);
                let cert = EndEntityCert::try_from(&cert).map_err(|error| error.to_string())?;
                return Ok(cert.subject_public_key_info().to_vec());
            }
            _ => {}
        }
    }
    Err("no public key or certificate in the file".to_owned())
}

/// Wraps an elliptic curve key in the older format (RFC 5915) as PKCS #8.
fn wrapped(curve: &[u64], key: &[u8]) -> Vec<u8> {
    yasna::construct_der(|writer| {
        writer.write_sequence(|fields| {
            fields.next().write_u8(0);
            fields.next().write_sequence(|kind| {
                kind.next().write_oid(&ObjectIdentifier::from_slice(&EC_KEY));
                kind.next().write_oid(&ObjectIdentifier::from_slice(curve));
            });
            fields.next().write_bytes(key);
        });
    })
}
