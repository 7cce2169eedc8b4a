//! A workload of registers while members join, are promoted and removed: the registers must stay linearizable.

use std::time::Duration;
use std::{thread, time::Instant};

use super::register::Registers;
use super::{Client, Exhibit, Kind, Workload};
use crate::caller::{Caller, Miss};
use crate::calls::{Call, Reply};
use crate::fleet::Setup;
use crate::process::HarnessError;
use crate::progress::NOBODY_REMOVED;

pub(super) const KIND: Kind = Kind {
    name: "membership",
    about: "registers stay linearizable while a member repeatedly joins, is promoted, and is removed",
    least: &[("read", 60), ("write", 60), ("promote", 2), ("remove", 2)],
    clients: 3,
    control: None,
    make: || Box::new(Membership::default()),
};

/// Maximum time to try each step of a change, and the pause between attempts.
const STEP_WITHIN: Duration = Duration::from_secs(20);
const TRY_EVERY: Duration = Duration::from_millis(100);
/// How long a member stays unchanged between two steps.
const STAYS: Duration = Duration::from_millis(700);

/// The workload.
#[derive(Default)]
struct Membership {
    registers: Registers,
}

/// The first client, which acts as the operator.
struct Operator {
    /// Whether the directory of the additional member could not be cleared, so that no further member can join.
    is_over: bool,
}

impl Operator {
    /// Repeats a call on one member after the other until the call succeeds or `is_done` returns true.
    fn change_until_done(
        caller: &mut Caller<'_>,
        kind: &'static str,
        call: &Call,
        is_done: impl Fn(&Reply) -> bool,
    ) -> bool {
        let until = Instant::now() + STEP_WITHIN;
        let timed = caller.timed(kind, |caller| {
            loop {
                let last = caller.call(call).map(drop);
                if let Ok(members) = caller.call(&Call::Members)
                    && is_done(&members)
                {
                    return Ok(());
                }
                if Instant::now() > until {
                    return Err(last.err().unwrap_or(Miss::Unknown("not completed".to_owned())));
                }
                caller.move_on();
                thread::sleep(TRY_EVERY);
            }
        });
        timed.result.is_ok()
    }
}

impl Client for Operator {
    fn step(&mut self, caller: &mut Caller<'_>) {
        if self.is_over {
            return;
        }
        let place = caller.fleet.members();
        let name = format!("m{place}");
        let joined = caller.timed("join", |caller| {
            let failed = |trouble: HarnessError| Miss::Failed(trouble.to_string());
            let _held = caller.fleet.hold(place);
            caller.fleet.spawn_joining(place).map_err(failed)?;
            caller.fleet.await_ready(place).map_err(failed)
        });
        if joined.result.is_ok() {
            thread::sleep(STAYS);
            let promote = Call::Promote { member: name.clone() };
            Self::change_until_done(
                caller,
                "promote",
                &promote,
                |members| matches!(members, Reply::Members { voters, .. } if voters.contains(&name)),
            );
            thread::sleep(STAYS);
        }
        if let Err(trouble) = caller.fleet.lets_go(place) {
            caller.fleet.is_wrong(trouble.to_string());
        }
        let remove = Call::Remove { member: name.clone() };
        let kind = if joined.result.is_ok() { "remove" } else { NOBODY_REMOVED };
        let is_out = Self::change_until_done(caller, kind, &remove, |members| {
            matches!(members, Reply::Members { voters, learners, .. }
                if !voters.contains(&name) && !learners.contains(&name))
        });
        if !is_out {
            return;
        }
        let _held = caller.fleet.hold(place);
        match caller.fleet.clear(place) {
            Ok(()) => {}
            Err(trouble @ (HarnessError::Stopped(_) | HarnessError::Ended(_))) => {
                caller.fleet.is_wrong(trouble.to_string());
            }
            // If a member cannot be cleared, no other member can join. The run then has too few operations and is
            // invalid.
            Err(_) => self.is_over = true,
        }
    }
}

impl Workload for Membership {
    fn prepare(&self, setup: &mut Setup) {
        setup.spare = setup.spare.max(1);
    }

    fn client<'a>(&'a self, number: u64) -> Box<dyn Client + 'a> {
        match number {
            0 => Box::new(Operator { is_over: false }),
            _ => self.registers.client(number),
        }
    }

    fn conclude(&self, caller: &mut Caller<'_>) -> Result<(), Miss> {
        self.registers.conclude(caller)
    }

    fn exhibits(&self) -> Vec<Exhibit> {
        self.registers.exhibits()
    }
}
