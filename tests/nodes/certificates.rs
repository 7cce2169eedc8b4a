//! Runs the commands of `docs/operating/certificates.md`, and starts a cluster with the certificates that they
//! create.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use bowline::{Blocking, Config, Error, Node, cluster::PeerTls, testing};

use crate::loopback;

const PAGE: &str = include_str!("../../docs/operating/certificates.md");

/// Returns the shell commands of the page, one text for each block.
fn blocks() -> Vec<String> {
    PAGE.split("```sh\n")
        .skip(1)
        .map(|after| after.split("```").next().unwrap().to_owned())
        .collect()
}

fn run(commands: &str, dir: &Path) {
    let done = Command::new("sh").args(["-e", "-c", commands]).current_dir(dir).output().unwrap();
    assert!(
        done.status.success(),
        "{commands}\n{}{}",
        String::from_utf8_lossy(&done.stdout),
        String::from_utf8_lossy(&done.stderr)
    );
}

struct Shop {
    dir: tempfile::TempDir,
    addresses: Vec<(String, String)>,
}

impl Shop {
    fn new() -> Self {
        let addresses =
            ["n1", "n2", "n3"].map(|name| (name.to_owned(), loopback::address())).into();
        Self { dir: tempfile::tempdir().unwrap(), addresses }
    }

    fn start(&self, name: &str, crl: bool) -> Node {
        let path = |file: &str| self.dir.path().join(file);
        let (cert, key) = (path(&format!("{name}.pem")), path(&format!("{name}.key")));
        let mut files = PeerTls::new(path("ca.pem"), cert, key);
        if crl {
            files = files.crl(path("crl.pem"));
        }
        let config = Config::new(path(&format!("data-{name}")), name)
            .members(self.addresses.clone())
            .peer_tls(files);
        Node::start(config).block().unwrap()
    }

    fn start_all(&self, crl: bool) -> Vec<Node> {
        ["n1", "n2", "n3"].map(|name| self.start(name, crl)).into()
    }
}

#[test]
fn certificates_page_commands_create_a_cluster_and_revoke_a_member() {
    let shop = Shop::new();
    let dir = shop.dir.path();
    let blocks = blocks();
    let [made, revoked] = &blocks[..] else { panic!("{} blocks", blocks.len()) };
    run(made, dir);
    let (_, member) = made.split_once("\n\n").expect("an authority and a member");
    for name in ["n2", "n3"] {
        run(&member.replace("n1", name), dir);
    }
    let nodes = shop.start_all(false);
    let deadline = Duration::from_secs(30);
    nodes[0].client().put("k", "v").deadline(deadline).block().unwrap();
    let read = nodes[2].client().get("k").deadline(deadline).block().unwrap();
    assert_eq!(read.unwrap().value, "v");
    for node in nodes {
        assert!(testing::shutdown(node).block().hanging.is_empty());
    }
    run(revoked, dir);
    let nodes = shop.start_all(true);
    nodes[1].client().put("k", "w").deadline(deadline).block().unwrap();
    let alone = nodes[0].client().put("k", "x").deadline(Duration::from_secs(1)).block();
    assert!(matches!(alone, Err(Error::Deadline { .. })), "{alone:?}");
    let status = nodes[1].status();
    assert!(status.leader.is_some());
}
