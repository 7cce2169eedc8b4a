//! The list of programs. For each program, this module defines its locks, its start, and its work
//! in the last round.

use super::{
    Player, contention, election, handing, late, multi, mutex, orders, owners, permits, queue,
    reading, toolbox,
};

/// The queue that programs put into and take from.
const QUEUE: &str = "queue/q";

/// A kind of program.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Program {
    /// One task on each node repeatedly acquires one lock.
    Mutex,
    /// Several tasks of each node share a session and compete for one lock.
    Contention,
    /// Each node campaigns and observes.
    Election,
    /// Pieces of work take two locks, in a fixed order or in any.
    Owners,
    /// Readers and writers of one lock, which upgrade and downgrade.
    Reading,
    /// Permits of a semaphore with slots and a changing limit.
    Permits,
    /// Several locks at once, each of which is also taken alone.
    Multi,
    /// Holds whose release is requested, and that are broken and transferred, with lock delays.
    Orders,
    /// Permits and read locks that operators transfer.
    Handing,
    /// Tasks that poll late and release lost locks late, with long lock delays.
    Late,
    /// Items are put and taken.
    Queue,
    /// A mix of the smaller recipes.
    Toolbox,
}

impl Program {
    /// All programs.
    pub(crate) const ALL: [Program; 12] = [
        Program::Mutex,
        Program::Contention,
        Program::Election,
        Program::Owners,
        Program::Reading,
        Program::Permits,
        Program::Multi,
        Program::Orders,
        Program::Handing,
        Program::Late,
        Program::Queue,
        Program::Toolbox,
    ];

    /// Returns the locks that the program uses.
    pub(crate) fn locks(self) -> &'static [&'static str] {
        match self {
            Program::Mutex => &["lock/a", "lock/b"],
            Program::Contention => &["lock/c"],
            Program::Election => &["lock/e"],
            Program::Owners => &["lock/o", "lock/p", "lock/q", "lock/r"],
            Program::Reading => &["lock/d"],
            Program::Permits => &["lock/s"],
            Program::Multi => &["lock/x", "lock/y", "lock/z"],
            Program::Orders => &["lock/h"],
            Program::Handing => &["lock/t", "lock/u"],
            Program::Late => &["lock/l"],
            Program::Queue | Program::Toolbox => &[],
        }
    }

    /// Returns the names below which no key may be left at the end.
    pub(crate) fn names(self) -> &'static [&'static str] {
        match self {
            Program::Queue => &[QUEUE],
            Program::Toolbox => &[toolbox::GROUP],
            _ => self.locks(),
        }
    }

    /// Returns the locks whose holders may delay an acquisition of this one.
    pub(super) fn group(lock: &'static str) -> &'static [&'static str] {
        let mut all = Program::ALL.into_iter().map(Program::locks);
        let locks = all.find(|locks| locks.contains(&lock)).expect("a program's");
        if locks == Program::Multi.locks() {
            return locks;
        }
        let alone = locks.iter().position(|other| *other == lock).expect("found above");
        &locks[alone..=alone]
    }

    /// Starts the program on a node whose process has just started.
    pub(crate) fn start(self, player: &Player) {
        match (self, self.locks()) {
            (Program::Mutex, locks) => {
                locks.iter().for_each(|lock| mutex::start(player.again(), lock));
            }
            (Program::Contention, locks) => contention::start(player, locks[0]),
            (Program::Election, locks) => election::start(player.again(), locks[0]),
            (Program::Owners, locks) => owners::start(player, locks),
            (Program::Reading, locks) => reading::start(player, locks[0]),
            (Program::Permits, locks) => permits::start(player, locks[0]),
            (Program::Multi, locks) => multi::start(player, locks),
            (Program::Orders, locks) => orders::start(player, locks[0]),
            (Program::Handing, locks) => handing::start(player, locks[0], locks[1]),
            (Program::Late, locks) => late::start(player, locks[0]),
            (Program::Queue, _) => queue::start(player, QUEUE),
            (Program::Toolbox, _) => toolbox::start(player),
        }
    }

    /// Acquires and releases each of its locks once and drains its queue, with retries.
    pub(crate) async fn once(self, player: &Player) {
        if self == Program::Queue {
            queue::drain(player, QUEUE).await;
        }
        for lock in self.locks() {
            while !self.took_once(player, lock).await {}
        }
    }

    async fn took_once(self, player: &Player, lock: &'static str) -> bool {
        let Some(session) = player.session().await else { return false };
        let taken = match self {
            Program::Election => election::once(player, &session, lock).await,
            Program::Reading => reading::once(player, &session, lock).await,
            Program::Permits => permits::once(player, &session, lock).await,
            Program::Handing if lock == self.locks()[0] => {
                permits::once(player, &session, lock).await
            }
            Program::Handing => reading::once(player, &session, lock).await,
            _ => mutex::once(player, &session, lock).await,
        };
        player.close(&session).await;
        taken
    }
}
