//! Settings of JWTs.

use std::path::PathBuf;
use std::time::Duration;

/// Settings of JWTs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct JwtSettings {
    /// The only accepted algorithm.
    pub algorithm: Algorithm,
    /// File of the public key that verifies tokens.
    pub public: Option<PathBuf>,
    /// File of the private key, or of the shared secret. Without it, this server issues no tokens.
    pub private: Option<PathBuf>,
    /// Lifetime of a token.
    pub ttl: Duration,
}

/// Signature algorithm of JWTs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Algorithm {
    /// HMAC with SHA-256.
    Hs256,
    /// HMAC with SHA-384.
    Hs384,
    /// HMAC with SHA-512.
    Hs512,
    /// RSA PKCS #1 with SHA-256.
    Rs256,
    /// RSA PKCS #1 with SHA-384.
    Rs384,
    /// RSA PKCS #1 with SHA-512.
    Rs512,
    /// RSA PSS with SHA-256.
    Ps256,
    /// RSA PSS with SHA-384.
    Ps384,
    /// RSA PSS with SHA-512.
    Ps512,
    /// ECDSA on P-256 with SHA-256.
    Es256,
    /// ECDSA on P-384 with SHA-384.
    Es384,
    /// Ed25519.
    EdDsa,
}

impl Algorithm {
    /// All algorithms with their names in a token's header.
    pub const ALL: [(&'static str, Self); 12] = [
        ("HS256", Self::Hs256),
        ("HS384", Self::Hs384),
        ("HS512", Self::Hs512),
        ("RS256", Self::Rs256),
        ("RS384", Self::Rs384),
        ("RS512", Self::Rs512),
        ("PS256", Self::Ps256),
        ("PS384", Self::Ps384),
        ("PS512", Self::Ps512),
        ("ES256", Self::Es256),
        ("ES384", Self::Es384),
        ("EdDSA", Self::EdDsa),
    ];

    /// Returns the algorithm with this name in a token's header.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.iter().find(|(known, _)| *known == name).map(|(_, algorithm)| *algorithm)
    }

    /// Returns the algorithm's name in a token's header.
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(_, known)| *known == self).map_or("", |(name, _)| name)
    }

    /// Returns whether the same key signs and verifies.
    pub fn is_shared(self) -> bool {
        matches!(self, Self::Hs256 | Self::Hs384 | Self::Hs512)
    }
}
