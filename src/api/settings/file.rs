//! Settings in TOML, in JSON, and in formats that serde supports.

use std::fmt;
use std::io;
use std::path::Path;

use serde::de::{self, DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use toml::de::{DeTable, DeValue};

use super::parse::distance;
use super::table::{Form, SETTINGS, Setting, missing_feature};
use super::{PartialConfig, SettingSource};
use crate::api::{Config, ConfigError};
use crate::env::{Env, OpenMode};

/// Maximum size of a file in bytes.
const FILE_BYTES_MAX: u64 = 1 << 20;

impl Config {
    /// Creates the configuration of a node from a file in TOML or JSON, whose name ends in `.toml`
    /// or `.json`. [`PartialConfig`] lists the keys, and combines files with environment variables
    /// and flags. Requires the crate feature `config`.
    ///
    /// ```
    /// # use bowline::{Blocking, Config, Node};
    /// # let dir = tempfile::tempdir()?;
    /// let file = dir.path().join("bowline.toml");
    /// # let data_dir = dir.path().display();
    /// std::fs::write(&file, format!("data_dir = '{data_dir}/data'\nnode_name = 'n1'"))?;
    /// let node = Node::start(Config::from_file(&file)?).block()?;
    /// # node.shutdown().block();
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Returns [`ConfigError::File`], which names the file, the line and the key, if the file cannot
    /// be read, or a key is unknown, or a value is invalid. Returns [`ConfigError::Missing`] if
    /// `data_dir` or `node_name` is missing.
    pub fn from_file(path: impl AsRef<Path>) -> Result<Config, ConfigError> {
        PartialConfig::from_file(path)?.into_config()
    }
}

impl PartialConfig {
    /// Returns the settings in a file, whose name ends in `.toml` or `.json`. The file has at most
    /// 1 MiB. Requires the crate feature `config`.
    ///
    /// # Errors
    /// Returns [`ConfigError::File`], which names the file, the line and the key.
    pub fn from_file(path: impl AsRef<Path>) -> Result<Self, ConfigError> {
        let path = path.as_ref();
        let error =
            |why: String| ConfigError::File { file: Some(path.to_owned()), line: None, why };
        let read = match path.extension().and_then(|extension| extension.to_str()) {
            Some("toml") => Self::from_toml,
            Some("json") => Self::from_json,
            _ => return Err(error("the name of the file must end in .toml or .json".to_owned())),
        };
        let text = read_text(path).map_err(|why| error(format!("cannot read the file: {why}")))?;
        let mut all = read(&text).map_err(|error| match error {
            ConfigError::File { line, why, .. } => {
                ConfigError::File { file: Some(path.to_owned()), line, why }
            }
            error => error,
        })?;
        for given in all.given.values_mut() {
            if let SettingSource::Text { file, .. } = &mut given.source {
                *file = Some(path.to_owned());
            }
        }
        Ok(all)
    }

    /// Returns the settings in a text in TOML. Requires the crate feature `config`.
    ///
    /// # Errors
    /// Returns [`ConfigError::File`], which names the line and the key.
    pub fn from_toml(text: &str) -> Result<Self, ConfigError> {
        let line_at = |at: usize| text[..at].matches('\n').count() + 1;
        let error = |error: toml::de::Error| ConfigError::File {
            file: None,
            line: error.span().map(|span| line_at(span.start)),
            why: error.message().to_owned(),
        };
        let mut all: Self = toml::from_str(text).map_err(error)?;
        let table = DeTable::parse(text).map_err(error)?;
        for (key, given) in &mut all.given {
            let at = position(table.get_ref(), key).map(line_at);
            given.source = SettingSource::Text { file: None, line: at };
        }
        Ok(all)
    }

    /// Returns the settings in a text in JSON. A setting that is `null` is not set. Requires the
    /// crate feature `config`.
    ///
    /// # Errors
    /// Returns [`ConfigError::File`], which names the line and the key.
    pub fn from_json(text: &str) -> Result<Self, ConfigError> {
        serde_json::from_str(text).map_err(|error| {
            let (line, place) = (error.line(), format!(" at line {} column ", error.line()));
            let why = error.to_string();
            let why = why.rsplit_once(&place).map_or(why.as_str(), |(why, _)| why).to_owned();
            ConfigError::File { file: None, line: (line > 0).then_some(line), why }
        })
    }
}

fn read_text(path: &Path) -> io::Result<String> {
    let file = Env::real().disk.open(path, OpenMode::Read)?;
    let len = file.len()?;
    if len > FILE_BYTES_MAX {
        return Err(io::Error::other(format!("{len} bytes, at most {FILE_BYTES_MAX}")));
    }
    let mut bytes = vec![0; usize::try_from(len).expect("below the limit")];
    file.read_exact_at(&mut bytes, 0)?;
    String::from_utf8(bytes).map_err(io::Error::other)
}

/// Returns the offset of a key in the text that was parsed.
fn position(table: &DeTable<'_>, key: &str) -> Option<usize> {
    let (name, rest) = key.split_once('.').map_or((key, None), |(name, rest)| (name, Some(rest)));
    let (name, value) = table.iter().find(|(other, _)| other.get_ref() == name)?;
    match (rest, value.get_ref()) {
        (None, _) => Some(name.span().start),
        (Some(rest), DeValue::Table(table)) => position(table, rest),
        (Some(_), _) => None,
    }
}

impl<'de> de::Deserialize<'de> for PartialConfig {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let mut all = Self::default();
        from.deserialize_map(TableVisitor { table: "", all: &mut all })?;
        Ok(all)
    }
}

