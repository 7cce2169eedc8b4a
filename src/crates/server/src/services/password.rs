//! Hashes and checks passwords. Each hash deliberately takes long, so hashes are computed on separate threads, a few
//! at a time. When too many requests wait, further requests are rejected, so that logins cannot starve the server.

use std::sync::Arc;

use bowline::auth::Secret;
use tokio::sync::Semaphore;
use tonic::Status;

use crate::wire::Reason;

/// Maximum numbers of waiting logins and of waiting new passwords.
const LOGINS_WAITING_MAX: usize = 64;
const NEW_WAITING_MAX: usize = 16;

/// Maximum difference by which the cost of a client's own hash may exceed the configured cost. Each login pays it, even
/// with a wrong password.
const HASHED_COST_EXCESS_MAX: u32 = 4;

/// etcd's default cost.
const DEFAULT_COST: u32 = 10;

/// Maximum length of a password in bytes, because bcrypt ignores the rest.
const PASSWORD_BYTES_MAX: usize = 72;

/// Hashes and checks passwords.
pub(crate) struct Passwords {
    cost: u32,
    logins: Jobs,
    /// Separate permits, so that logins, which anyone can attempt, do not delay changes of passwords.
    new: Jobs,
}

/// A limited number of running jobs and of waiting ones.
struct Jobs {
    running: Arc<Semaphore>,
    places: Arc<Semaphore>,
}

impl Passwords {
    /// Takes bcrypt's cost; each increment doubles the time.
    pub(crate) fn new(cost: u32) -> Self {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        let logins = Jobs::new((processors / 2).max(1), LOGINS_WAITING_MAX);
        Self { cost, logins, new: Jobs::new(1, NEW_WAITING_MAX) }
    }

    pub(crate) async fn hash(&self, password: String) -> Result<Secret, Status> {
        if password.len() > PASSWORD_BYTES_MAX {
            return Err(Status::invalid_argument(format!(
                "bowline: password too long: {} bytes, at most {PASSWORD_BYTES_MAX}",
                password.len()
            )));
        }
        let cost = self.cost;
        let hash = self.new.run(move || bcrypt::hash(password, cost)).await?;
        let hash = hash.map_err(|error| Status::internal(format!("bowline: {error}")))?;
        Ok(Secret::new(hash))
    }

    /// Accepts a hash made by a client: base64 of bcrypt's text.
    pub(crate) fn accept_hash(&self, hash: Vec<u8>) -> Result<Secret, Status> {
        let text = std::str::from_utf8(&hash).map_err(|_| Reason::AuthFailed)?;
        let parts = text.parse::<bcrypt::HashParts>().map_err(|_| Reason::AuthFailed)?;
        let (cost, cost_max) =
            (parts.get_cost(), self.cost.max(DEFAULT_COST) + HASHED_COST_EXCESS_MAX);
        if cost > cost_max {
            return Err(Status::invalid_argument(format!(
                "bowline: the bcrypt cost of the hashed password is {cost}, at most {cost_max} here: hash it with a \
                 lower cost, or increase --bcrypt-cost of the members"
            )));
        }
        Ok(Secret::new(hash))
    }

    /// Returns whether the password matches the hash. Without a hash, or with an empty one, it never matches, but takes
    /// as much time.
    pub(crate) async fn matches(
        &self,
        password: String,
        hash: Option<&Secret>,
    ) -> Result<bool, Status> {
        let hash = hash.filter(|hash| !hash.expose().is_empty());
        let hash = hash.and_then(|hash| String::from_utf8(hash.expose().to_vec()).ok());
        let cost = self.cost;
        let right = self.logins.run(move || match hash {
            Some(hash) => bcrypt::verify(password, &hash).unwrap_or(false),
            None => {
                drop(bcrypt::hash(password, cost));
                false
            }
        });
        right.await
    }
}

impl Jobs {
    fn new(running: usize, waiting_max: usize) -> Self {
        let (running, places) = (Semaphore::new(running), Semaphore::new(running + waiting_max));
        Self { running: Arc::new(running), places: Arc::new(places) }
    }

    async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Status> {
        let Ok(place) = Arc::clone(&self.places).try_acquire_owned() else {
            return Err(Reason::TooManyRequests.into());
        };
        let permit = Arc::clone(&self.running).acquire_owned().await;
        // The permit is held until the work is done, even if the caller no longer waits.
        let work = tokio::task::spawn_blocking(move || {
            let _held = (place, permit);
            work()
        });
        work.await.map_err(|error| Status::internal(format!("bowline: {error}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHEAP: u32 = 4;

    #[tokio::test]
    async fn password_matches_only_its_own_hash() {
        let passwords = Passwords::new(CHEAP);
        let hash = passwords.hash("one".to_owned()).await.unwrap();
        assert!(passwords.matches("one".to_owned(), Some(&hash)).await.unwrap());
        assert!(!passwords.matches("two".to_owned(), Some(&hash)).await.unwrap());
        assert!(!passwords.matches("".to_owned(), None).await.unwrap());
        assert!(!passwords.matches("one".to_owned(), Some(&Secret::new("one"))).await.unwrap());
        assert!(
            passwords.hash("x".repeat(73)).await.is_err(),
            "the end of a longer password would be ignored"
        );
        let made = passwords.accept_hash(hash.expose().to_vec()).unwrap();
        assert!(passwords.matches("one".to_owned(), Some(&made)).await.unwrap());
        assert!(passwords.accept_hash(b"one".to_vec()).is_err());
        for empty in ["", "one"] {
            assert!(!passwords.matches(empty.to_owned(), Some(&Secret::default())).await.unwrap());
        }
    }

    /// A single login with such a hash would occupy a thread for a day.
    #[test]
    fn hash_with_excessive_cost_is_rejected() {
        let hash = |cost: u32| format!("$2b${cost:02}${}", ".".repeat(53)).into_bytes();
        for (own, cost_max) in [(CHEAP, 14), (10, 14), (12, 16)] {
            let passwords = Passwords::new(own);
            passwords.accept_hash(hash(cost_max)).unwrap();
            let refused = passwords.accept_hash(hash(cost_max + 1)).unwrap_err();
            assert!(refused.message().contains("--bcrypt-cost"), "{refused:?}");
        }
    }

    #[tokio::test]
    async fn login_is_rejected_when_too_many_wait() {
        let passwords = Passwords::new(CHEAP);
        let running = passwords.logins.running.available_permits() as u32;
        let busy = Arc::clone(&passwords.logins.running).acquire_many_owned(running).await.unwrap();
        let wait = |_| Box::pin(passwords.matches("one".to_owned(), None));
        let mut waiting: Vec<_> = (0..LOGINS_WAITING_MAX + running as usize).map(wait).collect();
        for each in &mut waiting {
            assert!(
                std::future::poll_fn(|context| {
                    std::task::Poll::Ready(each.as_mut().poll(context).is_pending())
                })
                .await
            );
        }
        let refused = passwords.matches("one".to_owned(), None).await.unwrap_err();
        assert_eq!(refused.code(), tonic::Code::ResourceExhausted);
        passwords
            .hash("two".to_owned())
            .await
            .expect("users who may set passwords are not limited");
        drop(busy);
        for each in waiting {
            assert!(!each.await.unwrap());
        }
    }
}
