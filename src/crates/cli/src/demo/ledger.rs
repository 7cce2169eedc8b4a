//! The ledger: a resource outside the store that is protected by the lock. The ledger is a file that only the parent
//! process writes, and a socket on loopback that receives the workers' requests. The ledger knows nothing about locks
//! except fencing tokens: it rejects a request with a token lower than the highest token seen. The file also records
//! rejected requests, so the file alone documents the run.

use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use super::wire::{Append, Fence, OpId, Ruling, line};

/// Maximum size of a request, in bytes. Real ones have fewer than a hundred.
const REQUEST_BYTES_MAX: u64 = 4096;

/// A line of the file.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Entry {
    /// The increment.
    pub(crate) op: OpId,
    /// Its fencing token.
    pub(crate) token: Fence,
    pub(crate) accepted: bool,
    /// Highest token seen, including this one.
    pub(crate) highest: Fence,
}

/// The open ledger. Its socket closes on drop.
#[derive(Debug)]
pub(crate) struct Ledger {
    address: String,
    path: PathBuf,
    book: Arc<Mutex<Book>>,
    /// Aborted on drop.
    _listening: JoinSet<()>,
}

#[derive(Debug)]
struct Book {
    file: File,
    highest: Option<Fence>,
    /// Reason for which a line could not be written. From then on the ledger accepts no request.
    failure: Option<String>,
}

impl Ledger {
    /// Creates the file and listens.
    pub(crate) async fn open(path: &Path) -> io::Result<Self> {
        let file = OpenOptions::new().append(true).create_new(true).open(path)?;
        let book = Arc::new(Mutex::new(Book { file, highest: None, failure: None }));
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?.to_string();
        let mut listening = JoinSet::new();
        listening.spawn(listen(listener, Arc::clone(&book)));
        Ok(Self { address, path: path.to_owned(), book, _listening: listening })
    }

    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    /// Returns the highest token seen.
    pub(crate) fn highest(&self) -> Option<Fence> {
        lock(&self.book).highest
    }

    /// Returns why the ledger has stopped writing, if it has.
    pub(crate) fn failure(&self) -> Option<String> {
        lock(&self.book).failure.clone()
    }

    /// Reads all entries back from the file, in order.
    pub(crate) fn read_back(&self) -> io::Result<Vec<Entry>> {
        BufReader::new(File::open(&self.path)?)
            .lines()
            .map(|text| serde_json::from_str(&text?).map_err(io::Error::from))
            .collect()
    }
}

impl Book {
    /// Checks the token, records the request, and returns the decision, in this order.
    fn append(&mut self, Append { op, token }: Append) -> io::Result<Ruling> {
        let highest = self.highest.map_or(token, |highest| highest.max(token));
        let accepted = token >= highest;
        let entry = Entry { op, token, accepted, highest };
        self.file.write_all(line(&entry).as_bytes())?;
        self.highest = Some(highest);
        Ok(if accepted { Ruling::Accepted } else { Ruling::Refused { highest } })
    }
}

fn lock(book: &Mutex<Book>) -> std::sync::MutexGuard<'_, Book> {
    book.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn listen(listener: TcpListener, book: Arc<Mutex<Book>>) {
    let mut serving = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => {
                    serving.spawn(serve(stream, Arc::clone(&book)));
                }
                Err(error) => {
                    lock(&book).failure = Some(format!("the ledger cannot accept connections: {error}"));
                    return;
                }
            },
            Some(_) = serving.join_next() => {}
        }
    }
}

/// Serves one worker until it disconnects. A killed worker may disconnect in the middle of a line.
async fn serve(stream: TcpStream, book: Arc<Mutex<Book>>) {
    let (input, mut output) = stream.into_split();
    let mut input = tokio::io::BufReader::new(input);
    loop {
        let mut request = String::new();
        let read = (&mut input).take(REQUEST_BYTES_MAX).read_line(&mut request).await;
        // An incomplete or invalid line is not a request, so the connection is closed.
        if !matches!(read, Ok(bytes) if bytes > 0) || !request.ends_with('\n') {
            return;
        }
        let Ok(append) = serde_json::from_str(&request) else { return };
        let ruling = {
            let mut book = lock(&book);
            if book.failure.is_some() {
                return;
            }
            match book.append(append) {
                Ok(ruling) => ruling,
                Err(error) => {
                    book.failure = Some(format!("the ledger cannot write its file: {error}"));
                    return;
                }
            }
        };
        if output.write_all(line(&ruling).as_bytes()).await.is_err() {
            return;
        }
    }
}

/// A worker's connection to the ledger.
#[derive(Debug)]
pub(crate) struct LedgerClient {
    stream: tokio::io::BufReader<TcpStream>,
}

impl LedgerClient {
    pub(crate) async fn connect(address: &str) -> io::Result<Self> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        Ok(Self { stream: tokio::io::BufReader::new(stream) })
    }

    /// Sends one request. After an error it is unknown whether the request was recorded.
    pub(crate) async fn append(&mut self, append: &Append) -> io::Result<Ruling> {
        self.stream.get_mut().write_all(line(append).as_bytes()).await?;
        let mut answer = String::new();
        self.stream.read_line(&mut answer).await?;
        serde_json::from_str(&answer).map_err(io::Error::from)
    }
}

#[cfg(test)]
mod tests {
    use super::super::workplace::Workplace;
    use super::*;

    fn ask(token: &str, op: &str) -> Append {
        Append { op: OpId(op.to_owned()), token: Fence(token.parse().unwrap()) }
    }

    #[tokio::test]
    async fn ledger_rejects_and_records_a_lower_token() {
        let place = Workplace::make(None, false).unwrap();
        let ledger = Ledger::open(&place.ledger()).await.unwrap();
        let mut worker = LedgerClient::connect(ledger.address()).await.unwrap();
        let highest = Fence("9.1".parse().unwrap());
        for (token, ruling) in [
            ("7.0", Ruling::Accepted),
            ("9.1", Ruling::Accepted),
            ("9.0", Ruling::Refused { highest }),
            ("7.5", Ruling::Refused { highest }),
            ("9.1", Ruling::Accepted),
            ("10.0", Ruling::Accepted),
        ] {
            assert_eq!(worker.append(&ask(token, token)).await.unwrap(), ruling, "{token}");
        }
        let entries = ledger.read_back().unwrap();
        let accepted: Vec<_> = entries.iter().map(|entry| entry.accepted).collect();
        assert_eq!(accepted, [true, true, false, false, true, true]);
        assert_eq!(ledger.highest(), Some(Fence("10.0".parse().unwrap())));
    }

    #[tokio::test]
    async fn malformed_ledger_request_is_not_recorded() {
        let place = Workplace::make(None, false).unwrap();
        let ledger = Ledger::open(&place.ledger()).await.unwrap();
        for garbage in ["hello\n".to_owned(), "{\"op\":\"x\"".to_owned(), "x".repeat(10_000)] {
            let mut stream = TcpStream::connect(ledger.address()).await.unwrap();
            stream.write_all(garbage.as_bytes()).await.unwrap();
            stream.shutdown().await.unwrap();
            let mut rest = Vec::new();
            // The ledger closes the connection: a normal end, or a reset because of unread bytes.
            drop(stream.read_to_end(&mut rest).await);
            assert_eq!(rest, b"");
        }
        assert_eq!(ledger.read_back().unwrap(), []);
    }
}
