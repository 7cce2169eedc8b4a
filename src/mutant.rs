//! Breaks promises on purpose, to prove that the judges can fail.
//!
//! A mutant is one small break at one place of the code: where the right thing is done there, it asks
//! whether its mutant [is] planted, and then does the wrong one. With neither the feature `mutants`
//! nor the library's own tests the answer is a constant `false`, and the compiler leaves nothing of it:
//! a release has no trace of a mutant.
//!
//! A mutant is planted in a thread ([`Mutant::plant`]), which is a whole simulated world, or in a
//! process ([`Mutant::plant_everywhere`]), for real nodes, which have many threads. `docs/assurance/mutants.md`
//! says which seed of the simulated world finds which; `benches/mutants.rs` makes that page.
//!
//! Invariant: nothing here is ever switched on by a feature of another name.

#![cfg_attr(
    not(feature = "mutants"),
    allow(
        dead_code,
        unreachable_pub,
        unused_imports,
        reason = "public, and all of it used, with the feature alone"
    )
)]

/// Declares the mutants, each with what it breaks.
macro_rules! mutants {
    ($($name:ident $breaks:literal,)*) => {
        /// A break. `M`: one that every replicated log with leases and locks could have; `B`: one that
        /// this library could have; `N`: a negative control, where the programs or the disks of the
        /// simulated world do what they must not.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
        #[repr(u8)]
        pub enum Mutant {
            $(#[doc = $breaks] $name,)*
        }

        #[cfg(any(test, feature = "mutants"))]
        impl Mutant {
            /// All of them.
            pub const ALL: &[Mutant] = &[$(Mutant::$name,)*];

            /// What it breaks.
            pub fn breaks(self) -> &'static str {
                match self {
                    $(Mutant::$name => $breaks,)*
                }
            }
        }
    };
}

mutants! {
    M01 "the log does not sync what it wrote",
    M02 "messages leave before the state that they speak of is durable",
    M03 "a vote is not written down with its term",
    M04 "a leader takes for committed what it has appended",
    M05 "half of the members are a quorum",
    M06 "a linearizable read asks nobody",
    M07 "a round of reads is named like the one before",
    M08 "a leader answers reads without asking a quorum, as long as it hears from one now and then",
    M09 "a new leader gives leases less than their TTL",
    M10 "a renewal is granted while the lease's end is proposed",
    M11 "a watch drops what does not fit into its queue",
    M13 "a watch goes on with what it has yielded last",
    M14 "a watch goes on one revision too late",
    M15 "a member that starts applies the last entry before its snapshot once more",
    M16 "a snapshot leaves the table of answers out",
    M18a "a snapshot leaves the leases out",
    M18b "a snapshot leaves the number of the next lease out",
    M18c "a snapshot leaves out what was compacted",
    M19 "the log is cut behind a snapshot that is not synced",
    M20 "a log with damage in its middle ends there",
    M21 "records are taken without a look at their checksums",
    M22 "a new segment's directory is not synced",
    M23 "a failed sync is passed over",
    M24 "a lock is granted to a session that has ended",
    M25 "a token is the number of the lease",
    M26 "a release deletes the whole line",
    M27 "whoever waits for a lock has it as soon as anything changes",
    M28 "nobody is told which keys went with a lease",
    M29 "the requests of an entry are carried out in an order that depends on the member",
    M30 "a change of the members takes effect when a member starts again",
    M31 "a vote is given without a look at the candidate's log",
    M32 "a leader commits entries of earlier terms by counting",
    M33 "a leader does not mind hearing from nobody",
    M34 "who cannot be elected raises the term all the same",
    M35 "a leader counts learners among those who have an entry",
    M36 "a transaction is judged when it is proposed",
    M37 "a read below the compaction is answered",
    M38 "a deadline says that nothing was applied of what was sent",
    M39 "what is sent again is sent as something new",
    M43 "a member that starts leaves out the last segment of its log",
    M45 "the log is cut as far as the slowest member has it, beyond the newest snapshot",
    M46 "an entry counts as durable though it is replaced, and written again, on its way to the disk",
    B01 "a reader passes a writer that waits",
    B02 "a reader becomes the writer beside other readers",
    B03 "a writer keeps the token that it had as a reader",
    B04 "one permit more than there are",
    B05 "slots are claimed without looking whether they are free",
    B06 "several locks are granted with the first of them",
    B07 "of several locks the first is released",
    B08 "a hold is handed over, and its holder not told",
    B09 "a lease does not live for its session's lock delay",
    B10 "an item is acknowledged by whoever once had it",
    B11 "who gives an item back deletes it",
    B12 "an item is taken before its delay has passed",
    B13 "an item is claimed over another's claim",
    B14 "who waits for a latch goes on at once",
    B15 "a double barrier opens with one too few",
    B16 "what is done is done again",
    B17 "who follows a group does not hear who leaves",
    B18 "a kept view keeps what was deleted",
    B19 "a hold is handed to an successor who has gone",
    B20 "a reader becomes the writer though the line behind it has changed",
    B21 "a session is believed in from the answer to its renewal on",
    B22 "a renewal is acknowledged without a quorum",
    B23 "a node revokes any session that it could not renew",
    B24 "a lock is passed on while a transaction under it is under way",
    B25 "a lock goes round inside a node for ever, whoever else waits",
    B26 "who stops waiting leaves its key behind",
    B27 "a guarded write does not ask whether the lock is still held",
    B28 "a repeated request is applied again",
    B29 "a question joins a round of reads that has begun before it",
    B30 "who waits in a circle is not told",
    B31 "watchers are not told of what a snapshot passes over",
    B32 "what a lost holder gives up is free at once",
    B34 "a hold is handed over though its row has changed since it was looked at",
    B35 "an order is followed before what made its place the holder",
    B36 "what lives with a lost session, beside its locks, goes when it is let go",
    B37 "a grant is forgotten by the next leader before its first key",
    B38 "a new leader does not know the leases that there are",
    B39 "a holder trusts the whole TTL, whatever its clock does",
    B40 "a leader waits for no more than the TTL, whatever its clock does",
    B41 "the end of a lease that could not be proposed is not proposed again",
    B42 "leases that have ended are counted among those that are ending",
    B43 "a leader whose disk hangs leads on",
    B44 "a node that stood still makes up for its ticks",
    B45 "who waits for leadership to move waits until it does",
    B46 "a question that brought no answer is not put again",
    B47 "what was asked of the last leader is put to the next one no sooner than it would be put again",
    B48 "a round that cannot begin yet is forgotten",
    B49 "rounds that raft has forgotten are not begun anew",
    B50 "a replica to which nothing happens is not looked through",
    B51 "a hold that was taken up once is over for who would take it up again",
    B52 "who was removed goes while the others may need it still",
    B53 "who was the only member asks nobody before a read when there are others",
    B54 "what comes last in a queue is taken first",
    B55 "recovery does not write again what was not proven",
    B56 "a write under guard asks for a younger key than the guard's",
    B57 "who is asked to hand leadership over says that it has, and leads on",
    B58 "a transaction in a transaction is judged by what was written before it",
    B59 "a range that is cut off is cut off before its bounds are looked at",
    B60 "a transaction that is refused keeps what it has written before that",
    B61 "a leader's work goes on when it leads no more",
    B62 "a sequence gives the number of a key that is gone once more",
    B63 "a lease that was granted for a key ends at once, though the key was written",
    B64 "work for as long as its node runs ends with a session",
    B65 "a hold is handed to a request that takes more than the hold did",
    B66 "a hold is handed over though the queue before its successor has changed",
    B67 "a read is released before the state that it waits for is visible",
    B68 "a write is answered before readers see it",
    B69 "a resumed session is believed in before a renewal is confirmed",
    B70 "a resumed session is believed in from the answer to its renewal on",
    N01 "programs write under a lock without a condition",
    N02 "programs take what their own replica has for the newest",
    N03 "disks do not sync",
}

