//! Runs the demo without the other commands. This binary builds faster than `bowline`.

use std::process::ExitCode;

use bowline_demo::{NodeOptions, Options};
use clap::{Parser, Subcommand};

#[derive(Parser, Debug)]
#[command(version, args_conflicts_with_subcommands = true)]
struct Arguments {
    #[command(flatten)]
    options: Options,

    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Subcommand, Debug)]
#[command(disable_help_subcommand = true)]
enum Command {
    /// Run one process of the demo, which reads commands from standard input
    #[command(hide = true)]
    DemoNode(NodeOptions),
}

fn main() -> ExitCode {
    let Arguments { options, command } = Arguments::parse();
    match command {
        None => bowline_demo::main(&options),
        Some(Command::DemoNode(node)) => bowline_demo::node_main(&node),
    }
}
