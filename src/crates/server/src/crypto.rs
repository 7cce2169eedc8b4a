//! The cryptography provider for TLS connections with clients: ring, extended by keys on the curve P-521, which ring
//! lacks.

use std::fmt;
use std::sync::{Arc, LazyLock};

use p521::SecretKey;
use p521::ecdsa::signature::hazmat::{PrehashSigner, PrehashVerifier};
use p521::ecdsa::{DerSignature, SigningKey, VerifyingKey};
use p521::pkcs8::DecodePrivateKey;
use ring::digest::{Algorithm, SHA256, SHA384, SHA512, digest};
use rustls::crypto::{CryptoProvider, KeyProvider, WebPkiSupportedAlgorithms};
use rustls::pki_types::{
    AlgorithmIdentifier, InvalidSignature, PrivateKeyDer, SignatureVerificationAlgorithm, alg_id,
};
use rustls::sign::{Signer, SigningKey as TlsKey};
use rustls::{Error, SignatureAlgorithm, SignatureScheme};

/// Size of a scalar of the curve, in bytes.
const SCALAR_BYTES: usize = 66;

/// Returns ring's cryptography provider for rustls, extended by P-521.
pub fn provider() -> CryptoProvider {
    CryptoProvider {
        signature_verification_algorithms: WebPkiSupportedAlgorithms {
            all: &ALL,
            mapping: &MAPPING,
        },
        key_provider: &Keys,
        ..rustls::crypto::ring::default_provider()
    }
}

type Verifies = &'static dyn SignatureVerificationAlgorithm;

static ALL: LazyLock<Vec<Verifies>> = LazyLock::new(|| {
    let own = [WITH_SHA256, WITH_SHA384, WITH_SHA512];
    of_ring().all.iter().copied().chain(own).collect()
});

/// Maps each signature scheme to the algorithms that may verify it. In TLS 1.2, the name of a scheme does not
/// determine the curve, so a client may sign with a key on any curve under each name.
static MAPPING: LazyLock<Vec<(SignatureScheme, &[Verifies])>> = LazyLock::new(|| {
    let with_p521 = |&(scheme, all): &(SignatureScheme, &'static [Verifies])| {
        let own = match scheme {
            SignatureScheme::ECDSA_NISTP256_SHA256 => WITH_SHA256,
            SignatureScheme::ECDSA_NISTP384_SHA384 => WITH_SHA384,
            _ => return (scheme, all),
        };
        // The entries of ring come first, because TLS 1.3 uses only the first entry.
        let all: &'static [Verifies] = all.iter().copied().chain([own]).collect::<Vec<_>>().leak();
        (scheme, all)
    };
    let own: (_, &[Verifies]) = (SignatureScheme::ECDSA_NISTP521_SHA512, &[WITH_SHA512]);
    of_ring().mapping.iter().map(with_p521).chain([own]).collect()
});

fn of_ring() -> WebPkiSupportedAlgorithms {
    rustls::crypto::ring::default_provider().signature_verification_algorithms
}

/// Verifies signatures of P-521 keys, over a message hashed with one of these hash functions.
struct Verify {
    hash: &'static Algorithm,
    signature: AlgorithmIdentifier,
}

const WITH_SHA256: Verifies = &Verify { hash: &SHA256, signature: alg_id::ECDSA_SHA256 };
const WITH_SHA384: Verifies = &Verify { hash: &SHA384, signature: alg_id::ECDSA_SHA384 };
const WITH_SHA512: Verifies = &Verify { hash: &SHA512, signature: alg_id::ECDSA_SHA512 };

impl fmt::Debug for Verify {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ECDSA on P-521 with {:?}", self.hash)
    }
}

/// Returns the hash of a message, padded for signing. The P-521 crate rejects hashes shorter than half a scalar, such
/// as SHA-256. The hash is therefore padded with leading zeros, which do not change the number that it represents.
fn hashed(message: &[u8], hash: &'static Algorithm) -> [u8; SCALAR_BYTES] {
    let mut number = [0; SCALAR_BYTES];
    let hash = digest(hash, message);
    number[SCALAR_BYTES - hash.as_ref().len()..].copy_from_slice(hash.as_ref());
    number
}

