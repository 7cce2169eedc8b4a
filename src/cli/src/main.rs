//! The command line of Bowline: its arguments, and which command they name. What a command does stands
//! in a module of its own; nothing here, or below, uses more of the library than its public interface.

use std::io::{self, Write};
use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

mod check;
mod client;
mod crypto;
mod data;
mod demo;
#[rustfmt::skip]
mod generated;
mod go_flags;
mod server;
mod up;
mod usage;

/// A server makes and drops many small messages on many threads: with it a request takes less of a processor than with the
/// system's allocator (`docs/performance.md`).
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// The arguments are wrong, or the machine does not allow it.
const EXIT_USAGE: u8 = 2;

/// The commands that ask no server.
const LOCAL: [&str; 9] =
    ["recover", "inspect", "check", "demo", "serve", "up", "completion", "man", "version"];

/// For who has never used it.
const BEGINNING: &str = "\
To begin:
  bowline demo                        kills a cluster at work, and proves that nothing is lost
  bowline up --nodes 3                three servers on this machine, until Ctrl-C; then, elsewhere:
  bowline put greeting hello
  bowline get greeting
  bowline watch '' --prefix           what happens to all keys
  bowline lock nightly -- ./job.sh    runs it while nobody else does
  bowline import --from http://old:2379    brings the keys of a running etcd over

bowline COMMAND --help shows examples, and what the exit codes mean.";

/// A small, strongly consistent, replicated key-value store inside your program
#[derive(Parser, Debug)]
#[command(name = "bowline", version, arg_required_else_help = true, disable_help_subcommand = true,
          after_help = BEGINNING)]
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
    Check(CheckArguments),
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
    /// Write the pages of the manual, one for each command
    ///
    /// For man: bowline man /usr/local/share/man/man1
    Man {
        /// The directory that they are written to
        dir: std::path::PathBuf,
    },
    /// Print the version of etcd's commands and API that is spoken, and Bowline's own
    Version,
    #[command(hide = true)]
    SupervisedChild(client::SupervisedChild),
    /// One process of the demo; reads its orders from standard input
    #[command(hide = true)]
    DemoNode,
}

/// Say whether a history is possible: what was called, when, and what came back; or whether a cluster bears a load
///
/// The history is a file of JSON lines, one operation a line, of any program, or of EDN, as Jepsen writes it: see
/// docs/assurance/checkers.md. Objects are
/// judged by linearizability: is there an order of the operations that explains each reply, and puts nothing before
/// what had ended when it was called? Transactions are judged by circles in what they read and wrote.
///
/// Exit codes: 0 ok; 1 violation; 2 wrong arguments, or a file that cannot be read; 3 undecided.
///
/// `bowline check perf` asks a server whether it bears a load, `bowline check datascale` how much memory keys take.
#[derive(clap::Args, Debug)]
#[command(subcommand_negates_reqs = true, args_conflicts_with_subcommands = true)]
struct CheckArguments {
    #[command(flatten)]
    history: Option<check::CheckOptions>,

    #[command(subcommand)]
    command: Option<CheckCommand>,
}

#[derive(Subcommand, Debug)]
enum CheckCommand {
    Perf(client::PerfOptions),
    Datascale(client::DatascaleOptions),
}

impl CheckCommand {
    fn name(&self) -> &'static str {
        match self {
            CheckCommand::Perf(_) => "perf",
            CheckCommand::Datascale(_) => "datascale",
        }
    }
}

