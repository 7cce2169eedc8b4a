//! The values that were given, by flag, wherever they came from.

use std::collections::BTreeMap;
use std::fs;

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
        let path = values.get("config-file").filter(|path| !path.is_empty()).map(str::to_owned);
        let named = || {
            let named = environment.iter().find(|(name, _)| name == "ETCD_CONFIG_FILE");
            named.map(|(_, path)| path.clone())
        };
        match path.or_else(named) {
            None => values.read_environment(environment).map(|()| values),
            Some(path) => {
                let text = fs::read_to_string(&path).map_err(|error| FlagError::Unreadable {
                    path: path.clone(),
                    why: error.to_string(),
                })?;
                Self::read_file(&path, &text)
            }
        }
    }

    /// The value of a flag, if it was given.
    pub(crate) fn get(&self, name: &str) -> Option<&str> {
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

    /// Reads a file: `name: value`, one a line. The sections of TLS hold flags under shorter names.
    fn read_file(path: &str, text: &str) -> Result<Self, FlagError> {
        let mut values = Self { is_of_file: true, ..Self::default() };
        let mut section = None;
        for (number, line) in whole_lines(text) {
            let line = line.as_str();
            let wrong =
                |why: String| FlagError::File { path: path.to_owned(), line: number + 1, why };
            let is_nested = line.starts_with([' ', '\t']);
            let line = line.trim();
            if line.is_empty() || line == "---" {
                continue;
            }
            let (name, value) = line
                .split_once(':')
                .ok_or_else(|| wrong(format!("{line:?} is not of the form name: value")))?;
            let (name, value) = (name.trim(), listed(value.trim()));
            let long = match (is_nested, section) {
                (true, None) => return Err(wrong(format!("{name:?} stands in no section"))),
                (true, Some(section)) => in_section(section, name),
                (false, _) => name.to_owned(),
            };
            section = match (is_nested, name) {
                (true, _) => section,
                (false, "client-transport-security") => Some(Section::Client),
                (false, "peer-transport-security") => Some(Section::Peer),
                (false, _) => None,
            };
            if !is_nested && section.is_some() {
                match value.as_str() {
                    "" | "null" | "{}" => continue,
                    _ => {
                        return Err(wrong(format!(
                            "write what stands in {name:?} below it, one a line"
                        )));
                    }
                }
            }
            let flag = find(&long).ok_or_else(|| wrong(format!("there is no setting {name:?}")))?;
            // What asks for nothing is left alone: files are often written with all that there is.
            if !matches!(value.as_str(), "" | "null") {
                values.take(flag, value).map_err(|error| wrong(error.to_string()))?;
            }
        }
        Ok(values)
    }

    fn take(&mut self, flag: &'static Flag, value: String) -> Result<(), FlagError> {
        match flag.fate {
            Fate::Used => drop(self.given.insert(flag.name, value)),
            Fate::Ignored => self.idle.push((flag.name, flag.what)),
            // Not asked for.
            Fate::Refused if flag.is_switch && truth(&value) == Ok(false) => {}
            Fate::Refused => {
                return Err(FlagError::Refused { name: flag.name, instead: flag.what });
            }
        }
        Ok(())
    }
}

/// The part of a file that is about TLS with clients, or among members.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Section {
    Client,
    Peer,
}

/// What may stand in a section under the name that it has as a flag.
const IN_SECTIONS: [&str; 8] = [
    "cert-file",
    "key-file",
    "client-cert-auth",
    "client-cert-file",
    "client-key-file",
    "client-crl-file",
    "trusted-ca-file",
    "auto-tls",
];

/// The flag that a name in a section stands for.
fn in_section(section: Section, name: &str) -> String {
    match (section, name) {
        (Section::Client, "allowed-hostname") => "client-cert-allowed-hostname".to_owned(),
        (Section::Client, _) if IN_SECTIONS.contains(&name) => name.to_owned(),
        // There is no such flag.
        (Section::Client, _) => format!("client-transport-security/{name}"),
        (Section::Peer, "allowed-cn" | "allowed-hostname") => format!("peer-cert-{name}"),
        (Section::Peer, _) => format!("peer-{name}"),
    }
}

