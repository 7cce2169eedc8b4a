//! How clients reach members: inside the members' processes, as the library is meant to be used, or over the API of servers
//! (`bowline serve`), as clients of etcd's do. And what can be done one way only.

use std::collections::BTreeMap;
use std::fs;
use std::hash::{DefaultHasher, Hasher};
use std::path::{Path, PathBuf};

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use crate::fleet::Program;
use crate::{nemesis, workload};

/// See the module.
#[derive(
    Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Debug, Serialize, Deserialize, ValueEnum,
)]
#[serde(rename_all = "snake_case")]
pub enum Over {
    /// Members are `jepsen-node`, and clients run inside them.
    #[default]
    Embedded,
    /// Members are `bowline serve`, and clients speak etcd's protocol with them.
    Server,
}

/// What the server has no word for, and why.
const WORKLOADS: &[(&str, &str)] = &[
    ("set-unsynced", "its disks are doors inside the driver's process"),
    ("lock-again", "the server's locks know no owner that takes them again"),
    ("semaphore", "the server has no semaphores: they are a recipe of the library"),
    ("queue", "the server has no queues: they are a recipe of the library"),
    ("membership", "its members join without having been announced"),
];

/// What cannot be done to a server from outside, and why.
const NEMESES: &[(&str, &str)] = &[
    ("clock-rates", CLOCK),
    ("clock-jumps", CLOCK),
    ("disk-slow", DISK),
    ("disk-full", DISK),
    ("disk-dead", DISK),
    ("rot-log", REPLACED),
    ("rot-snapshot", REPLACED),
    ("rot-warm", "the server keeps no warm copy"),
    ("churn", "its members join without having been announced"),
];

const CLOCK: &str = "its clocks are doors inside the driver's process";
const DISK: &str = "its disks are doors inside the driver's process";
const REPLACED: &str = "a damaged member is replaced by a call of the library";

/// Whether a fault cannot be done to a server from outside.
pub(crate) fn is_refused(nemesis: &str) -> bool {
    NEMESES.iter().any(|(name, _)| *name == nemesis)
}

impl Over {
    /// In a word, as the command line says it.
    pub fn word(self) -> &'static str {
        match self {
            Over::Embedded => "embedded",
            Over::Server => "server",
        }
    }

    /// Why this cannot be run this way, if it cannot.
    pub fn refuses(self, workload: &workload::Kind, nemesis: &nemesis::Kind) -> Option<String> {
        if self == Over::Embedded {
            return None;
        }
        let why = |table: &[(&str, &str)], of: &str| {
            let found = table.iter().find(|(name, _)| *name == of);
            found.map(|(name, why)| format!("{name} is not for --over server: {why}"))
        };
        why(WORKLOADS, workload.name).or_else(|| why(NEMESES, nemesis.name))
    }
}

/// What members are processes of.
#[derive(Clone, Debug)]
pub struct Programs {
    /// A node that takes orders.
    pub node: Program,
    /// A server; or why there is none.
    pub server: Result<Program, String>,
    /// The promise that nodes break on purpose.
    pub mutant: Option<String>,
    built: BTreeMap<Over, String>,
}

/// What a run was made with: what another build, or a mutant, did says nothing of this one.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Default, Debug, Serialize, Deserialize)]
pub struct Build {
    /// The programs' bytes, in a word that no other build has; none in the lines of a harness that did not write it down.
    #[serde(default)]
    pub build: Option<String>,
    /// The promise that its nodes broke on purpose.
    #[serde(default)]
    pub mutant: Option<String>,
}

impl Programs {
    /// Those of a harness: itself, and the server at this path, or the one beside it.
    pub fn beside(harness: &Path, server: Option<&Path>) -> Self {
        let node = Program { path: harness.to_owned(), words: vec!["node".to_owned()] };
        Self { node, server: server_at(harness, server), mutant: None, built: BTreeMap::new() }
            .looked_at()
    }

    /// The same, whose nodes break a promise on purpose.
    #[must_use]
    pub fn with_mutant(self, mutant: Option<String>) -> Self {
        Self { mutant, ..self }
    }

    /// Reads the programs once. Who judges is part of what a run was made with, also where members are servers.
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

    /// What a run with them is made with.
    pub fn build(&self, over: Over) -> Build {
        let mutant = self.mutant.clone().filter(|_| over == Over::Embedded);
        Build { build: self.built.get(&over).cloned(), mutant }
    }

    /// The one for a plan; or why there is none.
    ///
    /// # Errors
    /// In words that say what to do.
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
            Some(_) => format!("--server: there is no program {shown}"),
            None => format!(
                "there is no server {shown}: `cargo build -p bowline-cli` makes it (with --release if this was), \
                 or --server says where it is"
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
        assert!(another[0] != before[0] && another[1] != before[1], "who judges is another");
        let server = built("a", "t", None);
        assert!(server[0] == before[0] && server[1] != before[1]);
        let mutant = built("a", "s", Some("M06"));
        assert!(
            mutant[0] != before[0] && mutant[1] == before[1],
            "no mutants are built into servers"
        );
    }
}
