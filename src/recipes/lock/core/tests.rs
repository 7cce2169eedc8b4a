//! Runs the scripts in `tests/scripts/locks`: each script drives one lock and its entries, and
//! simulates the store. `tests/scripts/locks/README` describes the commands.
//!
//! `UPDATE=1 cargo test --workspace --lib lock_queue_follows` writes the answers into the scripts. Review the
//! difference afterwards, because the scripts define what is right.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use crate::lock_format::{
    AdminAction, AdminRequest, LockMode, LockQueue, QueuePosition, ReleaseRequest,
};
use crate::model::{LeaseId, Moment, Revision};
use crate::node::{ReplyTo, SessionEndReason, SharedSession};

use super::bound::Load;
use super::entry::{
    Action, AdminRow, DeferredActions, Enqueued, EntryData, EntryEvent, Phase, QueueEntry,
};
use super::error::{LockError, LostReason};
use super::waiter::{Waiter, WaiterOptions, WaiterStage};
use super::waiter_counts::WaiterCounts;

/// End of the sessions, unless the script ends them.
const UNTIL: Moment = Moment::since_boot(Duration::from_secs(9));

struct ScriptEntry {
    entry: Arc<QueueEntry>,
    mode: LockMode,
    /// The entry's row, if it exists.
    row: Option<QueuePosition>,
}

/// The entries of one lock, and its rows in the store.
#[derive(Default)]
struct LockScript {
    revision: u64,
    queue: LockQueue,
    entries: BTreeMap<String, ScriptEntry>,
    waiters: BTreeMap<String, (String, Arc<Waiter>)>,
    keys: u64,
    /// The states as last reported.
    reported: BTreeMap<String, String>,
}

impl LockScript {
    fn run(&mut self, command: &str) -> String {
        let words: Vec<&str> = command.split_whitespace().collect();
        let mut actions = DeferredActions::default();
        for ScriptEntry { entry, .. } in self.entries.values() {
            entry.set_contended(self.queue.len() > 1);
        }
        match words[..] {
            ["enter", name, mode] => self.enter(name, mode),
            ["join", name, task] => {
                let waiter = self.entries[name].entry.add_waiter(WaiterOptions::default());
                self.waiters.insert(task.to_owned(), (name.to_owned(), waiter));
            }
            ["created", name] => self.created(name, &mut actions),
            ["rejected", name] => {
                self.apply(name, EntryEvent::EnqueueFailed(LockError::Unavailable), &mut actions);
            }
            ["deleted", name] => {
                let since = self.delete(name);
                self.apply(name, EntryEvent::KeyLost { since }, &mut actions);
            }
            ["requeued", name] => {
                self.delete(name);
                self.keys += 1;
                let key = Bytes::from(format!("{name}.{}", self.keys));
                self.entries[name].entry.rename([key].into());
                self.created(name, &mut actions);
            }
            ["received", name, other] => {
                let row = self.entries.get_mut(other).unwrap().row.take().unwrap();
                self.delete(name);
                let receiver = self.entries.get_mut(name).unwrap();
                self.queue.insert(row.clone(), receiver.mode.clone());
                receiver.row = Some(row.clone());
                let QueuePosition { key, since } = row;
                let event = EntryEvent::TransferReceived { key, since, is_unusable: false };
                self.apply(name, event, &mut actions);
            }
            ["rewritten", name, mode] => {
                let mode = self.mode(mode);
                let written = self.entries.get_mut(name).unwrap();
                self.queue.insert(written.row.clone().unwrap(), mode.clone());
                written.mode = mode;
            }
            ["cancel", task] => {
                let (name, waiter) = self.waiter(task);
                let event = EntryEvent::Cancelled { waiter, why: LockError::Evicted };
                self.apply(&name, event, &mut actions);
            }
            ["timeout", task] => {
                let (name, waiter) = self.waiter(task);
                let why = LockError::TimedOut { before: 1 };
                self.entries[&name].entry.fail_waiter(&waiter, why, &mut actions);
            }
            ["release", task] => {
                let (name, waiter) = self.waiter(task);
                let (why, reply) = (LostReason::Released, ReplyTo::Discard);
                self.entries[&name].entry.release(&waiter, why, reply, &mut actions);
            }
            ["transfer", task, other] => {
                let (name, waiter) = self.waiter(task);
                let successor = self.entries[other].row.clone().unwrap();
                let entry = &self.entries[&name].entry;
                entry.transfer(&waiter, successor, ReplyTo::Discard, &mut actions);
            }
            ["ask", name] => self.admin(name, AdminAction::RequestRelease, &mut actions),
            ["force", name] => self.admin(name, AdminAction::ForceRelease, &mut actions),
            ["txn", task] => {
                let (name, waiter) = self.waiter(task);
                self.entries[&name].entry.begin_txn(&waiter, Load::default()).unwrap();
            }
            ["txn-ended", name, known] => {
                let (binds, bound) = (Load::default(), Vec::new());
                let is_known = known == "known";
                self.apply(name, EntryEvent::TxnEnded { binds, is_known, bound }, &mut actions);
            }
            ["session-ended", name] => {
                self.entries[name].entry.session.end(UNTIL);
                let end = SessionEndReason::NotRenewed;
                let (loss, why) = (LostReason::SessionEnded(end), LockError::SessionEnded(end));
                self.apply(name, EntryEvent::Ended { loss, why }, &mut actions);
            }
            _ => panic!("unknown command {command:?}"),
        }
        self.grant_waiting(&mut actions);
        self.report(actions)
    }