/// Reads a table of settings.
struct TableVisitor<'a> {
    /// Name of the table with a dot, or empty for the whole configuration.
    table: &'static str,
    all: &'a mut PartialConfig,
}

impl<'de> Visitor<'de> for TableVisitor<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.table.strip_suffix('.') {
            Some(table) => write!(f, "a table of settings for `{table}`"),
            None => f.write_str("a table of settings"),
        }
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let Self { table, all } = self;
        while let Some(key) = map.next_key_seed(KeySeed { table })? {
            match key {
                Key::Table(table) => map.next_value_seed(TableVisitor { table, all })?,
                Key::Setting(setting) => map.next_value_seed(ValueSeed { setting, all })?,
            }
        }
        Ok(())
    }
}

impl<'de> DeserializeSeed<'de> for TableVisitor<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<(), D::Error> {
        from.deserialize_map(self)
    }
}

/// A known key.
enum Key {
    Setting(&'static Setting),
    /// Name of a table with a dot.
    Table(&'static str),
}

struct KeySeed {
    table: &'static str,
}

impl<'de> DeserializeSeed<'de> for KeySeed {
    type Value = Key;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<Key, D::Error> {
        from.deserialize_str(self)
    }
}

impl Visitor<'_> for KeySeed {
    type Value = Key;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the key of a setting")
    }

    fn visit_str<E: de::Error>(self, name: &str) -> Result<Key, E> {
        let key = format!("{}{name}", self.table);
        if let Some(setting) = Setting::find(&key) {
            return Ok(Key::Setting(setting));
        }
        let inside = format!("{key}.");
        if let Some(setting) = SETTINGS.iter().find(|setting| setting.key.starts_with(&inside)) {
            return Ok(Key::Table(&setting.key[..inside.len()]));
        }
        Err(E::custom(unknown(&key, self.table)))
    }
}

/// Describes an unknown key, with the keys that are accepted in its place.
fn unknown(key: &str, table: &str) -> String {
    if let Some(feature) = missing_feature(key) {
        return format!("`{key}`: this build lacks the crate feature `{feature}`");
    }
    let keys = || SETTINGS.iter().map(|setting| setting.key);
    let is_near = |other: &&str| distance(key, other) <= 2 || other.ends_with(&format!("_{key}"));
    if let Some(near) = keys().find(is_near) {
        return format!("unknown key `{key}`: did you mean `{near}`?");
    }
    let mut accepted: Vec<&str> = keys()
        .filter_map(|key| Some(key.strip_prefix(table)?.split('.').next().unwrap_or_default()))
        .collect();
    accepted.dedup();
    format!("unknown key `{key}`: expected one of {}", accepted.join(", "))
}

/// Reads the value of a setting.
struct ValueSeed<'a> {
    setting: &'static Setting,
    all: &'a mut PartialConfig,
}

impl<'de> DeserializeSeed<'de> for ValueSeed<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<(), D::Error> {
        from.deserialize_any(self)
    }
}

impl ValueSeed<'_> {
    fn insert<E: de::Error>(self, text: impl Into<String>) -> Result<(), E> {
        let Self { setting, all } = self;
        let key = setting.key;
        if all.given.contains_key(key) {
            return Err(E::custom(format!("`{key}`: set twice")));
        }
        let source = SettingSource::Text { file: None, line: None };
        all.insert(setting, text.into().into(), source)
            .map_err(|why| E::custom(format!("`{key}`: {why}")))
    }

    fn number<E: de::Error>(self, number: impl fmt::Display) -> Result<(), E> {
        match self.setting.form {
            // A duration without a unit fails with the list of the units.
            Form::Number
            | Form::NumberOrOff
            | Form::Size
            | Form::Duration
            | Form::DurationOrOff => self.insert(number.to_string()),
            _ => Err(self.unexpected(&format!("the number {number}"))),
        }
    }

    fn unexpected<E: de::Error>(&self, found: &str) -> E {
        let Setting { key, form, .. } = self.setting;
        E::custom(format!("`{key}`: {found} is not valid: expected {}", form.accepts()))
    }
}