fn find(name: &str) -> Option<&'static Flag> {
    // What was experimental once, and is not any more, is known under both names.
    let name = name.strip_prefix("experimental-").unwrap_or(name);
    FLAGS.iter().find(|flag| flag.name == name)
}

/// The lines of a file without their comments, with their numbers from zero. A list over several lines is one.
fn whole_lines(text: &str) -> Vec<(usize, String)> {
    let mut lines: Vec<(usize, String)> = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let indent = &line[..line.len() - line.trim_start_matches([' ', '\t']).len()];
        let line = without_comment(line);
        // One of a list with an item a line.
        if let Some(item) = line.strip_prefix("- ")
            && let Some((_, last)) = lines.iter_mut().rfind(|(_, line)| !line.trim().is_empty())
            && (last.ends_with(':') || last.contains(": [") && last.ends_with(']'))
        {
            let begun = last.strip_suffix(']').map(|list| format!("{list},"));
            *last = begun.unwrap_or_else(|| format!("{last} [")) + item.trim() + "]";
            continue;
        }
        let open =
            lines.last_mut().filter(|(_, last)| last.contains(": [") && !last.ends_with(']'));
        match open {
            Some((_, last)) => last.push_str(line),
            None => lines.push((number, format!("{indent}{line}"))),
        }
    }
    lines
}

fn without_comment(line: &str) -> &str {
    let mut quote = None;
    for (at, char) in line.char_indices() {
        match (quote, char) {
            (None, '\'' | '"') => quote = Some(char),
            (Some(open), _) if open == char => quote = None,
            (None, '#') if at == 0 || line[..at].ends_with([' ', '\t']) => {
                return line[..at].trim();
            }
            _ => {}
        }
    }
    line.trim()
}

/// A value without its quotes, and of a list what is in it, separated by commas.
fn listed(value: &str) -> String {
    let Some(list) = value.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) else {
        return unquoted(value);
    };
    let items: Vec<_> = split(list).iter().map(|item| unquoted(item)).collect();
    items.join(",")
}

