//! Reads flags from a YAML configuration file with one key per flag. The two TLS sections of the file have shorter
//! names for the flags that they contain.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};

use super::error::FlagError;
use super::values::Values;
use super::values::find;
use super::yaml::{self, Document, Entry, Node};

/// Maximum size of the file, in bytes.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Maximum number of unknown keys that the warning names.
const NAMED_MAX: usize = 20;

impl Values {
    /// Reads the arguments after `serve`, and the environment for flags not among them. If either names a configuration
    /// file, only the file is read, as in etcd. Empty variables are ignored.
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
            Some(path) => read(&path),
        }
    }
}

/// Reads a file.
///
/// # Errors
/// Fails if the file cannot be read, and at the first line that is not YAML or the first setting that is rejected.
pub(super) fn read(path: &str) -> Result<Values, FlagError> {
    let unreadable = |why: String| FlagError::Unreadable { path: path.to_owned(), why };
    let bytes = bytes(path).map_err(|error| unreadable(error.to_string()))?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return Err(unreadable(format!("the file has more than {FILE_BYTES_MAX} bytes")));
    }
    read_text(path, &text(bytes).map_err(unreadable)?)
}

fn bytes(path: &str) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Decodes the file: UTF-8, or UTF-16 if there is a byte order mark.
fn text(bytes: Vec<u8>) -> Result<String, String> {
    let units = |of: fn([u8; 2]) -> u16| {
        let units = bytes[2..].as_chunks::<2>().0.iter();
        let text = char::decode_utf16(units.map(|pair| of(*pair))).collect::<Result<_, _>>();
        text.map_err(|error| format!("the file is not valid UTF-16: {error}"))
    };
    match *bytes {
        [0xff, 0xfe, ..] => units(u16::from_le_bytes),
        [0xfe, 0xff, ..] => units(u16::from_be_bytes),
        _ => String::from_utf8(bytes)
            .map_err(|error| format!("the file is not valid UTF-8: {error}")),
    }
}

/// Parses the text of a file. `path` is for errors.
///
/// # Errors
/// As [`read`].
pub(super) fn read_text(path: &str, text: &str) -> Result<Values, FlagError> {
    let wrong = |line: usize, why: String| FlagError::File { path: path.to_owned(), line, why };
    let Document { root, more } = yaml::read(text).map_err(|error| wrong(error.line, error.why))?;
    let mut reading =
        Reading { path, values: Values::of_file(), lines: BTreeMap::new(), unknown: Vec::new() };
    match root {
        Node::Null => {}
        Node::Map(entries) => entries.iter().try_for_each(|entry| reading.take(entry))?,
        Node::Text(_) | Node::List(_) => {
            return Err(wrong(1, "expected a mapping of settings to values".to_owned()));
        }
    }
    let Reading { mut values, unknown, .. } = reading;
    if let Some(line) = more {
        values
            .warn(format!("{path}, line {line}: only the first YAML document of the file is read"));
    }
    if !unknown.is_empty() {
        let named = unknown.iter().take(NAMED_MAX).cloned().collect::<Vec<_>>().join(", ");
        let rest = match unknown.len().saturating_sub(NAMED_MAX) {
            0 => String::new(),
            rest => format!(" and {rest} more"),
        };
        values.warn(format!("{path}: unknown settings are ignored: {named}{rest}"));
    }
    Ok(values)
}

struct Reading<'a> {
    path: &'a str,
    values: Values,
    /// Line of each flag, and its name in the file.
    lines: BTreeMap<&'static str, (usize, String)>,
    /// Unknown keys with their lines.
    unknown: Vec<String>,
}

