//! Parses flags as leniently as etcdctl's Go library: a switch may have a value (`--prefix=true`, `--prefix=false`),
//! the last of repeated flags counts, a command's name may be abbreviated where that is unambiguous, and a command's
//! flags may precede its name.

use std::ffi::OsString;

use clap::{Arg, ArgAction, Command, CommandFactory, FromArgMatches, Id};

/// Makes a command accept repeated flags and abbreviated names. Must be called before the command is built.
pub(crate) fn lenient(command: Command) -> Command {
    command.args_override_self(true).infer_subcommands(true)
}

/// Parses the arguments of a command that is separate from the main command.
pub(crate) fn parsed<P: CommandFactory + FromArgMatches>(
    words: impl IntoIterator<Item = OsString>,
) -> Result<P, clap::Error> {
    let mut command = lenient(P::command());
    command.build();
    let words = plain(&command, words);
    P::from_arg_matches(&command.try_get_matches_from_mut(words)?)
}

/// Parses a boolean in one of Go's spellings.
pub(crate) fn truth(text: &str) -> Result<bool, String> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(false),
        _ => Err("expected true or false".to_owned()),
    }
}

/// Normalizes the arguments. `--switch=true` becomes `--switch`, and `--switch=false` is removed. `command` must have
/// been built.
pub(crate) fn plain(command: &Command, words: impl IntoIterator<Item = OsString>) -> Vec<OsString> {
    let mut words = words.into_iter();
    let mut plain = Plain { command, places: 0, words: Vec::new(), ahead: Vec::new() };
    if !command.is_no_binary_name_set() {
        plain.words.extend(words.next().map(|program| (program, None)));
    }
    while let Some(word) = words.next() {
        match plain.take(word) {
            Next::Flag => {}
            Next::Value => plain.words.extend(words.next().map(|value| (value, None))),
            Next::ValueAhead => {
                if let Some((_, value)) = plain.ahead.last_mut() {
                    *value = words.next();
                }
            }
            Next::Words => break,
        }
    }
    plain.release_unnamed();
    plain.words.into_iter().map(|(word, _)| word).chain(words).collect()
}

/// The kind of the next word.
enum Next {
    /// The word is a flag, or not related to a flag.
    Flag,
    /// The word is the value of the flag before it.
    Value,
    /// The word is the value of a flag that precedes its command's name.
    ValueAhead,
    /// This word and all further words belong to another program.
    Words,
}

struct Plain<'a> {
    /// The command whose flags are expected next.
    command: &'a Command,
    /// Number of positional arguments so far.
    places: usize,
    /// The normalized words, with the ids of switches.
    words: Vec<(OsString, Option<Id>)>,
    /// Long flags that precede the name of their command, each with the word that may be its value.
    ahead: Vec<(OsString, Option<OsString>)>,
}

