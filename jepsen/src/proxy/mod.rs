//! A proxy between members. Each member advertises an address of the harness. The proxy accepts connections there and
//! forwards frames to the member's real listen address, subject to the rules of [`Links`].
//!
//! ```text
//!   m0 ──dials the address of m1──▶ Proxy ──the link 0 → 1──▶ m1 listens on another port
//!   m1 ──dials the address of m0──▶ Proxy ──the link 1 → 0──▶ m0 listens on another port
//! ```
//!
//! Members learn each other's addresses from handshakes and from the log, so a member has one address that all others
//! dial. The proxy therefore cannot identify the dialing member by the dialed address. The proxy reads the dialing
//! member's address from the handshake instead, so connections must not be encrypted. A node that asks to join cannot
//! be identified until it is a member.
//!
//! The proxy runs on its own thread in the process of the harness. On a link without faults, it only adds two loopback
//! hops to each message.

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

/// A running proxy. Dropping this value closes all connections.
#[derive(Debug)]
pub struct Proxy {
    /// Dropping the sender ends the thread.
    end: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Proxy {
    /// Starts a proxy. The proxy accepts connections at each address in `addresses` and forwards them to the address
    /// with the same index in `listens`, at which a member listens, now or later. The index is the number of the
    /// member.
    ///
    /// # Errors
    ///
    /// Returns errors of the operating system.
    pub fn start(
        addresses: &[String],
        listens: &[String],
        links: Links,
    ) -> Result<Self, HarnessError> {
        let runtime = Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(HarnessError::system("cannot start the proxy"))?;
        let members: Arc<[String]> = addresses.into();
        for (member, (address, listen)) in addresses.iter().zip(listens).enumerate() {
            let listener = listener_at(address, runtime.handle())
                .map_err(HarnessError::system("cannot listen on a port of the proxy"))?;
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
            .map_err(HarnessError::system("cannot start the thread of the proxy"))?;
        Ok(Self { end: Some(end), thread: Some(thread) })
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        drop(self.end.take());
        if let Some(thread) = self.thread.take() {
            // If the thread has panicked, it has ended as well, so the error is ignored.
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

/// The address of one member.
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
            // The process is out of file descriptors, or the caller has gone. The proxy ignores both.
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