impl Reading<'_> {
    fn take(&mut self, entry: &Entry) -> Result<(), FlagError> {
        let section = match entry.key.to_ascii_lowercase().as_str() {
            "client-transport-security" => Section::Client,
            "peer-transport-security" => Section::Peer,
            name => return self.flag(name, entry),
        };
        match &entry.value {
            Node::Null => Ok(()),
            Node::Map(entries) => entries.iter().try_for_each(|inner| {
                self.flag(&in_section(section, &inner.key.to_ascii_lowercase()), inner)
            }),
            Node::Text(_) | Node::List(_) => {
                let why = format!("{:?} is a section: expected settings below it", entry.key);
                Err(self.wrong(entry, why))
            }
        }
    }

    /// Takes the value of a flag. `name` is its full name.
    fn flag(&mut self, name: &str, entry: &Entry) -> Result<(), FlagError> {
        let Some(flag) = find(name) else {
            self.unknown.push(format!("{:?} (line {})", entry.key, entry.line));
            return Ok(());
        };
        self.values.note_removed(name, flag);
        let own = (entry.line, entry.key.clone());
        if let Some((line, key)) = self.lines.insert(flag.name, own) {
            let why = format!(
                "{:?} is the same setting as {key:?} in line {line}; remove one",
                entry.key
            );
            return Err(self.wrong(entry, why));
        }
        // Empty values are ignored, because generated files often contain all settings.
        match self.text(entry)? {
            value if value.is_empty() => Ok(()),
            value => {
                self.values.take(flag, value).map_err(|error| self.wrong(entry, error.to_string()))
            }
        }
    }

    /// Returns a value as it would be given on the command line, with lists separated by commas.
    fn text(&self, entry: &Entry) -> Result<String, FlagError> {
        let why = match &entry.value {
            Node::Null => return Ok(String::new()),
            Node::Text(text) => return Ok(text.clone()),
            Node::List(items) => {
                let texts = items.iter().map(|item| match item {
                    Node::Text(text) => Some(text.as_str()),
                    _ => None,
                });
                match texts.collect::<Option<Vec<_>>>() {
                    Some(texts) => return Ok(texts.join(",")),
                    None => format!("{:?} is a list: expected plain values in it", entry.key),
                }
            }
            Node::Map(_) => format!("{:?} is a mapping: expected a value or a list", entry.key),
        };
        Err(self.wrong(entry, why))
    }

    fn wrong(&self, entry: &Entry, why: String) -> FlagError {
        FlagError::File { path: self.path.to_owned(), line: entry.line, why }
    }
}

/// A TLS section of the file: for clients or for members.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Section {
    Client,
    Peer,
}

/// Settings of the client section with the same name as their flag.
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

