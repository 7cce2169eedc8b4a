//! Killed leaders: the time to the next acknowledged write, and the writes around a kill.

use super::options::Options;
use super::report::{Kills, Report, Timeline};
use super::systems::{System, Systems};

/// The name of the row.
pub(super) const NAME: &str = "leader killed, to the next acknowledged write";

/// Number of callers whose writes are traced, divided among the two followers.
const CALLERS: usize = 16;

/// Width of an interval of the timeline, in milliseconds.
const BIN_MS: u64 = 10;

/// Kills the leaders of all systems in turns, and then traces the writes around one more kill.
pub(super) fn measure(
    options: &Options,
    systems: &mut Systems,
    report: &mut Report,
) -> Result<(), String> {
    let mut kills: Vec<(System, Vec<f64>)> = Vec::new();
    for round in 0..options.kills {
        for system in systems.in_order_of(round) {
            let Some(time) = systems.kill_leader(system)? else { continue };
            let millis = time.as_secs_f64() * 1e3;
            match kills.iter_mut().find(|(other, _)| *other == system) {
                Some((_, times)) => times.push(millis),
                None => kills.push((system, vec![millis])),
            }
        }
    }
    kills.sort_by_key(|(system, _)| *system);
    report.kills = kills.into_iter().map(|(system, times)| Kills::new(system, times)).collect();
    let (after, before) = options.traced;
    let count = (before + after).as_millis() as usize / BIN_MS as usize;
    for system in System::ALL {
        let traced = systems.trace_kill(system, CALLERS, before, before + after)?;
        let Some((trace, killed_ms)) = traced else { continue };
        let from_ms = killed_ms - before.as_millis() as u64;
        report.timelines.push(Timeline {
            system,
            callers: CALLERS,
            bin_ms: BIN_MS,
            from_ms: -(before.as_millis() as i64),
            writes: trace.bins(from_ms, BIN_MS, count),
            gap_ms: trace.longest_gap_ms(killed_ms, after.as_millis() as u64),
        });
    }
    Ok(())
}
