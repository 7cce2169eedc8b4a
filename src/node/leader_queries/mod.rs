//! Numbered queries to the leader. A query is sent to the leader and repeated until it is answered.
//! Linearizable reads, calls for leases, membership requests and renewals of leases use this
//! mechanism.
//!
//! ```text
//!             send                      answered
//!   callers ────────▶ in flight, number 7 ────────▶ callers
//!      ▲                 │     ▲
//!      └─────────────────┘     └── unanswered for a while: sent again, under the same number
//!       the leader changed
//! ```
//!
//! The contract:
//!
//! - **Numbers.** A query has a number that no other query of this kind has in this incarnation of
//!   the node. The messages also contain the incarnation.
//! - **Answers.** An answer counts only for the query with its number, only while that query is in
//!   flight, and only once. A late answer to a query that was recalled or has ended is ignored.
//! - **Repetitions.** A repeated query keeps its number and its contents. So an answer is valid
//!   even if the query has been sent again since. A leader that answers only after the first
//!   repetition can therefore still serve the caller. If the time of sending matters, the caller
//!   sends a new query instead.
//! - **Arrival.** A caller that arrives after a query was first sent is not added to it. The answer
//!   may describe the state before the caller arrived.
//! - **Leader changes.** [`SharedQueries::leader_changed`] recalls the queries in flight. The
//!   queries of their callers are sent to the new leader under new numbers.
//! - **Completeness.** Every caller waits until its query is answered, its deadline passes, or the
//!   node stops.

pub(super) mod lease_calls;
pub(super) mod reads;
pub(super) mod rounds;
pub(super) mod steps;

use std::collections::BTreeMap;
use std::time::Duration;

use crate::model::Moment;

/// The queries of one kind that are in flight.
#[derive(Debug)]
pub(crate) struct LeaderQueries<Q> {
    next: u64,
    in_flight: BTreeMap<u64, InFlight<Q>>,
}

#[derive(Debug)]
struct InFlight<Q> {
    /// Time at which the query was last sent.
    sent: Moment,
    query: Q,
}

impl<Q> Default for LeaderQueries<Q> {
    fn default() -> Self {
        Self { next: 1, in_flight: BTreeMap::new() }
    }
}

impl<Q> LeaderQueries<Q> {
    /// Returns a number that was never returned before.
    pub(crate) fn number(&mut self) -> u64 {
        let number = self.next;
        self.next += 1;
        number
    }

    /// Records that a query is sent now. Returns its number.
    pub(crate) fn send(&mut self, query: Q, now: Moment) -> u64 {
        let number = self.number();
        self.in_flight.insert(number, InFlight { sent: now, query });
        number
    }

    /// Returns the oldest query that has been unanswered for `patience`, to be sent again now.
    pub(crate) fn repeat(&mut self, patience: Duration, now: Moment) -> Option<(u64, &Q)> {
        let late = |query: &&mut InFlight<Q>| now.since(query.sent) >= patience;
        let mut queries = self.in_flight.iter_mut();
        let (number, query) = queries.find(|(_, query)| late(query))?;
        query.sent = now;
        Some((*number, &query.query))
    }

    /// Returns a query in flight.
    pub(crate) fn get_mut(&mut self, number: u64) -> Option<&mut Q> {
        self.in_flight.get_mut(&number).map(|query| &mut query.query)
    }

    /// Ends the query that was answered. Returns the query, and the time at which it was last sent.
    pub(crate) fn answered(&mut self, number: u64) -> Option<(Moment, Q)> {
        self.in_flight.remove(&number).map(|query| (query.sent, query.query))
    }

    /// Returns the queries in flight, in the order of their numbers.
    pub(crate) fn queries(&self) -> impl Iterator<Item = &Q> {
        self.in_flight.values().map(|query| &query.query)
    }

    /// Keeps the queries for which `keep` returns true. Its arguments are the time of sending and the query.
    pub(crate) fn retain(&mut self, mut keep: impl FnMut(Moment, &mut Q) -> bool) {
        self.in_flight.retain(|_, query| keep(query.sent, &mut query.query));
    }

    /// Ends and returns all queries, in the order of their numbers.
    pub(crate) fn recall(&mut self) -> impl Iterator<Item = Q> + use<Q> {
        std::mem::take(&mut self.in_flight).into_values().map(|query| query.query)
    }
}

/// Callers that share a query.
pub(crate) trait Callers: Default {
    fn is_empty(&self) -> bool;

    /// Adds the callers of another query.
    fn merge(&mut self, others: Self);

    /// Removes and returns as many callers as fit into one query.
    fn split_query(&mut self) -> Self {
        std::mem::take(self)
    }
}