impl SignatureVerificationAlgorithm for Verify {
    fn verify_signature(
        &self,
        public_key: &[u8],
        message: &[u8],
        signature: &[u8],
    ) -> Result<(), InvalidSignature> {
        let key = VerifyingKey::from_sec1_bytes(public_key).map_err(|_| InvalidSignature)?;
        let signature = DerSignature::from_bytes(signature).map_err(|_| InvalidSignature)?;
        let number = hashed(message, self.hash);
        key.verify_prehash(&number, &signature).map_err(|_| InvalidSignature)
    }

    fn public_key_alg_id(&self) -> AlgorithmIdentifier {
        alg_id::ECDSA_P521
    }

    fn signature_alg_id(&self) -> AlgorithmIdentifier {
        self.signature
    }
}

/// Loads private keys.
#[derive(Debug)]
struct Keys;

impl KeyProvider for Keys {
    fn load_private_key(&self, key: PrivateKeyDer<'static>) -> Result<Arc<dyn TlsKey>, Error> {
        match on_p521(&key) {
            Some(key) => Ok(Arc::new(Key(Arc::new(key)))),
            None => {
                let loaded =
                    rustls::crypto::ring::default_provider().key_provider.load_private_key(key);
                loaded.map_err(|error| {
                    Error::General(format!(
                        "{error}; keys are RSA of 2048 bits or more, ECDSA on P-256, P-384 or P-521, or Ed25519"
                    ))
                })
            }
        }
    }
}

/// Returns the key if it is on P-521.
fn on_p521(key: &PrivateKeyDer<'_>) -> Option<SigningKey> {
    let secret = match key {
        PrivateKeyDer::Pkcs8(key) => SecretKey::from_pkcs8_der(key.secret_pkcs8_der()).ok()?,
        PrivateKeyDer::Sec1(key) => SecretKey::from_sec1_der(key.secret_sec1_der()).ok()?,
        _ => return None,
    };
    Some(secret.into())
}

/// A private key on P-521.
#[derive(Clone)]
struct Key(Arc<SigningKey>);

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a private key on P-521")
    }
}

impl TlsKey for Key {
    fn choose_scheme(&self, offered: &[SignatureScheme]) -> Option<Box<dyn Signer>> {
        offered.contains(&self.scheme()).then(|| Box::new(self.clone()) as Box<dyn Signer>)
    }

    fn algorithm(&self) -> SignatureAlgorithm {
        SignatureAlgorithm::ECDSA
    }
}

impl Signer for Key {
    fn sign(&self, message: &[u8]) -> Result<Vec<u8>, Error> {
        let signature: Result<DerSignature, _> = self.0.sign_prehash(&hashed(message, &SHA512));
        let signature = signature.map_err(|_| Error::General("signing failed".to_owned()))?;
        Ok(signature.as_bytes().to_vec())
    }

    fn scheme(&self) -> SignatureScheme {
        SignatureScheme::ECDSA_NISTP521_SHA512
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signature_verifies_only_its_key_and_message() {
        let keys = [1, 2].map(|byte| {
            let mut scalar = [0; SCALAR_BYTES];
            scalar[SCALAR_BYTES - 1] = byte;
            SigningKey::from_slice(&scalar).unwrap()
        });
        let [public, other] =
            keys.each_ref().map(|key| key.verifying_key().to_sec1_point(false).as_bytes().to_vec());
        let [key, _] = keys;
        let key = Key(Arc::new(key));
        let signature = key.sign(b"message").unwrap();
        assert!(WITH_SHA512.verify_signature(&public, b"message", &signature).is_ok());
        let mut broken = signature.clone();
        *broken.last_mut().unwrap() ^= 1;
        for (verifies, public, message, signature) in [
            (WITH_SHA384, &public, b"message", &signature),
            (WITH_SHA256, &public, b"message", &signature),
            (WITH_SHA512, &other, b"message", &signature),
            (WITH_SHA512, &public, b"massage", &signature),
            (WITH_SHA512, &public, b"message", &broken),
            (WITH_SHA512, &Vec::new(), b"message", &signature),
            (WITH_SHA512, &public, b"message", &Vec::new()),
        ] {
            assert!(verifies.verify_signature(public, message, signature).is_err());
        }
        assert!(key.choose_scheme(&[SignatureScheme::ECDSA_NISTP256_SHA256]).is_none());
    }
}
