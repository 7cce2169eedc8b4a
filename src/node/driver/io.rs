//! The connections of the driver to everything outside it: its inputs, the network, the log, and the workers that use
//! the disk.

use std::sync::Arc;

use crate::env::{Network, SendOutcome};
use crate::metrics::Meters;
use crate::model::{Lane, NodeId, PeerMessage};
use crate::node::requests::answer::StopReason;
use crate::node::requests::inbox::{Inbox, Input};
use crate::node::snapshots::backups::Backups;
use crate::node::snapshots::snapshot_worker::SnapshotQueue;
use crate::node::threads::log_worker::LogQueue;
use crate::{wal, warm};

/// Maximum capacity of the input buffer that is kept from turn to turn.
const INPUT_ROOM_MAX: usize = 1_024;

/// The handles with which a driver reaches the network and the workers.
pub(crate) struct Io {
    pub(crate) network: Box<dyn Network>,
    pub(crate) log: Arc<LogQueue>,
    pub(crate) log_reader: wal::LogReader,
    pub(crate) snapshot_queue: Arc<SnapshotQueue>,
    pub(crate) backups: Backups,
    pub(crate) warm: Arc<warm::WriteBehindQueue>,
    /// A buffer that the inbox fills while the driver processes the current inputs.
    pub(crate) input_room: Vec<Input>,
}

impl Io {
    /// Takes all inputs since the last call.
    pub(super) fn take_inputs(&mut self, inbox: &Inbox) -> Vec<Input> {
        inbox.take(std::mem::take(&mut self.input_room))
    }

    /// Keeps the buffer of processed inputs for the inbox.
    pub(super) fn reuse(&mut self, inputs: Vec<Input>) {
        self.input_room = emptied_buffer(inputs);
    }

    /// Sends a message to a peer. All messages go through here.
    pub(super) fn post(
        &mut self,
        to: NodeId,
        lane: Lane,
        message: PeerMessage,
        meters: &Meters,
    ) -> SendOutcome {
        let outcome = self.network.send(to, lane, message);
        match outcome {
            SendOutcome::Queued => {}
            SendOutcome::Full => meters.messages_dropped_total.one(),
            SendOutcome::Unreachable => meters.messages_unreachable_total.one(),
        }
        outcome
    }

    /// Ends the workers.
    pub(super) fn close(&self, reason: &StopReason) {
        self.log.close();
        self.snapshot_queue.close();
        self.backups.close(reason);
    }
}

/// Empties a buffer. Of a large buffer, only the capacity of `INPUT_ROOM_MAX` inputs is kept.
fn emptied_buffer<T>(mut inputs: Vec<T>) -> Vec<T> {
    inputs.clear();
    inputs.shrink_to(INPUT_ROOM_MAX);
    inputs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn burst_of_inputs_leaves_no_large_buffer() {
        let small = emptied_buffer(vec![1; INPUT_ROOM_MAX / 2]);
        assert!(small.is_empty() && small.capacity() >= INPUT_ROOM_MAX / 2);
        let large = emptied_buffer(vec![1; INPUT_ROOM_MAX * 100]);
        assert!((INPUT_ROOM_MAX..INPUT_ROOM_MAX * 2).contains(&large.capacity()));
    }
}
