//! The holds of the clients inside the process of a node: locks, leaderships, items and watches, by slot.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::{Mutex, MutexGuard, PoisonError};

use bowline::{
    Guard, Leadership, Owner, Session, Watch,
    lock::Permit,
    queue::{Delivery, QueueTaker},
};

/// A hold.
pub enum Holding {
    /// A lock.
    Lock(Guard),
    /// Permits of a semaphore.
    Permit(Permit),
    /// A leadership.
    Leadership(Leadership),
    /// A delivery of a queue item.
    Item(Delivery),
    /// A watch.
    Watch(Box<Watch>),
    /// A watch that has ended. The reason was not reported to the client yet.
    Over(String),
}

/// Holds by slot.
pub struct Shelf<H> {
    /// `None` marks a slot that the client has given up: a hold that is put into it later is dropped at once.
    held: Mutex<BTreeMap<String, Option<H>>>,
}

impl<H> Default for Shelf<H> {
    fn default() -> Self {
        Self { held: Mutex::default() }
    }
}

/// The slots of a node process.
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
    /// Removes and returns the hold of a slot.
    pub fn take(&self, slot: &str) -> Option<H> {
        lock(&self.held).remove(slot).flatten()
    }

    /// Puts a hold into a slot. If the slot contains another hold, that hold is released.
    pub fn put(&self, slot: String, holding: H) {
        // The previous hold is dropped after the lock is released, because dropping a hold may take a moment.
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

    /// Releases the hold in a slot. A hold that is put into this slot later is released at once.
    pub fn forget(&self, slot: String) {
        let before = lock(&self.held).insert(slot, None);
        drop(before);
    }
}

impl Slots {
    /// Removes and returns the hold of a slot.
    pub fn take(&self, slot: &str) -> Option<Holding> {
        self.shelf.take(slot)
    }

    /// Puts a hold into a slot. If the slot contains another hold, that hold is released.
    pub fn put(&self, slot: String, holding: Holding) {
        self.shelf.put(slot, holding);
    }

    /// Releases the hold in a slot. A hold that is put into this slot later is released at once.
    pub fn forget(&self, slot: String) {
        self.shelf.forget(slot);
    }

    /// Returns the owner with this name, which stays the same during the life of the session.
    pub fn owner(&self, session: &Session, name: &str) -> Owner {
        let key = format!("{name}@{}", session.lease());
        lock(&self.owners).entry(key).or_insert_with(|| session.owner(name)).clone()
    }

    /// Returns the session's taker for a queue. Each session has one taker per queue.
    pub fn taker(&self, session: &Session, queue: &str) -> QueueTaker {
        let key = format!("{queue}@{}", session.lease());
        lock(&self.takers).entry(key).or_insert_with(|| session.queue(queue.to_owned())).clone()
    }
}