/// Whether this mutant is planted: never.
#[cfg(not(any(test, feature = "mutants")))]
#[inline(always)]
pub(crate) const fn is(_: Mutant) -> bool {
    false
}

#[cfg(not(any(test, feature = "mutants")))]
const _: () = assert!(!is(Mutant::M01), "what is released breaks nothing");

#[cfg(any(test, feature = "mutants"))]
pub use switch::Planted;
#[cfg(any(test, feature = "mutants"))]
pub(crate) use switch::is;

/// The switch.
#[cfg(any(test, feature = "mutants"))]
mod switch {
    use std::cell::Cell;
    use std::marker::PhantomData;
    use std::sync::atomic::{AtomicU8, Ordering};

    use super::Mutant;

    /// No mutant has this number.
    const NOBODY: u8 = u8::MAX;

    static EVERYWHERE: AtomicU8 = AtomicU8::new(NOBODY);

    thread_local! {
        static HERE: Cell<u8> = const { Cell::new(NOBODY) };
    }

    /// Whether this mutant is planted.
    pub(crate) fn is(mutant: Mutant) -> bool {
        let number = mutant as u8;
        HERE.get() == number || EVERYWHERE.load(Ordering::Relaxed) == number
    }

    /// A mutant in this thread, until this is dropped.
    #[derive(Debug)]
    #[must_use = "dropping it takes the mutant out again"]
    pub struct Planted {
        before: u8,
        _of_this_thread: PhantomData<*const ()>,
    }

    impl Mutant {
        /// Plants it in this thread, instead of any other.
        pub fn plant(self) -> Planted {
            Planted { before: HERE.replace(self as u8), _of_this_thread: PhantomData }
        }

        /// Plants it in all threads of this process, for good.
        pub fn plant_everywhere(self) {
            EVERYWHERE.store(self as u8, Ordering::Relaxed);
        }

        /// The one of this name, as `M07`.
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

    /// Whether the world falls in one of the first seeds.
    fn falls() -> bool {
        (1..=5).any(|seed| sim::run_seed(seed, false).is_err())
    }

    #[test]
    fn nothing_is_planted_unless_somebody_asks_for_it() {
        assert!(Mutant::ALL.iter().all(|mutant| !is(*mutant)));
        let planted = Mutant::M07.plant();
        assert!(is(Mutant::M07) && !is(Mutant::M08));
        drop(planted);
        assert!(!is(Mutant::M07));
    }

    #[test]
    fn a_mutant_is_known_by_its_name() {
        for mutant in Mutant::ALL.iter().copied() {
            assert_eq!(Mutant::named(&format!("{mutant:?}")), Some(mutant));
        }
        assert_eq!(Mutant::named("M00"), None);
    }

    /// If this were green the judge of the world would say nothing any more, and no other run of it would
    /// count.
    #[test]
    fn a_canary_is_red() {
        let _planted = Mutant::M26.plant();
        assert!(falls());
    }

    #[test]
    fn the_negative_controls_are_red() {
        for control in [Mutant::N01, Mutant::N02, Mutant::N03] {
            let _planted = control.plant();
            assert!(falls(), "{control:?}: {}", control.breaks());
        }
    }
}
