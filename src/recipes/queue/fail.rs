//! [`FailCall`]: releases an item for another attempt, or moves it to the dead letters.

use std::time::Duration;

use crate::api::awaited;

use super::{Delivery, QueueError};

/// Outcome of [`Delivery::fail`]: whether the item is delivered again.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(rename_all = "snake_case")
)]
#[non_exhaustive]
pub enum FailOutcome {
    /// The item was released, and will be delivered again.
    Retry,
    /// This was the last attempt: the item was moved to the dead-letter queue.
    DeadLetter,
}

impl FailOutcome {
    /// Reports whether the item was moved to the dead-letter queue.
    pub fn is_dead_letter(self) -> bool {
        self == Self::DeadLetter
    }
}

impl Delivery {
    /// Reports whether this is the last attempt that
    /// [`QueueTaker::attempts_max`](super::QueueTaker::attempts_max) of this taker allows. Always
    /// `false` for a taker without that limit.
    pub fn is_last_attempt(&self) -> bool {
        self.attempts_max.is_some_and(|max| self.attempt() >= max)
    }

    /// Reports that the work has failed. If the taker's
    /// [`attempts_max`](super::QueueTaker::attempts_max) allows another attempt, releases the item
    /// like [`Delivery::nack`], or with [`FailCall::retry_after`] like [`Delivery::nack_after`]. If
    /// this was the last attempt, moves the item to the dead-letter queue at once, with this reason,
    /// like [`Delivery::dead_letter`]. Returns which of the two happened.
    ///
    /// Only the reason of the last attempt is kept. A taker without `attempts_max` always releases
    /// the item. If the call is dropped before it is awaited, the item is released.
    ///
    /// ```
    /// # use bowline::{Blocking, Config, Node, queue::FailOutcome};
    /// # use std::time::Duration;
    /// # let dir = tempfile::tempdir()?;
    /// # let node = Node::start(Config::new(dir.path(), "solo")).block()?;
    /// let mails = node.session().block()?.queue("mails").attempts_max(2);
    /// mails.put("to: ann").block()?;
    ///
    /// let mail = mails.take().block()?;
    /// let failed = mail.fail("no route to host").retry_after(Duration::from_millis(10));
    /// assert_eq!(failed.block()?, FailOutcome::Retry);
    ///
    /// let mail = mails.take().block()?;
    /// assert!(mail.is_last_attempt());
    /// assert_eq!(mail.fail("mailbox full").block()?, FailOutcome::DeadLetter);
    /// let dead = mails.dead_letters().items().block()?.remove(0);
    /// assert_eq!(dead.dead_letter.unwrap().reason, "mailbox full");
    /// # node.shutdown().block();
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// - [`QueueError::ClaimLost`]: the item did not belong to this taker any more. Nothing was
    ///   changed.
    /// - [`QueueError::Store`]: on the last attempt, see [`Delivery::dead_letter`]. If the item was
    ///   not moved, it is released, and the next taker with the limit moves it with a general reason.
    ///   On earlier attempts, see [`Delivery::nack_after`].
    #[doc(alias = "reject", alias = "retry")]
    pub fn fail(self, reason: impl Into<String>) -> FailCall {
        FailCall { delivery: self, reason: reason.into(), delay: Duration::ZERO }
    }
}

/// A call that reports failed work; see [`Delivery::fail`].
#[derive(Debug)]
#[must_use = "unless this is awaited, the item is released without the reason"]
pub struct FailCall {
    delivery: Delivery,
    reason: String,
    delay: Duration,
}

impl FailCall {
    /// Delays the next attempt, if there is one; see [`Delivery::nack_after`]. Default: no delay.
    pub fn retry_after(mut self, delay: Duration) -> Self {
        self.delay = delay;
        self
    }

    async fn run(self) -> Result<FailOutcome, QueueError> {
        let Self { delivery, reason, delay } = self;
        if delivery.is_last_attempt() {
            delivery.dead_letter(reason).await?;
            return Ok(FailOutcome::DeadLetter);
        }
        delivery.nack_after(delay).await?;
        Ok(FailOutcome::Retry)
    }
}

awaited!(FailCall -> Result<FailOutcome, QueueError>);
