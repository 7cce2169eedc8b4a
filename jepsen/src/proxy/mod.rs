//! The door between members: each is reached at an address of the harness, which passes frames on to where
//! the member listens, as far as the [`Links`] let it.
//!
//! ```text
//!   m0 ──dials the address of m1──▶ Proxy ──the link 0 → 1──▶ m1 listens somewhere else
//!   m1 ──dials the address of m0──▶ Proxy ──the link 1 → 0──▶ m0 listens somewhere else
//! ```
//!
//! Members tell each other where they are, through their greetings and through the log, so there is one
//! address for each member and not one for each pair. Who is calling is read from the greeting, which names
//! the caller's own address. So connections must not be encrypted; and whoever asks to join is a stranger
//! until it is a member.
//!
//! The proxy runs on a thread of its own in the harness' process. While nothing is wrong with a link it adds
//! two handoffs on loopback to each message, and nothing else.

mod connection;
mod frames;

use std::net::TcpListener as StdListener;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use tokio::net::TcpListener;
use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;

use crate::links::Links;
use crate::process::HarnessError;

use frames::Caller;

/// See the module. Dropping it ends all connections.
#[derive(Debug)]
pub struct Proxy {
    /// Dropped, it ends the thread.
    end: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Proxy {
    /// Listens at each of `addresses` for the member that listens at the same place of `listens`, now or
    /// later. Members have their numbers by these places.
    ///
    /// # Errors
    /// The operating system's.
    pub fn start(
        addresses: &[String],
        listens: &[String],
        links: Links,
    ) -> Result<Self, HarnessError> {
        let system = |what| move |source| HarnessError::System { what, source };
        let runtime = Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(system("starting the proxy"))?;
        let members: Arc<[String]> = addresses.into();
        for (member, (address, listen)) in addresses.iter().zip(listens).enumerate() {
            let listener = listener_at(address, runtime.handle())
                .map_err(system("opening a port of the proxy"))?;
            let door = Door {
                to: member,
                listen: listen.clone(),
                members: Arc::clone(&members),
                links: links.clone(),
            };
            runtime.spawn(door.accept(listener));
        }
        let (end, ended) = oneshot::channel::<()>();
        let thread = thread::Builder::new()
            .name("proxy".to_owned())
            .spawn(move || drop(runtime.block_on(ended)))
            .map_err(system("starting the proxy's thread"))?;
        Ok(Self { end: Some(end), thread: Some(thread) })
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        drop(self.end.take());
        if let Some(thread) = self.thread.take() {
            // One that has fallen is gone too.
            drop(thread.join());
        }
    }
}

fn listener_at(address: &str, runtime: &Handle) -> std::io::Result<TcpListener> {
    let socket = StdListener::bind(address)?;
    socket.set_nonblocking(true)?;
    let _inside = runtime.enter();
    TcpListener::from_std(socket)
}

/// Where one member is reached.
#[derive(Clone)]
struct Door {
    to: usize,
    listen: String,
    members: Arc<[String]>,
    links: Links,
}

impl Door {
    async fn accept(self, listener: TcpListener) {
        loop {
            // The process is out of files, or the caller has gone: neither is for the proxy to judge.
            let Ok((mut socket, _)) = listener.accept().await else { continue };
            let door = self.clone();
            tokio::spawn(async move {
                let Ok((caller, said)) = connection::caller(&mut socket, &door.members).await
                else {
                    return;
                };
                let link = match caller {
                    Caller::Member(from) => door.links.link(from, door.to),
                    Caller::Stranger => door.links.stranger(),
                };
                connection::serve(socket, said, &door.listen, &link).await;
            });
        }
    }
}
