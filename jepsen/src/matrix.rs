//! Selects the runs of a test matrix. Every workload is run with every nemesis. Every workload and every nemesis is
//! also run with every cluster size. Each *pair* of choices occurs in some run (pairwise testing), so the matrix needs
//! far fewer runs than all combinations.

use crate::over::Over;
use crate::{nemesis, workload};

/// The cluster sizes.
pub const SIZES: &[usize] = &[1, 3, 5];

/// One combination of workload, nemesis, cluster size and protocol.
#[derive(Clone, Copy)]
pub struct Cell {
    /// The workload.
    pub workload: &'static workload::Kind,
    /// The nemesis.
    pub nemesis: &'static nemesis::Kind,
    /// Number of members.
    pub members: usize,
    /// The way in which clients reach the members.
    pub over: Over,
}

/// Cluster sizes in the order of their use. Three of five runs have three members, like most real clusters.
const TURNS: [usize; 5] = [1, 3, 5, 3, 3];

/// Returns every workload with every nemesis, and cycles through the cluster sizes. Every control (a workload that
/// must fail) is combined with the nemesis under which it must fail. In this order, the first few cells contain each
/// workload and each nemesis at least once.
pub fn pairwise() -> Vec<Cell> {
    let all = nemesis::ALL;
    let (controls, others): (Vec<_>, Vec<_>) =
        workload::ALL.iter().partition(|workload| workload.control.is_some());
    let control = |workload: &&'static workload::Kind| {
        let nemesis = nemesis::named(workload.control?.under)?;
        let members = 3.max(nemesis.wants.members_min);
        Some(Cell { workload, nemesis, members, over: Over::Embedded })
    };
    // The two lists are traversed in parallel and cyclically. Whenever both cycles end at the same time, one list is
    // shifted by one position, so that new pairs occur.
    let round = others.len() * all.len() / common_divisor(others.len(), all.len());
    let meeting = |run: usize| {
        let (row, column) = (run % others.len(), (run + run / round) % all.len());
        let (workload, nemesis) = (others[row], &all[column]);
        let turn = TURNS[(row + column) % TURNS.len()];
        let least = nemesis.wants.members_min;
        let members = if turn < least { 3.max(least) } else { turn };
        Cell { workload, nemesis, members, over: Over::Embedded }
    };
    let controls = controls.iter().filter_map(control);
    controls.chain((0..others.len() * all.len()).map(meeting)).collect()
}

/// Returns the cells of [`pairwise`] that servers support, for servers.
pub fn pairwise_over_servers() -> Vec<Cell> {
    let mut cells = pairwise();
    cells.iter_mut().for_each(|cell| cell.over = Over::Server);
    cells.retain(|cell| cell.over.refuses(cell.workload, cell.nemesis).is_none());
    cells
}

/// A small selection of cells for servers: the controls, and each workload that servers support, with faults that
/// affect server clients differently from embedded clients.
const SOME_OVER_SERVERS: &[(&str, &str)] = &[
    ("register-local", "partition-halves"),
    ("locked-set-unguarded", "pause"),
    ("register", "kill"),
    ("append", "partition-leader"),
    ("lock-fenced", "pause"),
    ("watch", "rolling-restart"),
    ("election", "partition-halves"),
    ("lease", "transfer"),
    ("locked-set", "pause"),
    ("bank", "kill-all"),
    ("set", "power-all"),
    ("counter", "kill"),
    ("lock", "kill-minority"),
];

/// Returns the cells of [`SOME_OVER_SERVERS`].
pub fn some_over_servers() -> Vec<Cell> {
    let cell = |(workload, nemesis): &(&str, &str)| {
        let (workload, nemesis) = (workload::named(workload)?, nemesis::named(nemesis)?);
        Some(Cell { workload, nemesis, members: 3, over: Over::Server })
    };
    SOME_OVER_SERVERS.iter().filter_map(cell).collect()
}

fn common_divisor(a: usize, b: usize) -> usize {
    if b == 0 { a } else { common_divisor(b, a % b) }
}

/// Returns a cross-section of the matrix. The cross-section contains every workload and every nemesis at least once,
/// and also runs every workload that servers support over servers.
pub fn cross_section() -> Vec<Cell> {
    let mut cells = pairwise();
    let controls = cells.iter().filter(|cell| cell.workload.control.is_some()).count();
    cells.truncate(controls + nemesis::ALL.len().max(workload::ALL.len() - controls));
    cells.extend(some_over_servers());
    cells
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn matrix_pairs_each_workload_with_each_nemesis_once() {
        let (all, some) = (pairwise(), cross_section());
        for workload in workload::ALL.iter().filter(|kind| kind.control.is_none()) {
            for nemesis in nemesis::ALL {
                let is_it = |cell: &&Cell| {
                    cell.workload.name == workload.name && cell.nemesis.name == nemesis.name
                };
                assert_eq!(all.iter().filter(is_it).count(), 1);
            }
        }
        for workload in workload::ALL {
            assert!(some.iter().any(|cell| cell.workload.name == workload.name));
        }
        for nemesis in nemesis::ALL {
            assert!(some.iter().any(|cell| cell.nemesis.name == nemesis.name));
        }
        for workload in workload::ALL.iter().filter(|kind| kind.control.is_some()) {
            assert!(all.iter().any(|cell| cell.workload.name == workload.name));
        }
        let embedded = some.iter().filter(|cell| cell.over == Over::Embedded).count();
        assert!(embedded <= workload::ALL.len().max(nemesis::ALL.len()) + 4);
        let none = nemesis::named("none").unwrap();
        let can_be = |kind: &&workload::Kind| Over::Server.refuses(kind, none).is_none();
        for workload in workload::ALL.iter().filter(can_be) {
            let is_it =
                |cell: &&Cell| cell.over == Over::Server && cell.workload.name == workload.name;
            assert_eq!(some.iter().filter(is_it).count(), 1, "{}", workload.name);
        }
        for cell in some {
            assert_eq!(cell.over.refuses(cell.workload, cell.nemesis), None);
        }
        for size in SIZES {
            assert!(all.iter().any(|cell| cell.members == *size));
        }
    }
}
