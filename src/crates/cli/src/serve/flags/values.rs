//! The values of flags from all sources.

use std::collections::BTreeMap;

use super::error::FlagError;
use super::table::{FLAGS, Fate, Flag};
use crate::usage::parse_bool;

/// Prefix of the names that flags had while they were experimental.
const EXPERIMENTAL: &str = "experimental-";

/// The given values; flags that were not given are absent.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Values {
    given: BTreeMap<&'static str, String>,
    /// Given flags without effect, and the reasons.
    idle: Vec<(&'static str, &'static str)>,
    /// Environment variables with etcd's prefix that match no flag.
    unknown_variables: Vec<String>,
    /// Warnings for the operator about how the flags were given.
    warnings: Vec<String>,
    /// Whether all values come from a configuration file.
    is_of_file: bool,
}

impl Values {
    /// Returns an empty set for the values of a file.
    pub(super) fn of_file() -> Self {
        Self { is_of_file: true, ..Self::default() }
    }

    pub(super) fn warn(&mut self, warning: String) {
        self.warnings.push(warning);
    }

    pub(crate) fn warnings(&self) -> impl Iterator<Item = &str> {
        self.warnings.iter().map(String::as_str)
    }

    /// Returns the value of a flag, if it was given and is not empty.
    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.raw(name).filter(|value| !value.is_empty())
    }

    /// Returns the value of a flag even if it is empty, for flags whose empty value is an error.
    pub(super) fn raw(&self, name: &str) -> Option<&str> {
        debug_assert!(
            FLAGS.iter().any(|flag| flag.name == name && flag.fate == Fate::Used),
            "the flag {name} is used, but the table does not mark it so"
        );
        self.given.get(name).map(String::as_str)
    }

    /// Returns whether the values come from a configuration file.
    pub(crate) fn is_of_file(&self) -> bool {
        self.is_of_file
    }

    /// Returns the names of given flags without effect, and the reasons.
    pub(crate) fn idle(&self) -> impl Iterator<Item = (&'static str, &'static str)> {
        self.idle.iter().copied()
    }

    /// Returns the unknown environment variables.
    pub(crate) fn unknown_variables(&self) -> impl Iterator<Item = &str> {
        self.unknown_variables.iter().map(String::as_str)
    }

    pub(super) fn read_arguments(&mut self, arguments: &[String]) -> Result<(), FlagError> {
        let mut rest = arguments.iter();
        let mut names = BTreeMap::new();
        while let Some(argument) = rest.next() {
            // A flag may begin with one dash or two, because both are in use.
            let name = argument.strip_prefix("--").or_else(|| argument.strip_prefix('-'));
            let Some(name) = name.filter(|name| !name.is_empty()) else {
                return Err(FlagError::NotAFlag(argument.clone()));
            };
            let (name, value) = match name.split_once('=') {
                Some((name, value)) => (name, Some(value.to_owned())),
                None => (name, None),
            };
            let flag = find(name).ok_or_else(|| FlagError::Unknown(name.to_owned()))?;
            self.note_removed(name, flag);
            // Two names of the same flag are rejected, because it would be ambiguous which of them counts.
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

    pub(super) fn read_environment(
        &mut self,
        environment: Vec<(String, String)>,
    ) -> Result<(), FlagError> {
        for (name, value) in environment {
            let Some(word) = name.strip_prefix("ETCD_") else { continue };
            let word = word.to_ascii_lowercase().replace('_', "-");
            match find(&word) {
                Some(flag) if self.given.contains_key(flag.name) => {}
                Some(flag) => {
                    self.note_removed(&word, flag);
                    self.take(flag, value)?;
                }
                None => self.unknown_variables.push(name),
            }
        }
        Ok(())
    }

    /// Warns about the experimental name of a flag, which etcd 3.7 rejects.
    pub(super) fn note_removed(&mut self, name: &str, flag: &'static Flag) {
        if name.starts_with(EXPERIMENTAL) {
            let own = flag.name;
            self.warn(format!("--{name} was removed in etcd 3.7: use --{own}"));
        }
    }

    /// Takes the value of a flag.
    ///
    /// # Errors
    /// Fails if the value requests something that is not supported.
    pub(super) fn take(&mut self, flag: &'static Flag, value: String) -> Result<(), FlagError> {
        match flag.fate {
            Fate::Used => drop(self.given.insert(flag.name, value)),
            // An empty value requests nothing.
            Fate::Ignored | Fate::Refused if value.is_empty() && !flag.is_switch => {}
            Fate::Ignored => self.idle.push((flag.name, flag.what)),
            Fate::Refused if flag.is_switch && parse_bool(&value) == Ok(false) => {}
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
    // Flags that were experimental once are accepted under both names.
    let name = name.strip_prefix(EXPERIMENTAL).unwrap_or(name);
    FLAGS.iter().find(|flag| flag.name == name)
}

/// Splits a comma-separated list.
pub(super) fn split(list: &str) -> Vec<String> {
    list.split(',').map(|part| part.trim().to_owned()).filter(|part| !part.is_empty()).collect()
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
    fn flags_accept_one_or_two_dashes_and_an_equals_sign() {
        let values = read(&["--name", "a", "-data-dir=d", "--pre-vote", "--log-level=warn"], &[]);
        let values = values.unwrap();
        let given = ["name", "data-dir", "log-level"].map(|name| values.get(name));
        assert_eq!(given, [Some("a"), Some("d"), Some("warn")]);
        assert_eq!(values.idle().map(|(name, _)| name).collect::<Vec<_>>(), ["pre-vote"]);
    }

    #[test]
    fn experimental_names_are_accepted_with_a_warning() {
        let flag = "--experimental-warning-apply-duration=1s";
        let words = "--experimental-warning-apply-duration was removed in etcd 3.7: use --warning-apply-duration";
        let variable = ("ETCD_EXPERIMENTAL_WARNING_APPLY_DURATION", "1s");
        for values in [read(&[flag], &[]).unwrap(), read(&[], &[variable]).unwrap()] {
            assert_eq!(values.get("warning-apply-duration"), Some("1s"));
            assert_eq!(values.warnings().collect::<Vec<_>>(), [words]);
        }
        let usual = read(&["--warning-apply-duration=1s"], &[]).unwrap();
        assert_eq!(usual.warnings().count(), 0);
    }

    #[test]
    fn flag_overrides_the_environment() {
        let environment = [("ETCD_NAME", "b"), ("ETCD_DATA_DIR", "e"), ("ETCD_MOOD", "good")];
        let values = read(&["--name=a"], &environment).unwrap();
        assert_eq!((values.get("name"), values.get("data-dir")), (Some("a"), Some("e")));
        assert_eq!(values.unknown_variables().collect::<Vec<_>>(), ["ETCD_MOOD"]);
    }

    #[test]
    fn empty_variable_is_ignored() {
        let empty = [("ETCD_NAME", ""), ("ETCD_QUOTA_BACKEND_BYTES", ""), ("ETCD_DISCOVERY", "")];
        assert_eq!(read(&[], &empty).unwrap(), Values::default());
        // An empty argument also takes precedence over the environment.
        assert_eq!(read(&["--name="], &[("ETCD_NAME", "b")]).unwrap().get("name"), None);
    }

    #[test]
    fn config_file_disables_environment_variables() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("etcd.yaml");
        std::fs::write(&path, "name: a").unwrap();
        let path = path.to_str().unwrap();
        let more = [("ETCD_NAME", "b"), ("ETCD_DISCOVERY", "x"), ("ETCD_MOOD", "good")];
        let by_flag = read(&["--config-file", path, "--name=c"], &more).unwrap();
        let by_variable = read(&[], &[&more[..], &[("ETCD_CONFIG_FILE", path)]].concat()).unwrap();
        for values in [by_flag, by_variable] {
            assert_eq!(values.get("name"), Some("a"));
            assert_eq!(values.unknown_variables().count(), 0);
        }
    }

    #[test]
    fn unsupported_flags_are_rejected_with_an_alternative() {
        let both = ["--warning-apply-duration=1s", "--experimental-warning-apply-duration=1s"];
        let cases: [(&[&str], &str); 8] = [
            (&["--nam", "a"], "unknown flag --nam"),
            (&both, "Use only --warning-apply-duration"),
            (&["name"], "is not a flag"),
            (&["--name"], "--name requires a value"),
            (&["--discovery", "x"], "name the members with --initial-cluster"),
            (&["--peer-cert-allowed-cn=x"], "contains the URI bowline://CLUSTER/MEMBER"),
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
            assert!(
                super::super::file::read_text("f", &format!("memory-mlock: {off}")).is_ok(),
                "{off}"
            );
        }
        assert!(read(&[both[1], both[1]], &[]).is_ok(), "the last value is used");
        let error = read(&[], &[("ETCD_MEMORY_MLOCK", "true")]).unwrap_err().to_string();
        assert!(error.contains("--memory-mlock"), "{error}");
    }

    /// Test suites pass it to any server that they start.
    #[test]
    fn unsafe_no_fsync_is_accepted_ignored_and_hidden() {
        let values = read(&["--unsafe-no-fsync"], &[]).unwrap();
        let idle: Vec<_> = values.idle().collect();
        assert_eq!(idle, [("unsafe-no-fsync", "every write is synced anyway")]);
        let help = crate::serve::flags::help();
        assert!(!help.contains("unsafe-no-fsync") && help.contains("snapshot-count"), "{help}");
    }
}
