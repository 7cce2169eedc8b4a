//! Tests with real files, written by sled, that are deleted, truncated, corrupted or exchanged.

use std::fs;

use super::*;
use crate::env::RealDisk;

const ROWS: usize = 600;

struct Real {
    world: World,
    _dir: tempfile::TempDir,
}

/// Returns a test fixture on real files whose process was killed while its copy was complete.
fn killed() -> Real {
    let dir = tempfile::tempdir().unwrap();
    let disk: Arc<dyn Disk> = Arc::new(RealDisk);
    let store = Arc::new(DiskShelf::new(Arc::clone(&disk)));
    let sizes = CopySizes { record_bytes: 1000, ..CopySizes::default() };
    let mut world = World::on(disk, store, dir.path(), sizes);
    world.start();
    write(&mut world, "before");
    world.compact();
    world.settle();
    write(&mut world, "after");
    world.settle();
    world.kill();
    Real { world, _dir: dir }
}

fn write(world: &mut World, value: &str) {
    for number in 0..ROWS {
        world.seq += 1;
        let put = Command::Put(Put::new(format!("key{number:05}"), value.repeat(10)));
        let items = vec![Item::Proposal(Proposal {
            node: node(1),
            incarnation: Incarnation(1),
            window: AckWindow { frontier: world.seq, open: Vec::new() },
            requests: vec![(world.seq, put)],
        })];
        world.log.push(items.clone());
        let machine = world.machine();
        machine.apply(machine.applied().next(), Term(1), items).unwrap();
        machine.publish();
    }
    // The copy contains exactly this state, because the worker does not run afterwards.
    let machine = world.machine();
    let (index, state) = (machine.applied(), whole(machine));
    world.states.insert(index, state);
}

/// Returns the files of the existing copy.
fn files(world: &World) -> Vec<PathBuf> {
    let copy = world.copies().remove(0);
    let entries = fs::read_dir(&copy).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<PathBuf> = entries.filter(|path| path.is_file()).collect();
    files.sort();
    assert!(files.iter().any(|file| file.ends_with("db")), "{files:?}");
    files
}

/// Starts the process with a copy in any condition, and then again with the copy that was built
/// afterwards. Sled detects some damage only when it opens the copy a second time. In that case,
/// the copy is rebuilt one start later.
fn recovers(world: &mut World) -> Option<LogIndex> {
    let loaded = world.start();
    for _ in 0..2 {
        world.settle();
        *world.clock.now.lock().unwrap() += Duration::from_secs(60);
        world.settle();
        let newest = world.machine().applied();
        let state = whole(world.machine());
        world.states.insert(newest, state);
        world.kill();
        let again = world.start();
        if again == Some(newest) {
            world.kill();
            return loaded;
        }
        assert_eq!(again, None, "what is doubtful is not loaded");
    }
    panic!("the copy was not built again");
}

#[test]
fn kill_or_clean_shutdown_leaves_a_loadable_copy() {
    let Real { mut world, _dir } = killed();
    let newest = LogIndex(world.log.len() as u64 + 1);
    assert_eq!(world.start(), Some(newest));
    world.put("k", "v");
    world.stop();
    world.boot();
    assert_eq!(world.start(), Some(newest.next()));
    world.kill();
    world.boot();
    assert_eq!(recovers(&mut world), None);
}

#[test]
fn deleted_as_a_whole_or_in_part() {
    let Real { mut world, _dir } = killed();
    fs::remove_dir_all(world.copies().remove(0)).unwrap();
    assert_eq!(recovers(&mut world), None);
    fs::remove_dir_all(world.dir()).unwrap();
    assert_eq!(recovers(&mut world), None);
    for at in 0..files(&world).len() {
        let file = files(&world).remove(at);
        fs::remove_file(&file).unwrap();
        recovers(&mut world);
    }
}

#[test]
fn cut_short() {
    let Real { mut world, _dir } = killed();
    let count = files(&world).len();
    for at in 0..count {
        for part in [0, 1, 3] {
            let file = files(&world).remove(at.min(files(&world).len() - 1));
            let length = fs::metadata(&file).unwrap().len();
            let open = fs::OpenOptions::new().write(true).open(&file).unwrap();
            open.set_len(length * part / 4).unwrap();
            recovers(&mut world);
        }
    }
}

#[test]
fn a_flipped_bit_anywhere() {
    let Real { mut world, _dir } = killed();
    let mut set_aside = 0;
    for round in 0..24 {
        let db = files(&world).into_iter().find(|file| file.ends_with("db")).unwrap();
        let mut bytes = fs::read(&db).unwrap();
        // The file is preallocated, so only its written part counts.
        let written = bytes.iter().rposition(|&byte| byte != 0).unwrap();
        bytes[written * round / 24] ^= 1 << (round % 8);
        fs::write(&db, bytes).unwrap();
        set_aside += usize::from(recovers(&mut world).is_none());
    }
    assert!(set_aside > 0, "no flip was noticed: they all missed");
}

#[test]
fn replaced_by_an_older_copy_or_by_anothers() {
    let Real { mut world, _dir } = killed();
    let old = tempfile::tempdir().unwrap();
    copy_dir(&world.dir(), old.path());
    let then = LogIndex(world.log.len() as u64 + 1);
    world.start();
    write(&mut world, "later");
    world.settle();
    world.kill();
    fs::remove_dir_all(world.dir()).unwrap();
    copy_dir(old.path(), &world.dir());
    // An older copy is valid if the log contains the entries after it.
    assert_eq!(recovers(&mut world), Some(then));
    fs::remove_dir_all(world.dir()).unwrap();
    copy_dir(old.path(), &world.dir());
    assert_eq!(world.start_after(then.next()), None, "the log does not go back so far");
    world.kill();

    let Real { world: mut other, _dir } = killed();
    other.origin = origin(2);
    recovers(&mut other);
    fs::remove_dir_all(world.dir()).unwrap();
    copy_dir(&other.dir(), &world.dir());
    assert_eq!(recovers(&mut world), None, "another member's");
}

fn copy_dir(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        let target = to.join(path.file_name().unwrap());
        if path.is_dir() {
            copy_dir(&path, &target);
        } else {
            fs::copy(&path, &target).unwrap();
        }
    }
}
