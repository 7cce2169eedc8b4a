//! Name resolution for each connect, without waiting for a resolver that hangs.
//!
//! A call to the system resolver cannot be cancelled, and occupies a thread until it returns.
//! Therefore each name has at most one call in progress, however many callers wait for it, and a
//! call that hangs does not delay other names. Until the call returns, and also if it fails, the
//! last known addresses are used. Outdated addresses are safe, because the process at the other end
//! must prove its identity.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;

/// Maximum number of names to remember. If there are more, names without a resolver call in
/// progress are forgotten.
const NAMES_MAX: usize = 256;

/// The result of the system resolver for a name.
type Answer = Result<Vec<SocketAddr>, Arc<io::Error>>;
pub(super) type Asking = Pin<Box<dyn Future<Output = io::Result<Vec<SocketAddr>>> + Send>>;

/// A resolver with a cache. See the module page. Cheap to clone.
#[derive(Clone)]
pub(super) struct Names {
    known: Arc<Mutex<BTreeMap<String, Name>>>,
    ask: fn(String) -> Asking,
}

#[derive(Default)]
struct Name {
    /// The last known addresses.
    last: Vec<SocketAddr>,
    /// The call in progress.
    asked: Option<watch::Receiver<Option<Answer>>>,
}

impl Default for Names {
    fn default() -> Self {
        Self::by(|name| Box::pin(async move { Ok(tokio::net::lookup_host(name).await?.collect()) }))
    }
}

impl Names {
    pub(super) fn by(ask: fn(String) -> Asking) -> Self {
        Self { known: Arc::default(), ask }
    }

    /// Returns the addresses of `HOST:PORT`. If the resolver does not return within `patience`,
    /// returns the last known addresses. If there are none, waits until the resolver returns; the
    /// caller sets the time limit.
    pub(super) async fn addresses(
        &self,
        address: &str,
        patience: Duration,
    ) -> io::Result<Vec<SocketAddr>> {
        // An IP address needs no resolver call, which could hang.
        if let Ok(address) = address.parse() {
            return Ok(vec![address]);
        }
        let (last, mut asked) = self.ask(address);
        let answer = asked.wait_for(Option::is_some);
        let answer = if last.is_empty() {
            answer.await
        } else {
            match tokio::time::timeout(patience, answer).await {
                Ok(answer) => answer,
                Err(_) => return Ok(last),
            }
        };
        match answer.as_deref() {
            Ok(Some(Ok(addresses))) => Ok(addresses.clone()),
            Ok(Some(Err(_))) | Err(_) if !last.is_empty() => Ok(last),
            Ok(Some(Err(error))) => Err(io::Error::new(error.kind(), Arc::clone(error))),
            Ok(None) | Err(_) => Err(io::Error::other("the name resolution was aborted")),
        }
    }

    /// Starts a call unless one is in progress. Returns the last known addresses, and a receiver of
    /// the result.
    fn ask(&self, address: &str) -> (Vec<SocketAddr>, watch::Receiver<Option<Answer>>) {
        let mut known = self.lock();
        if known.len() >= NAMES_MAX {
            known.retain(|_, name| name.asked.is_some());
        }
        let name = known.entry(address.to_owned()).or_default();
        if let Some(asked) = &name.asked
            && asked.has_changed().is_ok()
        {
            return (name.last.clone(), asked.clone());
        }
        let (answer, asked) = watch::channel(None);
        name.asked = Some(asked.clone());
        let last = name.last.clone();
        drop(known);
        let (names, address) = (self.clone(), address.to_owned());
        let asking = (self.ask)(address.clone());
        tokio::spawn(async move {
            let found = asking.await;
            if let Some(name) = names.lock().get_mut(&address) {
                name.asked = None;
                if let Ok(addresses) = &found {
                    name.last.clone_from(addresses);
                }
            }
            answer.send_replace(Some(found.map_err(Arc::new)));
        });
        (last, asked)
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Name>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    /// Number of calls; from the second one on the resolver hangs.
    static LOOKUPS: AtomicUsize = AtomicUsize::new(0);

    fn asking(name: String) -> Asking {
        let times = LOOKUPS.fetch_add(1, Ordering::SeqCst);
        Box::pin(async move {
            match &name[..] {
                "sound:1" if times == 0 => Ok(vec!["10.0.0.1:1".parse().unwrap()]),
                "none:1" => Err(io::ErrorKind::NotFound.into()),
                _ => std::future::pending().await,
            }
        })
    }

    #[tokio::test]
    async fn hanging_name_lookup_is_asked_once_and_the_last_answer_used() {
        let names = Names::by(asking);
        let soon = Duration::from_millis(20);
        let sound = ["10.0.0.1:1".parse().unwrap()];
        assert_eq!(names.addresses("10.0.0.1:1", soon).await.unwrap(), sound);
        assert_eq!(LOOKUPS.load(Ordering::SeqCst), 0, "an address is no name");
        assert_eq!(names.addresses("sound:1", soon).await.unwrap(), sound);
        // From now on the resolver hangs.
        for _ in 0..3 {
            assert_eq!(names.addresses("sound:1", soon).await.unwrap(), sound);
        }
        assert_eq!(LOOKUPS.load(Ordering::SeqCst), 2, "once for all that wait for it");
        for _ in 0..3 {
            let unknown = names.addresses("unknown:1", soon);
            assert!(tokio::time::timeout(soon, unknown).await.is_err());
        }
        assert_eq!(LOOKUPS.load(Ordering::SeqCst), 3);
        let none = names.addresses("none:1", soon).await.unwrap_err();
        assert_eq!(none.kind(), io::ErrorKind::NotFound);
        // The previous call has returned with an error, so a new call is made.
        names.addresses("none:1", soon).await.unwrap_err();
        assert_eq!(LOOKUPS.load(Ordering::SeqCst), 5);
    }
}
