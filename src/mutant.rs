//! Mutants: deliberate faults in the code, which prove that the tests detect such faults.
//!
//! A mutant is a small fault at one place in the code, which the macro `mutant!` marks. If the
//! mutant is planted (active), the code does the wrong thing. Unless `--cfg bowline_mutants` is set
//! or the library's own tests are compiled, no mutant is ever planted, and the compiler removes the
//! faulty code. A release therefore contains no mutants.
//!
//! For a simulated cluster, it is enough to plant a mutant in one thread ([`Mutant::plant`]). Real
//! nodes have many threads, so the mutant is planted in the whole process
//! ([`Mutant::plant_everywhere`]). The page `docs/assurance/mutants.md` lists the seeds of the
//! simulation that detect each mutant. `benches/mutants` generates that page.
//!
//! Invariant: only `--cfg bowline_mutants` enables mutants in a program. No crate feature may
//! enable mutants.

#![cfg_attr(
    not(bowline_mutants),
    allow(
        dead_code,
        unreachable_pub,
        unused_imports,
        reason = "public, and all of it used, with the switch alone"
    )
)]

/// Marks the place of a mutant. `mutant!(M01, statement)` runs the faulty statement if the mutant is
/// planted. `mutant!(M01)` is the condition alone: whether the mutant is planted.
macro_rules! mutant {
    ($name:ident) => {
        $crate::mutant::is($crate::mutant::Mutant::$name)
    };
    ($name:ident, $($fault:tt)+) => {
        if $crate::mutant::is($crate::mutant::Mutant::$name) {
            $($fault)+
        }
    };
}

/// Declares the mutants, each with a description of its fault.
macro_rules! mutants {
    ($($name:ident $breaks:literal,)*) => {
        /// A deliberate fault. The first letter of a name tells its kind. `M` is a fault that every
        /// replicated log with leases and locks could have. `B` is a fault that is specific to this
        /// library. `N` is a negative control: the library is correct, but the programs or disks of
        /// the simulation violate their rules.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
        #[repr(u8)]
        pub enum Mutant {
            $(#[doc = $breaks] $name,)*
        }

        #[cfg(any(test, bowline_mutants))]
        impl Mutant {
            /// All mutants.
            pub const ALL: &[Mutant] = &[$(Mutant::$name,)*];

            /// Returns the description of the fault.
            pub fn breaks(self) -> &'static str {
                match self {
                    $(Mutant::$name => $breaks,)*
                }
            }
        }
    };
}

