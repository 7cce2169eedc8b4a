//! The beginning: founding a cluster, or taking up what the log holds.

use super::*;

impl Driver {
    pub(super) fn found(&mut self, now: Moment) {
        let Stage::Founding(founding) = &self.stage else { return };
        if let Some(founders) = founding.done() {
            let group = wal::Group { founding: Some(founders.clone()), ..wal::Group::default() };
            self.stage = Stage::Recording(founders);
            self.log.push(group);
        } else if now >= self.next_hello {
            self.next_hello = now + self.shared.settings.heartbeat;
            for peer in self.roster.peers() {
                self.send(peer, PeerMessage::Hello(self.identity.hello(peer)));
            }
        }
    }

    /// The members have changed: whom this node talks to, whose word counts.
    pub(super) fn members_changed(&mut self, members: &Members) {
        self.roster.update(members);
        self.identity.knows(Arc::clone(self.roster.members()));
        self.digests.set_voters(members.voters());
    }

    pub(super) fn start_consensus(&mut self, hard_state: wal::HardState) -> Result<(), Fatal> {
        self.members_changed(&Members::founded(&self.identity.founders()));
        let settings = &self.shared.settings;
        let config = ConsensusConfig::new(
            settings.node,
            Members::founded(&self.identity.founders()),
            Settings::TICKS_A_HEARTBEAT as usize,
            settings.election_ticks() as usize,
            Arc::clone(&self.shared.env.entropy),
        );
        let applied = self.machine.applied();
        let consensus = Consensus::new(config, self.log_reader.clone(), hard_state, applied)
            .map_err(|fault| fault.to_string())?;
        self.stage = Stage::Running(Box::new(consensus));
        Ok(())
    }

    /// Ends the sessions that earlier lives of this node have left behind.
    pub(super) fn end_own_past(&mut self) {
        let (node, incarnation) = (self.shared.settings.node, self.identity.incarnation());
        for (lease, _) in self.machine.leases() {
            let session = self.shared.reader.lease(lease).and_then(|info| info.session);
            if session.is_some_and(|(of, life, _)| of == node && life < incarnation) {
                self.insist(Command::Revoke(lease));
            }
        }
    }
}
