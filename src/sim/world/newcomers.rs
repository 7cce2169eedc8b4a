//! Machines that want to become members: they ask nodes until one admits them, crash in the meantime, and ask again
//! with the disk that they have.
//!
//! ```text
//!   newcomer ──ask──▶ any node ──▶ the leader ──▶ the log ──▶ answer ──▶ a node of its own
//!       ▲                                                       │ lost
//!       └───────────────────────────── asks again ◀─────────────┘
//! ```

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use super::{DIR, Happening, World, WorldRestoredFrom, new_node, place};
use crate::env::{Entropy, Env};
use crate::model::{JoinAnswer, JoinAsk, Joined};
use crate::node::{
    Contact, contacts, disk_to_join, is_joining, owner_of_data, save_answer, saved_contacts,
};
use crate::sim::clock::SimClock;
use crate::sim::disk::SimDisk;
use crate::sim::plan::{between, index, one_in};
use crate::sim::point::SimPoints;
use crate::sim::process::SimBeginning;
use crate::sim::rng::Rng;
use crate::sim::violation::Violation;
use crate::transport::JoinReply;

/// Maximum number of ids that are assigned in a world. Later newcomers are not admitted.
const PLACES_MAX: usize = 13;

/// Approximate maximum number of members at a time.
const MEMBERS_MAX: usize = 8;

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct NewcomerId(pub(super) u64);

/// A machine that is not a member yet.
pub(super) struct Newcomer {
    contact: Contact,
    disk: Arc<SimDisk>,
    entropy: Arc<Rng>,
    replaces: Option<String>,
}

impl World {
    /// Creates a machine that asks to join, either in addition or as the replacement of a voter.
    pub(super) fn arrive_newcomer(&mut self, replaces: Option<usize>) {
        let members = self.judge.borrow().members().rows().len();
        let room = self.nodes.len() + self.newcomers.len() < PLACES_MAX
            && members + self.newcomers.len() < MEMBERS_MAX;
        if !room {
            return;
        }
        let name = format!("g{}", self.next_newcomer.0);
        let newcomer = Newcomer {
            contact: Contact { address: format!("{name}:1"), name },
            disk: Arc::new(SimDisk::new(self.rng.next_u64())),
            entropy: Arc::new(Rng::new(self.rng.next_u64())),
            replaces: replaces.map(|at| self.name_of(at)),
        };
        self.expect_newcomer(newcomer);
    }

    fn expect_newcomer(&mut self, newcomer: Newcomer) {
        let id = self.next_newcomer;
        self.next_newcomer = NewcomerId(id.0 + 1);
        self.note(30, &[id.0], || {
            format!("{} wants in; replaces {:?}", newcomer.contact.name, newcomer.replaces)
        });
        self.newcomers.insert(id, newcomer);
        self.schedule_in(Duration::ZERO, Happening::Ask { newcomer: id });
    }

    /// Removes the newcomers that have not been admitted.
    pub(super) fn remove_newcomers(&mut self) {
        self.newcomers.clear();
    }

    /// Returns the name of a node.
    pub(super) fn name_of(&self, at: usize) -> String {
        match &self.nodes[at].restored_from {
            WorldRestoredFrom::Newcomer(contact) => contact.name.clone(),
            WorldRestoredFrom::Founder | WorldRestoredFrom::Nobody => {
                format!("n{}", self.nodes[at].id.get())
            }
        }
    }

    /// Lets a newcomer ask a running node.
    pub(super) fn ask(&mut self, id: NewcomerId) {
        let wait = between(&self.rng, Duration::from_millis(200), Duration::from_millis(1_500));
        let Some(newcomer) = self.newcomers.get(&id) else { return };
        // The machine sometimes crashes before it asks again.
        if one_in(&self.rng, 6) {
            newcomer.disk.crash();
        }
        let clock = SimClock::new(self.timeline.clone(), Duration::ZERO, 0);
        let env = self.env_of(&newcomer.disk, &newcomer.entropy, Arc::new(clock), Arc::default());
        let disk = disk_to_join(&env, Path::new(DIR)).expect("its disk is sound");
        let Contact { name, address } = newcomer.contact.clone();
        let ask = JoinAsk { disk, name, address, replaces: newcomer.replaces.clone() };
        self.schedule_in(wait, Happening::Ask { newcomer: id });
        let running: Vec<usize> = self.processes().map(|(at, _)| at).collect();
        if running.is_empty() {
            return;
        }
        let asked = running[index(&self.rng, running.len())];
        let (reply, answered) = JoinReply::new();
        if let Some(process) = self.nodes[asked].running() {
            process.ask_to_join(ask, reply);
        }
        let admitted = self.admitted.clone();
        self.spawner().spawn(None, async move {
            if let Ok(answer) = answered.await {
                admitted.borrow_mut().push((id, answer));
            }
        });
    }

