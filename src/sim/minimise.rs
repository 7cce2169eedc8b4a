//! Minimizes a failure by delta debugging: removes as many parts of its plan as possible.
//!
//! Halves are removed first, then quarters, down to single parts. The result is minimal: removing any one more part
//! makes the failure disappear, unless the search ran out of time.

/// Returns the numbers of the parts that can be left out together, in ascending order: without them, the case
/// `still_fails`. If `still_fails` returns `None`, the search ends.
///
/// The parts have the numbers from 0 to `parts - 1`, and `still_fails` gets the numbers of those to leave out.
/// [`Scenario::run_all`](super::Scenario::run_all) calls this function for a failure. This program calls it itself:
///
/// ```
/// use bowline::sim::{FaultTarget, Scenario, ScriptedFault, minimise};
/// use std::time::Duration;
///
/// let scenario = Scenario::new(|host| async move {
///     while !host.is_closing() {
///         host.sleep(Duration::from_millis(100)).await;
///         let get = host.client().get("k").deadline(Duration::from_secs(3)).await;
///         host.expect(get.is_ok() || host.id().get() != 2, "SERVES", || format!("{get:?}"));
///     }
/// });
/// let cut = |id, time| ScriptedFault::Isolate {
///     who: FaultTarget::Node(id),
///     time: Duration::from_secs(time),
/// };
/// let scenario = scenario
///     .nodes(3)
///     .quiet()
///     .at(Duration::from_secs(10), cut(1, 6))
///     .at(Duration::from_secs(20), cut(2, 6));
/// let parts = scenario.parts(1);
/// let without = minimise(parts.len(), |without| Some(scenario.run_without(1, without).is_err()));
/// assert_eq!(without, [0]);
/// assert!(parts[1].contains("who: Node(2)"));
/// ```
pub fn minimise(parts: usize, mut still_fails: impl FnMut(&[usize]) -> Option<bool>) -> Vec<usize> {
    let mut kept: Vec<usize> = (0..parts).collect();
    let mut pieces = 2;
    while !kept.is_empty() {
        let length = kept.len().div_ceil(pieces);
        let mut at = 0;
        let mut shrunk = false;
        while at < kept.len() {
            let fewer: Vec<usize> = [&kept[..at], &kept[(at + length).min(kept.len())..]].concat();
            match still_fails(&without(parts, &fewer)) {
                Some(true) => {
                    kept = fewer;
                    shrunk = true;
                }
                Some(false) => at += length,
                None => return without(parts, &kept),
            }
        }
        if length == 1 && !shrunk {
            break;
        }
        pieces = (pieces * 2).min(kept.len().max(1));
    }
    without(parts, &kept)
}

fn without(parts: usize, kept: &[usize]) -> Vec<usize> {
    (0..parts).filter(|part| !kept.contains(part)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn minimiser_leaves_out_unneeded_parts() {
        for needed in [&[][..], &[0], &[19], &[3, 4], &[0, 7, 19], &[1, 2, 3, 5, 8, 13]] {
            let mut tries = 0;
            let left_out = minimise(20, |without| {
                tries += 1;
                Some(needed.iter().all(|part| !without.contains(part)))
            });
            let kept: Vec<usize> = (0..20).filter(|part| !left_out.contains(part)).collect();
            assert_eq!(kept, needed);
            assert!(tries < 100, "{tries}");
        }
    }

    #[test]
    fn minimiser_stops_at_its_time_limit_with_the_best_so_far() {
        let mut tries = 0;
        let left_out = minimise(20, |without| {
            tries += 1;
            (tries < 3).then(|| !without.contains(&15))
        });
        assert_eq!(left_out, (0..10).collect::<Vec<_>>());
    }
}
