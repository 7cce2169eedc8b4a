//! Counts acknowledgements of entries wrongly, for the mutants (deliberate faults in tests) that
//! need a wrong count. Without a mutant, the raft crate counts the acknowledgements. A release
//! build does not contain this code.

use super::Consensus;
use crate::consensus::gate::Standpoint;
use crate::consensus::membership::Configuration;
use crate::model::LogIndex;
use crate::mutant::Mutant;

const WRONG: [Mutant; 4] = [Mutant::M04, Mutant::M05, Mutant::M32, Mutant::M35];

impl Consensus {
    /// As the leader, commits entries according to a wrong count of acknowledgements.
    pub(super) fn miscount(&mut self) {
        let wrong = WRONG.into_iter().find(|wrong| crate::mutant::is(*wrong));
        let Some(wrong) = wrong.filter(|_| self.is_leader()) else { return };
        let Configuration { voters, learners, .. } = &self.configuration;
        let learners = learners.iter().filter(|_| wrong == Mutant::M35);
        let progress = self.raw.raft.prs();
        let mut matched: Vec<u64> = voters
            .iter()
            .chain(learners)
            .filter_map(|id| Some(progress.get(id.get())?.matched))
            .collect();
        matched.sort_unstable_by(|a, b| b.cmp(a));
        let enough = match wrong {
            Mutant::M04 => return self.commit_to(self.last()),
            Mutant::M05 => voters.len() / 2,
            _ => voters.len() / 2 + 1,
        };
        if let Some(index) = enough.checked_sub(1).and_then(|at| matched.get(at)) {
            self.commit_to(LogIndex(*index));
        }
    }

    fn commit_to(&mut self, index: LogIndex) {
        self.with_raft(|raw| raw.raft.raft_log.commit_to(index.get()));
    }
}
