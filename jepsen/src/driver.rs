//! Runs a node in its own process: `DIR NAME NAME=ADDRESS,... [POINT:HITS]`.
//!
//! [`node`] reads the orders and writes the replies. This module configures the node, and injects faults and crashes into
//! the process.

use std::error::Error as StdError;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use bowline::env::{Point, Points};
use bowline::{Blocking, Config, Node};
use bowline_fleet::node;

use crate::dice::number_in;
use crate::fault_injection::FaultInjection;
use crate::fleet::{DEADLINE_MS, DOORS, ELECTION_MS, JOIN, LISTEN, REPLACES, SESSION_MS};
use crate::nemesis::WARM_COPY;
use crate::wire::{self, Answer, Message, Order};

/// The cluster token of all members.
const TOKEN: &str = "jepsen";

/// Runs a node until the standard input ends.
///
/// # Errors
///
/// Returns an error if the arguments are invalid, or if the node does not start or does not shut down.
pub fn main(words: &[String]) -> Result<(), Box<dyn StdError>> {
    let [dir, name, members, armed @ ..] = words else {
        return Err("usage: DIR NAME NAME=ADDRESS,... [POINT:HITS]".into());
    };
    #[cfg(bowline_mutants)]
    if let Ok(mutant) = std::env::var("BOWLINE_MUTANT") {
        bowline::mutant::Mutant::named(&mutant).ok_or("unknown mutant")?.plant_everywhere();
    }
    let members: Vec<(&str, &str)> =
        members.split(',').filter_map(|member| member.split_once('=')).collect();
    let trap = Arc::new(Trap::default());
    for armed in armed {
        let (point, hits) = armed.split_once(':').ok_or("POINT:HITS")?;
        trap.arm(wire::point_named(point).ok_or("unknown crash point")?, hits.parse()?);
    }
    let doors = Arc::new(FaultInjection::default());
    if let Ok(words) = std::env::var(DOORS) {
        doors.order(&words)?;
    }
    let config = config(dir, name, members).env(doors.env(trap.clone()));
    let started = match Node::start(config).block() {
        Ok(node) => node,
        Err(error) => {
            node::say(&Message::Stopped(format!("it did not start: {error}")));
            return Err(error.into());
        }
    };
    node::say(&Message::Ready);
    let carry_out = |order: &Order| match order {
        Order::Arm(point, hits) => {
            trap.arm(*point, *hits);
            Answer::Armed
        }
        Order::Fault(words) => match doors.order(words) {
            Ok(None) => Answer::Armed,
            Ok(Some(number)) => Answer::Done(number),
            Err(why) => Answer::Refused(why),
        },
        _ => Answer::Refused("order handled elsewhere".to_owned()),
    };
    let stopped = |reason: String| match doors.order("failures") {
        Ok(Some(failures)) if failures > 0 => format!("{reason}{FAILURES}{failures}"),
        _ => reason,
    };
    node::serve(&started, &carry_out, &stopped);
    Ok(node::shut_down(started)?)
}

fn config(dir: &str, name: &str, members: Vec<(&str, &str)>) -> Config {
    let election_ms = number_in(ELECTION_MS).unwrap_or(400);
    let mut config = Config::new(dir, name)
        .cluster_token(TOKEN)
        .heartbeat(Duration::from_millis(election_ms / 8))
        .election_timeout(Duration::from_millis(election_ms))
        .log_segment_bytes(64 << 10)
        .snapshot_log_bytes(64 << 10);
    config = match std::env::var(JOIN) {
        // The first address is the node's own address, so it is not used to join.
        Ok(addresses) => {
            let mut addresses = addresses.split(',');
            let own = addresses.next().unwrap_or_default().to_owned();
            config.join(addresses.map(str::to_owned)).advertise(own)
        }
        Err(_) => config.members(members),
    };
    if let Ok(name) = std::env::var(REPLACES) {
        config = config.replacing(name);
    }
    if std::env::var(WARM_COPY).is_ok() {
        config = config.warm_copy(true);
    }
    if let Ok(listen) = std::env::var(LISTEN) {
        config = config.listen(listen);
    }
    if let Some(millis) = number_in(SESSION_MS) {
        config = config.session_ttl(Duration::from_millis(millis));
    }
    if let Some(millis) = number_in(DEADLINE_MS) {
        config = config.call_deadline(Duration::from_millis(millis));
    }
    config
}

/// Separator between the reason for which a node has stopped and the number of failed write and sync calls of its log.
pub(crate) const FAILURES: &str = "; calls of its log that have failed: ";

/// Kills the process at its armed point.
#[derive(Default)]
struct Trap {
    armed: Mutex<Option<(Point, u64)>>,
}

impl Trap {
    fn arm(&self, point: Point, hits: u64) {
        *self.armed.lock().unwrap_or_else(PoisonError::into_inner) = Some((point, hits));
    }
}

impl Points for Trap {
    fn reach(&self, reached: Point) {
        let mut armed = self.armed.lock().unwrap_or_else(PoisonError::into_inner);
        let Some((point, hits)) = armed.as_mut().filter(|(point, _)| *point == reached) else {
            return;
        };
        *hits = hits.saturating_sub(1);
        if *hits == 0 {
            node::say(&Message::Dies(*point));
            let me = rustix::process::getpid();
            let killed = rustix::process::kill_process(me, rustix::process::Signal::KILL);
            // This thread must do nothing after this point, however late the signal arrives.
            while killed.is_ok() {
                thread::park();
            }
        }
    }
}
