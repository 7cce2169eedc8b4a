//! `bowline demo`: the story on one page. Processes that embed a node each are killed and stopped while
//! their workers count together, under a lock; in the end it is proved that nothing was lost, nothing
//! was counted twice, and nobody wrote who had lost the lock.
//!
//! ```text
//!                parent: story, faults, ledger file, proof
//!                  │ orders ▲ reports              ▲ appends, by socket
//!        ┌─────────┼────────┴──┬──────────────┐    │
//!        n1 node + workers     n2             n3 ──┘        `kill -9`, stop, resume
//!        └────── raft on loopback, a data directory each ──┘
//! ```
//!
//! The parent embeds no node and believes nobody: it keeps its own account of what workers were told,
//! the ledger's file says what came to it, and every member says in the end what it has.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};

mod wire;

mod workplace;

mod crew;
mod faults;
mod ledger;
mod node;
mod stage;

mod proof;
mod timeline;

use crew::Crew;
use faults::Schedule;
use ledger::Ledger;
use stage::{Signals, Stage, Trouble};
use timeline::{Event, Timeline};
use workplace::Workplace;

/// What was claimed does not hold.
const EXIT_DISPROVEN: u8 = 1;
/// It was interrupted, as shells count it.
const EXIT_INTERRUPTED: u8 = 130;

/// How many workers each process has.
const WORKERS: u32 = 2;

/// Kill -9 a cluster at work, and prove that nothing was lost
///
/// Starts processes on this machine, each embedding a Bowline node with a real data directory, real
/// sockets and synced writes. Workers in all of them increment one counter: take a lock, read the
/// counter, write to a ledger outside the store with the lock's fencing token, write the increment with
/// a guarded transaction, release.
///
/// Meanwhile the leader is killed with -9, processes that hold the lock are killed with -9, and one that
/// holds the lock is stopped until its lease has ended and another worker has the lock; then it goes on
/// and tries its late writes. In the end every member is read and the run is judged: every acknowledged
/// increment is there exactly once, fencing tokens only rose, the late writes were refused by the ledger
/// and by the store, and more.
///
/// Exit codes: 0 all was proven; 1 something was disproven; 2 wrong arguments, or the machine does not
/// allow it; 130 interrupted.
#[derive(Args, Clone, Debug)]
pub(crate) struct Options {
    /// How many processes
    #[arg(
        long,
        default_value = "3",
        value_parser = PossibleValuesParser::new(["1", "3", "5"])
            .map(|nodes| nodes.parse::<u8>().expect("it is one of these"))
    )]
    nodes: u8,

    /// How long to work, in seconds
    ///
    /// Every kind of fault is carried out once, however short this is; starting before, and the proof
    /// after, come on top.
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..=3600))]
    seconds: u64,

    /// Where to work: an empty directory, or one that is made
    ///
    /// Everything that was made there is removed in the end. Default: a fresh directory among the
    /// system's temporary files.
    #[arg(long)]
    dir: Option<PathBuf>,

    /// Which faults, when and to whom
    ///
    /// The same seed draws the same schedule; what the processes make of it is theirs. Default: a
    /// random one, which is shown.
    #[arg(long)]
    seed: Option<u64>,

    /// Print a JSON object for each event, the verdict last, and nothing else
    #[arg(long)]
    json: bool,

    /// Leave the data, the members' logs and the ledger where they are
    #[arg(long)]
    keep: bool,
}

/// One process of the demo.
pub(crate) fn node_main() -> ExitCode {
    node::main()
}

/// The demo.
pub(crate) fn main(options: &Options) -> ExitCode {
    // One thread: the children ask to be killed when the thread ends that made them.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let proven = runtime
        .map_err(Trouble::environment("no runtime"))
        .and_then(|runtime| runtime.block_on(run(options)));
    match proven {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(EXIT_DISPROVEN),
        Err(trouble) => {
            crate::complain(&trouble);
            ExitCode::from(match trouble {
                Trouble::Interrupted(_) => EXIT_INTERRUPTED,
                Trouble::Environment(_) | Trouble::Output(_) => crate::EXIT_USAGE,
                Trouble::Halted(_) => EXIT_DISPROVEN,
            })
        }
    }
}

/// Whether all was proven.
async fn run(options: &Options) -> Result<bool, Trouble> {
    let signals = Signals::listen().map_err(Trouble::environment("signals cannot be heard"))?;
    let given = options.dir.as_deref();
    let place = Workplace::make(given, options.keep).map_err(|error| {
        let dir = given.map_or_else(std::env::temp_dir, PathBuf::from);
        Trouble::Environment(format!("cannot work in {}: {error}", dir.display()))
    })?;
    let seed = options.seed.unwrap_or_else(random_seed);
    let timeline = Timeline::begin(options.json, Duration::from_secs(options.seconds));
    let ledger = Ledger::open(&place.ledger()).await;
    let ledger = ledger.map_err(Trouble::environment("the ledger cannot be opened"))?;
    let addresses = workplace::free_addresses(usize::from(options.nodes), std::process::id())
        .map_err(Trouble::environment("no addresses for the members"))?;
    let crew = Crew::new(&place, addresses, ledger.address(), WORKERS)
        .map_err(Trouble::environment("this program cannot find itself"))?;
    let mut stage = Stage::set(crew, ledger, timeline, signals);
    let begins = Event::Begins {
        nodes: options.nodes,
        seconds: options.seconds,
        seed,
        dir: place.dir().display().to_string(),
    };
    stage.tell(None, &begins)?;

    let told = story(&mut stage, options, seed).await;
    // Whatever came of it, no process is left from here on.
    let claims = match told {
        Ok(()) => {
            let complaints = stage.crew.end().await;
            proof::judge(&stage.evidence(complaints)?)
        }
        Err(trouble) => {
            stage.crew.kill_all().await;
            stage.timeline().end_progress();
            match trouble {
                Trouble::Halted(why) => proof::halted(why),
                other => return Err(other),
            }
        }
    };
    stage.timeline().verdict(seed, &claims, &stage.figures()).map_err(Trouble::Output)?;
    if options.keep {
        stage.timeline().kept(place.dir()).map_err(Trouble::Output)?;
    }
    Ok(!claims.iter().any(proof::Claim::is_disproven))
}

/// What happens, in order.
async fn story(stage: &mut Stage, options: &Options, seed: u64) -> Result<(), Trouble> {
    let time = Duration::from_secs(options.seconds);
    stage.start_all().await?;
    let mut schedule = Schedule::new(seed, options.nodes);
    while schedule.goes_on(stage.worked(), time) {
        let round = schedule.draw();
        stage.pass(round.calm).await?;
        faults::carry_out(round, stage).await?;
    }
    stage.pass(time.saturating_sub(stage.worked())).await?;
    stage.rest().await?;
    stage.read_all().await
}

/// Small enough to be typed again.
fn random_seed() -> u64 {
    use std::hash::{BuildHasher, Hasher, RandomState};
    RandomState::new().build_hasher().finish() % 1_000_000
}
