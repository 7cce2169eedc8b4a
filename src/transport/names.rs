//! Which addresses a name has: the system is asked at each connect, and not waited for where it hangs.
//!
//! Its question cannot be taken back, and keeps a thread for as long as it takes. So a name is asked for once at a
//! time, however many want it, and one that hangs costs the others nothing. Until it is answered, or when it says no,
//! the addresses are good that it had last: who is reached there has to prove who it is.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;

/// How many names are remembered; beyond that those are forgotten that nobody waits for.
const NAMES_MAX: usize = 256;

/// What the system says of a name.
type Answer = Result<Vec<SocketAddr>, Arc<io::Error>>;
pub(super) type Asking = Pin<Box<dyn Future<Output = io::Result<Vec<SocketAddr>>> + Send>>;

/// See the module. Cheap to clone.
#[derive(Clone)]
pub(super) struct Names {
    known: Arc<Mutex<BTreeMap<String, Name>>>,
    ask: fn(String) -> Asking,
}

#[derive(Default)]
struct Name {
    /// The addresses that it had last.
    last: Vec<SocketAddr>,
    /// The question that is under way.
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

    /// The addresses of `HOST:PORT`. Those that it had last, if the system has nothing else to say within `patience`;
    /// if there are none, whoever asks decides how long to wait.
    pub(super) async fn addresses(
        &self,
        address: &str,
        patience: Duration,
    ) -> io::Result<Vec<SocketAddr>> {
        // An address needs no name service, and no thread that could hang in it.
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
            Ok(None) | Err(_) => Err(io::Error::other("the name service was not asked to the end")),
        }
    }

    /// Asks, unless the question is under way. Says what is known, and where the answer comes.
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

    /// How often anything was asked for; from the second time on the system hangs.
    static ASKED: AtomicUsize = AtomicUsize::new(0);

    fn asking(name: String) -> Asking {
        let times = ASKED.fetch_add(1, Ordering::SeqCst);
        Box::pin(async move {
            match &name[..] {
                "sound:1" if times == 0 => Ok(vec!["10.0.0.1:1".parse().unwrap()]),
                "none:1" => Err(io::ErrorKind::NotFound.into()),
                _ => std::future::pending().await,
            }
        })
    }

    #[tokio::test]
    async fn what_hangs_is_asked_for_once_and_what_was_known_is_good_meanwhile() {
        let names = Names::by(asking);
        let soon = Duration::from_millis(20);
        let sound = ["10.0.0.1:1".parse().unwrap()];
        assert_eq!(names.addresses("10.0.0.1:1", soon).await.unwrap(), sound);
        assert_eq!(ASKED.load(Ordering::SeqCst), 0, "an address is no name");
        assert_eq!(names.addresses("sound:1", soon).await.unwrap(), sound);
        // From now on the system hangs.
        for _ in 0..3 {
            assert_eq!(names.addresses("sound:1", soon).await.unwrap(), sound);
        }
        assert_eq!(ASKED.load(Ordering::SeqCst), 2, "once for all that wait for it");
        for _ in 0..3 {
            let unknown = names.addresses("unknown:1", soon);
            assert!(tokio::time::timeout(soon, unknown).await.is_err());
        }
        assert_eq!(ASKED.load(Ordering::SeqCst), 3);
        let none = names.addresses("none:1", soon).await.unwrap_err();
        assert_eq!(none.kind(), io::ErrorKind::NotFound);
        // Answered, if only with a no: it is asked for again.
        names.addresses("none:1", soon).await.unwrap_err();
        assert_eq!(ASKED.load(Ordering::SeqCst), 5);
    }
}
