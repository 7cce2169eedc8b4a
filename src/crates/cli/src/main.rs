//! Bowline's command line: parses the arguments and runs the command. Each command has a module of its own. This crate
//! uses only the library's public interface.

use std::io::{self, Write};
use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

mod check;
mod client;
mod data;
mod serve;
mod up;
mod usage;

/// The memory allocator. A server allocates and frees many small messages on many threads. With mimalloc, a request
/// takes less CPU time than with the system's allocator (`docs/performance.md`).
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Exit code if the arguments, or the files and settings that they name, cannot be used.
const EXIT_USAGE: u8 = 2;

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

bowline COMMAND --help shows examples, and the meaning of the exit codes.
bowline options lists the options that all commands for servers share: endpoints, user, TLS, output format.";

/// The commands as the help groups them.
const GROUPS: [(&str, &[&str]); 6] = [
    ("Keys", &["get", "put", "del", "txn", "watch", "compact", "lease"]),
    ("Locks and elections", &["lock", "semaphore", "elect", "locks"]),
    (
        "Cluster maintenance",
        &["member", "endpoint", "alarm", "move-leader", "defrag", "snapshot", "import"],
    ),
    ("Users and permissions", &["user", "role", "auth"]),
    ("Servers and data files", &["serve", "up", "demo", "recover", "inspect", "check"]),
    ("Other", &["completion", "man", "options", "version"]),
];

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
    Check(check::CheckOptions),
    Demo(bowline_demo::Options),
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
    /// Show the options that all commands for servers share
    Options,
    /// Print the version of Bowline, and the versions of etcd whose commands and API are supported
    Version,
    #[command(hide = true)]
    SupervisedChild(client::SupervisedChild),
    /// Run one process of the demo, which reads commands from standard input
    #[command(hide = true)]
    DemoNode(bowline_demo::NodeOptions),
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
        Command::Check(options) => check::check_main(&options),
        Command::Demo(options) => bowline_demo::main(&options),
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
        Command::Options => {
            // An error of standard output itself cannot be reported.
            drop(io::stdout().lock().write_all(shared_options().as_bytes()));
            ExitCode::SUCCESS
        }
        Command::Version => {
            // An error of standard output itself cannot be reported.
            drop(writeln!(io::stdout().lock(), "{}", serve::versions()));
            ExitCode::SUCCESS
        }
        Command::SupervisedChild(child) => child.main(),
        Command::DemoNode(options) => bowline_demo::node_main(&options),
    }
}

/// Parses the arguments. If a command contacts no server, the options for contacting servers are rejected.
fn parsed() -> Result<Arguments, clap::Error> {
    let matches = grouped(command()).try_get_matches()?;
    let arguments = Arguments::from_arg_matches(&matches)?;
    // The version command contacts no server, but accepts the options like etcdctl's version command.
    let asks = matches!(arguments.command, Command::Client(_) | Command::Version);
    if !asks && !arguments.globals.is_empty() {
        let why = "this command calls no server: --endpoints and related options do not apply";
        return Err(Arguments::command().error(ErrorKind::ArgumentConflict, why));
    }
    Ok(arguments)
}

/// Returns clap's definition of all commands. The help of each subcommand shows only its own options.
fn command() -> clap::Command {
    let mut command = Arguments::command();
    command.build();
    let names: Vec<_> = command.get_subcommands().map(|c| c.get_name().to_owned()).collect();
    for name in names {
        let asks = client::Command::has_subcommand(&name);
        command = command.mut_subcommand(name, |command| focused(command, asks));
    }
    command
}

/// Returns the definition with a help that lists the commands in groups and hides the options that all commands share.
fn grouped(mut command: clap::Command) -> clap::Command {
    let mut list = String::new();
    for (heading, names) in GROUPS {
        list += &format!("{heading}:\n");
        for name in names {
            let about = command.find_subcommand(name).and_then(clap::Command::get_about);
            let about = about.map(ToString::to_string).unwrap_or_default();
            list += &format!("  {name:<11} {about}\n");
        }
        list.push('\n');
    }
    command = command.mut_args(|arg| if arg.is_global_set() { arg.hide(true) } else { arg });
    command.help_template(format!(
        "{{about}}\n\n{{usage-heading}} {{usage}}\n\n{list}{{after-help}}\n"
    ))
}

/// Returns the help of the options that all commands for servers share.
fn shared_options() -> String {
    let command = Arguments::command().disable_help_flag(true).disable_version_flag(true);
    let help = command.help_template("{options}").render_long_help().to_string();
    format!("Options of all commands that call a server:\n\n{}\n", help.trim_end())
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
            print_failure(&format!("{}: {error}", dir.display()));
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
             options`.";
        let long = command.get_after_long_help().map(|help| format!("{help}\n\n"));
        let long = format!("{}{words}", long.unwrap_or_default());
        command = command.after_help(words).after_long_help(long);
    }
    let names: Vec<_> = command.get_subcommands().map(|c| c.get_name().to_owned()).collect();
    for name in names {
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
fn print_failure(why: &dyn std::fmt::Display) {
    // If standard error cannot be written, the exit code must suffice.
    drop(writeln!(io::stderr().lock(), "error: {why}"));
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn help_lists_each_command_in_one_group_and_no_shared_options() {
        let named: Vec<_> = GROUPS.iter().flat_map(|(_, names)| *names).copied().collect();
        let definition = command();
        let visible = definition.get_subcommands().filter(|command| !command.is_hide_set());
        let visible: BTreeSet<_> = visible.map(clap::Command::get_name).collect();
        assert_eq!(named.iter().copied().collect::<BTreeSet<_>>(), visible);
        assert_eq!(named.len(), visible.len(), "a command is listed twice");
        for help in [grouped(command()).render_help(), grouped(command()).render_long_help()]
            .map(|help| help.to_string())
        {
            for (heading, names) in GROUPS {
                assert!(help.contains(&format!("\n{heading}:\n  {} ", names[0])), "{help}");
            }
            assert!(help.contains("  get         Read keys\n"), "{help}");
            assert!(help.contains("To begin:\n") && !help.contains("--endpoints"), "{help}");
        }
        let shared = shared_options();
        for option in ["--endpoints", "--write-out", "--user", "--cacert", "--keepalive-time"] {
            assert!(shared.contains(option), "{shared}");
        }
        assert!(!shared.contains("--help"), "{shared}");
    }
}