impl<'de> Visitor<'de> for ValueSeed<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} for `{}`", self.setting.form.accepts(), self.setting.key)
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<(), E> {
        self.insert(text)
    }

    fn visit_bool<E: de::Error>(self, is_on: bool) -> Result<(), E> {
        match self.setting.form {
            Form::Switch => self.insert(is_on.to_string()),
            _ => Err(self.unexpected(&is_on.to_string())),
        }
    }

    fn visit_i64<E: de::Error>(self, number: i64) -> Result<(), E> {
        self.number(number)
    }

    fn visit_u64<E: de::Error>(self, number: u64) -> Result<(), E> {
        self.number(number)
    }

    fn visit_f64<E: de::Error>(self, number: f64) -> Result<(), E> {
        Err(self.unexpected(&format!("the number {number}")))
    }

    /// A JSON `null`.
    fn visit_unit<E: de::Error>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        if !matches!(self.setting.form, Form::List | Form::Members) {
            return Err(self.unexpected("a list"));
        }
        let mut items: Vec<String> = Vec::new();
        while let Some(item) = list.next_element::<String>()? {
            if item.contains(',') {
                return Err(self.unexpected(&format!("the item {item:?} with a comma")));
            }
            items.push(item);
        }
        self.insert(items.join(","))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<(), A::Error> {
        if self.setting.form != Form::Members {
            return Err(self.unexpected("a table"));
        }
        let mut items: Vec<String> = Vec::new();
        while let Some((name, addresses)) = members.next_entry::<String, String>()? {
            if name.contains([',', '=']) {
                return Err(self.unexpected(&format!("the name {name:?}")));
            }
            items.extend(addresses.split(',').map(|address| format!("{name}={}", address.trim())));
        }
        self.insert(items.join(","))
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::api::settings::tests::variables;

    const TOML: &str = r#"
        data_dir = "d"
        node_name = "b"
        client_endpoints = ["http://x:1", "http://y:2"]
        heartbeat = "50ms"
        quota_bytes = "1MiB"
        drift_percent = 5
        insecure_peers = true
        slow_apply = "off"

        [members]
        a = "h:1"
        b = "h:2, g:2"

        [limits]
        txn_ops_max = 64
        value_bytes_max = 65536

        [history]
        window = "off"
    "#;

    const JSON: &str = r#"{
        "data_dir": "d", "node_name": "b", "client_endpoints": ["http://x:1", "http://y:2"],
        "heartbeat": "50ms", "quota_bytes": 1048576, "drift_percent": 5, "insecure_peers": true,
        "slow_apply": "off", "members": "a=h:1,b=h:2,b=g:2", "label": null,
        "limits": {"txn_ops_max": 64, "value_bytes_max": "64KiB"}, "history": {"window": "off"}
    }"#;

    fn toml_error(text: &str) -> String {
        PartialConfig::from_toml(text).unwrap_err().to_string()
    }

    #[test]
    fn files_set_what_variables_set() {
        let config = |partial: Result<PartialConfig, ConfigError>| {
            format!("{:?}", partial.unwrap().into_config().unwrap())
        };
        let made = config(variables(&[
            ("BOWLINE_DATA_DIR", "d"),
            ("BOWLINE_NODE_NAME", "b"),
            ("BOWLINE_CLIENT_ENDPOINTS", "http://x:1,http://y:2"),
            ("BOWLINE_HEARTBEAT", "50ms"),
            ("BOWLINE_QUOTA_BYTES", "1048576"),
            ("BOWLINE_DRIFT_PERCENT", "5"),
            ("BOWLINE_INSECURE_PEERS", "true"),
            ("BOWLINE_SLOW_APPLY", "off"),
            ("BOWLINE_MEMBERS", "a=h:1,b=h:2,b=g:2"),
            ("BOWLINE_LIMITS_TXN_OPS_MAX", "64"),
            ("BOWLINE_LIMITS_VALUE_BYTES_MAX", "64KiB"),
            ("BOWLINE_HISTORY_WINDOW", "off"),
        ]));
        assert_eq!(config(PartialConfig::from_toml(TOML)), made);
        assert_eq!(config(PartialConfig::from_json(JSON)), made);
    }

    #[test]
    fn errors_name_the_line_and_the_key() {
        let table = [
            ("\n\nheartbeet = '1s'", "line 3: unknown key `heartbeet`: did you mean `heartbeat`?"),
            ("endpoints = []", "line 1: unknown key `endpoints`: did you mean `client_endpoints`?"),
            (
                "[history]\nage = '1h'",
                "line 2: unknown key `history.age`: expected one of window, revisions_max, quota_percent",
            ),
            (
                "heartbeat = 100",
                "line 1: `heartbeat`: invalid duration \"100\": expected a number with",
            ),
            (
                "[limits]\n\nkey_bytes_max = '4KB'",
                "line 3: `limits.key_bytes_max`: invalid size \"4KB\"",
            ),
            ("quota_bytes = -1", "line 1: `quota_bytes`: invalid size \"-1\""),
            (
                "quota_bytes = 1.5",
                "line 1: `quota_bytes`: the number 1.5 is not valid: expected a number of",
            ),
            ("label = 7", "line 1: `label`: the number 7 is not valid: expected text"),
            ("label = ['a']", "line 1: `label`: a list is not valid: expected text"),
            ("insecure_peers = 'yes'", "line 1: `insecure_peers`: invalid value \"yes\""),
            (
                "drift_percent = true",
                "line 1: `drift_percent`: true is not valid: expected a whole number",
            ),
            (
                "limits = 3",
                "line 1: invalid type: integer `3`, expected a table of settings for `limits`",
            ),
            ("members = { a = 'h' }", "line 1: `members`: invalid value \"a=h\": invalid member"),
            (
                "join = ['h:1,h:2']",
                "line 1: `join`: the item \"h:1,h:2\" with a comma is not valid",
            ),
            ("a = ", "line 1: "),
        ];
        for (text, start) in table {
            let why = toml_error(text);
            assert!(why.starts_with(start), "{why:?} does not start with {start:?}");
        }
        let accepted = toml_error("nothing = 1");
        assert!(accepted.contains("data_dir, node_name, members"), "{accepted}");
        assert!(
            accepted.contains("limits, open_writes_max"),
            "each table is listed once: {accepted}"
        );
        let json = |text: &str| PartialConfig::from_json(text).unwrap_err().to_string();
        assert_eq!(
            json("{\n\"history\": {\"quota_percent\": \"x\"}}"),
            "line 2: `history.quota_percent`: invalid value \"x\": expected a whole number, or off"
        );
        assert!(
            json("{\"label\": \"a\",\n \"label\": \"b\"}")
                .starts_with("line 2: `label`: set twice")
        );
        assert!(
            json("[1]").starts_with("line 1: invalid type: sequence, expected a table of settings")
        );
    }

    #[test]
    fn value_out_of_range_is_located() {
        let text = "data_dir = 'd'\nnode_name = 'a'\n[limits]\ntxn_ops_max = 1";
        let why = PartialConfig::from_toml(text).unwrap().into_config().unwrap_err().to_string();
        assert_eq!(
            why,
            "line 4: `limits.txn_ops_max`: the setting limits.txn_ops_max is 1, and must be 16 to 10,000"
        );
    }

    #[test]
    fn file_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        fs::write(path("a.toml"), "data_dir = 'd'\nnode_name = 'a'\nheartbeat = '1ms'").unwrap();
        let why = Config::from_file(path("a.toml")).unwrap_err().to_string();
        assert!(why.contains("a.toml, line 3: `heartbeat`: the setting"), "{why}");
        fs::write(path("a.json"), "{\"heart\": 1}").unwrap();
        let why = Config::from_file(path("a.json")).unwrap_err().to_string();
        assert!(why.contains("a.json, line 1: unknown key `heart`"), "{why}");
        let why = Config::from_file(path("b.toml")).unwrap_err().to_string();
        assert!(why.contains("b.toml: cannot read the file"), "{why}");
        let why = Config::from_file(path("a.yaml")).unwrap_err().to_string();
        assert!(why.contains("a.yaml: the name of the file must end in"), "{why}");
        let missing = PartialConfig::from_toml("data_dir = 'd'").unwrap().into_config();
        assert!(missing.unwrap_err().to_string().contains("node_name"));
    }

    #[derive(serde::Deserialize)]
    struct Program {
        http: String,
        bowline: PartialConfig,
    }

    #[test]
    fn settings_are_a_part_of_a_programs_own_configuration() {
        let text = format!(
            "http = ':80'\n[bowline]{}",
            TOML.replace('[', "[bowline.").replace("[bowline.\"", "[\"")
        );
        let program: Program = toml::from_str(&text).unwrap();
        assert_eq!(
            (program.http.as_str(), program.bowline.into_config().unwrap().name),
            (":80", "b".into())
        );
        let bad =
            toml::from_str::<Program>("http = ''\n[bowline]\nx = 1").err().unwrap().to_string();
        assert!(bad.contains("line 3") && bad.contains("unknown key `x`"), "{bad}");
    }
}
