//! Tests of the checkers: comparison with an exhaustive oracle on thousands of small histories, histories with a
//! known verdict, and behavior at the limits.

mod chains;
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
