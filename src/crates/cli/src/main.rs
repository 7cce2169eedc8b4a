//! Bowline's command line: parses the arguments and runs the command. Each command has a module of its own. This crate
//! uses only the library's public interface.

use std::io::{self, Write};
use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

mod check;
mod client;
mod data;
mod demo;
mod go_flags;
mod serve;
mod up;
mod usage;

/// The memory allocator. A server allocates and frees many small messages on many threads. With mimalloc, a request
/// takes less CPU time than with the system's allocator (`docs/performance.md`).
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Exit code if the arguments are invalid, or the machine does not allow the command.
const EXIT_USAGE: u8 = 2;

/// Commands that contact no server.
const LOCAL: [&str; 9] =
    ["recover", "inspect", "check", "demo", "serve", "up", "completion", "man", "version"];

/// Examples for new users, shown in the help.
const BEGINNING: &str = "\
To begin:
  bowline demo                        kill members of a cluster under load, and prove that nothing is lost
  bowline up --nodes 3                run three servers on this machine until Ctrl-C; in another terminal:
  bowline put greeting hello
  bowline get greeting
  bowline watch '' --prefix           print all changes
  bowline lock nightly -- ./job.sh    run a command while holding a lock
  bowline import --from http://old:2379    copy the keys of a running etcd

bowline COMMAND --help shows examples, and the meaning of the exit codes.";

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
    Serve(serve::ServeOptions),
    Up(up::UpOptions),
    /// Print the shell completion script
    ///
    /// For bash: source <(bowline completion bash). For zsh: bowline completion zsh > DIR/_bowline, where DIR is in
    /// $fpath. For fish: bowline completion fish > ~/.config/fish/completions/bowline.fish
    Completion {
        /// Shell to generate the script for
        shell: clap_complete::Shell,
    },
    /// Write the manual pages, one per command
    ///
    /// For man: bowline man /usr/local/share/man/man1
    Man {
        /// Directory to write the pages to
        dir: std::path::PathBuf,
    },
    /// Print the version of Bowline, and the versions of etcd whose commands and API are supported
    Version,
    #[command(hide = true)]
    SupervisedChild(client::SupervisedChild),
    /// Run one process of the demo; the process reads its orders from standard input
    #[command(hide = true)]
    DemoNode,
}

/// Check whether a history of operations is possible, or whether a cluster sustains a load
///
/// The history is a file with one operation per line, in JSON from any program, or in EDN from Jepsen; see
/// docs/assurance/checkers.md. Histories of objects are checked for linearizability: some order of the operations must
/// explain every reply. In this order, an operation that ended before another was called must precede it. Histories of
/// transactions are checked for cycles of dependencies between reads and writes.
///
/// Exit codes: 0 ok; 1 violation; 2 wrong arguments, or a file that cannot be read; 3 undecided.
///
/// `bowline check perf` checks whether a cluster sustains a load. `bowline check datascale` measures how much memory
/// keys take.
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
            "no history is given: see bowline check --help",
        )),
        Command::Demo(options) => demo::main(&options),
        Command::Serve(options) => serve::serve_main(&options),
        Command::Up(options) => up::main(options),
        Command::Completion { shell } => {
            let mut text = Vec::new();
            clap_complete::generate(shell, &mut Arguments::command(), "bowline", &mut text);
            // An error of standard output itself cannot be reported.
            drop(io::stdout().lock().write_all(&text));
            ExitCode::SUCCESS
        }
        Command::Man { dir } => manual(&dir),
        Command::Version => {
            // An error of standard output itself cannot be reported.
            drop(writeln!(io::stdout().lock(), "{}", serve::versions()));
            ExitCode::SUCCESS
        }
        Command::SupervisedChild(child) => child.main(),
        Command::DemoNode => demo::node_main(),
    }
}

/// Parses the arguments. If a command contacts no server, the options for contacting servers are rejected.
fn parsed() -> Result<Arguments, clap::Error> {
    let mut command = command();
    let words: Vec<_> = std::env::args_os().collect();
    let matches = command.try_get_matches_from_mut(go_flags::plain(&command, words.clone()))?;
    let arguments = Arguments::from_arg_matches(&matches)?;
    let asks = match &arguments.command {
        Command::Client(_) => true,
        Command::Check(arguments) => arguments.command.is_some(),
        // The version command contacts no server, but etcdctl's version command accepts the options.
        Command::Version => true,
        _ => false,
    };
    // A file named `data` must not start a load test by abbreviation.
    if let Command::Check(CheckArguments { command: Some(command), .. }) = &arguments.command
        && !words.iter().any(|word| word == command.name())
    {
        let why = format!(
            "ambiguous: write `check {}` in full, or ./ before a file name",
            command.name()
        );
        return Err(Arguments::command().error(ErrorKind::InvalidSubcommand, why));
    }
    if !asks && !arguments.globals.is_empty() {
        let why = "this command calls no server: --endpoints and related options do not apply";
        return Err(Arguments::command().error(ErrorKind::ArgumentConflict, why));
    }
    Ok(arguments)
}

/// Returns clap's definition of all commands. The help of each subcommand shows only its own options.
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

/// Writes the manual pages.
fn manual(dir: &std::path::Path) -> ExitCode {
    // The flags of `serve` are etcd's and have a help text of their own.
    let with_flags = |serve: clap::Command| serve.after_long_help(serve::flags_help());
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

/// Restricts a command's help to its own options.
fn focused(command: clap::Command, asks: bool) -> clap::Command {
    let hide = |arg: clap::Arg| if arg.is_global_set() { arg.hide(true) } else { arg };
    let mut command = command.mut_args(hide);
    if asks {
        let words = "For the options that all these commands share (endpoints, user, TLS, output format), see `bowline \
             --help`.";
        let long = command.get_after_long_help().map(|help| format!("{help}\n\n"));
        let long = format!("{}{words}", long.unwrap_or_default());
        command = command.after_help(words).after_long_help(long);
    }
    let names: Vec<_> = command.get_subcommands().map(|c| c.get_name().to_owned()).collect();
    for name in names {
        // Most local commands contact no server, but `check perf` and `check datascale` do.
        let asks = asks || ["perf", "datascale"].contains(&name.as_str());
        command = command.mut_subcommand(name, |command| focused(command, asks));
    }
    command
}

/// Prints clap's message and returns the exit code. Help that the user requested is not a failure.
fn explained(error: &clap::Error) -> ExitCode {
    // If standard error cannot be written, the exit code must suffice.
    drop(error.print());
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => ExitCode::SUCCESS,
        _ => ExitCode::from(EXIT_USAGE),
    }
}

/// Prints an error on standard error.
fn complain(why: &dyn std::fmt::Display) {
    // If standard error cannot be written, the exit code must suffice.
    drop(writeln!(io::stderr().lock(), "error: {why}"));
}