    fn mode(&self, text: &str) -> LockMode {
        match text.split_once(':').unwrap_or((text, "")) {
            ("mutex", _) => LockMode::Mutex,
            ("read", _) => LockMode::Read,
            ("write", _) => LockMode::Write,
            ("upgrade", of) => LockMode::Upgrade(of.to_owned().into()),
            ("permits", numbers) => {
                let (wants, limit) = numbers.split_once("of").unwrap();
                LockMode::Permits { limit: limit.parse().unwrap(), wants: wants.parse().unwrap() }
            }
            other => panic!("unknown mode {other:?}"),
        }
    }

    fn enter(&mut self, name: &str, mode: &str) {
        let lease = LeaseId::new(self.entries.len() as u64 + 1).unwrap();
        let session = Arc::new(SharedSession::with_valid_lease(lease, UNTIL));
        let (key, counts) = (Bytes::from(name.to_owned()), WaiterCounts::from_iter([]));
        let data = EntryData::new([key].into(), Bytes::new(), counts);
        let prefixes = [Bytes::from_static(b"lock/")].into();
        let entry = QueueEntry::new(lease.get(), prefixes, session, true, data);
        let waiter = entry.add_waiter(WaiterOptions::default());
        self.waiters.insert(name.to_owned(), (name.to_owned(), waiter));
        let mode = self.mode(mode);
        self.entries.insert(name.to_owned(), ScriptEntry { entry, mode, row: None });
    }

    fn waiter(&self, task: &str) -> (String, Arc<Waiter>) {
        self.waiters[task].clone()
    }

    fn apply(&self, name: &str, event: EntryEvent, actions: &mut DeferredActions) {
        self.entries[name].entry.apply(event, actions);
    }

    /// The store has created the entry's key.
    fn created(&mut self, name: &str, actions: &mut DeferredActions) {
        self.revision += 1;
        let since = Revision(self.revision);
        let made = self.entries.get_mut(name).unwrap();
        let position = QueuePosition::new(since, made.entry.keys()[0].clone());
        self.queue.insert(position.clone(), made.mode.clone());
        made.row = Some(position.clone());
        made.entry.set_contended(self.queue.len() > 1);
        let outcome = match self.queue.validate(&position, made.mode.kind()) {
            Err(why) => Enqueued::NotAllowed(match why {
                crate::lock_format::QueueMismatch::SecondUpgrade => LockError::UpgradeTaken,
                crate::lock_format::QueueMismatch::NoRead => LockError::Evicted,
                crate::lock_format::QueueMismatch::Kind { stored, asked } => {
                    LockError::mismatch(stored, asked)
                }
            }),
            Ok(()) if self.queue.may_hold(&position) => Enqueued::MayHold(since),
            Ok(()) => Enqueued::MustWait,
        };
        self.apply(name, EntryEvent::Enqueued { since, outcome }, actions);
    }

    /// The store has deleted the entry's key.
    fn delete(&mut self, name: &str) -> Revision {
        self.revision += 1;
        let row = self.entries.get_mut(name).unwrap().row.take();
        if let Some(row) = &row {
            self.queue.remove(row);
        }
        row.map_or(Revision(0), |row| row.since)
    }

    fn admin(&mut self, name: &str, action: AdminAction, actions: &mut DeferredActions) {
        let QueuePosition { key, since } = self.entries[name].row.clone().unwrap();
        let request = ReleaseRequest { by: "ops".to_owned(), reason: "it hangs".to_owned() };
        let row = Bytes::from(format!("{name}/order"));
        let request = AdminRequest { action, since, request };
        self.apply(name, EntryEvent::Admin(AdminRow { request, key, row }), actions);
    }

