//! A Redis server that syncs every write, and its clients. Each client has its own connection. This module implements
//! Redis' protocol (RESP) itself.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bowline_fleet::Dice;
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;

use crate::crew::{Measured, together};
use crate::ports::reserved_ports;
use crate::process::cpu_time;

/// Time limit for the server to start.
const SETTLE: Duration = Duration::from_secs(20);

const VALUE_BYTES: usize = 256;

/// Deletes a lock if it still has the caller's token.
const UNLOCK: &str =
    "if redis.call('GET',KEYS[1])==ARGV[1] then return redis.call('DEL',KEYS[1]) else return 0 end";

/// Sets a key if it still has the value that the caller has read.
const COMPARE_AND_SET: &str = "if redis.call('GET',KEYS[1])==ARGV[1] then \
                               return redis.call('SET',KEYS[1],ARGV[2]) else return false end";

/// The work of a row. Each variant defines one operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Work {
    /// SET of one of the keys.
    Set,
    /// GET of one of the keys.
    Get,
    /// SET NX PX with a token, then a script that deletes the key if it has this token. Each client has its own name.
    Lock,
    /// GET, then a script that sets the key if it still has this value.
    CompareAndSet,
}

/// A running server.
pub(super) struct Redis {
    server: Child,
    port: u16,
    keys: u64,
    _dir: TempDir,
}

impl Redis {
    /// Returns the version, or `None` if the program does not run.
    pub(super) fn version(program: &str) -> Option<String> {
        let output = Command::new(program).arg("--version").output().ok()?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let version = text.split_whitespace().find_map(|word| word.strip_prefix("v="));
        Some(version.unwrap_or("of an unknown version").to_owned())
    }