fn unquoted(value: &str) -> String {
    let inside = |quote: char| value.strip_prefix(quote).and_then(|rest| rest.strip_suffix(quote));
    inside('"').or_else(|| inside('\'')).unwrap_or(value).to_owned()
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
        assert_eq!(read(&["--name="], &[("ETCD_NAME", "b")]).unwrap().get("name"), Some(""));
    }

    #[test]
    fn beside_a_file_the_environment_says_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("etcd.yaml");
        fs::write(&path, "name: a").unwrap();
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
            assert!(Values::read_file("f", &format!("memory-mlock: {off}")).is_ok(), "{off}");
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

    #[test]
    fn the_sections_of_a_file_are_about_clients_and_about_members() {
        let text = "client-transport-security:\n  cert-file: c\n  client-cert-auth: true\n  \
                    allowed-hostname: h\npeer-transport-security:\n  cert-file: 'p'\n  auto-tls: false\n  \
                    trusted-ca-file: a\ncipher-suites: [A, B]\n";
        let values = Values::read_file("f", text).unwrap();
        let given = [
            "cert-file",
            "client-cert-auth",
            "client-cert-allowed-hostname",
            "peer-cert-file",
            "peer-trusted-ca-file",
            "cipher-suites",
        ];
        assert_eq!(
            given.map(|name| values.get(name)),
            [Some("c"), Some("true"), Some("h"), Some("p"), Some("a"), Some("A,B")]
        );
    }

    #[test]
    fn lists_are_written_on_one_line_or_on_several() {
        let values = |text: &str| {
            let values = Values::read_file("f", text).unwrap();
            ["cipher-suites", "log-outputs"].map(|name| values.get(name).map(str::to_owned))
        };
        let expected = [Some("A,B".to_owned()), Some("stderr".to_owned())];
        for text in [
            "cipher-suites: [A, B]\nlog-outputs: [stderr]",
            "cipher-suites: ['A', \"B\"]\nlog-outputs: stderr",
            "cipher-suites: [\n  'A', # one\n  B,\n]\nlog-outputs: ['stderr']",
            "cipher-suites:\n  - A # one\n\n  - 'B'\nlog-outputs:\n- stderr",
        ] {
            assert_eq!(values(text), expected, "{text}");
        }
        let inside =
            "client-transport-security:\n  allowed-hostname:\n    - h\n    - i\n  cert-file: c";
        let values = Values::read_file("f", inside).unwrap();
        let given = ["client-cert-allowed-hostname", "cert-file"].map(|name| values.get(name));
        assert_eq!(given, [Some("h,i"), Some("c")]);
    }

    /// As etcd ships it, without its comments.
    #[test]
    fn etcds_own_sample_of_a_file_is_read() {
        let text = "name: 'default'\ndata-dir:\nwal-dir:\nsnapshot-count: 10000\nmax-snapshots: 5\nmax-wals: 5\n\
                    cors:\ndiscovery:\ndiscovery-fallback: 'proxy'\ndiscovery-proxy:\ninitial-cluster:\n\
                    strict-reconfig-check: false\nenable-pprof: true\nproxy: 'off'\nproxy-failure-wait: 5000\n\
                    proxy-read-timeout: 0\npeer-transport-security:\n  # Peer TLS\n  cert-file:\n  allowed-cn:\n  \
                    auto-tls: false\nlog-level: debug\nlogger: zap\n\n# Specify 'stdout' or\nlog-outputs: [stderr]\n\
                    force-new-cluster: false\nauto-compaction-retention: \"1\"\ncipher-suites: [\n  A_B, # one\n  \
                    C_D\n]\ntls-min-version: 'TLS1.2'\n";
        let values = Values::read_file("f", text).unwrap();
        let given = ["log-outputs", "cipher-suites", "tls-min-version", "initial-cluster"];
        assert_eq!(
            given.map(|name| values.get(name)),
            [Some("stderr"), Some("A_B,C_D"), Some("TLS1.2"), None]
        );
    }

    #[test]
    fn a_file_says_the_same_under_the_same_names() {
        let text = "# etcd's own sample, shortened\nname: 'default'\ndata-dir:\nheartbeat-interval: 100 # ms\n\
                    listen-client-urls: \"http://localhost:2379\"\nforce-new-cluster: false\n\
                    client-transport-security:\n  cert-file:\n  auto-tls: false\nlog-level: debug\n";
        let values = Values::read_file("f", text).unwrap();
        let given = ["name", "heartbeat-interval", "listen-client-urls", "log-level", "data-dir"];
        assert_eq!(
            given.map(|name| values.get(name)),
            [Some("default"), Some("100"), Some("http://localhost:2379"), Some("debug"), None]
        );
        for (text, words) in [
            ("nam: x", "f, line 1: there is no setting \"nam\""),
            ("\n- x", "f, line 2: \"- x\" is not of the form"),
            (
                "peer-transport-security:\n  allowed-cn: x",
                "line 2: --peer-cert-allowed-cn: a member",
            ),
            ("peer-transport-security:\n  name: x", "line 2: there is no setting \"name\""),
            ("client-transport-security:\n  allowed-cn: x", "no setting \"allowed-cn\""),
            ("client-transport-security:\n  data-dir: x", "no setting \"data-dir\""),
            (
                "client-transport-security: {cert-file: c}",
                "line 1: write what stands in \"client-transport-security\" below it",
            ),
            ("peer-transport-security: p", "write what stands in \"peer-transport-security\""),
            ("  x: y", "stands in no section"),
            ("discovery: x", "there is no discovery"),
        ] {
            let error = Values::read_file("f", text).unwrap_err().to_string();
            assert!(error.contains(words), "{error:?} lacks {words:?}");
        }
    }
}
