//! Starts a cluster of one system and connects to it.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use bowline_proto::etcdserverpb as pb;
use pb::kv_client::KvClient;
use pb::maintenance_client::MaintenanceClient;

use super::connection::Connection;
use crate::ports::reserved_ports;
use crate::process::{bowline, cpu_time, flags};

const CLIENTS_PER_CONNECTION: usize = 8;

/// Settings of both systems in addition to names and addresses. Everything else has its default.
const SETTINGS: [&str; 2] = ["--quota-backend-bytes=8589934592", "--log-level=error"];

/// Interval at which a starting server is tried.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Time limit for all members of a cluster to answer.
const SETTLE: Duration = Duration::from_secs(60);

/// The system under test.
#[derive(Clone)]
pub enum System {
    Bowline,
    /// The path of the program.
    Etcd(String),
}

impl System {
    fn command(&self) -> Command {
        match self {
            Self::Bowline => {
                let mut command = bowline();
                command.arg("serve");
                command
            }
            Self::Etcd(program) => Command::new(program),
        }
    }

    /// Returns the version that the program prints, or `None` if it does not run.
    pub fn version(&self) -> Option<String> {
        let output = self.command().arg("--version").output().ok()?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        Some(text.lines().next().unwrap_or_default().to_owned())
    }
}

/// A running cluster.
pub struct Bed {
    system: System,
    servers: Vec<Child>,
    peers: Vec<u16>,
    clients: Vec<u16>,
    leader: usize,
    dir: TempDir,
}

impl Bed {
    /// Starts a cluster with its data in a new directory within `dir`, and waits until all members answer.
    pub async fn start(system: &System, nodes: usize, dir: &Path) -> Result<Self, String> {
        let dir = tempfile::tempdir_in(dir).map_err(|error| error.to_string())?;
        let (peers, clients) = (reserved_ports(nodes), reserved_ports(nodes));
        let (system, servers) = (system.clone(), Vec::new());
        let mut bed = Self { system, servers, peers, clients, leader: 0, dir };
        for at in 0..nodes {
            let server = bed.server(at)?;
            bed.servers.push(server);
        }
        bed.settle().await?;
        Ok(bed)
    }

    fn server(&self, at: usize) -> Result<Child, String> {
        let data = self.dir.path().join(format!("m{at}"));
        let mut command = self.system.command();
        command.args(flags(at, &self.peers, self.clients[at], &data)).args(SETTINGS);
        let started = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        started.map_err(|error| format!("{command:?}: {error}"))
    }

    /// Waits until all members answer, and notes which one leads.
    pub async fn settle(&mut self) -> Result<(), String> {
        let begun = Instant::now();
        for at in 0..self.servers.len() {
            let leads = loop {
                if let Ok(Some(status)) = self.servers[at].try_wait() {
                    return Err(format!("member {at} has ended: {status}"));
                }
                if let Some(leads) = self.leads(at).await {
                    break leads;
                }
                if begun.elapsed() > SETTLE {
                    return Err(format!("member {at} does not answer within {SETTLE:?}"));
                }
                tokio::time::sleep(POLL_INTERVAL).await;
            };
            if leads {
                self.leader = at;
            }
        }
        Ok(())
    }

    /// Returns whether a member leads, or `None` if it does not answer.
    async fn leads(&self, at: usize) -> Option<bool> {
        let channel = Connection::open(self.clients[at]).await.ok()?;
        let range = pb::RangeRequest { key: "any".into(), ..Default::default() };
        KvClient::new(channel.clone()).range(range).await.ok()?;
        let status = MaintenanceClient::new(channel).status(pb::StatusRequest {}).await.ok()?;
        let status = status.into_inner();
        Some(status.header?.member_id == status.leader)
    }

    /// Returns connections for the clients, spread over all servers, starting with the leader.
    pub(super) async fn connections(&self, clients: usize) -> Vec<Connection> {
        let mut channels = Vec::new();
        for at in 0..clients.div_ceil(CLIENTS_PER_CONNECTION) {
            let member = (self.leader + at) % self.clients.len();
            channels.push(Connection::open(self.clients[member]).await.unwrap());
        }
        channels
    }

    /// Returns a connection to each member except the leader.
    pub async fn followers(&self) -> Vec<Connection> {
        let mut channels = Vec::new();
        for (at, port) in self.clients.iter().enumerate() {
            if at != self.leader {
                channels.push(Connection::open(*port).await.unwrap());
            }
        }
        channels
    }

    /// Returns the CPU time that all servers have used.
    pub fn cpu(&self) -> Duration {
        self.servers.iter().map(|server| cpu_time(server.id())).sum()
    }

    /// Kills the leader, as `kill -9` does.
    pub fn kill_leader(&mut self) {
        let server = &mut self.servers[self.leader];
        server.kill().expect("it runs");
        server.wait().expect("it ends");
    }

    /// Restarts the leader that was killed, and waits until all members answer.
    pub async fn restart(&mut self) -> Result<(), String> {
        self.servers[self.leader] = self.server(self.leader)?;
        self.settle().await
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        for server in &mut self.servers {
            drop(server.kill());
            drop(server.wait());
        }
    }
}