/// Queries that callers share: all callers that arrive between two queries are part of the later one.
#[derive(Debug)]
pub(crate) struct SharedQueries<C> {
    /// Callers that are not part of a query in flight.
    waiting: C,
    queries: LeaderQueries<C>,
    /// Time after which an unanswered query is repeated.
    patience: Duration,
}

/// A query to send.
#[derive(Debug)]
pub(crate) struct Ask<'a, C> {
    pub(crate) number: u64,
    pub(crate) callers: &'a C,
    /// Whether the query was sent before.
    pub(crate) is_repeated: bool,
}

impl<C: Callers> SharedQueries<C> {
    /// Returns a set without callers. An unanswered query is repeated after `patience`.
    pub(crate) fn new(patience: Duration) -> Self {
        Self { waiting: C::default(), queries: LeaderQueries::default(), patience }
    }

    /// Returns the callers that are not part of a query in flight, to add a caller.
    pub(crate) fn waiting(&mut self) -> &mut C {
        &mut self.waiting
    }

    /// Returns the next query to send: a new query for callers that wait or, if there are none, one that has been
    /// unanswered for too long.
    pub(crate) fn ask(&mut self, now: Moment) -> Option<Ask<'_, C>> {
        if self.waiting.is_empty() {
            let (number, callers) = self.queries.repeat(self.patience, now)?;
            return Some(Ask { number, callers, is_repeated: true });
        }
        let number = self.queries.send(self.waiting.split_query(), now);
        let callers = self.queries.get_mut(number)?;
        Some(Ask { number, callers, is_repeated: false })
    }

    /// Ends the query that was answered, and returns its callers.
    pub(crate) fn answered(&mut self, number: u64) -> Option<C> {
        self.queries.answered(number).map(|(_, callers)| callers)
    }

    /// Removes the callers that a partial answer serves. The query stays in flight for the
    /// remaining callers.
    pub(crate) fn answered_partly<T>(
        &mut self,
        number: u64,
        serve: impl FnOnce(&mut C) -> T,
    ) -> Option<T> {
        let callers = self.queries.get_mut(number)?;
        let served = serve(callers);
        if callers.is_empty() {
            self.queries.answered(number);
        }
        Some(served)
    }

    /// Returns callers to the next query, because their query was not answered.
    pub(crate) fn return_callers(&mut self, callers: C) {
        self.waiting.merge(callers);
    }

    /// Recalls all queries in flight. Their callers are part of new queries, for the new leader.
    pub(crate) fn leader_changed(&mut self) {
        for callers in self.queries.recall() {
            self.waiting.merge(callers);
        }
    }

    /// Calls `expire` for each group of callers. Ends the queries that then have no callers.
    pub(crate) fn expire(&mut self, mut expire: impl FnMut(&mut C)) {
        self.queries.retain(|_, callers| {
            expire(callers);
            !callers.is_empty()
        });
        expire(&mut self.waiting);
    }

    /// Removes and returns all callers.
    pub(crate) fn stop(&mut self) -> C {
        self.leader_changed();
        std::mem::take(&mut self.waiting)
    }

    pub(crate) fn groups(&self) -> impl Iterator<Item = &C> {
        self.queries.queries().chain([&self.waiting])
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    /// Maximum number of callers in one query of this test.
    const FIT: usize = 3;

    #[derive(Default, Clone, PartialEq, Eq, Debug)]
    struct Numbered(Vec<u32>);

    impl Callers for Numbered {
        fn is_empty(&self) -> bool {
            self.0.is_empty()
        }

        fn merge(&mut self, others: Self) {
            self.0.extend(others.0);
        }

        fn split_query(&mut self) -> Self {
            Self(self.0.drain(..self.0.len().min(FIT)).collect())
        }
    }

    #[derive(Clone, Debug)]
    enum Step {
        /// A caller arrives.
        Arrive,
        /// The node sends everything that is due, after this many milliseconds.
        Ask(u64),
        /// The leader answers one of the queries, counted back from the newest. The answer serves
        /// all callers of the query, or only the first.
        Answer {
            back: usize,
            whole: bool,
        },
        /// The leader answers that it does not lead.
        NotLeader {
            back: usize,
        },
        LeaderChanged,
        /// The deadline of a caller passes.
        Expire(usize),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            3 => Just(Step::Arrive),
            3 => (0u64..150).prop_map(Step::Ask),
            3 => (0usize..6, any::<bool>()).prop_map(|(back, whole)| Step::Answer { back, whole }),
            1 => (0usize..6).prop_map(|back| Step::NotLeader { back }),
            1 => Just(Step::LeaderChanged),
            1 => (0usize..8).prop_map(Step::Expire),
        ]
    }

    /// The model: each query that was ever sent, and the waiting and ended callers.
    #[derive(Default)]
    struct Model {
        /// The callers, the time of the last sending, and whether the query is in flight, by number.
        sent: BTreeMap<u64, (Vec<u32>, Moment, bool)>,
        waiting: BTreeSet<u32>,
        arrived: u32,
        ended: BTreeSet<u32>,
    }

    impl Model {
        fn number(&self, back: usize) -> Option<u64> {
            self.sent.keys().rev().nth(back).copied()
        }

        /// Ends callers of a query in flight, and returns them: all, or only the first.
        fn serve(&mut self, number: u64, whole: bool) -> Vec<u32> {
            let Some((callers, _, open @ true)) = self.sent.get_mut(&number) else {
                return Vec::new();
            };
            let served: Vec<u32> =
                if whole { std::mem::take(callers) } else { callers.drain(..1).collect() };
            *open = !callers.is_empty();
            self.ended.extend(&served);
            served
        }

        fn recall(&mut self, number: u64) {
            if let Some((callers, _, open @ true)) = self.sent.get_mut(&number) {
                *open = false;
                self.waiting.extend(std::mem::take(callers));
            }
        }
    }

    const WAIT_MAX: Duration = Duration::from_millis(100);

    fn check(steps: Vec<Step>) {
        let mut queries = SharedQueries::<Numbered>::new(WAIT_MAX);
        let mut model = Model::default();
        let mut now = Moment::since_boot(Duration::ZERO);
        for step in steps {
            match step {
                Step::Arrive => {
                    queries.waiting().0.push(model.arrived);
                    model.waiting.insert(model.arrived);
                    model.arrived += 1;
                }
                Step::Ask(ms) => {
                    now = now + Duration::from_millis(ms);
                    while let Some(Ask { number, callers, is_repeated }) = queries.ask(now) {
                        assert!(!callers.is_empty());
                        if is_repeated {
                            let (first, sent, open) = model.sent.get_mut(&number).unwrap();
                            assert!(*open && now.since(*sent) >= WAIT_MAX);
                            assert_eq!(first, &callers.0, "a repetition has the same contents");
                            *sent = now;
                        } else {
                            let last = model.sent.keys().next_back().copied().unwrap_or(0);
                            assert!(number > last, "a number is used once");
                            assert!(callers.0.iter().all(|caller| model.waiting.remove(caller)));
                            model.sent.insert(number, (callers.0.clone(), now, true));
                        }
                    }
                    assert!(model.waiting.is_empty());
                    let open = model.sent.values().filter(|(.., open)| *open);
                    for (_, sent, _) in open {
                        assert!(now.since(*sent) < WAIT_MAX, "a due query was not sent");
                    }
                }
                Step::Answer { back, whole } => {
                    let Some(number) = model.number(back) else { continue };
                    let served = if whole {
                        queries.answered(number).unwrap_or_default().0
                    } else {
                        let first =
                            |callers: &mut Numbered| -> Vec<u32> { callers.0.drain(..1).collect() };
                        queries.answered_partly(number, first).unwrap_or_default()
                    };
                    assert_eq!(served, model.serve(number, whole));
                }
                Step::NotLeader { back } => {
                    let Some(number) = model.number(back) else { continue };
                    if let Some(callers) = queries.answered(number) {
                        queries.return_callers(callers);
                    }
                    model.recall(number);
                }
                Step::LeaderChanged => {
                    queries.leader_changed();
                    let numbers: Vec<u64> = model.sent.keys().copied().collect();
                    numbers.into_iter().for_each(|number| model.recall(number));
                }
                Step::Expire(nth) => {
                    let open = (0..model.arrived).filter(|caller| !model.ended.contains(caller));
                    let Some(caller) = open.clone().nth(nth) else { continue };
                    queries.expire(|callers| callers.0.retain(|other| *other != caller));
                    model.waiting.remove(&caller);
                    for (callers, _, open) in model.sent.values_mut().filter(|(.., open)| *open) {
                        callers.retain(|other| *other != caller);
                        *open = !callers.is_empty();
                    }
                    model.ended.insert(caller);
                }
            }
            // Each waiting caller is in exactly one query.
            let mut open: Vec<u32> =
                queries.groups().flat_map(|callers| callers.0.clone()).collect();
            open.sort_unstable();
            let expected: Vec<u32> =
                (0..model.arrived).filter(|caller| !model.ended.contains(caller)).collect();
            assert_eq!(open, expected);
        }
        let left = queries.stop().0;
        assert_eq!(left.len(), model.arrived as usize - model.ended.len());
        assert!(queries.ask(now + WAIT_MAX * 2).is_none());
    }

    proptest! {
        #[test]
        fn shared_queries_keep_their_contract(steps in prop::collection::vec(step(), 0..60)) {
            check(steps);
        }
    }
}