    /// Starts a server with its data in a new directory within `dir`, and waits until it answers.
    pub(super) async fn start(program: &str, dir: &Path, keys: u64) -> Result<Self, String> {
        let dir = tempfile::tempdir_in(dir).map_err(|error| error.to_string())?;
        let port = reserved_ports(1)[0];
        let mut command = Command::new(program);
        command.args(["--bind", "127.0.0.1", "--port", &port.to_string(), "--dir"]).arg(dir.path());
        // Without snapshots, which Redis takes in addition to the log and does not need.
        command.args(["--appendonly", "yes", "--appendfsync", "always", "--save", ""]);
        let started = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        let server = started.map_err(|error| format!("{program}: {error}"))?;
        let mut redis = Self { server, port, keys, _dir: dir };
        let begun = Instant::now();
        while redis.connect().await.is_err() {
            if let Ok(Some(status)) = redis.server.try_wait() {
                return Err(format!("{program} has ended: {status}"));
            }
            if begun.elapsed() > SETTLE {
                return Err(format!("{program} does not answer within {SETTLE:?}"));
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        Ok(redis)
    }

    async fn connect(&self) -> std::io::Result<Connection> {
        let stream = TcpStream::connect(("127.0.0.1", self.port)).await?;
        stream.set_nodelay(true)?;
        Ok(Connection { stream: BufReader::new(stream), request: Vec::new() })
    }

    /// Makes sure that all keys exist.
    pub(super) async fn fill(&self) {
        let mut connection = self.connect().await.expect("Redis accepts connections");
        for number in 0..self.keys {
            connection.ok(&[b"SET", key(number).as_bytes(), &value()]).await;
        }
    }

    /// Runs `clients` clients for `time`. Returns the latencies, and the CPU time of the server.
    pub(super) async fn run(
        &self,
        work: Work,
        clients: u64,
        time: Duration,
    ) -> (Measured, Duration) {
        let mut all = Vec::new();
        for number in 0..clients {
            let connection = self.connect().await.expect("Redis accepts connections");
            all.push(tokio::sync::Mutex::new(
                Client::prepared(connection, number, self.keys).await,
            ));
        }
        let all = Arc::new(all);
        let cpu = cpu_time(self.server.id());
        let until = Instant::now() + time;
        let measured = together(clients, |number| {
            let all = Arc::clone(&all);
            async move {
                let mut client = all[number as usize].lock().await;
                let mut measured = Measured::new(Duration::ZERO);
                loop {
                    let begun = Instant::now();
                    if begun >= until {
                        return measured;
                    }
                    client.once(work).await;
                    measured.add(begun.elapsed());
                }
            }
        })
        .await;
        (measured, cpu_time(self.server.id()).saturating_sub(cpu))
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        drop(self.server.kill());
        drop(self.server.wait());
    }
}

struct Client {
    connection: Connection,
    number: u64,
    keys: u64,
    dice: Dice,
    /// Hashes by which the server identifies the scripts.
    unlock: Vec<u8>,
    compare_and_set: Vec<u8>,
}

impl Client {
    async fn prepared(mut connection: Connection, number: u64, keys: u64) -> Self {
        let mut load = async |script: &str| match connection
            .call(&[b"SCRIPT", b"LOAD", script.as_bytes()])
            .await
        {
            Reply::Bulk(Some(hash)) => hash,
            other => panic!("SCRIPT LOAD: {other:?}"),
        };
        let (unlock, compare_and_set) = (load(UNLOCK).await, load(COMPARE_AND_SET).await);
        let dice = Dice::new(number);
        Self { connection, number, keys, dice, unlock, compare_and_set }
    }

    fn key(&mut self) -> String {
        key(self.dice.below(self.keys))
    }

    async fn once(&mut self, work: Work) {
        match work {
            Work::Set => {
                let key = self.key();
                self.connection.ok(&[b"SET", key.as_bytes(), &value()]).await;
            }
            Work::Get => {
                let key = self.key();
                self.connection.value(key.as_bytes()).await;
            }
            Work::Lock => {
                let (name, token) = (format!("lock/{}", self.number), self.key());
                let (name, token) = (name.as_bytes(), token.as_bytes());
                self.connection.ok(&[b"SET", name, token, b"NX", b"PX", b"30000"]).await;
                let unlock = [b"EVALSHA", &self.unlock[..], b"1", name, token];
                let reply = self.connection.call(&unlock).await;
                assert_eq!(reply, Reply::Integer(1), "the lock was held");
            }
            Work::CompareAndSet => {
                let key = self.key();
                let old = self.connection.value(key.as_bytes()).await;
                let hash = &self.compare_and_set[..];
                self.connection.ok(&[b"EVALSHA", hash, b"1", key.as_bytes(), &old, &value()]).await;
            }
        }
    }
}

/// A reply of the server.
#[derive(PartialEq, Eq, Debug)]
enum Reply {
    Simple(String),
    Error(String),
    Integer(i64),
    Bulk(Option<Vec<u8>>),
}

struct Connection {
    stream: BufReader<TcpStream>,
    request: Vec<u8>,
}

impl Connection {
    /// Sends a command and waits for the reply.
    async fn call(&mut self, words: &[&[u8]]) -> Reply {
        self.request.clear();
        encode(words, &mut self.request);
        self.stream.get_mut().write_all(&self.request).await.expect("Redis reads");
        let mut line = String::new();
        self.stream.read_line(&mut line).await.expect("Redis replies");
        let (kind, rest) = line.trim_end().split_at_checked(1).expect("Redis is running");
        match kind {
            "+" => Reply::Simple(rest.to_owned()),
            "-" => Reply::Error(rest.to_owned()),
            ":" => Reply::Integer(rest.parse().expect("an integer")),
            "$" if rest == "-1" => Reply::Bulk(None),
            "$" => {
                // Two more bytes end the line.
                let mut bytes = vec![0; rest.parse::<usize>().expect("a length") + 2];
                self.stream.read_exact(&mut bytes).await.expect("Redis sends the value");
                bytes.truncate(bytes.len() - 2);
                Reply::Bulk(Some(bytes))
            }
            other => panic!("unexpected reply: {other:?}"),
        }
    }

    /// Sends a command that must succeed.
    async fn ok(&mut self, words: &[&[u8]]) {
        let reply = self.call(words).await;
        assert_eq!(reply, Reply::Simple("OK".to_owned()));
    }

    /// Returns the value of a key that exists.
    async fn value(&mut self, key: &[u8]) -> Vec<u8> {
        match self.call(&[b"GET", key]).await {
            Reply::Bulk(Some(value)) => value,
            other => panic!("GET: {other:?}"),
        }
    }
}

/// Appends a command in Redis' protocol.
fn encode(words: &[&[u8]], to: &mut Vec<u8>) {
    to.extend(format!("*{}\r\n", words.len()).bytes());
    for word in words {
        to.extend(format!("${}\r\n", word.len()).bytes());
        to.extend(*word);
        to.extend(b"\r\n");
    }
}

fn key(number: u64) -> String {
    format!("k/{number:016}")
}

fn value() -> Vec<u8> {
    vec![b'v'; VALUE_BYTES]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_arrays_of_bulk_strings() {
        let mut bytes = Vec::new();
        encode(&[b"SET", b"k", b"a\r\nb"], &mut bytes);
        assert_eq!(bytes, b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$4\r\na\r\nb\r\n");
    }
}
