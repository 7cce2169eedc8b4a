//! Tests of defective copies: a defective copy is discarded, the node starts without it, and a new
//! copy is built.

use super::*;

/// Returns a test fixture whose process was killed while its copy was complete.
fn killed() -> (World, MemoryShelf) {
    let (mut world, store) = World::new();
    world.start();
    for number in 0..20 {
        world.put(&format!("k{number}"), "before");
    }
    world.compact();
    while world.machine().sweep(100) {}
    world.settle();
    for number in 0..20 {
        world.put(&format!("k{number}"), "after");
    }
    world.settle();
    world.kill();
    (world, store)
}

/// Checks that the copy is not loaded, and that a new one is built and can be loaded.
fn expect_doubt(world: &mut World, why: &str) {
    assert_eq!(world.start(), None, "{why}");
    world.settle();
    let newest = world.machine().applied();
    world.kill();
    assert_eq!(world.start(), Some(newest), "built again after: {why}");
    world.settle();
    assert_eq!(world.copies().len(), 1, "{why}");
    world.kill();
}

#[test]
fn copy_of_a_killed_process_is_trusted_until_reboot() {
    let (mut world, _) = killed();
    assert!(world.start().is_some());
    world.kill();
    assert!(world.start().is_some());
    world.kill();
    world.boot();
    expect_doubt(&mut world, "a power cut");
}

#[test]
fn copy_of_a_clean_shutdown_is_trusted_once_after_a_reboot() {
    let (mut world, _) = killed();
    world.start();
    world.stop();
    world.boot();
    let newest = LogIndex(world.log.len() as u64 + 1);
    assert_eq!(world.start(), Some(newest));
    world.kill();
    world.boot();
    expect_doubt(&mut world, "opened since, and no orderly stop");
}

#[test]
fn without_boot_ids_only_a_clean_shutdown_is_trusted() {
    let (mut world, _) = killed();
    *world.clock.boot.lock().unwrap() = None;
    assert_eq!(world.start(), None);
    world.settle();
    world.stop();
    assert!(world.start().is_some());
    world.kill();
    expect_none_known(&mut world);
}

fn expect_none_known(world: &mut World) {
    assert_eq!(world.start(), None, "two lives without a name of their machine's start");
    world.kill();
}

#[test]
fn missing_or_damaged_record_is_detected() {
    let (mut world, store) = killed();
    let dir = world.copies().remove(0);
    let records = store.modify(&dir, |records| records.clone());
    assert!(records.len() > 10, "{}", records.len());
    let manifest = || world_mark(&world);
    let manifest = manifest();
    for (key, record) in &records {
        // Flip bits at both ends and in the middle of records of every kind.
        for at in [0, record.len() / 2, record.len() - 1] {
            store.modify(&dir, |records| {
                let mut bytes = record.to_vec();
                bytes[at] ^= 4;
                records.insert(key.clone(), bytes.into());
            });
            manifest.write(&*world.disk, &world.dir()).unwrap();
            assert_eq!(world.start(), None, "a flipped bit in {key:?} at {at}");
            world.kill();
        }
        store.modify(&dir, |records| records.remove(key));
        manifest.write(&*world.disk, &world.dir()).unwrap();
        assert_eq!(world.start(), None, "{key:?} is missing");
        world.kill();
        store.modify(&dir, |records| records.insert(key.clone(), record.clone()));
    }
    manifest.write(&*world.disk, &world.dir()).unwrap();
    assert!(world.start().is_some(), "all is well again");
}

fn world_mark(world: &World) -> Manifest {
    Manifest::read(&*world.disk, &world.dir()).unwrap().unwrap()
}

#[test]
fn stale_table_is_detected() {
    let (mut world, store) = World::new();
    world.start();
    let ttl = Duration::from_secs(1);
    world.run(Command::Grant { id: None, ttl, session: None }).unwrap();
    world.settle();
    let dir = world.copies().remove(0);
    let old = store.modify(&dir, |records| records.clone());
    world.run(Command::Grant { id: None, ttl, session: None }).unwrap();
    world.settle();
    world.kill();
    let table = old.keys().find(|key| key[0] == b't').unwrap();
    store.modify(&dir, |records| records.insert(table.clone(), old[table].clone()));
    expect_doubt(&mut world, "a table of an earlier round");
}

#[test]
fn copy_of_another_member_cluster_or_disk_is_rejected() {
    let (mut world, _) = killed();
    let right = world.origin;
    for wrong in [
        CopyRestoredFrom { cluster: ClusterId(8), ..right },
        CopyRestoredFrom { node: node(2), ..right },
        CopyRestoredFrom { disk: DiskId(9), ..right },
    ] {
        world.origin = wrong;
        expect_doubt(&mut world, "another origin");
    }
}

#[test]
fn store_of_another_member_under_a_valid_manifest_is_rejected() {
    let (mut world, store) = killed();
    let (mut other, theirs) = World::new();
    other.origin = origin(2);
    other.start();
    other.put("k", "theirs");
    other.settle();
    let stolen = theirs.modify(&other.copies()[0], |records| records.clone());
    store.modify(&world.copies()[0], |records| *records = stolen);
    expect_doubt(&mut world, "another's store");
}

#[test]
fn copy_that_does_not_match_the_log_is_rejected() {
    let (mut world, _) = killed();
    let newest = LogIndex(world.log.len() as u64 + 1);
    assert_eq!(world.start_after(newest.next()), None, "a snapshot is newer");
    world.settle();
    world.kill();
    // The log has lost its last entry.
    world.log.pop();
    assert_eq!(world.start(), None, "the copy is ahead of the log");
}