    /// Handles the replies to newcomers. One in ten is lost.
    pub(super) fn handle_newcomer_replies(&mut self) {
        let admitted = self.admitted.take();
        for (newcomer, answer) in admitted {
            match answer {
                _ if one_in(&self.rng, 10) => {}
                JoinAnswer::Joined(joined) => {
                    let joined = Box::new(joined);
                    self.schedule_in(Duration::ZERO, Happening::Admit { newcomer, joined });
                }
                JoinAnswer::Refused(why) => {
                    self.judge.borrow_mut().count("join refused");
                    if self.newcomers.remove(&newcomer).is_some() {
                        self.note(31, &[newcomer.0], || format!("{newcomer:?} is refused: {why}"));
                    }
                }
                JoinAnswer::Later(_) | JoinAnswer::NotLeader(_) => {}
            }
        }
    }

    /// Turns an admitted newcomer into a node and starts it.
    pub(super) fn admit(&mut self, id: NewcomerId, joined: Joined) -> Result<(), Violation> {
        let Some(newcomer) = self.newcomers.remove(&id) else { return Ok(()) };
        let at = place(joined.node);
        while self.nodes.len() <= at {
            let id = self.nodes.len() as u64 + 1;
            let nobody = new_node(id, WorldRestoredFrom::Nobody, &self.timeline, &self.rng);
            self.nodes.push(nobody);
        }
        let Newcomer { contact, disk, entropy, .. } = newcomer;
        self.note(32, &[joined.node.get()], || format!("{} is {:?}", contact.name, joined.node));
        self.judge.borrow_mut().count("joined");
        let members = contacts(&joined);
        let node = &mut self.nodes[at];
        node.restored_from = WorldRestoredFrom::Newcomer(contact.clone());
        node.disk = disk.clone();
        node.entropy = entropy;
        let disk = self.disk_of(at);
        save_answer(&self.env_at(at), Path::new(DIR), &joined).expect("its disk is sound");
        let joined = Some(crate::node::Joined { disk, founders: joined.founding });
        self.start_as(at, SimBeginning::Newcomer { contact, members, joined })
    }

    /// Returns the disk id of a newcomer.
    fn disk_of(&self, at: usize) -> crate::model::DiskId {
        disk_to_join(&self.env_at(at), Path::new(DIR)).expect("its disk is sound")
    }

    fn env_at(&self, at: usize) -> Env {
        let node = &self.nodes[at];
        self.env_of(&node.disk, &node.entropy, node.clock.clone(), Arc::default())
    }

    /// Returns how a node starts that was admitted before, or `None` if it has to ask again, which it then does.
    pub(super) fn begin_again(&mut self, at: usize, contact: &Contact) -> Option<SimBeginning> {
        let env = self.env_at(at);
        // An unreadable directory is detected and named by the code that opens it.
        let known = owner_of_data(&env, Path::new(DIR));
        if !matches!(known, Ok(None)) && !is_joining(&env, Path::new(DIR)) {
            let told = |known| saved_contacts(&env, Path::new(DIR), known);
            let members = known.ok().flatten().map(told).unwrap_or_default();
            let joined = None;
            return Some(SimBeginning::Newcomer { contact: contact.clone(), members, joined });
        }
        let node = &self.nodes[at];
        let (disk, entropy) = (node.disk.clone(), node.entropy.clone());
        let contact = contact.clone();
        self.expect_newcomer(Newcomer { contact, disk, entropy, replaces: None });
        None
    }

    pub(super) fn env_of(
        &self,
        disk: &Arc<SimDisk>,
        entropy: &Arc<Rng>,
        clock: Arc<SimClock>,
        points: Arc<SimPoints>,
    ) -> Env {
        Env { clock, entropy: entropy.clone(), disk: disk.clone(), points }
    }
}