impl Plain<'_> {
    fn take(&mut self, word: OsString) -> Next {
        let text = word.to_string_lossy().into_owned();
        if text == "--" {
            self.release_unnamed();
            self.words.push((word, None));
            return Next::Words;
        }
        if let Some(long) = text.strip_prefix("--") {
            let (name, value) =
                long.split_once('=').map_or((long, None), |(name, value)| (name, Some(value)));
            let arg = self.find(|arg| is_named(arg, name));
            if arg.is_none()
                && let Some(takes_value) = flag_below(self.command, name)
            {
                self.ahead.push((word, None));
                let is_next = takes_value && value.is_none();
                return if is_next { Next::ValueAhead } else { Next::Flag };
            }
            return self.flag(word, arg, value);
        }
        if let Some(short) = text.strip_prefix('-').filter(|short| !short.is_empty()) {
            let mut letters = short.chars();
            let letter = letters.next();
            let arg = self.find(|arg| arg.get_short() == letter);
            // The letter of a switch may be followed by the switch's value, or by more switches, within the same word.
            let arg = arg.filter(|_| letters.next().is_none());
            return self.flag(word, arg, None);
        }
        self.words.push((word, None));
        if let Some(below) = below(self.command, &text) {
            (self.command, self.places) = (below, 0);
            if !below.has_subcommands() {
                self.release();
            }
        } else {
            self.places += 1;
        }
        // A command that runs under a lock has flags of its own, and so has the server. Their flags must not be parsed
        // here.
        let place = |at: usize| self.command.get_positionals().nth(at);
        let is_first = self.places == 0;
        let at = if is_first { place(0) } else { place(self.places - 1) };
        match at.is_some_and(|arg| {
            arg.is_trailing_var_arg_set() && (!is_first || arg.is_allow_hyphen_values_set())
        }) {
            true => Next::Words,
            false => Next::Flag,
        }
    }

    /// Moves flags that precede the command's name to the position after the name.
    fn release(&mut self) {
        for (flag, value) in std::mem::take(&mut self.ahead) {
            self.take(flag);
            self.words.extend(value.map(|value| (value, None)));
        }
    }

    /// Keeps such flags in place if no command was named, so that the parser reports the error.
    fn release_unnamed(&mut self) {
        for (flag, value) in std::mem::take(&mut self.ahead) {
            self.words.extend([Some(flag), value].into_iter().flatten().map(|word| (word, None)));
        }
    }

    fn find(&self, is_it: impl Fn(&Arg) -> bool) -> Option<Arg> {
        self.command.get_arguments().find(|arg| is_it(arg)).cloned()
    }

    fn flag(&mut self, word: OsString, arg: Option<Arg>, value: Option<&str>) -> Next {
        let Some(arg) = arg else {
            self.words.push((word, None));
            return Next::Flag;
        };
        if !matches!(arg.get_action(), ArgAction::SetTrue) {
            self.words.push((word, None));
            let has_own = value.is_some() || arg.is_require_equals_set();
            return if arg.get_action().takes_values() && !has_own {
                Next::Value
            } else {
                Next::Flag
            };
        }
        match value.map(truth) {
            None => self.words.push((word, Some(arg.get_id().clone()))),
            Some(Ok(is_on)) => {
                // If a switch is repeated, the last one counts.
                self.words.retain(|(_, switch)| switch.as_ref() != Some(arg.get_id()));
                if is_on {
                    let name = format!("--{}", arg.get_long().unwrap_or_default());
                    self.words.push((name.into(), Some(arg.get_id().clone())));
                }
            }
            // The parser reports the invalid value.
            Some(Err(_)) => self.words.push((word, None)),
        }
        Next::Flag
    }
}

fn is_named(arg: &Arg, long: &str) -> bool {
    arg.get_long() == Some(long)
        || arg.get_all_aliases().is_some_and(|aliases| aliases.contains(&long))
}

/// Returns whether a long flag of one of the subcommands of `command` takes a value, or `None` if no subcommand has
/// the flag. A flag that takes a value in one subcommand and none in another counts as a flag without a value.
fn flag_below(command: &Command, long: &str) -> Option<bool> {
    let mut found = None;
    for below in command.get_subcommands() {
        let own = below.get_arguments().find(|arg| is_named(arg, long));
        let own = own.map(|arg| arg.get_action().takes_values() && !arg.is_require_equals_set());
        for takes_value in [own, flag_below(below, long)].into_iter().flatten() {
            found = Some(found.unwrap_or(true) && takes_value);
        }
    }
    found
}

/// Returns the subcommand with this name or abbreviation.
fn below<'a>(command: &'a Command, word: &str) -> Option<&'a Command> {
    if let Some(found) = command.find_subcommand(word) {
        return Some(found);
    }
    let begins = |below: &&Command| {
        let mut names = std::iter::once(below.get_name()).chain(below.get_all_aliases());
        names.any(|name| name.starts_with(word))
    };
    let mut found = command.get_subcommands().filter(begins);
    let first = found.next();
    if found.next().is_some() { None } else { first }
}

#[cfg(test)]
mod tests {
    use clap::error::ErrorKind;

    use super::*;

    fn words(line: &str) -> Vec<OsString> {
        std::iter::once("bowline").chain(line.split(' ')).map(OsString::from).collect()
    }

