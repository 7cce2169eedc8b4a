//! The two ways in which clients reach members. Either the clients run inside the processes of the members, which is
//! the intended use of the library, or they use the etcd protocol of servers (`bowline serve`). This module also lists
//! the features that only one of the two ways supports.

use std::collections::BTreeMap;
use std::fs;
use std::hash::{DefaultHasher, Hasher};
use std::path::{Path, PathBuf};

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use crate::fleet::Program;
use crate::{nemesis, workload};

/// A way in which clients reach members.
#[derive(
    Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Debug, Serialize, Deserialize, ValueEnum,
)]
#[serde(rename_all = "snake_case")]
pub enum Over {
    /// Members are `jepsen-node` processes, and clients run inside them.
    #[default]
    Embedded,
    /// Members are `bowline serve` processes, and clients use the etcd protocol.
    Server,
}

/// Workloads that servers do not support, with the reasons.
const WORKLOADS: &[(&str, &str)] = &[
    ("set-unsynced", "its disk faults need a node process of the harness"),
    ("lock-again", "the locks of the server are not re-entrant"),
    ("semaphore", "the server has no semaphores, which are a recipe of the library"),
    ("queue", "the server has no queues, which are a recipe of the library"),
    ("membership", "its members join without being added first"),
];

/// Faults that cannot be injected into a server from outside, with the reasons.
const NEMESES: &[(&str, &str)] = &[
    ("clock-rates", CLOCK),
    ("clock-jumps", CLOCK),
    ("disk-slow", DISK),
    ("disk-full", DISK),
    ("disk-dead", DISK),
    ("rot-log", REPLACED),
    ("rot-snapshot", REPLACED),
    ("rot-warm", "the server keeps no warm copy"),
    ("churn", "its members join without being added first"),
];

const CLOCK: &str = "its clock faults need a node process of the harness";
const DISK: &str = "its disk faults need a node process of the harness";
const REPLACED: &str = "replacing a damaged member needs a call of the library";

/// Returns whether a fault cannot be injected into a server from outside.
pub(crate) fn is_refused(nemesis: &str) -> bool {
    NEMESES.iter().any(|(name, _)| *name == nemesis)
}

impl Over {
    /// Returns the name that the command line uses.
    pub fn word(self) -> &'static str {
        match self {
            Over::Embedded => "embedded",
            Over::Server => "server",
        }
    }

    /// Returns why this combination is not supported, or `None` if it is supported.
    pub fn refuses(self, workload: &workload::Kind, nemesis: &nemesis::Kind) -> Option<String> {
        if self == Over::Embedded {
            return None;
        }
        let why = |table: &[(&str, &str)], of: &str| {
            let found = table.iter().find(|(name, _)| *name == of);
            found.map(|(name, why)| format!("{name} is not supported with --over server: {why}"))
        };
        why(WORKLOADS, workload.name).or_else(|| why(NEMESES, nemesis.name))
    }
}

/// The programs of the members.
#[derive(Clone, Debug)]
pub struct Programs {
    /// The program of a node, which reads orders from its standard input.
    pub node: Program,
    /// The server program, or the reason for which it was not found.
    pub server: Result<Program, String>,
    /// The promise that nodes break on purpose.
    pub mutant: Option<String>,
    built: BTreeMap<Over, String>,
}

/// Identifies the programs of a run: their build, and the promise that the nodes broke on purpose. A result of other
/// programs does not count for this run.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Default, Debug, Serialize, Deserialize)]
pub struct Build {
    /// Hash of the program files. `None` in results of older harnesses, which did not record it.
    #[serde(default)]
    pub build: Option<String>,
    /// The promise that the nodes of the run broke on purpose.
    #[serde(default)]
    pub mutant: Option<String>,
}

impl Programs {
    /// Returns the programs that belong to a harness: the harness itself, and the server program at the path `server`.
    /// Without a path, the server program is expected in the directory of the harness.
    pub fn beside(harness: &Path, server: Option<&Path>) -> Self {
        let node = Program { path: harness.to_owned(), words: vec!["node".to_owned()] };
        Self { node, server: server_at(harness, server), mutant: None, built: BTreeMap::new() }
            .looked_at()
    }

    /// Returns these programs, with nodes that break the given promise on purpose.
    #[must_use]
    pub fn with_mutant(self, mutant: Option<String>) -> Self {
        Self { mutant, ..self }
    }