/// Returns the flag for a name in a section.
fn in_section(section: Section, name: &str) -> String {
    match (section, name) {
        (Section::Client, "allowed-hostname") => "client-cert-allowed-hostname".to_owned(),
        (Section::Client, _) if IN_SECTIONS.contains(&name) => name.to_owned(),
        // The returned name matches no flag, so the setting is reported as unknown.
        (Section::Client, _) => format!("client-transport-security/{name}"),
        (Section::Peer, "allowed-cn" | "allowed-hostname") => format!("peer-cert-{name}"),
        (Section::Peer, _) => format!("peer-{name}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_sections_configure_client_and_peer_tls() {
        let text = "client-transport-security:\n  cert-file: c\n  client-cert-auth: true\n  \
                    allowed-hostname: h\npeer-transport-security:\n  cert-file: 'p'\n  auto-tls: false\n  \
                    trusted-ca-file: a\ncipher-suites: [A, B]\n";
        let values = read_text("f", text).unwrap();
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
    fn yaml_lists_accept_both_styles() {
        let values = |text: &str| {
            let values = read_text("f", text).unwrap();
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
        let values = read_text("f", inside).unwrap();
        let given = ["client-cert-allowed-hostname", "cert-file"].map(|name| values.get(name));
        assert_eq!(given, [Some("h,i"), Some("c")]);
    }

    /// etcd's sample file without its comments.
    #[test]
    fn sample_file_of_etcd_is_read() {
        let text = "name: 'default'\ndata-dir:\nwal-dir:\nsnapshot-count: 10000\nmax-snapshots: 5\nmax-wals: 5\n\
                    cors:\ndiscovery:\ndiscovery-fallback: 'proxy'\ndiscovery-proxy:\ninitial-cluster:\n\
                    strict-reconfig-check: false\nenable-pprof: true\nproxy: 'off'\nproxy-failure-wait: 5000\n\
                    proxy-read-timeout: 0\npeer-transport-security:\n  # Peer TLS\n  cert-file:\n  allowed-cn:\n  \
                    auto-tls: false\nlog-level: debug\nlogger: zap\n\n# Specify 'stdout' or\nlog-outputs: [stderr]\n\
                    force-new-cluster: false\nauto-compaction-retention: \"1\"\ncipher-suites: [\n  A_B, # one\n  \
                    C_D\n]\ntls-min-version: 'TLS1.2'\n";
        let values = read_text("f", text).unwrap();
        let given = ["log-outputs", "cipher-suites", "tls-min-version", "initial-cluster"];
        assert_eq!(
            given.map(|name| values.get(name)),
            [Some("stderr"), Some("A_B,C_D"), Some("TLS1.2"), None]
        );
    }

    #[test]
    fn file_keys_are_flag_names() {
        let text = "# etcd's own sample, shortened\nname: 'default'\ndata-dir:\nheartbeat-interval: 100 # ms\n\
                    listen-client-urls: \"http://localhost:2379\"\nforce-new-cluster: false\n\
                    client-transport-security:\n  cert-file:\n  auto-tls: false\nlog-level: debug\n";
        let values = read_text("f", text).unwrap();
        let given = ["name", "heartbeat-interval", "listen-client-urls", "log-level", "data-dir"];
        assert_eq!(
            given.map(|name| values.get(name)),
            [Some("default"), Some("100"), Some("http://localhost:2379"), Some("debug"), None]
        );
        for (text, words) in [
            ("\n- x", "f, line 1: expected a mapping of settings to values"),
            ("x", "f, line 1: expected a mapping of settings to values"),
            (
                "name: m\nName: n",
                "f, line 2: \"Name\" is the same setting as \"name\" in line 1; remove one",
            ),
            (
                "experimental-warning-apply-duration: 1s\nwarning-apply-duration: 1s",
                "the same setting as \"experimental-warning-apply-duration\" in line 1",
            ),
            ("name: {a: b}", "line 1: \"name\" is a mapping: expected a value or a list"),
            (
                "cipher-suites:\n- {a: b}",
                "line 1: \"cipher-suites\" is a list: expected plain values",
            ),
            (
                "peer-transport-security:\n  allowed-cn: x",
                "line 2: --peer-cert-allowed-cn: a member",
            ),
            ("peer-transport-security: p", "\"peer-transport-security\" is a section"),
            ("client-transport-security: [c]", "\"client-transport-security\" is a section"),
            ("discovery: x", "discovery is not supported"),
        ] {
            let error = read_text("f", text).unwrap_err().to_string();
            assert!(error.contains(words), "{error:?} lacks {words:?}");
        }
    }

    /// Each YAML form that etcd 3.6 accepts, with the values that etcd reads for `name` and `quota-backend-bytes`.
    #[test]
    fn every_yaml_form_of_etcd_is_read() {
        const GIB_4: &str = "4294967296";
        let forms = [
            ("plain", "name: m1", "m1", ""),
            ("single quotes", "name: 'm''1'", "m'1", ""),
            ("double quotes", r#"name: "m\u0031""#, "m1", ""),
            ("quotes with a hash", "name: 'm # 1'", "m # 1", ""),
            ("quoted keys", "'name': m1\n\"quota-backend-bytes\": 4294967296", "m1", GIB_4),
            ("keys in capitals", "NAME: m1", "m1", ""),
            ("literal block", "name: |-\n  m1\n", "m1", ""),
            ("folded block", "name: >-\n  m1\n  m2\n", "m1 m2", ""),
            ("plain over two lines", "name: m1\n  m2", "m1 m2", ""),
            ("value on the next line", "name:\n  m1", "m1", ""),
            ("quotes over two lines", "name: \"m1\n  m2\"", "m1 m2", ""),
            (
                "JSON",
                "{\n\t\"name\": \"m1\",\n\t\"quota-backend-bytes\": 4294967296\n}",
                "m1",
                GIB_4,
            ),
            ("JSON on one line", r#"{"name":"m1","quota-backend-bytes":4294967296}"#, "m1", GIB_4),
            ("flow mapping", "{name: m1, quota-backend-bytes: 4294967296,}", "m1", GIB_4),
            ("flow section", "client-transport-security: {auto-tls: no}\nname: m1", "m1", ""),
            ("byte order mark", "\u{feff}name: m1", "m1", ""),
            ("document start", "---\nname: m1", "m1", ""),
            ("document start with the mapping", "--- {name: m1}", "m1", ""),
            ("document end", "name: m1\n...\n", "m1", ""),
            ("second document", "name: m1\n---\nname: m2\n", "m1", ""),
            ("%YAML 1.1", "%YAML 1.1\n---\nname: m1", "m1", ""),
            ("%YAML 1.2", "%YAML 1.2\n---\nname: m1", "m1", ""),
            ("anchor", "initial-cluster-token: &t m1\nname: *t", "m1", ""),
            ("anchor under an unknown key", "x: &t m1\nname: *t", "m1", ""),
            ("merge", "x: &x {name: m1}\n<<: *x\nquota-backend-bytes: 4294967296", "m1", GIB_4),
            ("tag", "name: !!str 17", "17", ""),
            ("a number for a name", "name: 17", "17", ""),
            ("a truth for a name", "name: yes", "true", ""),
            ("exponent", "name: m1\nquota-backend-bytes: 4.294967296e+09", "m1", GIB_4),
            ("hexadecimal", "name: m1\nquota-backend-bytes: 0x100000000", "m1", GIB_4),
            ("underscores", "name: m1\nquota-backend-bytes: 4_294_967_296", "m1", GIB_4),
            ("no and off", "name: m1\nforce-new-cluster: no\nmemory-mlock: off", "m1", ""),
            ("tilde", "name: m1\ndiscovery: ~\nwal-dir: null\ncors: ''", "m1", ""),
            (
                "unknown keys",
                "enable-v2: true\ndebug: false\nlog-package-levels: ''\nname: m1",
                "m1",
                "",
            ),
            ("unknown sections", "x:\n  y: [1, {z: 2}]\nname: m1", "m1", ""),
            ("Windows line ends", "name: m1\r\nquota-backend-bytes: 4294967296\r\n", "m1", GIB_4),
            ("tab after a key", "name:\tm1\nquota-backend-bytes:\t\t4294967296", "m1", GIB_4),
            ("tab before a comment", "name: m1\t# comment", "m1", ""),
            ("indented", "  name: m1\n  quota-backend-bytes: 4294967296", "m1", GIB_4),
            ("explicit key", "? name\n: m1", "m1", ""),
        ];
        for (form, text, name, quota) in forms {
            let values = read_text("f", text).unwrap_or_else(|error| panic!("{form}: {error}"));
            assert_eq!(values.get("name"), Some(name), "{form}");
            let bytes =
                super::super::parse::number::<u64>(&values, "quota-backend-bytes", 0, 0, u64::MAX);
            assert_eq!(bytes.unwrap(), quota.parse().unwrap_or(0), "{form}");
        }
        for empty in ["", "---", "# comment", "~", "{}", "...", "\u{feff}"] {
            assert_eq!(read_text("f", empty), Ok(Values::of_file()), "{empty:?}");
        }
    }

    #[test]
    fn unknown_settings_get_one_warning_with_their_names() {
        let warnings = |text: &str| {
            let values = read_text("f", text).unwrap();
            values.warnings().map(str::to_owned).collect::<Vec<_>>()
        };
        let text = "enable-v2: true\nname: m1\nclient-transport-security:\n  ca-file: x\n  cert-file: ''\ndebug:\n";
        assert_eq!(
            warnings(text),
            [
                r#"f: unknown settings are ignored: "enable-v2" (line 1), "ca-file" (line 4), "debug" (line 6)"#
            ]
        );
        let many: String = (1..=30).map(|number| format!("k{number}: x\n")).collect();
        let [warning] = &warnings(&many)[..] else { panic!("one warning") };
        assert!(warning.ends_with("\"k20\" (line 20) and 10 more"), "{warning}");
        assert_eq!(
            warnings("name: a\n---\nname: b"),
            ["f, line 2: only the first YAML document of the file is read"]
        );
        assert_eq!(warnings("name: a"), [""; 0]);
    }

    #[test]
    fn non_text_file_is_rejected() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        let path = path.to_str().unwrap();
        let read_bytes = |bytes: &[u8]| {
            std::fs::write(path, bytes).unwrap();
            read(path).map(|values| values.get("name").map(str::to_owned))
        };
        assert_eq!(read_bytes(b"\xff\xfen\0a\0m\0e\0:\0 \0m\0"), Ok(Some("m".to_owned())));
        assert_eq!(read_bytes(b"\xfe\xff\0n\0a\0m\0e\0:\0 \0m"), Ok(Some("m".to_owned())));
        for (bytes, words) in [
            (&b"\xff\xfe\0\xd8"[..], "not valid UTF-16"),
            (b"name: \xff", "not valid UTF-8"),
            (&vec![b' '; (1 << 20) + 1], "the file has more than 1048576 bytes"),
        ] {
            let error = read_bytes(bytes).unwrap_err().to_string();
            assert!(error.contains(words), "{error:?} lacks {words:?}");
        }
        for (path, words) in [
            (dir.path().to_str().unwrap(), "directory"),
            ("/dev/zero", "the file has more than"),
            ("/no/such/file", "No such file"),
        ] {
            let error = read(path).unwrap_err().to_string();
            assert!(error.contains(words), "{error:?} lacks {words:?}");
        }
    }
}
