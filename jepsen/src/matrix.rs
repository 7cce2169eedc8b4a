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

/// A cross-section: every workload once, every nemesis once.
pub fn cross_section() -> Vec<Cell> {
    let all = pairwise();
    let mut chosen: Vec<Cell> = Vec::new();
    let (mut workloads, mut nemeses) = (Vec::new(), Vec::new());
    // First those that bring both, then those that bring one.
    for wanted in [2, 1] {
        for cell in &all {
            let news = usize::from(!workloads.contains(&cell.workload.name))
                + usize::from(!nemeses.contains(&cell.nemesis.name));
            if news >= wanted {
                workloads.push(cell.workload.name);
                nemeses.push(cell.nemesis.name);
                chosen.push(*cell);
            }
        }
    }
    chosen
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
        assert!(some.len() <= workload::ALL.len().max(nemesis::ALL.len()) + 4, "{}", some.len());
        for size in SIZES {
            assert!(all.iter().any(|cell| cell.members == *size));
        }
    }
}
