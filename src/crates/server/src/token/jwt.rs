//! Tokens as JWT (RFC 7519), in etcd's format:
//!
//! ```text
//!   {"alg": "ES256", "typ": "JWT"} . {"exp": 1700000300, "revision": 12, "username": "ann"} . signature
//! ```
//!
//! Each part is encoded in URL-safe base64 without padding. `revision` is the auth revision at which the token was
//! issued. The next change of users or roles invalidates the token, so that a user who lost a right needs a new token.
//!
//! A token is verified with the one configured algorithm and key. The header of the token must name this algorithm. The
//! header never selects another algorithm or key.

use std::time::{Duration, SystemTime};

use base64::prelude::{BASE64_URL_SAFE_NO_PAD, Engine as _};
use bowline::auth::Access;
use serde_json::{Value, json};
use tonic::Status;

use crate::token::keys::{Key, TokenError};
use crate::token::settings::{Algorithm, JwtSettings};
use crate::wire::Reason;

/// etcd's error of a member that has no signing key.
const VERIFY_ONLY: &str = "auth: token signing attempted with verify-only key";

/// Issues and verifies JWTs.
pub(crate) struct Jwt {
    algorithm: Algorithm,
    key: Key,
    ttl: Duration,
}

/// Claims of a valid token.
struct Claims {
    user: String,
    revision: u64,
}

impl Jwt {
    pub(crate) fn load(options: &JwtSettings) -> Result<Self, TokenError> {
        let key = Key::load(options)?;
        Ok(Self { algorithm: options.algorithm, key, ttl: options.ttl })
    }

    pub(crate) fn make(&self, user: &str, access: &Access) -> Result<String, Status> {
        let end = now().saturating_add(self.ttl).as_secs();
        let claims = json!({"username": user, "revision": access.revision(), "exp": end});
        self.sign(&claims).ok_or_else(|| Status::unknown(VERIFY_ONLY))
    }

    fn sign(&self, claims: &Value) -> Option<String> {
        let head = json!({"alg": self.algorithm.name(), "typ": "JWT"});
        let text = format!("{}.{}", encoded(&head), encoded(claims));
        let signature = self.key.sign(text.as_bytes())?;
        Some(format!("{text}.{}", BASE64_URL_SAFE_NO_PAD.encode(signature)))
    }

    pub(crate) fn user(&self, token: &str, access: &Access) -> Result<String, Reason> {
        let Claims { user, revision } = self.claims(token, now()).ok_or(Reason::InvalidToken)?;
        if user.is_empty() {
            return Err(Reason::NoUser);
        }
        // A token with a later revision was issued by a member that is ahead of this one.
        if revision < access.revision() {
            return Err(Reason::OldRevision);
        }
        Ok(user)
    }

    /// Returns the claims of a token that is signed and within its validity.
    fn claims(&self, token: &str, now: Duration) -> Option<Claims> {
        let (text, signature) = token.rsplit_once('.')?;
        let (head, claims) = text.split_once('.')?;
        let head = decoded(head)?;
        // A critical extension that is not supported must be rejected.
        if head.get("alg")?.as_str()? != self.algorithm.name() || head.get("crit").is_some() {
            return None;
        }
        let signature = BASE64_URL_SAFE_NO_PAD.decode(signature).ok()?;
        if !self.key.verify(text.as_bytes(), &signature) {
            return None;
        }
        let claims = decoded(claims)?;
        // If a time claim exists, it must be a number.
        let time = |name| claims.get(name).map(|time| time.as_f64().ok_or(()));
        let ended = match time("exp").transpose().ok()? {
            Some(end) => now.as_secs_f64() >= end,
            None => false,
        };
        let begun = match time("nbf").transpose().ok()? {
            Some(begin) => now.as_secs_f64() >= begin,
            None => true,
        };
        let user = claims.get("username")?.as_str()?.to_owned();
        let revision = claims.get("revision")?;
        // Some encoders have no integer type and write floats.
        let revision = revision.as_u64().or_else(|| {
            revision.as_f64().filter(|revision| *revision >= 0.0).map(|revision| revision as u64)
        })?;
        (begun && !ended).then_some(Claims { user, revision })
    }
}

fn now() -> Duration {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default()
}

fn encoded(json: &Value) -> String {
    BASE64_URL_SAFE_NO_PAD.encode(json.to_string())
}