mutants! {
    M01 "the log does not sync",
    M02 "messages leave before their state is durable",
    M03 "a vote is not saved with its term",
    M04 "a leader commits entries that only it has",
    M05 "half of the members are a quorum",
    M06 "linearizable reads skip the quorum",
    M07 "read rounds share one id",
    M08 "recent contact with a quorum is enough for reads",
    M09 "a new leader shortens the TTL of leases",
    M10 "a lease is renewed while its expiry is pending",
    M11 "a full watch queue drops events",
    M13 "a resumed watch repeats its last revision",
    M14 "a resumed watch skips one revision",
    M15 "a restart applies the last entry twice",
    M16 "snapshots omit the dedup table",
    M18a "snapshots omit the leases",
    M18b "snapshots omit the next lease id",
    M18c "snapshots omit the compaction revision",
    M19 "the log is truncated before the snapshot is synced",
    M20 "a damaged log is read up to the damage",
    M21 "checksums of records are ignored",
    M22 "the directory of a new segment is not synced",
    M23 "failed syncs are ignored",
    M24 "a lock is granted to an ended session",
    M25 "the token is the lease id",
    M26 "a release deletes the whole queue",
    M27 "a waiter acquires the lock after any change",
    M28 "a revocation does not publish its last deletion",
    M29 "the order of requests in an entry depends on the member",
    M30 "membership changes take effect only after a restart",
    M31 "votes ignore the candidate's log",
    M32 "a leader commits entries of earlier terms by counting",
    M33 "an isolated leader does not step down",
    M34 "an isolated node keeps increasing its term",
    M35 "learners count for the quorum",
    M36 "transactions are evaluated when they are proposed",
    M37 "reads below the compaction revision succeed",
    M38 "a timeout reports sent changes as not applied",
    M39 "a retry gets a new request id",
    M43 "a restart ignores the last segment",
    M45 "the log is truncated beyond the newest snapshot",
    M46 "an entry counts as durable although it was replaced and rewritten meanwhile",
    B01 "a reader passes a waiting writer",
    B02 "an upgrade does not wait for other readers",
    B03 "an upgraded reader keeps its token",
    B04 "a semaphore grants one permit too many",
    B05 "slots are claimed without a check",
    B06 "a multi-lock is granted with its first lock",
    B07 "a multi-lock releases only its first lock",
    B08 "a transfer does not notify the holder",
    B09 "the lease does not include the lock delay",
    B10 "a former consumer can acknowledge an item",
    B11 "returning an item deletes it",
    B12 "an item is delivered before its delay",
    B13 "a claim ignores other claims",
    B14 "waiters pass a closed latch",
    B15 "a double barrier opens one participant early",
    B16 "a finished `RunOnce` runs again",
    B17 "group followers miss departures",
    B18 "a cached view keeps deleted keys",
    B19 "a lock is transferred to a successor that has left",
    B20 "an upgrade ignores changes in the queue",
    B21 "session validity counts from the reply to a renewal",
    B22 "renewals are acknowledged without a quorum",
    B23 "a node revokes sessions that it could not renew",
    B24 "a lock is handed off during a guarded transaction",
    B25 "hand-offs inside a node are unlimited",
    B26 "an abandoned request leaves its key",
    B27 "guarded writes do not check the lock",
    B28 "a duplicate request is applied again",
    B29 "a read joins a round that has already started",
    B30 "deadlocked owners get no error",
    B31 "watchers miss changes that a snapshot skipped",
    B32 "a lost lock is released without its lock delay",
    B34 "a transfer ignores changes of the holder's row",
    B35 "an operator's request runs before the grant that it refers to",
    B36 "other keys of a lost session skip the lock delay",
    B37 "a new leader forgets leases without keys",
    B38 "a new leader does not know existing leases",
    B39 "holders ignore the clock allowance",
    B40 "leaders ignore the clock allowance",
    B41 "a failed expiry proposal is not repeated",
    B42 "ended leases still count as ending",
    B43 "a leader with a hanging disk keeps leading",
    B44 "a resumed node makes up for missed ticks",
    B45 "a leadership transfer has no deadline",
    B46 "an unanswered read request is not repeated",
    B47 "reads are not sent to a new leader at once",
    B48 "a read round that cannot start is forgotten",
    B49 "read rounds that raft dropped are not restarted",
    B50 "an idle replica is not scrubbed",
    B51 "a hold can be resumed only once",
    B52 "a removed member stops while its vote may be needed",
    B53 "a formerly single member still skips read rounds",
    B54 "queues deliver the last item first",
    B55 "recovery does not rewrite records that may be unsynced",
    B56 "guarded writes expect a newer key than the guard's",
    B57 "a node reports a transfer but keeps leading",
    B58 "nested compares see writes of the outer transaction",
    B59 "range limits apply before revision filters",
    B60 "a rejected transaction keeps its earlier writes",
    B61 "a leader's work continues after it lost leadership",
    B62 "a sequence reuses the number of a deleted key",
    B63 "the lease of a written key is revoked at once",
    B64 "work for the life of a node ends with a session",
    B65 "the hold of a reader is transferred to a writer",
    B66 "a transfer ignores changes before its successor",
    B67 "a read returns before its state is visible",
    B68 "a write returns before readers see it",
    B69 "a resumed session is valid before a confirmed renewal",
    B70 "validity of a resumed session counts from the reply",
    B71 "one closed connection is evidence that a process has ended",
    B72 "evidence that a process has ended is never withdrawn",
    B73 "members grant pre-votes early without evidence",
    B74 "the leader lease outlasts the time that new leaders add",
    B75 "a new leader does not add the leader lease to TTLs",
    B76 "a new leader ends leases at once",
    B77 "renewals need no round while the end of a lease is proposed",
    B78 "the leader lease counts from the end of the round",
    N01 "programs write under a lock without a guard",
    N02 "programs treat local reads as current",
    N03 "disks do not sync",
}

