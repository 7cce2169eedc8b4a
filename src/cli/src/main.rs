//! The command line of Bowline: its arguments, and which command they name. What a command does stands
//! in a module of its own; nothing here, or below, uses more of the library than its public interface.

use std::io::{self, Write};
use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

mod check;
mod client;
mod data;
mod demo;
#[rustfmt::skip]
mod generated;
mod server;
mod up;

/// The arguments are wrong, or the machine does not allow it.
const EXIT_USAGE: u8 = 2;

/// The commands that ask no server.
const LOCAL: [&str; 7] = ["recover", "inspect", "check", "demo", "serve", "up", "completion"];

/// A small, strongly consistent, replicated key-value store inside your program
#[derive(Parser, Debug)]
#[command(name = "bowline", version, arg_required_else_help = true, disable_help_subcommand = true)]
struct Arguments {
    #[command(flatten)]
    globals: client::Globals,

    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    #[command(flatten)]
    Client(client::Command),
    Recover(data::RecoverOptions),
    Inspect(data::InspectOptions),
    Check(check::CheckOptions),
    Demo(demo::Options),
    Serve(server::ServeOptions),
    Up(up::UpOptions),
    /// Print what makes a shell complete this command
    ///
    /// For bash: source <(bowline completion bash). For zsh: bowline completion zsh > a file `_bowline` in $fpath.
    /// For fish: bowline completion fish > ~/.config/fish/completions/bowline.fish
    Completion {
        /// Which shell
        shell: clap_complete::Shell,
    },
    #[command(hide = true)]
    HeldChild(client::HeldChild),
    /// One process of the demo; reads its orders from standard input
    #[command(hide = true)]
    DemoNode,
}

fn main() -> ExitCode {
    let arguments = match parsed() {
        Ok(arguments) => arguments,
        Err(error) => return explained(&error),
    };
    match arguments.command {
        Command::Client(command) => client::main(command, &arguments.globals),
        Command::Recover(options) => data::recover_main(&options),
        Command::Inspect(options) => data::inspect_main(&options),
        Command::Check(options) => check::check_main(&options),
        Command::Demo(options) => demo::main(&options),
        Command::Serve(options) => server::serve_main(&options),
        Command::Up(options) => up::main(options),
        Command::Completion { shell } => {
            let mut text = Vec::new();
            clap_complete::generate(shell, &mut Arguments::command(), "bowline", &mut text);
            // Where nobody reads it nothing is lost.
            drop(io::stdout().lock().write_all(&text));
            ExitCode::SUCCESS
        }
        Command::HeldChild(child) => child.main(),
        Command::DemoNode => demo::node_main(),
    }
}

/// The arguments. What is for those who ask a server is not shown, and not taken, where none is asked.
fn parsed() -> Result<Arguments, clap::Error> {
    let mut command = Arguments::command();
    command.build();
    for name in LOCAL {
        command = command.mut_subcommand(name, |local| {
            local.mut_args(|arg| if arg.is_global_set() { arg.hide(true) } else { arg })
        });
    }
    let arguments =
        Arguments::from_arg_matches(&command.try_get_matches_from_mut(std::env::args_os())?)?;
    let asks = matches!(arguments.command, Command::Client(_));
    if !asks && !arguments.globals.is_empty() {
        let why =
            "this command asks no server: --endpoints and what belongs to it have no meaning here";
        return Err(Arguments::command().error(ErrorKind::ArgumentConflict, why));
    }
    Ok(arguments)
}

/// Prints what clap has to say: help that was asked for is no failure.
fn explained(error: &clap::Error) -> ExitCode {
    // Where nobody can read the explanation, the exit code has to do.
    drop(error.print());
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => ExitCode::SUCCESS,
        _ => ExitCode::from(EXIT_USAGE),
    }
}

/// Says on standard error why nothing came of it.
fn complain(why: &dyn std::fmt::Display) {
    // Where nobody can read the complaint, the exit code has to do.
    drop(writeln!(io::stderr().lock(), "error: {why}"));
}
