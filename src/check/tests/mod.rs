//! The checkers are judged: by an oracle that tries everything, on thousands of small histories; by histories
//! whose verdict is known; and by what they do at their limits.

mod cycles;
mod edn;
mod fixtures;
mod holds;
mod judged;
mod leases;
mod limits;
mod oracle;
mod page;
mod small;
mod total;
mod watch;
