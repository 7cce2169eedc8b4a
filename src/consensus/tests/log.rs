//! Tests of the consensus with the real log on disk instead of the in-memory log.

use std::path::Path;
use std::sync::Arc;

use super::world::{ELECTION, HEARTBEAT, members_of, node};
use crate::consensus::{Consensus, ConsensusConfig};
use crate::env::{Env, OsEntropy};
use crate::model::{ClusterId, LogIndex};
use crate::wal::{self, Identity, LogOptions, LogWriter};

/// Starts a member that is the only voter from the contents of `dir`.
fn start(dir: &Path) -> (Consensus, LogWriter) {
    let identity = Identity { cluster: ClusterId(7), node: node(1) };
    let opened = wal::open(&Env::real(), dir, identity, LogOptions::default()).unwrap();
    let entropy = Arc::new(OsEntropy);
    let mut config =
        ConsensusConfig::new(node(1), members_of(&[1], &[]), HEARTBEAT, ELECTION, entropy);
    config.cache_bytes_max = 4_000;
    config.commit_bytes_max = 2_000;
    let hard_state = opened.recovered.hard_state;
    (Consensus::new(config, opened.reader, hard_state, LogIndex(1)).unwrap(), opened.writer)
}

/// Does all outstanding work and returns the committed entries.
fn work(consensus: &mut Consensus, writer: &mut LogWriter) -> Vec<wal::Entry> {
    let mut committed = Vec::new();
    while let Some(turn) = consensus.turn().unwrap() {
        if let Some(last) = turn.commit.last() {
            consensus.applied(last.index);
        }
        committed.extend(turn.commit);
        if let Some(group) = turn.persist {
            consensus.persisted(writer.commit(&[group]).unwrap().whole());
        }
    }
    committed
}

#[test]
fn committed_entries_are_delivered_again_after_each_restart() {
    let dir = tempfile::tempdir().unwrap();
    let mut written = Vec::new();
    for life in 0..4 {
        let (mut consensus, mut writer) = start(dir.path());
        let mut history = work(&mut consensus, &mut writer);
        consensus.tick();
        history.extend(work(&mut consensus, &mut writer));
        assert!(consensus.is_ready_to_lead());
        for n in 0..20 {
            consensus.propose(format!("{life}.{n} {}", "x".repeat(300)).into_bytes()).unwrap();
            let committed = work(&mut consensus, &mut writer);
            assert_eq!(committed.len(), 1);
            written.push(committed[0].data.clone());
            history.extend(committed);
        }
        assert!(history.iter().zip(2..).all(|(entry, index)| entry.index == LogIndex(index)));
        let data = history.iter().map(|entry| &entry.data).filter(|data| !data.is_empty());
        assert!(data.eq(&written), "in life {life}");
    }
}
