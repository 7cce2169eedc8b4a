//! A worker of the demo. In a loop, it acquires the lock, reads the counter, writes to the ledger with the fencing
//! token, writes the increment in a guarded transaction, and releases the lock. The node and the lock are in the
//! worker's process: if that process is killed or suspended, so is the worker.
//!
//! A worker deliberately never checks whether it still holds the lock. It also writes to the store if the ledger has
//! rejected its write. Fencing must make these writes safe nevertheless.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use bowline::{Revision, Token};
use bowline_check::{KvCall, KvReply, Seen};
use bowline_fleet::calls::{Call, Kind, Reply};
use bowline_fleet::{Answer, Order, Process, moment};
use serde_json::{Value, json};

use crate::account::{Point, Shared};
use crate::stage::DemoError;
use crate::timeline::ms;

/// Name of the lock for all increments.
const LOCK: &str = "demo/lock";
/// Key of the counter.
pub(crate) const COUNT: &str = "demo/count";
/// Prefix of the keys of the increments.
pub(crate) const OPS: &str = "demo/op/";
/// Maximum time to wait for the lock.
const LOCK_PATIENCE: Duration = Duration::from_secs(10);
/// Maximum number of attempts for an increment with an unknown outcome, and the timeout of each. The timeout is shorter
/// than an election, so that unknown outcomes occur.
const TRIES_MAX: u32 = 12;
const TRY: Duration = Duration::from_millis(400);
/// Pause before the next attempt after the lock was not acquired.
const PAUSE: Duration = Duration::from_millis(50);

/// A worker in one incarnation of its process.
pub(crate) struct Worker {
    pub(crate) shared: Arc<Shared>,
    pub(crate) process: Arc<Process>,
    /// Index of the process.
    pub(crate) seat: usize,
    /// Name of the worker, unique over all processes and incarnations: `n2.1.w1` is the first worker of `n2` in its
    /// first incarnation.
    pub(crate) name: String,
}

/// Reason for which an attempt has ended without a result.
enum Stop {
    /// The worker's process has ended.
    Gone,
    /// The lock was lost or not acquired.
    Lost(String),
    /// The demo must end.
    Fatal(DemoError),
}

impl From<DemoError> for Stop {
    fn from(error: DemoError) -> Self {
        Stop::Fatal(error)
    }
}

impl Worker {
    /// Works until the workers must rest or the process has ended.
    pub(crate) fn run(self) {
        for attempt in 1_u64.. {
            if self.shared.lock().resting {
                break;
            }
            // The attempts of a worker are numbered: `n2.1.w1.17` is the 17th.
            match self.attempt(&format!("{}.{attempt}", self.name)) {
                Ok(()) => {}
                Err(Stop::Gone) => break,
                Err(Stop::Fatal(error)) => {
                    self.shared.fail(error);
                    break;
                }
                Err(Stop::Lost(why)) => {
                    self.report("lost", &json!({"worker": self.name, "why": why}));
                    thread::sleep(PAUSE);
                }
            }
        }
        self.shared.change(|account| account.workers -= 1);
    }

    fn member(&self) -> &str {
        self.name.split('.').next().unwrap_or_default()
    }

    fn report(&self, event: &str, fields: &Value) {
        self.shared.report(Some(self.member()), event, fields);
    }

    fn ask(&self, call: Call) -> Result<Answer, Stop> {
        self.process.ask(&Order::Call(Box::new(call))).recv().map_err(|_| Stop::Gone)
    }

    /// Makes a call that must succeed while the lock is held.
    fn call(&self, what: &str, call: Call) -> Result<Reply, Stop> {
        match self.ask(call)? {
            Answer::Came(reply) => Ok(*reply),
            Answer::Refused(why) | Answer::Unknown(why) | Answer::Applied(why) => {
                Err(Stop::Lost(format!("cannot {what}: {why}")))
            }
            answer => Err(nonsense(&answer)),
        }
    }

    fn attempt(&self, op: &str) -> Result<(), Stop> {
        let slot = self.name.clone();
        let (lock, kind, wait_ms) = (LOCK.to_owned(), Kind::Mutex, ms(LOCK_PATIENCE));
        let acquire = Call::Acquire { slot: slot.clone(), lock, kind, wait_ms };
        let token = match self.call("acquire the lock", acquire)? {
            Reply::Granted { token: (revision, handoff) } => {
                Token::new(Revision(revision), handoff)
            }
            reply => return Err(nonsense(&reply)),
        };
        self.shared.change(|account| account.granted(&self.name));
        match self.increment(op, token) {
            Err(Stop::Lost(why)) => self.report("lost", &json!({"worker": self.name, "why": why})),
            made => made?,
        }
        match self.call("release the lock", Call::Release { slot })? {
            Reply::Held { held: true, .. } => Ok(()),
            _ => Err(Stop::Lost("the lock was lost".to_owned())),
        }
    }

