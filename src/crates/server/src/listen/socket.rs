//! Client connections and listening sockets, for TCP and Unix sockets.

use std::fs;
use std::io::{self, IoSlice};
use std::net::{self, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::task::{Context, Poll};

use rustix::net::RecvFlags;
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio_rustls::server::TlsStream;

/// A listening socket that does not accept connections yet.
pub(crate) enum Bound {
    Tcp(net::TcpListener),
    Unix(unix::net::UnixListener, SocketFile),
}

/// A listening socket that accepts connections.
pub(crate) enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener, #[expect(dead_code, reason = "deletes the file when dropped")] SocketFile),
}

/// A socket file, deleted on drop.
pub(crate) struct SocketFile(PathBuf);

impl Drop for SocketFile {
    fn drop(&mut self) {
        drop(fs::remove_file(&self.0));
    }
}

impl Bound {
    /// Listens on a Unix socket. As with etcd, permissions follow from its directory and the umask. The file of a dead
    /// server is replaced.
    ///
    /// # Errors
    /// Fails if another server is listening there, if the path is another kind of file, and with system errors.
    pub(crate) fn unix(path: &Path) -> io::Result<Self> {
        match fs::symlink_metadata(path) {
            Ok(found) if found.file_type().is_socket() => {
                if unix::net::UnixStream::connect(path).is_ok() {
                    return Err(io::ErrorKind::AddrInUse.into());
                }
                fs::remove_file(path)?;
            }
            Ok(_) => {
                let why = "a file of that name exists and is not a socket";
                return Err(io::Error::new(io::ErrorKind::AlreadyExists, why));
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        let listener = unix::net::UnixListener::bind(path)?;
        listener.set_nonblocking(true)?;
        Ok(Self::Unix(listener, SocketFile(path.to_owned())))
    }

    /// Returns whether it listens on one of these addresses or this file.
    pub(crate) fn is_at(&self, addresses: &[SocketAddr], path: Option<&Path>) -> bool {
        match self {
            Self::Tcp(listener) => listener.local_addr().is_ok_and(|at| addresses.contains(&at)),
            Self::Unix(_, file) => path == Some(&file.0),
        }
    }

    /// Returns the TCP address, if it is one.
    pub(crate) fn address(&self) -> Option<SocketAddr> {
        match self {
            Self::Tcp(listener) => listener.local_addr().ok(),
            Self::Unix(..) => None,
        }
    }

    /// Begins to accept connections on the current runtime.
    pub(crate) fn open(self) -> io::Result<Listener> {
        Ok(match self {
            Self::Tcp(listener) => Listener::Tcp(TcpListener::from_std(listener)?),
            Self::Unix(listener, file) => Listener::Unix(UnixListener::from_std(listener)?, file),
        })
    }
}

impl Listener {
    pub(crate) async fn accept(&self) -> io::Result<Socket> {
        match self {
            Self::Tcp(listener) => listener.accept().await.map(|(stream, _)| Socket::Tcp(stream)),
            Self::Unix(listener, _) => {
                listener.accept().await.map(|(stream, _)| Socket::Unix(stream))
            }
        }
    }
}

/// A connection.
#[derive(Debug)]
pub(crate) enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Socket {
    /// Reads the first bytes without consuming them.
    pub(crate) async fn peek(&self, first: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.peek(first).await,
            Self::Unix(stream) => {
                let peek = || Ok(rustix::net::recv(stream, &mut *first, RecvFlags::PEEK)?.1);
                stream.async_io(Interest::READABLE, peek).await
            }
        }
    }

    /// Returns the TCP connection, if it is one.
    pub(crate) fn tcp(&self) -> Option<&TcpStream> {
        match self {
            Self::Tcp(stream) => Some(stream),
            Self::Unix(_) => None,
        }
    }
}

/// A connection to a client.
pub(crate) trait ClientStream: AsyncRead + AsyncWrite + Unpin + Send + 'static {
    fn socket(&self) -> &Socket;
}

impl ClientStream for Socket {
    fn socket(&self) -> &Socket {
        self
    }
}

impl ClientStream for Box<TlsStream<Socket>> {
    fn socket(&self) -> &Socket {
        self.get_ref().0
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tcp(stream) => stream.as_fd(),
            Self::Unix(stream) => stream.as_fd(),
        }
    }
}

impl AsyncRead for Socket {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_read(context, into),
            Self::Unix(stream) => Pin::new(stream).poll_read(context, into),
        }
    }
}

impl AsyncWrite for Socket {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_write(context, bytes),
            Self::Unix(stream) => Pin::new(stream).poll_write(context, bytes),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_flush(context),
            Self::Unix(stream) => Pin::new(stream).poll_flush(context),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_shutdown(context),
            Self::Unix(stream) => Pin::new(stream).poll_shutdown(context),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_write_vectored(context, slices),
            Self::Unix(stream) => Pin::new(stream).poll_write_vectored(context, slices),
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_stale_socket_file_is_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        let first = Bound::unix(&path).unwrap();
        let taken = Bound::unix(&path).err().expect("the path is in use");
        assert_eq!(taken.kind(), io::ErrorKind::AddrInUse);
        // Simulate a killed server, which leaves the file.
        let Bound::Unix(listener, file) = first else { panic!("a socket file") };
        std::mem::forget(file);
        drop(listener);
        assert!(path.exists());
        let second = Bound::unix(&path).unwrap();
        drop(second);
        assert!(!path.exists(), "deleted at the end");
        fs::write(&path, "data").unwrap();
        let refused = Bound::unix(&path).err().expect("a file");
        assert_eq!(refused.kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(fs::read(&path).unwrap(), b"data");
    }
}
