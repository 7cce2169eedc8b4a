//! Starts a cluster of one system and connects to it.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use tempfile::TempDir;
use tonic::transport::{Channel, Endpoint};

use bowline_proto::etcdserverpb as pb;
use bowline_testkit::process::{bowline, flags, free_ports};
use pb::kv_client::KvClient;
use pb::maintenance_client::MaintenanceClient;

/// Number of clients per connection.
const CLIENTS_PER_CONNECTION: usize = 8;

/// Settings of both systems in addition to names and addresses. Everything else has its default.
const SETTINGS: [&str; 2] = ["--quota-backend-bytes=8589934592", "--log-level=error"];

/// Interval at which a starting server is tried.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// The system under test.
pub(crate) enum System {
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
    pub(crate) fn version(&self) -> Option<String> {
        let output = self.command().arg("--version").output().ok()?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        Some(text.lines().next().unwrap_or_default().to_owned())
    }
}

/// A running cluster.
pub(crate) struct Bed {
    servers: Vec<Child>,
    /// The leader first.
    endpoints: Vec<Endpoint>,
    _dir: TempDir,
}

impl Bed {
    /// Starts a cluster, and waits until all members answer.
    pub(crate) async fn made(system: &System, nodes: usize) -> Self {
        // The data must be on the same disk as the project, because the default directory may be in memory.
        let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let (peers, clients): ([u16; 3], [u16; 3]) = (free_ports(), free_ports());
        let start = |at: usize| {
            let data = dir.path().join(format!("m{at}"));
            start(system, at, &peers[..nodes], clients[at], &data)
        };
        let servers = (0..nodes).map(start).collect();
        let endpoint =
            |port: &u16| Endpoint::from_shared(format!("http://127.0.0.1:{port}")).unwrap();
        let endpoints = clients[..nodes].iter().map(endpoint).collect();
        let mut bed = Self { servers, endpoints, _dir: dir };
        let mut leads = 0;
        for at in 0..nodes {
            if bed.answers(at).await {
                leads = at;
            }
        }
        bed.endpoints.rotate_left(leads);
        bed
    }

    /// Waits until a member answers. Returns whether it is the leader.
    async fn answers(&self, at: usize) -> bool {
        loop {
            if let Ok(channel) = self.endpoints[at].connect().await {
                let range = pb::RangeRequest { key: "any".into(), ..Default::default() };
                let read = KvClient::new(channel.clone()).range(range).await;
                let status = MaintenanceClient::new(channel).status(pb::StatusRequest {}).await;
                if let (Ok(_), Ok(status)) = (read, status) {
                    let status = status.into_inner();
                    return status.header.unwrap().member_id == status.leader;
                }
            }
            tokio::time::sleep(LOOK_AGAIN).await;
        }
    }

    /// Returns connections for the clients, spread over all servers, starting with the leader.
    pub(crate) async fn connections(&self, clients: usize) -> Vec<Channel> {
        let mut channels = Vec::new();
        for at in 0..clients.div_ceil(CLIENTS_PER_CONNECTION) {
            channels.push(self.endpoints[at % self.endpoints.len()].connect().await.unwrap());
        }
        channels
    }

    /// Returns the CPU time that all servers have used.
    pub(crate) fn cpu(&self) -> Duration {
        self.servers.iter().map(|server| cpu_of(server.id())).sum()
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

fn start(system: &System, at: usize, peers: &[u16], client: u16, data: &Path) -> Child {
    let mut command = system.command();
    command.args(flags(at, peers, client, data)).args(SETTINGS);
    command.stdout(Stdio::null()).stderr(Stdio::null());
    command.spawn().unwrap()
}

/// Returns the CPU time of a process, or zero if there is no such process.
fn cpu_of(process: u32) -> Duration {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    // The name may contain spaces; after it come the state and the numbers.
    let numbers = stat.rsplit(')').next().unwrap_or_default();
    let ticks: u64 = numbers.split_whitespace().skip(11).take(2).flat_map(str::parse::<u64>).sum();
    Duration::from_millis(ticks * 1000 / rustix::param::clock_ticks_per_second())
}
