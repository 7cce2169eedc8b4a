//! Tests of every kind of access to a key, with every set of rights: an access must succeed exactly
//! if the right was granted.

use std::time::Instant;

use super::*;
use crate::model::{Access, AccessChange, AccessGrant, AuthError, Caller, ROOT, Rights, Secret};

/// The keys that commands use. Only root has rights to `x`.
const KEYS: [&str; 3] = ["a", "b", "x"];

/// The rights that a command needs: the key, and whether it is written.
type Needs = Vec<(&'static str, bool)>;

fn change(world: &mut World, change: AccessChange) {
    world.run(Command::Access(change)).unwrap();
}

fn text(text: &str) -> String {
    text.to_owned()
}

/// Returns a store with a row under each key, a lease with the key `leased` and one without keys.
/// Access control is enabled.
fn guarded() -> (World, LeaseId, LeaseId) {
    let mut world = World::new();
    for key in KEYS {
        world.put(key, "secret");
    }
    let (lease, bare) = (world.grant(None), world.grant(None));
    world.put_with("b", lease);
    for made in [
        AccessChange::AddUser { user: text(ROOT), password: None },
        AccessChange::GrantRole { user: text(ROOT), role: text(ROOT) },
        AccessChange::AddUser { user: text("ann"), password: None },
        AccessChange::AddRole(text("r")),
        AccessChange::GrantRole { user: text("ann"), role: text("r") },
        AccessChange::Enable { secret: Secret::new("s") },
    ] {
        change(&mut world, made);
    }
    (world, lease, bare)
}

fn ann(world: &World) -> Caller {
    Caller { user: Some(text("ann")), revision: world.reader.access().revision() }
}

fn acting(caller: &Caller, command: Command) -> Command {
    Command::As(caller.clone(), Box::new(command))
}

/// Returns operations with the rights that each needs.
fn ops(lease: LeaseId, bare: LeaseId) -> Vec<(&'static str, Op, Needs)> {
    let put = |key: &'static str| Put::new(key, "v");
    let between = || KeyRange::between("a", "c");
    vec![
        ("get", Op::get("a"), vec![("a", false)]),
        ("range", Op::range(between()), vec![("a", false), ("b", false)]),
        (
            "range to the end",
            Op::range(KeyRange::starting_at("b")),
            vec![("b", false), ("x", false)],
        ),
        ("put", Op::Put(put("a")), vec![("a", true)]),
        (
            "put with the row before",
            Op::Put(Put { prev_kv: true, ..put("a") }),
            vec![("a", true), ("a", false)],
        ),
        ("put of a bare lease", Op::Put(put("a").lease(bare)), vec![("a", true)]),
        (
            "put of a lease with a key",
            Op::Put(put("a").lease(lease)),
            vec![("a", true), ("b", true)],
        ),
        (
            "put that keeps its lease",
            Op::Put(Put { lease: PutLease::Keep, ..put("b") }),
            vec![("b", true)],
        ),
        ("delete", Op::delete("a"), vec![("a", true)]),
        ("delete of a range", Op::delete(between()), vec![("a", true), ("b", true)]),
        (
            "delete with the rows before",
            Op::Delete(Delete { prev_kv: true, ..Delete::new("a") }),
            vec![("a", true), ("a", false)],
        ),
        (
            "delete to the end",
            Op::delete(KeyRange::starting_at("b")),
            vec![("b", true), ("x", true)],
        ),
    ]
}

fn commands(lease: LeaseId, bare: LeaseId) -> Vec<(String, Command, Needs)> {
    let mut all = Vec::new();
    for (name, op, needs) in ops(lease, bare) {
        let alone = match op.clone() {
            Op::Put(put) => Some(Command::Put(put)),
            Op::Delete(delete) => Some(Command::Delete(delete)),
            Op::Range(_) | Op::Txn(_) => None,
        };
        all.extend(alone.map(|command| (name.to_owned(), command, needs.clone())));
        let then = Txn { success: vec![op.clone()], ..Txn::default() };
        let not_taken = Txn { failure: vec![op], ..Txn::default() };
        let nested = |txn: &Txn| Txn { success: vec![Op::Txn(txn.clone())], ..Txn::default() };
        let (deep, hidden) = (nested(&nested(&then)), nested(&not_taken));
        for (place, txn) in
            [("taken", then), ("not taken", not_taken), ("nested", deep), ("hidden", hidden)]
        {
            all.push((format!("{name}, {place}"), Command::Txn(txn), needs.clone()));
        }
    }
    let compare = Txn { compares: vec![Compare::value("a").eq("guess")], ..Txn::default() };
    let below = Txn { failure: vec![Op::Txn(compare.clone())], ..Txn::default() };
    all.push((text("compare"), Command::Txn(compare), vec![("a", false)]));
    all.push((text("compare, hidden"), Command::Txn(below), vec![("a", false)]));
    let wide =
        Txn { compares: vec![Compare::missing(KeyRange::starting_at("b"))], ..Txn::default() };
    all.push((text("compare of a range"), Command::Txn(wide), vec![("b", false), ("x", false)]));
    all.push((text("revoke"), Command::Revoke(lease), vec![("b", true)]));
    all.push((text("revoke of a bare lease"), Command::Revoke(bare), vec![]));
    let grant = Command::Grant { id: None, ttl: Duration::from_secs(5), session: None };
    all.push((text("grant"), grant, vec![]));
    all
}

/// Returns commands that only root may execute.
fn administration() -> Vec<Command> {
    vec![
        Command::Compact(Revision(2)),
        Command::Access(AccessChange::Disable),
        Command::Access(AccessChange::GrantRole { user: text("ann"), role: text(ROOT) }),
        Command::Access(AccessChange::DeleteUser(text("ann"))),
        Command::Access(AccessChange::Enable { secret: Secret::new("mine") }),
    ]
}

#[test]
fn every_command_needs_exactly_the_rights_to_its_keys() {
    // Try these rights for each key: none, read, write, and both.
    let rights = [None, Some(Rights::Read), Some(Rights::Write), Some(Rights::ReadWrite)];
    let (mut allowed, mut denied) = (0, 0);
    for set in 0..rights.len().pow(2) {
        let of = |key: &str| match key {
            "a" => rights[set % rights.len()],
            "b" => rights[set / rights.len()],
            _ => None,
        };
        let (mut before, lease, bare) = guarded();
        for (key, rights) in KEYS.into_iter().filter_map(|key| Some((key, of(key)?))) {
            // The granted range ends at the next key. So if both keys are granted, a range over
            // both keys is permitted too.
            let end = if key == "a" { "b" } else { "c" };
            let grant = AccessGrant { range: KeyRange::between(key, end), rights };
            change(&mut before, AccessChange::Grant { role: text("r"), grant });
        }
        let caller = ann(&before);
        for (name, command, needs) in commands(lease, bare) {
            let has = |(key, write): &(&str, bool)| match of(key) {
                None => false,
                Some(Rights::ReadWrite) => true,
                Some(Rights::Read) => !write,
                Some(Rights::Write) => *write,
            };
            let mut world = same(&before);
            let (digest, revision) = (world.machine.digest(), world.machine.revision());
            let outcome = world.run(acting(&caller, command.clone()));
            if needs.iter().all(has) {
                allowed += 1;
                assert!(
                    outcome.is_ok(),
                    "{name}: {outcome:?} with a {:?} b {:?}",
                    of("a"),
                    of("b")
                );
            } else {
                denied += 1;
                let rejection = Err(Rejection::Access(AuthError::Denied));
                assert_eq!(outcome, rejection, "{name} with a {:?} b {:?}", of("a"), of("b"));
                assert_eq!(world.machine.revision(), revision, "{name} changed something");
                assert_ne!(world.machine.digest(), digest, "the answer is remembered");
            }
            // These callers are rejected: another user, an anonymous caller, and a caller that was
            // authenticated at an earlier revision.
            for (user, revision, rejection) in [
                (Some("bob"), caller.revision, AuthError::Denied),
                (None, caller.revision, AuthError::NoUser),
                (Some("ann"), caller.revision - 1, AuthError::Outdated),
                (Some(ROOT), caller.revision - 1, AuthError::Outdated),
            ] {
                let caller = Caller { user: user.map(text), revision };
                let outcome = world.run(acting(&caller, command.clone()));
                assert_eq!(outcome, Err(Rejection::Access(rejection)), "{name} as {caller:?}");
            }
        }
        for command in administration() {
            let outcome = before.run(acting(&caller, command.clone()));
            assert_eq!(outcome, Err(Rejection::Access(AuthError::Denied)), "{command:?}");
        }
    }
    assert!(allowed > 300 && denied > 500, "{allowed} allowed, {denied} denied");
}

/// Returns a new test fixture with the same state, installed from an image.
fn same(world: &World) -> World {
    let mut image = world.machine.image();
    let head = image.head().clone();
    let pieces = std::iter::from_fn(|| image.next(100).unwrap());
    let restored = Machine::restore(MachineOptions::default(), head, pieces).unwrap();
    let mut other = World { seq: world.seq, ..World::new() };
    drop(other.machine.install(restored).unwrap());
    other
}

#[test]
fn lease_with_many_keys_is_authorized_once_per_transaction() {
    const KEYS: usize = 20_000;
    let (mut world, _, lease) = guarded();
    let mine = KeyRange::prefix("mine/");
    let grant = AccessGrant { range: mine, rights: Rights::Write };
    change(&mut world, AccessChange::Grant { role: text("r"), grant });
    let puts = |count| {
        let put = |n| Op::Put(Put::new(format!("mine/{n:06}"), "").lease(lease));
        Command::Txn(Txn { success: (0..count).map(put).collect(), ..Txn::default() })
    };
    for at in (0..KEYS).step_by(1_000) {
        let put = |n| Op::Put(Put::new(format!("mine/{n:06}"), "").lease(lease));
        let success = (at..at + 1_000).map(put).collect();
        world.run(Command::Txn(Txn { success, ..Txn::default() })).unwrap();
    }
    let ann = ann(&world);
    // Take the minimum of five runs, so that other load on the machine does not count.
    let mut takes = |count| {
        let run = |_| {
            let begun = Instant::now();
            world.run(acting(&ann, puts(count))).unwrap();
            begun.elapsed()
        };
        (0..5).map(run).min().unwrap()
    };
    let (one, many) = (takes(1), takes(128));
    // Checking the lease for each put would take 128 times as long.
    assert!(many < one * 32, "{many:?}, and {one:?} for one");
    world.run(Command::Put(Put::new("x", "").lease(lease))).unwrap();
    let denied = Err(Rejection::Access(AuthError::Denied));
    assert_eq!(world.run(acting(&ann, puts(128))), denied, "one of its keys is another's");
}

#[test]
fn root_and_the_local_program_may_do_everything() {
    let (mut world, lease, bare) = guarded();
    let root = Caller { user: Some(text(ROOT)), ..ann(&world) };
    for (name, command, _) in commands(lease, bare) {
        let (mut fresh, ..) = guarded();
        assert!(fresh.run(acting(&root, command.clone())).is_ok(), "{name}");
        let (mut fresh, ..) = guarded();
        assert!(fresh.run(command).is_ok(), "{name}");
    }
    assert!(world.run(acting(&root, Command::Access(AccessChange::Disable))).is_ok());
    let anonymous = Caller { user: None, revision: 0 };
    assert!(world.run(acting(&anonymous, put("x", "v"))).is_ok(), "it is off");
}

#[test]
fn users_are_in_the_digest_and_the_snapshot() {
    let (mut world, ..) = guarded();
    let before = world.machine.digest();
    let mut other = same(&world);
    assert_eq!(other.machine.digest(), before);
    assert_eq!(other.reader.access(), world.reader.access(), "readers see what was installed");
    let grant = AccessGrant { range: "k".into(), rights: Rights::Read };
    change(&mut world, AccessChange::Grant { role: text("r"), grant });
    change(&mut other, AccessChange::AddRole(text("s")));
    assert_ne!(other.machine.digest(), world.machine.digest());
    assert_eq!(*World::new().reader.access(), Access::default());
}

#[test]
fn restore_into_a_new_cluster_invalidates_user_tokens() {
    let (world, ..) = guarded();
    let before = world.reader.access();
    let how = Reseed { members: Members::default(), revision_jump: 1_000 };
    let machine = restored(&world.machine).reseed(how).unwrap();
    let after = machine.reader().access();
    assert_eq!(after.revision(), before.revision() + 1_000);
    for (name, user) in after.users() {
        assert_eq!(user.since, after.revision(), "{name}");
        assert_eq!(user.roles, before.users()[name].roles);
    }
    assert_eq!((after.is_enabled(), after.roles()), (true, before.roles()));
    assert_eq!(restored(&machine).digest(), machine.digest());
}