    #[test]
    fn boolean_flag_accepts_an_explicit_value() {
        let command = crate::command();
        for (line, expected) in [
            ("get k --prefix=true", "get k --prefix"),
            ("get k --prefix=false", "get k"),
            ("get k --prefix --prefix=false", "get k"),
            ("get k --prefix=f --prefix=T", "get k --prefix"),
            ("elect e v -l --listen=0", "elect e v"),
            ("-w json g k --keys-only=1", "-w json g k --keys-only"),
            ("endpoint --cluster=true status", "endpoint --cluster status"),
            ("endpoint status --cluster=false", "endpoint status"),
            ("lock m --shared=true ./job --shared=true", "lock m --shared ./job --shared=true"),
            // Invalid booleans, flags that are no switches, values, and words for other programs.
            ("get k --prefix=maybe", "get k --prefix=maybe"),
            ("get k --hex=false", "get k --hex=false"),
            ("check perf --prefix=true", "check perf --prefix=true"),
            ("--endpoints put get k --prefix=1", "--endpoints put get k --prefix"),
            ("lock m -- ./job --shared=true", "lock m -- ./job --shared=true"),
            ("serve --cors=true --pre-vote=true", "serve --cors=true --pre-vote=true"),
            // Flags before the name of their command.
            ("--data-dir d snapshot restore f", "snapshot restore --data-dir d f"),
            (
                "snapshot --data-dir=d --name n restore f",
                "snapshot restore --data-dir=d --name n f",
            ),
            ("--skip-hash-check snapshot restore f", "snapshot restore --skip-hash-check f"),
            ("--mark-compacted=false snapshot restore f", "snapshot restore f"),
            ("--prefix --limit 3 get k", "get --prefix --limit 3 k"),
            ("--ttl 5 lock m ./job --ttl 7", "lock --ttl 5 m ./job --ttl 7"),
            ("--no-such get k", "--no-such get k"),
            ("--data-dir d", "--data-dir d"),
            ("--data-dir d snapshot status f", "snapshot status --data-dir d f"),
        ] {
            assert_eq!(plain(&command, words(line)), words(expected), "{line}");
        }
    }

    /// Returns the command that a line selects.
    fn named(line: &str) -> Result<String, ErrorKind> {
        let mut command = crate::command();
        let line = plain(&command, words(line));
        let matches = command.try_get_matches_from_mut(line).map_err(|error| error.kind())?;
        let (mut names, mut at) = (Vec::new(), &matches);
        while let Some((name, below)) = at.subcommand() {
            names.push(name.to_owned());
            at = below;
        }
        Ok(names.join(" "))
    }

    #[test]
    fn command_names_accept_unique_prefixes() {
        for (line, expected) in [
            ("pu k v", Ok("put")),
            ("me l", Ok("member list")),
            ("lock m", Ok("lock")),
            ("locks", Ok("locks")),
            ("lease keep 7b", Ok("lease keep-alive")),
            ("compacti 5", Ok("compact")),
            ("end hea --cluster", Ok("endpoint health")),
            // Ambiguous abbreviations.
            ("loc m", Err(ErrorKind::InvalidSubcommand)),
            ("comp 5", Err(ErrorKind::InvalidSubcommand)),
            ("x", Err(ErrorKind::InvalidSubcommand)),
        ] {
            assert_eq!(named(line), expected.map(str::to_owned), "{line}");
        }
        let mut levels = vec![crate::command()];
        while let Some(level) = levels.pop() {
            for whole in level.get_subcommands() {
                let found = below(&level, whole.get_name()).unwrap();
                assert_eq!(found.get_name(), whole.get_name());
                levels.push(whole.clone());
            }
        }
    }

    #[test]
    fn last_value_of_a_repeated_flag_wins() {
        let line = "--hex --endpoints a get k --limit 1 --prefix --limit 2 --prefix --endpoints b --hex=false";
        let mut command = crate::command();
        let matches = command.try_get_matches_from_mut(plain(&command, words(line))).unwrap();
        let get = matches.subcommand_matches("get").unwrap();
        assert_eq!(get.get_one::<i64>("limit"), Some(&2));
        assert_eq!(get.get_one::<String>("endpoints").map(String::as_str), Some("b"));
        assert_eq!(get.get_one::<bool>("hex"), Some(&false));
        assert!(get.get_flag("prefix"));
    }
}