    /// Reads and hashes the programs once. The harness is part of the build of every run, even if the members are
    /// servers, because the harness checks the results.
    fn looked_at(mut self) -> Self {
        let hash_of = |program: &Program| {
            let mut hasher = DefaultHasher::new();
            hasher.write(&fs::read(&program.path).ok()?);
            Some(hasher.finish())
        };
        if let Some(harness) = hash_of(&self.node) {
            self.built.insert(Over::Embedded, format!("{harness:016x}"));
            let server = self.server.as_ref().ok().and_then(hash_of);
            self.built.extend(
                server.map(|server| (Over::Server, format!("{harness:016x}-{server:016x}"))),
            );
        }
        self
    }

    /// Returns the build of a run with these programs.
    pub fn build(&self, over: Over) -> Build {
        let mutant = self.mutant.clone().filter(|_| over == Over::Embedded);
        Build { build: self.built.get(&over).cloned(), mutant }
    }

    /// Returns the program of the members for this kind of clients.
    ///
    /// # Errors
    ///
    /// If the program was not found, returns the reason and what to do.
    pub fn of(&self, over: Over) -> Result<&Program, String> {
        match over {
            Over::Embedded => Ok(&self.node),
            Over::Server => self.server.as_ref().map_err(Clone::clone),
        }
    }
}

fn server_at(harness: &Path, asked: Option<&Path>) -> Result<Program, String> {
    let path = asked.map_or_else(|| harness.with_file_name("bowline"), PathBuf::from);
    if !path.is_file() {
        let shown = path.display();
        return Err(match asked {
            Some(_) => format!("--server: program not found: {shown}"),
            None => format!(
                "server program not found: {shown}; build it with `cargo build -p bowline-cli` (with --release if this \
                         was), or give its path with --server"
            ),
        });
    }
    Ok(Program { path, words: vec!["serve".to_owned()] })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unsupported_server_workloads_exist_and_have_a_reason() {
        let none = nemesis::named("none").unwrap();
        let register = workload::named("register").unwrap();
        for (name, why) in WORKLOADS {
            let kind = workload::named(name).unwrap();
            let said = Over::Server.refuses(kind, none).unwrap();
            assert!(said.starts_with(name) && said.ends_with(why), "{said}");
            assert_eq!(Over::Embedded.refuses(kind, none), None);
        }
        for (name, _) in NEMESES {
            assert!(Over::Server.refuses(register, nemesis::named(name).unwrap()).is_some());
        }
        assert_eq!(Over::Server.refuses(register, nemesis::named("kill").unwrap()), None);
    }

    #[test]
    fn missing_server_binary_is_reported_with_the_build_command() {
        let dir = tempfile::tempdir().unwrap();
        let harness = dir.path().join("bowline-jepsen");
        let why = Programs::beside(&harness, None).of(Over::Server).map(drop).unwrap_err();
        assert!(why.contains("cargo build -p bowline-cli"), "{why}");
        let why = Programs::beside(&harness, Some(Path::new("/nowhere"))).server.map(drop);
        assert!(why.unwrap_err().contains("/nowhere"));
        std::fs::write(dir.path().join("bowline"), "").unwrap();
        let programs = Programs::beside(&harness, None);
        assert_eq!(programs.of(Over::Server).unwrap().words, ["serve"]);
    }

    #[test]
    fn changed_program_or_mutant_changes_the_build_id() {
        let dir = tempfile::tempdir().unwrap();
        let harness = dir.path().join("bowline-jepsen");
        let built = |harness_bytes: &str, server_bytes: &str, mutant: Option<&str>| {
            fs::write(&harness, harness_bytes).unwrap();
            fs::write(dir.path().join("bowline"), server_bytes).unwrap();
            let programs = Programs::beside(&harness, None).with_mutant(mutant.map(str::to_owned));
            [Over::Embedded, Over::Server].map(|over| programs.build(over))
        };
        let before = built("a", "s", None);
        assert!(before.iter().all(|build| build.build.is_some() && build.mutant.is_none()));
        assert_eq!(built("a", "s", None), before);
        let another = built("b", "s", None);
        assert!(another[0] != before[0] && another[1] != before[1], "the harness is another build");
        let server = built("a", "t", None);
        assert!(server[0] == before[0] && server[1] != before[1]);
        let mutant = built("a", "s", Some("M06"));
        assert!(
            mutant[0] != before[0] && mutant[1] == before[1],
            "servers are built without mutants"
        );
    }
}
