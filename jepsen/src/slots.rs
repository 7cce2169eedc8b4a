//! What clients hold inside a node's process, each under its slot: locks, leaderships, items, watches.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::{Mutex, MutexGuard, PoisonError};

use bowline::{
    Guard, Leadership, Owner, Session, Watch,
    lock::Permit,
    queue::{Delivery, QueueTaker},
};

/// Something held.
pub enum Holding {
    /// A lock.
    Lock(Guard),
    /// Permits.
    Permit(Permit),
    /// A leadership.
    Leadership(Leadership),
    /// An item of a queue.
    Item(Delivery),
    /// A watch.
    Watch(Box<Watch>),
    /// One that tells nothing more, and why: nobody has heard that yet.
    Over(String),
}

/// Things by their slots.
pub(crate) struct Shelf<H> {
    /// `None`: whatever comes is given up.
    held: Mutex<BTreeMap<String, Option<H>>>,
}

impl<H> Default for Shelf<H> {
    fn default() -> Self {
        Self { held: Mutex::default() }
    }
}

/// See the module.
#[derive(Default)]
pub struct Slots {
    shelf: Shelf<Holding>,
    owners: Mutex<BTreeMap<String, Owner>>,
    takers: Mutex<BTreeMap<String, QueueTaker>>,
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<H> Shelf<H> {
    /// Takes what is in a slot out of it.
    pub(crate) fn take(&self, slot: &str) -> Option<H> {
        lock(&self.held).remove(slot).flatten()
    }

    /// Puts something into a slot; what was there is given up.
    pub(crate) fn put(&self, slot: String, holding: H) {
        // What is given up is dropped outside of the lock: it may take a moment.
        let mut before = Some(holding);
        match lock(&self.held).entry(slot) {
            Entry::Vacant(vacant) => drop(vacant.insert(before.take())),
            Entry::Occupied(mut there) if there.get().is_some() => {
                before = there.insert(before.take());
            }
            Entry::Occupied(_forgotten) => {}
        }
        drop(before);
    }

    /// Gives up what is in a slot, and what will be put there.
    pub(crate) fn forget(&self, slot: String) {
        let before = lock(&self.held).insert(slot, None);
        drop(before);
    }
}

impl Slots {
    /// Takes what is in a slot out of it.
    pub fn take(&self, slot: &str) -> Option<Holding> {
        self.shelf.take(slot)
    }

    /// Puts something into a slot; what was there is given up.
    pub fn put(&self, slot: String, holding: Holding) {
        self.shelf.put(slot, holding);
    }

    /// Gives up what is in a slot, and what will be put there.
    pub fn forget(&self, slot: String) {
        self.shelf.forget(slot);
    }

    /// The owner of this name: as long as its session lives, the same.
    pub fn owner(&self, session: &Session, name: &str) -> Owner {
        let key = format!("{name}@{}", session.lease());
        lock(&self.owners).entry(key).or_insert_with(|| session.owner(name)).clone()
    }

    /// The taker of a queue, one for each session.
    pub fn taker(&self, session: &Session, queue: &str) -> QueueTaker {
        let key = format!("{queue}@{}", session.lease());
        lock(&self.takers).entry(key).or_insert_with(|| session.queue(queue.to_owned())).clone()
    }
}