    /// Grants the lock to the waiting entries that may hold it.
    fn grant_waiting(&self, actions: &mut DeferredActions) {
        for ScriptEntry { entry, row, .. } in self.entries.values() {
            if let (Phase::Waiting(since), Some(row)) = (entry.phase(), row)
                && self.queue.may_hold(row)
            {
                let granted = Revision(self.revision);
                entry.apply(EntryEvent::MayHold { since, granted }, actions);
            }
        }
    }

    /// Reports the actions, and the states that have changed.
    fn report(&mut self, actions: DeferredActions) -> String {
        let mut text = String::new();
        for (entry, action) in actions {
            let is_it = |(_, other): &(&String, &ScriptEntry)| Arc::ptr_eq(&other.entry, &entry);
            let name = self.entries.iter().find(is_it).unwrap().0;
            let action = match action {
                Action::Release { plan, .. } => match plan.successor {
                    Some(next) => {
                        format!("propose: transfer to {}", next.position.key.escape_ascii())
                    }
                    None => {
                        let keys = plan.keys.iter().chain(plan.bound.iter().map(|b| &b.key));
                        let keys: Vec<_> = keys.map(|k| k.escape_ascii().to_string()).collect();
                        format!("propose: delete {}", keys.join(" "))
                    }
                },
                Action::Requeue { plan: Some(_), .. } => "propose: delete and enqueue".to_owned(),
                Action::Requeue { plan: None, .. } => "propose: enqueue".to_owned(),
                Action::DeleteBound(_) => "propose: delete attached keys".to_owned(),
                Action::RecordHandoff(_) | Action::Notify(_) | Action::Wake(_) => continue,
                Action::Reply(_) => "reply: released".to_owned(),
            };
            writeln!(text, "{name} -> {action}").unwrap();
        }
        let mut states = BTreeMap::new();
        for (name, ScriptEntry { entry, .. }) in &self.entries {
            let state = match entry.phase() {
                Phase::Entering => "entering".to_owned(),
                Phase::Waiting(since) => format!("waiting since {since}"),
                Phase::Held(since) => format!("held since {since}"),
                Phase::Gone => "gone".to_owned(),
            };
            states.insert(format!("entry {name}"), state);
        }
        for (task, (_, waiter)) in &self.waiters {
            let state = match (waiter.stage(None), waiter.loss(), waiter.request()) {
                (WaiterStage::Requested | WaiterStage::Waiting(_), ..) => "waits".to_owned(),
                (WaiterStage::Granted(_), Some(loss), _) => format!("lost: {loss}"),
                (WaiterStage::Granted(grant), None, None) => {
                    format!("holds, token {}", grant.token)
                }
                (WaiterStage::Granted(_), None, Some(request)) => {
                    format!("holds, asked to release by {}: {}", request.by, request.reason)
                }
                (WaiterStage::Failed(why), ..) => format!("failed: {why}"),
            };
            states.insert(format!("task {task}"), state);
        }
        for (name, state) in &states {
            if self.reported.get(name) != Some(state) {
                writeln!(text, "{name}: {state}").unwrap();
            }
        }
        self.reported = states;
        text
    }
}

#[test]
fn lock_queue_follows_the_scripts() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/scripts/locks");
    let update = std::env::var_os("UPDATE").is_some();
    let mut wrong = String::new();
    let mut files = 0;
    for path in std::fs::read_dir(folder).unwrap().map(|file| file.unwrap().path()) {
        if path.extension().is_none_or(|extension| extension != "txt") {
            continue;
        }
        files += 1;
        let text = std::fs::read_to_string(&path).unwrap();
        let (mut played, mut script) = (String::new(), LockScript::default());
        for line in text.lines() {
            match line.strip_prefix("> ") {
                Some(command) => {
                    writeln!(played, "{line}").unwrap();
                    played.push_str(&script.run(command));
                }
                None if line.is_empty() => {
                    played.push('\n');
                    script = LockScript::default();
                }
                None if line.starts_with('#') => writeln!(played, "{line}").unwrap(),
                None => {}
            }
        }
        if played != text && !update {
            writeln!(wrong, "{}:\n{played}", path.display()).unwrap();
        }
        if played != text && update {
            std::fs::write(&path, played).unwrap();
        }
    }
    assert!(files >= 8, "{files} scripts");
    assert!(wrong.is_empty(), "the answers differ:\n{wrong}");
}