fn main() -> ExitCode {
    let arguments = match parsed() {
        Ok(arguments) => arguments,
        Err(error) => return explained(&usage::clearer(error)),
    };
    match arguments.command {
        Command::Client(command) => client::main(command, &arguments.globals),
        Command::Recover(options) => data::recover_main(&options),
        Command::Inspect(options) => data::inspect_main(&options),
        Command::Check(CheckArguments { command: Some(CheckCommand::Perf(options)), .. }) => {
            client::main(client::Command::CheckPerf(options), &arguments.globals)
        }
        Command::Check(CheckArguments {
            command: Some(CheckCommand::Datascale(options)), ..
        }) => client::main(client::Command::CheckDatascale(options), &arguments.globals),
        Command::Check(CheckArguments { history: Some(options), .. }) => {
            check::check_main(&options)
        }
        Command::Check(_) => explained(&Arguments::command().error(
            ErrorKind::MissingRequiredArgument,
            "a history is missing: bowline check --help",
        )),
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
        Command::Man { dir } => manual(&dir),
        Command::Version => {
            // Where nobody reads it nothing is lost.
            drop(writeln!(io::stdout().lock(), "{}", server::versions()));
            ExitCode::SUCCESS
        }
        Command::SupervisedChild(child) => child.main(),
        Command::DemoNode => demo::node_main(),
    }
}

/// The arguments. What all commands have that ask a server is shown once, with those of the whole; and not taken
/// where none is asked.
fn parsed() -> Result<Arguments, clap::Error> {
    let mut command = command();
    let words: Vec<_> = std::env::args_os().collect();
    let matches = command.try_get_matches_from_mut(go_flags::plain(&command, words.clone()))?;
    let arguments = Arguments::from_arg_matches(&matches)?;
    let asks = match &arguments.command {
        Command::Client(_) => true,
        Command::Check(arguments) => arguments.command.is_some(),
        // It asks nobody, and etcdctl's takes them.
        Command::Version => true,
        _ => false,
    };
    // A file may be called `data`, and no load shall come of it.
    if let Command::Check(CheckArguments { command: Some(command), .. }) = &arguments.command
        && !words.iter().any(|word| word == command.name())
    {
        let why = format!("to be clear, write `check {}`, or ./ before a file", command.name());
        return Err(Arguments::command().error(ErrorKind::InvalidSubcommand, why));
    }
    if !asks && !arguments.globals.is_empty() {
        let why =
            "this command asks no server: --endpoints and what belongs to it have no meaning here";
        return Err(Arguments::command().error(ErrorKind::ArgumentConflict, why));
    }
    Ok(arguments)
}

/// The whole, and each of its commands with a help that is about itself.
fn command() -> clap::Command {
    let mut command = go_flags::lenient(Arguments::command());
    command.build();
    let names: Vec<_> = command.get_subcommands().map(|c| c.get_name().to_owned()).collect();
    for name in names {
        let asks = !LOCAL.contains(&name.as_str());
        command = command.mut_subcommand(name, |command| focused(command, asks));
    }
    command
}

/// Writes the manual.
fn manual(dir: &std::path::Path) -> ExitCode {
    // Its flags are etcd's, and have a help of their own.
    let with_flags = |serve: clap::Command| serve.after_long_help(server::flags_help());
    let command = command().mut_subcommand("serve", with_flags);
    let written = std::fs::create_dir_all(dir);
    match written.and_then(|()| clap_mangen::generate_to(command, dir)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            complain(&format!("{}: {error}", dir.display()));
            ExitCode::FAILURE
        }
    }
}

/// A command whose help is about itself.
fn focused(command: clap::Command, asks: bool) -> clap::Command {
    let hide = |arg: clap::Arg| if arg.is_global_set() { arg.hide(true) } else { arg };
    let mut command = command.mut_args(hide);
    if asks {
        let words = "Where the servers are, who asks, and how to print: `bowline --help`.";
        let long = command.get_after_long_help().map(|help| format!("{help}\n\n"));
        let long = format!("{}{words}", long.unwrap_or_default());
        command = command.after_help(words).after_long_help(long);
    }
    let names: Vec<_> = command.get_subcommands().map(|c| c.get_name().to_owned()).collect();
    for name in names {
        // What is done with files needs no server, but this does.
        let asks = asks || ["perf", "datascale"].contains(&name.as_str());
        command = command.mut_subcommand(name, |command| focused(command, asks));
    }
    command
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