#[test]
fn failing_store_costs_only_the_copy() {
    for fault in [StoreFault::Fails, StoreFault::Panics] {
        for calls in 0..40 {
            let (mut world, store) = killed();
            store.fail_after(calls, fault);
            world.start();
            world.put("k", "goes on");
            world.settle();
            *world.clock.now.lock().unwrap() += Duration::from_secs(60);
            world.settle();
            let newest = world.machine().applied();
            world.kill();
            store.fail_after(u64::MAX, fault);
            assert_eq!(world.start(), Some(newest), "{fault:?} after {calls}");
        }
    }
}

#[test]
fn store_that_always_fails_is_abandoned() {
    let (mut world, store) = killed();
    for _ in 0..3 {
        store.fail_after(0, StoreFault::Panics);
        if world.process.is_none() {
            world.start();
            store.fail_after(0, StoreFault::Panics);
        }
        world.settle();
        *world.clock.now.lock().unwrap() += Duration::from_secs(60);
    }
    store.fail_after(u64::MAX, StoreFault::Fails);
    for _ in 0..10 {
        *world.clock.now.lock().unwrap() += Duration::from_secs(60);
        world.settle();
    }
    assert!(world.copies().is_empty(), "{:?}", world.copies());
    world.kill();
    expect_doubt(&mut world, "another life, another try");
}

#[test]
fn a_process_may_die_after_every_call() {
    // After any number of batches, either no state is loaded, or the loaded state equals an earlier
    // state.
    for calls in 0..60 {
        let (mut world, store) = World::new();
        world.start();
        for number in 0..30 {
            world.put(&format!("k{}", number % 7), "v");
            if number % 10 == 9 {
                world.compact();
            }
        }
        store.fail_after(calls, StoreFault::Panics);
        for number in 0..10 {
            world.put(&format!("k{number}"), "w");
            // The process dies at the first failure.
            while world.process().worker.as_ref().unwrap().failures() == 0 && world.turn() {}
        }
        world.kill();
        store.fail_after(u64::MAX, StoreFault::Fails);
        world.start();
        world.settle();
        world.kill();
        assert!(world.start().is_some());
    }
}

#[test]
fn copy_is_removed_while_space_is_scarce() {
    let (mut world, _) = killed();
    world.start();
    world.process().post.set_scarce(true);
    world.settle();
    assert!(world.copies().is_empty());
    world.put("k", "v");
    world.settle();
    assert!(world.copies().is_empty());
    world.process().post.set_scarce(false);
    world.settle();
    assert_eq!(world.copies().len(), 1);
    let newest = world.machine().applied();
    world.kill();
    assert_eq!(world.start(), Some(newest));
}

#[test]
fn crash_during_a_load_discards_the_copy() {
    let (mut world, _) = killed();
    let copy = WarmCopy::OnShelf(Arc::clone(&world.store));
    drop(open(&world.env(), &copy, &world.data, world.origin));
    assert_eq!(world.start(), None);
    world.settle();
    world.kill();
    assert!(world.start().is_some());
}

#[test]
fn copy_is_removed_even_if_its_manifest_cannot_be_written() {
    let (mut world, _) = World::new();
    let disk = Arc::new(SimDisk::new(1));
    world.disk = Arc::clone(&disk) as Arc<dyn Disk>;
    world.start();
    world.put("k", "v");
    world.settle();
    assert_eq!(world.copies().len(), 1);
    disk.fail_writes();
    world.process().post.set_scarce(true);
    world.settle();
    assert!(world.copies().is_empty());
}

#[test]
fn node_runs_without_a_copy_if_the_manifest_cannot_be_written() {
    let (mut world, _) = World::new();
    let disk = SimDisk::new(1);
    disk.fail_writes();
    world.disk = Arc::new(disk);
    assert_eq!(world.start(), None);
    world.put("k", "v");
    assert!(!world.turn());
}

#[test]
fn damaged_manifest_is_rejected() {
    let (world, _) = killed();
    let path = world.dir().join("manifest");
    let length = world.disk.open(&path, crate::env::OpenMode::Read).unwrap().len().unwrap();
    for byte in 0..length {
        let (mut world, _) = killed();
        let file = world.disk.open(&path, crate::env::OpenMode::Write).unwrap();
        let mut bytes = [0];
        file.read_exact_at(&mut bytes, byte).unwrap();
        file.write_all_at(&[bytes[0] ^ 1], byte).unwrap();
        expect_doubt(&mut world, "a flipped bit in the manifest");
    }
}

#[test]
fn hanging_load_times_out() {
    struct Hanging;
    impl CopyStore for Hanging {
        fn open(&self, _: &Path) -> Result<Box<dyn store::Store>, store::StoreError> {
            thread::park();
            Err(store::StoreError::Gone)
        }
        fn holds(&self, _: &Path) -> bool {
            true
        }
        fn remove(&self, _: &Path) -> io::Result<()> {
            Ok(())
        }
        fn list(&self, _: &Path) -> io::Result<Vec<PathBuf>> {
            Ok(Vec::new())
        }
    }
    let (world, _) = killed();
    let copy = WarmCopy::OnShelf(Arc::new(Hanging));
    let mut opened = open(&world.env(), &copy, &world.data, world.origin);
    opened.load_max = Some(Duration::from_millis(20));
    assert!(opened.load(MachineOptions::default(), |_, _| true).is_none());
}
