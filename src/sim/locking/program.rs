//! Which programs there are: what each is about, how it starts, and what it does in the last round.

use super::{
    Player, contention, election, handing, late, multi, mutex, orders, owners, permits, queue,
    reading, toolbox,
};

/// The queue that programs put into and take from.
const QUEUE: &str = "queue/q";

/// What programs do with locks, and beside them.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Program {
    /// One task on each node wants one lock again and again.
    Mutex,
    /// Several tasks of each node share a session and want one lock.
    Contention,
    /// Each node campaigns, and observes.
    Election,
    /// Pieces of work take two locks, in one order or in any.
    Owners,
    /// Readers and writers of one lock, who become each other.
    Reading,
    /// Permits of a semaphore, with slots, and another limit now and then.
    Permits,
    /// Several locks at once, each of which is wanted alone too.
    Multi,
    /// Holders that are asked, broken and handed over, with lock delays.
    Orders,
    /// Permits and readers that operators hand over.
    Handing,
    /// Tasks that look late after what they wish for and what they have lost, with long lock delays.
    Late,
    /// Items are put and taken.
    Queue,
    /// The toolbox: a bit of each.
    Toolbox,
}

impl Program {
    /// All of them.
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

    /// The locks that it is about.
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

    /// The names below which nothing is left in the end.
    pub(crate) fn names(self) -> &'static [&'static str] {
        match self {
            Program::Queue => &[QUEUE],
            Program::Toolbox => &[toolbox::GROUP],
            _ => self.locks(),
        }
    }

    /// The locks of which one that is held may be what a wish for this one waits for.
    pub(super) fn group(lock: &'static str) -> &'static [&'static str] {
        let mut all = Program::ALL.into_iter().map(Program::locks);
        let locks = all.find(|locks| locks.contains(&lock)).expect("a program's");
        if locks == Program::Multi.locks() {
            return locks;
        }
        let alone = locks.iter().position(|other| *other == lock).expect("found above");
        &locks[alone..=alone]
    }

    /// Starts it on a node whose process has just started.
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

    /// Takes each of its locks once and lets it go, and all that is in its queue, however long that takes.
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
