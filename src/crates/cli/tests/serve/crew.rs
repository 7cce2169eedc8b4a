//! Members of one cluster as processes, which are killed and restarted in turn.

use std::path::PathBuf;

use tempfile::TempDir;
use tonic::transport::{Channel, Endpoint};

use bowline_proto::etcdserverpb as pb;
use bowline_testkit::ports::reserved_ports;
use bowline_testkit::process::{Server, flags};
use pb::maintenance_client::MaintenanceClient;

/// Default number of kills: each of three members once, and then the leader.
const KILLS: usize = 4;

/// Short timeouts, so that elections are quick.
const QUICK: [&str; 3] =
    ["--heartbeat-interval=20", "--election-timeout=200", "--watch-progress-notify-interval=100ms"];

/// The processes of a cluster.
pub(crate) struct Crew {
    dir: TempDir,
    peers: Vec<u16>,
    clients: Vec<u16>,
    /// Flags of all members.
    flags: &'static [&'static str],
    /// `None` while a member is down.
    servers: Vec<Option<Server>>,
}

impl Crew {
    /// Starts a cluster of processes. `places` is the number of members, which exceeds that of the processes if other
    /// nodes join.
    pub(crate) fn of(processes: usize, places: usize) -> Self {
        let crew = Self::still(processes, places);
        crew.begun()
    }

    /// Like [`Crew::of`], without starting the processes.
    pub(crate) fn still(processes: usize, places: usize) -> Self {
        let (peers, clients) = (reserved_ports(places), reserved_ports(processes));
        let servers = clients.iter().map(|_| None).collect();
        Self { dir: tempfile::tempdir().unwrap(), peers, clients, flags: &QUICK, servers }
    }

    /// Starts a cluster of processes with etcd's default timeouts.
    pub(crate) fn with_default_times(processes: usize) -> Self {
        Self { flags: &[], ..Self::still(processes, processes) }.begun()
    }

    /// Starts three processes with these flags.
    pub(crate) fn of_three_with(flags: &'static [&'static str]) -> Self {
        Self { flags, ..Self::still(3, 3) }.begun()
    }

    /// Starts all processes.
    pub(crate) fn begun(mut self) -> Self {
        let started: Vec<_> = (0..self.clients.len()).map(|at| self.start(at)).collect();
        // No server is ready before a quorum runs, so all are started first.
        self.servers = started.into_iter().map(|server| Some(server.ready())).collect();
        self
    }

    fn start(&self, at: usize) -> Server {
        let flags = flags(at, &self.peers, self.clients[at], &self.data(at));
        Server::start(&flags, self.clients[at], self.flags)
    }

    /// Returns the data directory of a member.
    pub(crate) fn data(&self, at: usize) -> PathBuf {
        self.dir.path().join(format!("m{at}"))
    }

    /// Returns the names and peer addresses of all members.
    pub(crate) fn members(&self) -> Vec<(String, String)> {
        let member = |(at, port): (usize, &u16)| (format!("m{at}"), format!("127.0.0.1:{port}"));
        self.peers.iter().enumerate().map(member).collect()
    }

    /// Returns the client addresses of the processes, running or not.
    pub(crate) fn addresses(&self) -> Vec<String> {
        self.clients.iter().map(|port| format!("127.0.0.1:{port}")).collect()
    }

    /// Returns a running server.
    pub(crate) fn server(&self) -> &Server {
        self.servers.iter().flatten().next().unwrap()
    }

    /// Returns a channel to all processes, which sends each call to a reachable one.
    pub(crate) fn channel(&self) -> Channel {
        let endpoint = |address| Endpoint::from_shared(format!("http://{address}")).unwrap();
        Channel::balance_list(self.addresses().into_iter().map(endpoint))
    }

    /// Returns the number of kills, which `BOWLINE_KILLS` can increase.
    pub(crate) fn kills() -> usize {
        let kills = std::env::var("BOWLINE_KILLS").ok();
        kills.map_or(KILLS, |kills| kills.parse().expect("BOWLINE_KILLS is a number"))
    }

    /// Kills processes in turn, every second time the leader. `lived` is called while all run, and `missed` while one
    /// is down, so that the test makes progress in each state.
    pub(crate) fn kill_in_turn(&mut self, mut lived: impl FnMut(), mut missed: impl FnMut()) {
        for turn in 0..Self::kills() {
            lived();
            let leads = self.leader();
            let others = (0..self.servers.len()).filter(|at| Some(*at) != leads);
            let others: Vec<_> = others.collect();
            let at = match leads {
                Some(leads) if turn % 2 == 0 || others.is_empty() => leads,
                _ => others[turn / 2 % others.len()],
            };
            // Dropping a server kills its process with SIGKILL and waits for it.
            drop(self.servers[at].take());
            missed();
            self.servers[at] = Some(self.start(at).ready());
        }
        lived();
    }

    /// Kills the leader with SIGKILL, `kills` times, and starts it again. `lived` is called while all run, and `missed`
    /// while the leader is down.
    pub(crate) fn kill_leaders(
        &mut self,
        kills: usize,
        mut lived: impl FnMut(),
        mut missed: impl FnMut(),
    ) {
        for _ in 0..kills {
            lived();
            let at = self.leader().expect("one of the processes leads");
            drop(self.servers[at].take());
            missed();
            self.servers[at] = Some(self.start(at).ready());
        }
        lived();
    }

    /// Returns the leader, if it is one of the processes.
    fn leader(&self) -> Option<usize> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            loop {
                let channel = self.server().channel().await;
                let status = MaintenanceClient::new(channel).status(pb::StatusRequest {}).await;
                let leader = status.unwrap().into_inner().leader;
                if leader == 0 {
                    continue;
                }
                for (at, server) in self.servers.iter().enumerate() {
                    let Some(server) = server else { continue };
                    let mut own = MaintenanceClient::new(server.channel().await);
                    let status = own.status(pb::StatusRequest {}).await.unwrap().into_inner();
                    if status.header.unwrap().member_id == leader {
                        return Some(at);
                    }
                }
                return None;
            }
        })
    }
}