fn decoded(part: &str) -> Option<Value> {
    serde_json::from_slice(&BASE64_URL_SAFE_NO_PAD.decode(part).ok()?).ok()
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    fn file(name: &str) -> PathBuf {
        PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../cli/tests/serve/keys").join(name)
    }

    fn options(algorithm: Algorithm, private: Option<&str>, public: Option<&str>) -> JwtSettings {
        let (private, public) = (private.map(file), public.map(file));
        JwtSettings { algorithm, public, private, ttl: Duration::from_secs(300) }
    }

    fn jwt(algorithm: Algorithm, private: Option<&str>, public: Option<&str>) -> Jwt {
        Jwt::load(&options(algorithm, private, public)).unwrap()
    }

    fn claims() -> Value {
        json!({"username": "ann", "revision": 3, "exp": 2000})
    }

    fn at(jwt: &Jwt, token: &str, seconds: u64) -> Option<(String, u64)> {
        let claims = jwt.claims(token, Duration::from_secs(seconds));
        claims.map(|claims| (claims.user, claims.revision))
    }

    const PAIRS: [(Algorithm, &str, Option<&str>); 12] = [
        (Algorithm::Hs256, "rsa.pub.pem", None),
        (Algorithm::Hs384, "rsa.pub.pem", None),
        (Algorithm::Hs512, "rsa.pub.pem", None),
        (Algorithm::Rs256, "rsa.pem", Some("rsa.pub.pem")),
        (Algorithm::Rs384, "rsa1.pem", Some("rsa.pub.pem")),
        (Algorithm::Rs512, "rsa.pem", Some("rsa.pub.pem")),
        (Algorithm::Ps256, "rsa.pem", Some("rsa.pub.pem")),
        (Algorithm::Ps384, "rsa1.pem", Some("rsa.pub.pem")),
        (Algorithm::Ps512, "rsa.pem", Some("rsa.pub.pem")),
        (Algorithm::Es256, "p256.pem", Some("p256.pub.pem")),
        (Algorithm::Es384, "p384.pem", None),
        (Algorithm::EdDsa, "ed25519.pem", Some("ed25519.pub.pem")),
    ];

    #[test]
    fn token_verifies_only_with_its_key() {
        let makers: Vec<_> = PAIRS
            .iter()
            .map(|(algorithm, private, _)| jwt(*algorithm, Some(private), None))
            .collect();
        for (own, maker) in makers.iter().enumerate() {
            let token = maker.sign(&claims()).unwrap();
            for (other, jwt) in makers.iter().enumerate() {
                let known = at(jwt, &token, 1000);
                assert_eq!(known.is_some(), own == other, "{:?} at {:?}", PAIRS[own], PAIRS[other]);
            }
            let (algorithm, _, public) = PAIRS[own];
            if public.is_some() {
                let checks = jwt(algorithm, None, public);
                assert_eq!(at(&checks, &token, 1000), Some(("ann".to_owned(), 3)));
                assert_eq!(checks.sign(&claims()), None, "the key can only verify");
            }
        }
    }

    /// A public key must not be usable as the secret of another algorithm, and a token's header must not select the
    /// algorithm.
    #[test]
    fn token_cannot_choose_its_algorithm() {
        let jwt_of = |algorithm| jwt(algorithm, Some("rsa.pem"), None);
        let checks = jwt_of(Algorithm::Rs256);
        let good = checks.sign(&claims()).unwrap();
        assert!(at(&checks, &good, 1000).is_some());
        let part = |at: usize| good.split('.').nth(at).unwrap();
        let with =
            |head: Value, signature: &str| format!("{}.{}.{signature}", encoded(&head), part(1));
        let by_public = jwt(Algorithm::Hs256, Some("rsa.pub.pem"), None).sign(&claims()).unwrap();
        let of_public = by_public.rsplit('.').next().unwrap().to_owned();
        let by_other = jwt_of(Algorithm::Ps256).sign(&claims()).unwrap();
        let by_longer = jwt_of(Algorithm::Rs512).sign(&claims()).unwrap();
        let mut forged = vec![
            by_public,
            by_other,
            by_longer,
            with(json!({"alg": "RS256", "typ": "JWT"}), &of_public),
            with(json!({"alg": "RS256", "typ": "JWT"}), ""),
            with(json!({"alg": "none", "typ": "JWT"}), ""),
        ];
        // Even with a correct signature, the header must match.
        let signed = |head: Value| {
            let text = format!("{}.{}", encoded(&head), part(1));
            let signature = checks.key.sign(text.as_bytes()).unwrap();
            format!("{text}.{}", BASE64_URL_SAFE_NO_PAD.encode(signature))
        };
        assert!(at(&checks, &signed(json!({"alg": "RS256"})), 1000).is_some());
        for name in ["none", "None", "NONE", "nOnE", "", "rs256", "HS256", "RS512", "PS256"] {
            forged.push(signed(json!({"alg": name, "typ": "JWT"})));
        }
        for head in [
            json!({"alg": null}),
            json!({"alg": ["RS256"]}),
            json!({"alg": 256}),
            json!({"typ": "JWT"}),
            json!(["RS256"]),
            json!({"alg": "RS256", "crit": ["b64"], "b64": false}),
        ] {
            forged.push(signed(head));
        }
        forged.extend(["", ".", "..", "...", "a.b.c"].map(str::to_owned));
        forged.push(format!("{}.{}", part(0), part(1)));
        forged.push(format!("{good}.{}", part(2)));
        forged.push(format!("{good}="));
        // The prefix is not part of the token.
        forged.push(format!("Bearer {good}"));
        forged.push(format!(
            "{}.{}.{}",
            part(0),
            encoded(&json!({"username": "root", "revision": 3})),
            part(2)
        ));
        for token in forged {
            assert_eq!(at(&checks, &token, 1000), None, "{token}");
        }
    }

    #[test]
    fn token_claims_must_be_present_and_well_typed() {
        let jwt = jwt(Algorithm::EdDsa, Some("ed25519.pem"), None);
        let user_at = |claims: Value, now| at(&jwt, &jwt.sign(&claims).unwrap(), now);
        let ann = Some(("ann".to_owned(), 3));
        assert_eq!(user_at(claims(), 1999), ann);
        assert_eq!(user_at(claims(), 2000), None, "the token has expired");
        assert_eq!(user_at(json!({"username": "ann", "revision": 3}), 2000), ann, "as in etcd");
        assert_eq!(user_at(json!({"username": "ann", "revision": 3.0, "exp": 2000.5}), 2000), ann);
        assert_eq!(user_at(json!({"username": "ann", "revision": 3, "nbf": 1000}), 999), None);
        assert_eq!(user_at(json!({"username": "ann", "revision": 3, "nbf": 1000}), 1000), ann);
        for wrong in [
            json!({"username": "ann", "revision": 3, "exp": "2000"}),
            json!({"username": "ann", "revision": 3, "exp": null}),
            json!({"username": "ann", "revision": 3, "exp": 0}),
            json!({"username": "ann", "revision": 3, "nbf": "0"}),
            json!({"username": "ann", "revision": "3"}),
            json!({"username": "ann", "revision": -3}),
            json!({"username": "ann"}),
            json!({"username": ["ann"], "revision": 3}),
            json!({"revision": 3}),
            json!([]),
            json!("ann"),
        ] {
            assert_eq!(user_at(wrong.clone(), 1000), None, "{wrong}");
        }
    }

    #[test]
    fn token_is_outdated_after_the_next_user_change() {
        let jwt = jwt(Algorithm::Hs256, Some("rsa.pub.pem"), None);
        let access = Access::default();
        let user = |revision: u64, name: &str| {
            let token = jwt.sign(&json!({"username": name, "revision": revision})).unwrap();
            jwt.user(&token, &access)
        };
        assert_eq!(user(access.revision() - 1, "ann"), Err(Reason::OldRevision));
        for revision in [access.revision(), access.revision() + 1] {
            assert_eq!(user(revision, "ann").as_deref(), Ok("ann"));
        }
        assert_eq!(user(access.revision(), ""), Err(Reason::NoUser));
    }

    #[test]
    fn unusable_keys_are_rejected_with_file_and_reason() {
        use Algorithm::*;
        for (algorithm, private, public, words) in [
            (Rs256, Some("none.pem"), None, "cannot read"),
            (Rs256, Some("rsa.pub.pem"), None, "rsa.pub.pem: no private key in the file"),
            (Rs256, None, Some("rsa.pem"), "rsa.pem: no public key or certificate in the file"),
            (Rs256, Some("p256.pem"), None, "p256.pem: the key cannot be used for RS256"),
            (Rs256, None, Some("p256.pub.pem"), "p256.pub.pem: the key cannot be used for RS256"),
            (Es256, Some("rsa1.pem"), None, "rsa1.pem: the key cannot be used for ES256"),
            (Es256, Some("p384.pem"), None, "p384.pem: the key cannot be used for ES256"),
            (Es384, None, Some("p256.pub.pem"), "p256.pub.pem: the key cannot be used for ES384"),
            (EdDsa, Some("rsa.pem"), None, "rsa.pem: the key cannot be used for EdDSA"),
            (EdDsa, None, Some("rsa.pub.pem"), "rsa.pub.pem: the key cannot be used for EdDSA"),
            (Es256, Some("p256.pem"), Some("p256.other.pub.pem"), "is not the public key of"),
        ] {
            let error = Key::load(&options(algorithm, private, public)).map(drop).unwrap_err();
            let text = error.to_string();
            assert!(text.contains(words), "{algorithm:?}: {text:?} lacks {words:?}");
        }
    }
}
