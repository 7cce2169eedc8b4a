//! The values that were given, by flag, wherever they came from.

use std::collections::BTreeMap;

use super::file;
use super::options::split;
use super::table::{FLAGS, Flag};
use super::{Fate, FlagError};
use crate::go_flags::truth;

/// What was given. A flag that was not is not in it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Values {
    given: BTreeMap<&'static str, String>,
    /// What was given and does nothing, with why.
    idle: Vec<(&'static str, &'static str)>,
    /// Variables of the environment that begin like ours and are none.
    strangers: Vec<String>,
    /// Warnings for the operator about how the flags were given.
    warnings: Vec<String>,
    /// Whether a file has said it all.
    is_of_file: bool,
}

impl Values {
    /// Reads the arguments after `serve`, then the environment for what they do not say; or the file that
    /// either names, and then nothing else, as etcd does. A variable that is empty says nothing.
    pub(crate) fn read(
        arguments: &[String],
        environment: impl Iterator<Item = (String, String)>,
    ) -> Result<Self, FlagError> {
        let mut values = Self::default();
        values.read_arguments(arguments)?;
        let environment: Vec<_> = environment.filter(|(_, value)| !value.is_empty()).collect();
        let path = values.get("config-file").map(str::to_owned);
        let named = || {
            let named = environment.iter().find(|(name, _)| name == "ETCD_CONFIG_FILE");
            named.map(|(_, path)| path.clone())
        };
        match path.or_else(named) {
            None => values.read_environment(environment).map(|()| values),
            Some(path) => file::read(&path),
        }
    }

    /// None yet, for those of a file.
    pub(super) fn of_file() -> Self {
        Self { is_of_file: true, ..Self::default() }
    }

    /// Adds a warning for the log.
    pub(super) fn warn(&mut self, warning: String) {
        self.warnings.push(warning);
    }

    /// Warnings for the log.
    pub(crate) fn warnings(&self) -> impl Iterator<Item = &str> {
        self.warnings.iter().map(String::as_str)
    }

    /// The value of a flag, if it was given. An empty one counts as none.
    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.raw(name).filter(|value| !value.is_empty())
    }

    /// The same, with an empty value as it is: no number, no truth, and none of a few words.
    pub(super) fn raw(&self, name: &str) -> Option<&str> {
        debug_assert!(
            FLAGS.iter().any(|flag| flag.name == name && flag.fate == Fate::Used),
            "{name} is used, and not so in the table"
        );
        self.given.get(name).map(String::as_str)
    }

    /// Whether it was given in a file, as are all others then.
    pub(crate) fn is_of_file(&self) -> bool {
        self.is_of_file
    }

    /// What was given and does nothing: its name, and why.
    pub(crate) fn idle(&self) -> impl Iterator<Item = (&'static str, &'static str)> {
        self.idle.iter().copied()
    }

    /// Variables of the environment that are not known.
    pub(crate) fn strangers(&self) -> impl Iterator<Item = &str> {
        self.strangers.iter().map(String::as_str)
    }

    fn read_arguments(&mut self, arguments: &[String]) -> Result<(), FlagError> {
        let mut rest = arguments.iter();
        let mut names = BTreeMap::new();
        while let Some(argument) = rest.next() {
            // One dash or two: both are in use.
            let name = argument.strip_prefix("--").or_else(|| argument.strip_prefix('-'));
            let Some(name) = name.filter(|name| !name.is_empty()) else {
                return Err(FlagError::NotAFlag(argument.clone()));
            };
            let (name, value) = match name.split_once('=') {
                Some((name, value)) => (name, Some(value.to_owned())),
                None => (name, None),
            };
            let flag = find(name).ok_or_else(|| FlagError::Unknown(name.to_owned()))?;
            // Nobody could say which of them is meant.
            if names.insert(flag.name, name).is_some_and(|other| other != name) {
                let own = flag.name;
                return Err(FlagError::Together(format!(
                    "both --experimental-{own} and --{own} flags are set. Use only --{own}"
                )));
            }
            let value = match value {
                Some(value) => value,
                None if flag.is_switch => "true".to_owned(),
                None => rest.next().cloned().ok_or_else(|| FlagError::NoValue(name.to_owned()))?,
            };
            self.take(flag, value)?;
        }
        Ok(())
    }

    fn read_environment(&mut self, environment: Vec<(String, String)>) -> Result<(), FlagError> {
        for (name, value) in environment {
            let Some(word) = name.strip_prefix("ETCD_") else { continue };
            match find(&word.to_ascii_lowercase().replace('_', "-")) {
                Some(flag) if self.given.contains_key(flag.name) => {}
                Some(flag) => self.take(flag, value)?,
                None => self.strangers.push(name),
            }
        }
        Ok(())
    }

    /// Takes the value of a flag.
    ///
    /// # Errors
    /// A value that asks for something that is not offered.
    pub(super) fn take(&mut self, flag: &'static Flag, value: String) -> Result<(), FlagError> {
        match flag.fate {
            Fate::Used => drop(self.given.insert(flag.name, value)),
            // Not asked for.
            Fate::Ignored | Fate::Refused if value.is_empty() && !flag.is_switch => {}
            Fate::Ignored => self.idle.push((flag.name, flag.what)),
            Fate::Refused if flag.is_switch && truth(&value) == Ok(false) => {}
            Fate::Refused
                if flag.harmless.is_some_and(|all| split(&value).contains(&all.into())) =>
            {
                self.idle.push((flag.name, flag.what));
            }
            Fate::Refused => {
                return Err(FlagError::Refused { name: flag.name, instead: flag.what });
            }
        }
        Ok(())
    }
}

