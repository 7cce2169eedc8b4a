//! The doors of a node's process to the world, with what the harness may do to them from outside: its disk, its
//! clock. Lives inside the node's process; the harness opens and closes them by [`Order::Door`](crate::Order::Door).
//!
//! | words | what they do |
//! |---|---|
//! | `close` | all doors are as if nothing had been |

use std::sync::Arc;

use bowline::env::{Env, Points};

/// See the module.
#[derive(Debug, Default)]
pub struct Doors {}

impl Doors {
    /// The world through these doors.
    pub fn env(self: &Arc<Self>, points: Arc<dyn Points>) -> Env {
        Env { points, ..Env::real() }
    }

    /// Does what the harness wants.
    ///
    /// # Errors
    /// It makes no sense.
    pub fn order(&self, words: &str) -> Result<(), String> {
        match words.split(' ').collect::<Vec<_>>()[..] {
            ["close"] => Ok(()),
            _ => Err(format!("there is no door for {words:?}")),
        }
    }
}
