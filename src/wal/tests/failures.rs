//! Tests of the calls that the log rejects, and of the failures after which it accepts no more
//! calls.

use super::*;
use crate::wal::format::{Header, VERSION};

#[test]
fn first_failed_sync_or_write_poisons_the_log() {
    for fail in [SimDisk::fail_next_sync, SimDisk::fail_writes] {
        let disk = Arc::new(SimDisk::new(1));
        let mut opened = reopen(&disk);
        fail(&disk);
        let next = [group(1, vec![entry(2, 1, b"x")])];
        assert!(matches!(opened.writer.commit(&next), Err(LogError::Io { .. })));
        disk.clear_faults();
        assert!(matches!(opened.writer.commit(&next), Err(LogError::Poisoned { .. })));
        assert!(matches!(opened.writer.idle(), Err(LogError::Poisoned { .. })));
        assert_eq!(opened.reader.last(), LogIndex(1));
    }
}

#[test]
fn invalid_group_is_rejected_and_poisons_the_log() {
    let gap = group(2, vec![entry(4, 2, b"")]);
    let below_commit = group(2, vec![entry(2, 2, b"")]);
    let term_falls = group(2, vec![entry(3, 1, b""), entry(4, 1, b"")]);
    let state = |state| Group { number: 2, hard_state: Some(state), ..Group::default() };
    let cases = [
        ("gap", gap),
        ("committed", below_commit),
        ("lower than that of the entry before it", term_falls),
        ("lower than that of the group before it", group(0, Vec::new())),
        ("the term decreases", state(hard_state(1, None, 2))),
        ("two different votes", state(hard_state(2, Some(2), 2))),
        ("two different votes", state(hard_state(2, None, 2))),
        ("commit index decreases", state(hard_state(2, Some(1), 1))),
        ("greater than the last index", state(hard_state(2, Some(1), 3))),
    ];
    for (why, bad) in cases {
        let disk = Arc::new(SimDisk::new(1));
        let mut opened = reopen(&disk);
        let mut good = group(1, vec![entry(2, 2, b"")]);
        good.hard_state = Some(hard_state(2, Some(1), 2));
        let _proof = opened.writer.commit(std::slice::from_ref(&good)).unwrap();
        let error = opened.writer.commit(&[bad]).unwrap_err();
        assert!(matches!(error, LogError::Impossible { .. }), "{error}");
        assert!(error.to_string().contains(why), "{error}");
        assert!(matches!(opened.writer.commit(&[good]), Err(LogError::Poisoned { .. })));
        disk.crash();
        assert_eq!(reopen(&disk).recovered.last, LogIndex(2));
    }
}

#[test]
fn directory_is_locked_by_one_node() {
    let disk = Arc::new(SimDisk::new(1));
    let opened = reopen(&disk);
    let Err(error) = try_open(&disk) else { panic!("two nodes on one directory") };
    assert!(matches!(error, LogError::Locked { .. }), "{error}");
    drop(opened);
    reopen(&disk);
}

#[test]
fn log_of_another_cluster_or_member_is_rejected_by_name() {
    let disk = Arc::new(SimDisk::new(1));
    drop(reopen(&disk));
    for other in
        [Identity { cluster: ClusterId(8), ..identity() }, Identity { node: node(2), ..identity() }]
    {
        let result =
            open(&env(&disk, Arc::new(NoPoints)), Path::new(DIR), other, LogOptions::default());
        let Err(error) = result else { panic!("it was taken") };
        let text = error.to_string();
        assert!(text.contains("belongs to member 1 of cluster 0000000000000007"));
        assert!(text.contains(&format!("member {} of cluster {}", other.node, other.cluster)));
    }
    assert_eq!(reopen(&disk).recovered.incarnation, Incarnation(2), "a refused start counts not");
}

#[test]
fn log_of_a_newer_release_requires_an_upgrade() {
    let disk = Arc::new(SimDisk::new(1));
    drop(reopen(&disk));
    let mut bytes = disk.read(&path(1)).unwrap();
    let (header, _) = Header::decode(bytes.first_chunk().unwrap()).unwrap();
    let later = Header { version: VERSION + 1, ..header }.encode().0;
    bytes[..later.len()].copy_from_slice(&later);
    disk.replace(&path(1), &bytes);
    let Err(error) = try_open(&disk) else { panic!("it was taken") };
    assert!(matches!(error, LogError::Newer { found: 2, known: 1, .. }), "{error}");
    assert!(error.to_string().contains("upgrade this node"));
}
