//! Runs a node in its own process for the harness: `jepsen-node DIR NAME NAME=ADDRESS,... [POINT:HITS]`. See
//! `bowline_jepsen::driver`.

use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    bowline_jepsen::driver::main(&words)
}
