//! Which runs cover what: every workload with every nemesis and both with every size, so that each *pair* of two choices is in
//! some run (pairwise), in far fewer runs than all combinations.

use crate::{nemesis, workload};

/// The sizes of clusters.
pub const SIZES: &[usize] = &[1, 3, 5];

/// A combination.
#[derive(Clone, Copy)]
pub struct Cell {
    /// What clients do.
    pub workload: &'static workload::Kind,
    /// What goes wrong.
    pub nemesis: &'static nemesis::Kind,
    /// How many members.
    pub members: usize,
}

/// Whether a combination can mean anything.
fn fits(cell: &Cell) -> bool {
    // A control fails under pause, and nowhere else for sure.
    cell.members >= cell.nemesis.wants.members_min
        && (!cell.workload.is_control || cell.nemesis.name == "pause")
}

/// Every workload with every nemesis, in a size that goes around.
pub fn pairwise() -> Vec<Cell> {
    let mut cells = Vec::new();
    for (row, workload) in workload::ALL.iter().enumerate() {
        for (column, nemesis) in nemesis::ALL.iter().enumerate() {
            // Three runs of five are of three members: that is what most clusters have.
            let turn = [1, 3, 5, 3, 3][(row + column) % 5];
            let least = nemesis.wants.members_min;
            let members = if turn < least { 3.max(least) } else { turn };
            let cell = Cell { workload, nemesis, members };
            if fits(&cell) {
                cells.push(cell);
            }
        }
    }
    cells
}

/// So many of them, evenly spread.
pub fn spread(cells: &[Cell], runs: usize) -> Vec<Cell> {
    let runs = runs.min(cells.len());
    (0..runs).map(|run| cells[run * cells.len() / runs]).collect()
}

/// A cross-section: every workload and every nemesis at least once, each with others in turn.
pub fn cross_section() -> Vec<Cell> {
    let all = pairwise();
    let (controls, others): (Vec<_>, Vec<_>) =
        workload::ALL.iter().partition(|workload| workload.is_control);
    let runs = others.len().max(nemesis::ALL.len());
    let meeting =
        |run: usize| (others[run % others.len()].name, nemesis::ALL[run % nemesis::ALL.len()].name);
    let meetings = (0..runs).map(meeting).chain(controls.iter().map(|c| (c.name, "pause")));
    let cell = |(workload, nemesis)| {
        let is_it = |cell: &&Cell| (cell.workload.name, cell.nemesis.name) == (workload, nemesis);
        all.iter().find(is_it).copied()
    };
    meetings.filter_map(cell).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_workload_meets_each_nemesis_and_the_cross_section_has_each_once() {
        let (all, some) = (pairwise(), cross_section());
        for workload in workload::ALL.iter().filter(|kind| !kind.is_control) {
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
        assert!(some.len() <= workload::ALL.len().max(nemesis::ALL.len()) + 4);
        let few = spread(&all, 20);
        assert_eq!((few.len(), spread(&all, 10_000).len()), (20.min(all.len()), all.len()));
        for size in SIZES {
            assert!(all.iter().any(|cell| cell.members == *size));
        }
    }
}