pub(super) fn find(name: &str) -> Option<&'static Flag> {
    // What was experimental once, and is not any more, is known under both names.
    let name = name.strip_prefix("experimental-").unwrap_or(name);
    FLAGS.iter().find(|flag| flag.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(arguments: &[&str], environment: &[(&str, &str)]) -> Result<Values, FlagError> {
        let arguments: Vec<_> = arguments.iter().map(|&argument| argument.to_owned()).collect();
        let pair = |&(name, value): &(&str, &str)| (name.to_owned(), value.to_owned());
        Values::read(&arguments, environment.iter().map(pair))
    }

    #[test]
    fn flags_are_written_with_one_dash_or_two_and_with_or_without_an_equals_sign() {
        let values = read(&["--name", "a", "-data-dir=d", "--pre-vote", "--log-level=warn"], &[]);
        let values = values.unwrap();
        let given = ["name", "data-dir", "log-level"].map(|name| values.get(name));
        assert_eq!(given, [Some("a"), Some("d"), Some("warn")]);
        assert_eq!(values.idle().map(|(name, _)| name).collect::<Vec<_>>(), ["pre-vote"]);
    }

    #[test]
    fn a_flag_goes_before_the_environment() {
        let environment = [("ETCD_NAME", "b"), ("ETCD_DATA_DIR", "e"), ("ETCD_MOOD", "good")];
        let values = read(&["--name=a"], &environment).unwrap();
        assert_eq!((values.get("name"), values.get("data-dir")), (Some("a"), Some("e")));
        assert_eq!(values.strangers().collect::<Vec<_>>(), ["ETCD_MOOD"]);
    }

    #[test]
    fn a_variable_that_is_empty_says_nothing() {
        let empty = [("ETCD_NAME", ""), ("ETCD_QUOTA_BACKEND_BYTES", ""), ("ETCD_DISCOVERY", "")];
        assert_eq!(read(&[], &empty).unwrap(), Values::default());
        // An empty argument goes before the environment all the same.
        assert_eq!(read(&["--name="], &[("ETCD_NAME", "b")]).unwrap().get("name"), None);
    }

    #[test]
    fn beside_a_file_the_environment_says_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("etcd.yaml");
        std::fs::write(&path, "name: a").unwrap();
        let path = path.to_str().unwrap();
        let more = [("ETCD_NAME", "b"), ("ETCD_DISCOVERY", "x"), ("ETCD_MOOD", "good")];
        let by_flag = read(&["--config-file", path, "--name=c"], &more).unwrap();
        let by_variable = read(&[], &[&more[..], &[("ETCD_CONFIG_FILE", path)]].concat()).unwrap();
        for values in [by_flag, by_variable] {
            assert_eq!(values.get("name"), Some("a"));
            assert_eq!(values.strangers().count(), 0);
        }
    }

    #[test]
    fn what_is_not_offered_is_refused_with_what_to_do_instead() {
        let both = ["--warning-apply-duration=1s", "--experimental-warning-apply-duration=1s"];
        let cases: [(&[&str], &str); 8] = [
            (&["--nam", "a"], "there is no flag --nam"),
            (&both, "Use only --warning-apply-duration"),
            (&["name"], "is not a flag"),
            (&["--name"], "--name needs a value"),
            (&["--discovery", "x"], "name the members with --initial-cluster"),
            (&["--peer-cert-allowed-cn=x"], "has the URI bowline://CLUSTER/MEMBER"),
            (&["--memory-mlock"], "LimitMEMLOCK"),
            (&["--experimental-enable-distributed-tracing"], "--log-level debug"),
        ];
        for (arguments, words) in cases {
            let error = read(arguments, &[]).unwrap_err().to_string();
            assert!(error.contains(words), "{error:?} lacks {words:?}");
        }
        for off in ["false", "0", "f", "F", "FALSE", "False"] {
            let flag = format!("--memory-mlock={off}");
            assert!(read(&[&flag], &[]).is_ok(), "{off}: it asks for nothing");
            assert!(file::read_text("f", &format!("memory-mlock: {off}")).is_ok(), "{off}");
        }
        assert!(read(&[both[1], both[1]], &[]).is_ok(), "the last counts");
        let error = read(&[], &[("ETCD_MEMORY_MLOCK", "true")]).unwrap_err().to_string();
        assert!(error.contains("--memory-mlock"), "{error}");
    }

    /// Test suites give it to whatever server they start.
    #[test]
    fn who_wants_no_syncing_is_told_that_there_is_all_the_same_and_the_help_does_not_offer_it() {
        let values = read(&["--unsafe-no-fsync"], &[]).unwrap();
        let idle: Vec<_> = values.idle().collect();
        assert_eq!(idle, [("unsafe-no-fsync", "every write is synced all the same")]);
        let help = crate::server::flags::help();
        assert!(!help.contains("unsafe-no-fsync") && help.contains("snapshot-count"), "{help}");
    }
}