/// Returns whether this mutant is planted, which is never the case in this build.
#[cfg(not(any(test, bowline_mutants)))]
#[inline(always)]
pub(crate) const fn is(_: Mutant) -> bool {
    false
}

#[cfg(not(any(test, bowline_mutants)))]
const _: () = assert!(!is(Mutant::M01), "what is released breaks nothing");

#[cfg(any(test, bowline_mutants))]
pub use switch::Planted;
#[cfg(any(test, bowline_mutants))]
pub(crate) use switch::is;

/// The switch that plants a mutant.
#[cfg(any(test, bowline_mutants))]
mod switch {
    use std::cell::Cell;
    use std::marker::PhantomData;
    use std::sync::atomic::{AtomicU8, Ordering};

    use super::Mutant;

    /// The value that means "no mutant". No mutant has this number.
    const NONE: u8 = u8::MAX;

    static EVERYWHERE: AtomicU8 = AtomicU8::new(NONE);

    thread_local! {
        static HERE: Cell<u8> = const { Cell::new(NONE) };
    }

    /// Returns whether this mutant is planted in this thread or in the process.
    pub(crate) fn is(mutant: Mutant) -> bool {
        let number = mutant as u8;
        HERE.get() == number || EVERYWHERE.load(Ordering::Relaxed) == number
    }

    /// A guard: the mutant is planted in this thread until the guard is dropped.
    #[derive(Debug)]
    #[must_use = "dropping it takes the mutant out again"]
    pub struct Planted {
        before: u8,
        _of_this_thread: PhantomData<*const ()>,
    }

    impl Mutant {
        /// Plants this mutant in this thread, and replaces any other mutant of the thread.
        pub fn plant(self) -> Planted {
            Planted { before: HERE.replace(self as u8), _of_this_thread: PhantomData }
        }

        /// Plants this mutant in all threads of this process, until the process ends.
        pub fn plant_everywhere(self) {
            EVERYWHERE.store(self as u8, Ordering::Relaxed);
        }

        /// Returns the mutant with this name, such as `M07`.
        pub fn named(name: &str) -> Option<Mutant> {
            Mutant::ALL.iter().copied().find(|mutant| format!("{mutant:?}") == name)
        }
    }

    impl Drop for Planted {
        fn drop(&mut self) {
            HERE.set(self.before);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim;

    /// Returns whether the simulation fails with one of the first seeds.
    fn falls() -> bool {
        (1..=5).any(|seed| sim::run_seed(seed, false).is_err())
    }

    #[test]
    fn no_mutant_is_active_by_default() {
        assert!(Mutant::ALL.iter().all(|mutant| !is(*mutant)));
        let planted = Mutant::M07.plant();
        assert!(is(Mutant::M07) && !is(Mutant::M08));
        drop(planted);
        assert!(!is(Mutant::M07));
    }

    #[test]
    fn mutant_is_found_by_its_name() {
        for mutant in Mutant::ALL.iter().copied() {
            assert_eq!(Mutant::named(&format!("{mutant:?}")), Some(mutant));
        }
        assert_eq!(Mutant::named("M00"), None);
    }

    /// If the simulation passed with this mutant, its checks would be broken, and its other runs
    /// would prove nothing.
    #[test]
    fn canary_mutant_fails_the_simulation() {
        let _planted = Mutant::M26.plant();
        assert!(falls());
    }

    #[test]
    fn negative_controls_fail_the_simulation() {
        for control in [Mutant::N01, Mutant::N02, Mutant::N03] {
            let _planted = control.plant();
            assert!(falls(), "{control:?}: {}", control.breaks());
        }
    }
}
