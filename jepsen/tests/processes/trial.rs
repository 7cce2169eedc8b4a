//! Helpers for the tests of the runner: repeating a run until it is valid, and a nemesis whose damage every workload
//! must detect.

use std::thread;
use std::time::{Duration, Instant};

use bowline_jepsen::fleet::Fleet;
use bowline_jepsen::nemesis::{self, Nemesis, Wants};
use bowline_jepsen::process::LIMIT;
use bowline_jepsen::run::{Ran, Verdict};
use bowline_jepsen::{Answer, Dice, HarnessError, Order};

/// Maximum number of repetitions of an invalid run: on a busy machine too little may happen, even if everything is
/// correct.
pub(crate) const RUNS_MAX: usize = 5;

/// Repeats a run until it is valid.
pub(crate) fn until_judged(mut run: impl FnMut() -> Ran) -> Ran {
    let mut runs = (0..RUNS_MAX).map(|_| run());
    let mut last = runs.next().unwrap();
    while matches!(last.verdict, Verdict::Invalid(_))
        && let Some(again) = runs.next()
    {
        last = again;
    }
    last
}

/// A nemesis that deletes a row without the knowledge of the workload.
struct Thief {
    struck: u64,
}

pub(crate) static THIEF: nemesis::Kind = nemesis::Kind {
    name: "thief",
    about: "a row disappears",
    wants: Wants { leader_change: false, progress_inside: true, members_min: 1 },
    alone: true,
    possible: nemesis::anywhere,
    make: || Box::new(Thief { struck: 0 }),
};

/// Rows of a queue that its takers delete themselves, perhaps just before the thief does, so that their loss goes
/// unnoticed.
const FLEETING: [&str; 3] = ["/claim/", "/idle/", "/item/"];

impl Nemesis for Thief {
    fn begin(&mut self, fleet: &Fleet, dice: &mut Dice) -> Result<String, HarnessError> {
        let begun = Instant::now();
        while begun.elapsed() < LIMIT {
            let Some(Answer::Rows(rows)) = fleet.ask(0, &Order::Rows, LIMIT) else { continue };
            let may_be_stolen = |key: &str| !FLEETING.iter().any(|part| key.contains(part));
            let keys = rows.rows.into_iter().map(|row| row.key);
            let keys: Vec<String> = keys.filter(|key| may_be_stolen(key)).collect();
            if keys.is_empty() {
                thread::sleep(Duration::from_millis(20));
                continue;
            }
            let key = &keys[dice.one_of(keys.len())];
            if let Some(answer @ Answer::Done(_)) = fleet.ask(0, &Order::Delete(key.clone()), LIMIT)
            {
                self.struck += 1;
                return Ok(format!("steals {key}: {answer:?}"));
            }
        }
        Ok("finds nothing".to_owned())
    }

    fn struck(&self) -> u64 {
        self.struck
    }
}
