//! Tokens that only the cluster itself issues and verifies: `--auth-token simple`.
//!
//! ```text
//!   token = user in hex . revision of its password . expiry, in seconds since 1970 . signature in hex
//! ```
//!
//! All members share the signing key, so each member can verify tokens that another member issued, and a login writes
//! nothing to the log. A token is valid for its lifetime after it was issued. Each use restarts the lifetime, but only
//! at the member at which the token is used. A token also becomes invalid when its user is deleted or gets another
//! password, and when authentication is turned off.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use bowline::auth::Access;
use ring::hmac;

/// Maximum number of used tokens to remember. Beyond that, some tokens expire one lifetime after they were issued, even
/// if used.
const USED_MAX: usize = 10_000;

/// Prefix of a signature that identifies a token.
type Mark = [u8; 16];

/// Issues and verifies tokens.
pub(crate) struct Signed {
    ttl: Duration,
    /// Time of the last use of each token.
    used: Mutex<HashMap<Mark, Instant>>,
}

impl Signed {
    /// Takes the time after which an unused token expires.
    pub(crate) fn new(ttl: Duration) -> Self {
        Self { ttl, used: Mutex::default() }
    }

    /// Issues a token to a user, if the user exists.
    pub(crate) fn make(&self, user: &str, access: &Access) -> Option<String> {
        let since = access.users().get(user)?.since;
        let end = now().saturating_add(self.ttl.as_secs());
        let text = format!("{}.{since}.{end}", hex(user.as_bytes()));
        let signature = hmac::sign(&key(access), text.as_bytes());
        Some(format!("{text}.{}", hex(signature.as_ref())))
    }

    /// Returns the user of a token, if it is valid.
    pub(crate) fn user(&self, token: &str, access: &Access) -> Option<String> {
        let (text, signature) = token.rsplit_once('.')?;
        let signature = unhex(signature)?;
        hmac::verify(&key(access), text.as_bytes(), &signature).ok()?;
        // The signature is valid, so a member has written this text.
        let mut parts = text.split('.');
        let user = String::from_utf8(unhex(parts.next()?)?).ok()?;
        let (since, end) = (parts.next()?.parse::<u64>().ok()?, parts.next()?.parse::<u64>().ok()?);
        let current = access.users().get(&user)?.since == since;
        let mark = signature.get(..size_of::<Mark>())?.try_into().ok()?;
        (current && self.is_fresh(mark, end)).then_some(user)
    }

    /// Returns whether a token has not expired, and if so, extends its lifetime.
    fn is_fresh(&self, mark: Mark, end: u64) -> bool {
        let mut used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
        let last = used.get(&mark).copied();
        let fresh = now() <= end || last.is_some_and(|last| last.elapsed() < self.ttl);
        if !fresh {
            used.remove(&mark);
            return false;
        }
        if last.is_none() && used.len() >= USED_MAX {
            used.retain(|_, last| last.elapsed() < self.ttl);
        }
        if last.is_some() || used.len() < USED_MAX {
            used.insert(mark, Instant::now());
        }
        true
    }
}

fn key(access: &Access) -> hmac::Key {
    hmac::Key::new(hmac::HMAC_SHA256, access.secret().expose())
}

fn now() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let digits = text.as_bytes();
    let digit = |byte: u8| char::from(byte).to_digit(16).map(|digit| digit as u8);
    let pair = |pair: &[u8]| Some(digit(*pair.first()?)? << 4 | digit(*pair.get(1)?)?);
    digits.chunks(2).map(pair).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use bowline::{Blocking, Config, Node};
    use bowline::{
        Client,
        auth::{AccessChange, ROOT, Secret},
    };

    fn change(client: &Client, change: AccessChange) {
        client.change_access(change).block().unwrap();
    }

    fn add(client: &Client, user: &str) {
        change(client, AccessChange::AddUser { user: user.to_owned(), password: None });
    }

    #[test]
    fn token_is_valid_until_its_user_changes_or_it_idles_out() {
        let dir = tempfile::tempdir().unwrap();
        let node = Node::start(Config::new(dir.path(), "solo")).block().unwrap();
        let client = node.client();
        for user in [ROOT, "ann", "bob"] {
            add(&client, user);
        }
        change(&client, AccessChange::GrantRole { user: ROOT.to_owned(), role: ROOT.to_owned() });
        change(&client, AccessChange::Enable { secret: Secret::new("key") });
        let tokens = Signed::new(Duration::from_secs(300));
        let access = client.access();
        let of_ann = tokens.make("ann", &access).unwrap();
        assert_eq!(tokens.user(&of_ann, &access).as_deref(), Some("ann"));
        assert_eq!(tokens.make("eve", &access), None);
        // Forged tokens.
        let (text, signature) = of_ann.rsplit_once('.').unwrap();
        let of_root = format!("{}{}.{signature}", hex(b"root"), &text[6..]);
        let short = format!("{text}.{}", &signature[..62]);
        for forged in [&of_root, &short, "", ".", "..", "a.b.c.d", &format!("{text}."), text] {
            assert_eq!(tokens.user(forged, &access), None, "{forged}");
        }
        // A new password invalidates the token, and so does deleting the user and adding it again.
        change(&client, AccessChange::SetPassword { user: "ann".to_owned(), password: None });
        assert_eq!(tokens.user(&of_ann, &client.access()), None);
        let of_bob = tokens.make("bob", &client.access()).unwrap();
        change(&client, AccessChange::AddRole("r".to_owned()));
        assert_eq!(tokens.user(&of_bob, &client.access()).as_deref(), Some("bob"));
        change(&client, AccessChange::DeleteUser("bob".to_owned()));
        assert_eq!(tokens.user(&of_bob, &client.access()), None);
        add(&client, "bob");
        assert_eq!(tokens.user(&of_bob, &client.access()), None, "the user is a new one");
        // Turning authentication off and on changes the key.
        let of_root = tokens.make(ROOT, &client.access()).unwrap();
        change(&client, AccessChange::Disable);
        change(&client, AccessChange::Enable { secret: Secret::new("other") });
        assert_eq!(tokens.user(&of_root, &client.access()), None);
        drop(node);
    }

    #[test]
    fn idle_token_expires_and_active_token_does_not() {
        let tokens = Signed::new(Duration::from_secs(300));
        let long_ago = now() - 1000;
        assert!(!tokens.is_fresh([1; 16], long_ago), "never used here");
        assert!(tokens.is_fresh([2; 16], now() + 5));
        assert!(tokens.is_fresh([2; 16], long_ago), "used a moment ago");
        let short = Signed::new(Duration::ZERO);
        assert!(short.is_fresh([3; 16], now() + 5));
        assert!(!short.is_fresh([3; 16], long_ago), "not used for longer than the TTL");
    }
}