    /// Makes one increment under the lock: reads the counter, writes to the ledger, then to the store.
    fn increment(&self, op: &str, token: Token) -> Result<(), Stop> {
        let begun = self.shared.history.begin(0, "", KvCall::Get { key: COUNT.into() });
        let get = Call::Get { key: COUNT.to_owned(), local: false };
        let Reply::Rows { revision, rows } = self.call("read the counter", get)? else {
            return Err(Stop::Lost("cannot read the counter: unexpected reply".to_owned()));
        };
        let modified = rows.first().map(|row| row.modified);
        let count = rows.first().map_or(Ok(0), |row| row.value.parse::<i64>());
        let count = count.map_err(|_| DemoError::Halted(format!("not a counter: {rows:?}")))?;
        let value = modified.map(|_| count.into());
        let seen = Seen::Read { value, modified };
        self.shared.history.ok(begun, KvReply { seen, revision: Some(revision) });

        self.stay(Point::BeforeLedger, op, token)?;
        let entry = self.shared.write(op, token)?;
        if !entry.accepted {
            self.shared.change(|account| account.evidence.refused.insert(op.to_owned()));
            let fields = json!({"op": op, "token": token, "highest": entry.highest});
            self.report("ledger_refused", &fields);
        }
        self.stay(Point::BeforeStore, op, token)?;
        self.commit(op, token, count + 1, modified)
    }

    /// Pauses at this point if the demo has requested it. Returns an error if the process was killed meanwhile.
    fn stay(&self, at: Point, op: &str, token: Token) -> Result<(), Stop> {
        self.shared.stay(self.seat, at, op, token);
        if self.process.is_over() { Err(Stop::Gone) } else { Ok(()) }
    }

    /// Writes the increment if the lock is still held. Retries after an unknown outcome. The increment's key, which
    /// must not exist, prevents it from being applied twice.
    fn commit(
        &self,
        op: &str,
        token: Token,
        count: i64,
        modified: Option<u64>,
    ) -> Result<(), Stop> {
        let key = format!("{OPS}{op}");
        let call = Call::CommitHeld {
            slot: self.name.clone(),
            missing: key.clone(),
            put: vec![(COUNT.to_owned(), count.to_string()), (key, format!("{count} {token}"))],
            limit_ms: ms(TRY),
        };
        // The lock makes the transaction a compare-and-set of the counter.
        let (key, value) = (COUNT.into(), count.into());
        let written = KvCall::CompareAndSet { key, expect: modified, value };
        let (began, begun) = (moment::now(), self.shared.history.begin(0, "", written));
        let op = op.to_owned();
        let mut doubt: Option<String> = None;
        for tries in 1..=TRIES_MAX {
            match self.ask(call.clone())? {
                Answer::Came(reply) => match *reply {
                    Reply::Swapped { swapped, revision } if swapped || doubt.is_some() => {
                        // If an earlier attempt was applied, its revision is unknown.
                        if swapped {
                            let (seen, revision) = (Seen::Changed(true), Some(revision));
                            self.shared.history.ok(begun, KvReply { seen, revision });
                        }
                        self.shared.acknowledge(self.member(), op, count, began, tries);
                        return Ok(());
                    }
                    Reply::Swapped { .. } => {
                        let why = format!("{op} was in the store before it was written");
                        return Err(DemoError::Halted(why).into());
                    }
                    Reply::Held { .. } => {
                        self.report("store_refused", &json!({"op": op}));
                        if doubt.is_none() {
                            self.shared.history.failed(begun);
                        }
                        self.shared.change(|account| {
                            let refused = match doubt {
                                None => &mut account.evidence.refused,
                                Some(_) => &mut account.doubtful,
                            };
                            refused.insert(op.clone());
                            account.evidence.refused_by_store.insert(op)
                        });
                        return Ok(());
                    }
                    reply => return Err(nonsense(&reply)),
                },
                Answer::Unknown(why) | Answer::Applied(why) => doubt = Some(why),
                // Nothing was applied.
                Answer::Refused(_) => {}
                answer => return Err(nonsense(&answer)),
            }
        }
        let why = doubt.unwrap_or_else(|| "too busy at every attempt".to_owned());
        self.report("unknown", &json!({"op": op, "why": why}));
        self.shared.change(|account| account.doubtful.insert(op));
        Ok(())
    }
}

fn nonsense(answer: &dyn std::fmt::Debug) -> Stop {
    Stop::Fatal(DemoError::Halted(format!("unexpected answer: {answer:?}")))
}
