//! An election: candidates campaign, lead for a while, and resign. While one says that it leads nobody else does, tokens rise,
//! and whoever asks is told somebody who may lead at that moment.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use bowline::check::{
    At, History, Mutex, MutexCall, MutexReply, Operation, Outcome, Value, linear, lines,
};

use super::lock::token_number;
use super::{Client, Judgement, Kind, Workload, budget};
use crate::caller::{Caller, Miss, Timed};
use crate::calls::{Call, Reply};
use crate::ledger::Book;

pub(super) const KIND: Kind = Kind {
    name: "election",
    about: "while one says that it leads nobody else does, and observers see who may",
    least: &[("campaign", 60), ("observe", 30)],
    clients: 2,
    is_control: false,
    make: || Box::new(Election::default()),
};

/// How many elections there are at a time: whoever dies in two of them leaves one for the others.
const ELECTIONS: u64 = 3;
/// After so many terms there are others: the fewer an election has, the faster it is judged.
const TERMS: u64 = 400;
const WAIT_MS: u64 = 2000;
const LEADS_MS: u64 = 12;

/// See the module.
#[derive(Default)]
struct Election {
    terms: Book<MutexCall, MutexReply>,
    seen: Book<(), Option<String>>,
    next: AtomicU64,
}

fn name(number: u64, caller: &mut Caller<'_>) -> String {
    format!("e/{:04}/{}", number / TERMS, caller.dice.below(ELECTIONS))
}

impl Election {
    fn observe(&self, caller: &mut Caller<'_>) {
        let name = name(self.next.load(Ordering::Relaxed), caller);
        let call = Call::Leader { name: name.clone() };
        let observe = |caller: &mut Caller<'_>| match caller.call(&call)? {
            Reply::Leader(leader) => Ok(leader),
            reply => Err(Miss::nonsense(&reply)),
        };
        drop(caller.operation(&self.seen, "observe", &name, (), observe));
    }

    fn lead(&self, caller: &mut Caller<'_>) {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let (name, client) = (name(number, caller), caller.client);
        let who = format!("{client}.{number}");
        let owner = || Value::from(who.as_str());
        let call = Call::Campaign {
            slot: who.clone(),
            name: name.clone(),
            value: who.clone(),
            wait_ms: WAIT_MS,
        };
        let invoked = caller.now();
        let stand = MutexCall::Acquire { owner: owner() };
        let stood = caller.operation(&self.terms, "campaign", &name, stand, |caller| match caller
            .call(&call)?
        {
            Reply::Granted { token } => {
                Ok(MutexReply::Acquired { token: Some(token_number(token)) })
            }
            reply => Err(Miss::nonsense(&reply)),
        });
        let mut seen = invoked;
        match stood {
            Ok(_) => {}
            Err(Miss::Failed(_)) => return,
            Err(Miss::Unknown(_)) => {
                caller.forget(who.clone());
                self.terms.begin(client, &name, seen, MutexCall::Release { owner: owner() });
                return;
            }
        }
        for _ in 0..caller.dice.below(3) {
            thread::sleep(Duration::from_millis(caller.dice.below(LEADS_MS)));
            let look = Call::Look { slot: who.clone() };
            let Timed { result, invoked, .. } = caller.timed("look", |caller| caller.call(&look));
            if result != Ok(Reply::Held(true)) {
                break;
            }
            seen = invoked;
        }
        let resign = Call::Release { slot: who.clone() };
        let Timed { result, invoked, ended } =
            caller.timed("resign", |caller| caller.call(&resign));
        let release = MutexCall::Release { owner: owner() };
        if result == Ok(Reply::Held(true)) {
            let index = self.terms.begin(client, &name, invoked, release);
            self.terms.end(index, Outcome::Ok { at: At(ended), reply: MutexReply::Released });
        } else {
            // It was lost, at any moment since it was last seen.
            caller.forget(who.clone());
            self.terms.begin(client, &name, seen, release);
        }
    }
}

impl Client for &Election {
    fn step(&mut self, caller: &mut Caller<'_>) {
        if caller.dice.below(4) == 0 {
            self.observe(caller);
        } else {
            self.lead(caller);
        }
    }
}

impl Workload for Election {
    fn client<'a>(&'a self, _number: u64) -> Box<dyn Client + 'a> {
        Box::new(self)
    }

    fn judge(&self) -> Judgement {
        let (terms, seen) = (self.terms.history(), self.seen.history());
        let model = Mutex { holds_max: 1, is_fenced: true };
        let verdict = linear::check(&model, &terms, budget());
        let well = format!("{} observations", seen.len());
        Judgement::of(&verdict, format!("{} operations fit", terms.len()))
            .and(Judgement::of_complaints(sights(&terms, &seen), well))
    }

    fn lines(&self) -> String {
        self.terms.history().iter().map(|op| lines::line(op) + "\n").collect()
    }
}

/// Observers who saw somebody who cannot have led then, or nobody while somebody surely led.
fn sights(
    terms: &History<MutexCall, MutexReply>,
    seen: &History<(), Option<String>>,
) -> Vec<String> {
    type Term<'a> = [Option<&'a Operation<MutexCall, MutexReply>>; 2];
    let mut by: BTreeMap<String, Term<'_>> = BTreeMap::new();
    for operation in terms {
        let (owner, part) = match &operation.call {
            MutexCall::Acquire { owner } => (owner, 0),
            MutexCall::Release { owner } => (owner, 1),
        };
        if let Value::Text(owner) = owner {
            by.entry(owner.to_string()).or_default()[part] = Some(operation);
        }
    }
    let mut complaints = Vec::new();
    for (index, sight) in seen.iter().enumerate() {
        let Outcome::Ok { at, reply } = &sight.outcome else { continue };
        let may = |[stood, resigned]: &Term<'_>| {
            let began = stood.is_some_and(|stood| stood.invoked <= *at);
            let over = resigned.is_some_and(|resigned| match resigned.outcome {
                Outcome::Ok { at, .. } => at < sight.invoked,
                _ => false,
            });
            began && !over
        };
        let surely = |[stood, resigned]: &Term<'_>| {
            let stood = stood.filter(|stood| stood.object == sight.object);
            let led = stood.is_some_and(|stood| match stood.outcome {
                Outcome::Ok { at, .. } => at < sight.invoked,
                _ => false,
            });
            led && resigned.is_some_and(|resigned| resigned.invoked > *at)
        };
        match reply {
            Some(who) if !by.get(who).is_some_and(may) => {
                complaints.push(format!("observation {index} sees {who}, who cannot lead then"));
            }
            None => {
                let leaders: Vec<_> = by.iter().filter(|(_, term)| surely(term)).collect();
                if let Some((who, _)) = leaders.first() {
                    complaints.push(format!("observation {index} sees nobody, while {who} leads"));
                }
            }
            Some(_) => {}
        }
    }
    complaints
}
