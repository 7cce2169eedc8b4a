//! The flags of the log: level, format, outputs and rotation.

use std::path::PathBuf;
use std::time::Duration;

use serde_json::{Map, Value};
use tracing::Level;

use super::error::FlagError;
use super::parse::{split, switch, wrong};
use super::values::Values;

/// Log settings.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct LogOptions {
    pub(crate) level: Level,
    pub(crate) format: LogFormat,
    /// At least one, without duplicates.
    pub(crate) outputs: Vec<LogOutput>,
    /// Rotation of the files among the outputs, if enabled.
    pub(crate) rotation: Option<Rotation>,
}

/// Destination of the log.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum LogOutput {
    Stderr,
    Stdout,
    File(PathBuf),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum LogFormat {
    /// Lines for people.
    Console,
    /// Lines for programs, one JSON object each.
    Json,
}

/// When a log file is rotated, and how long rotated files are kept.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Rotation {
    /// Maximum size of a file. A line that would exceed it starts a new file.
    pub(crate) bytes_max: u64,
    /// Rotated files older than this are deleted.
    pub(crate) age_max: Option<Duration>,
    /// The oldest rotated files beyond this number are deleted.
    pub(crate) backups_max: Option<usize>,
    /// Whether the time in a rotated file's name is local time instead of UTC.
    pub(crate) local_time: bool,
    /// Whether rotated files are compressed with gzip.
    pub(crate) compress: bool,
}

const MIB: u64 = 1 << 20;
const DAY: Duration = Duration::from_secs(24 * 60 * 60);

impl Default for Rotation {
    /// The defaults of lumberjack, which rotates etcd's files.
    fn default() -> Self {
        Self {
            bytes_max: 100 * MIB,
            age_max: None,
            backups_max: None,
            local_time: false,
            compress: false,
        }
    }
}

impl LogOptions {
    /// Reads the flags. Returns warnings with them.
    ///
    /// # Errors
    /// Fails at the first invalid value.
    pub(super) fn new(values: &Values) -> Result<(Self, Vec<String>), FlagError> {
        let text = |name, default| values.get(name).unwrap_or(default);
        let mut warnings = Vec::new();
        let mut outputs = Vec::new();
        for word in split(text("log-outputs", "default")) {
            let output = output(&word, &mut warnings)?;
            if !outputs.contains(&output) {
                outputs.push(output);
            }
        }
        if outputs.is_empty() {
            outputs.push(LogOutput::Stderr);
        }
        let rotation = rotation(values, &outputs, &mut warnings)?;
        let level = level(text("log-level", "info"))?;
        let format = format(text("log-format", "console"))?;
        Ok((Self { level, format, outputs, rotation }, warnings))
    }
}

fn level(word: &str) -> Result<Level, FlagError> {
    match word.to_ascii_lowercase().as_str() {
        "debug" => Ok(Level::DEBUG),
        "info" => Ok(Level::INFO),
        "warn" => Ok(Level::WARN),
        // ERROR is the most severe level of this log, so etcd's more severe levels are mapped to it.
        "error" | "dpanic" | "panic" | "fatal" => Ok(Level::ERROR),
        _ => Err(wrong("log-level", word, "debug, info, warn or error")),
    }
}

fn format(word: &str) -> Result<LogFormat, FlagError> {
    match word {
        "console" => Ok(LogFormat::Console),
        "json" => Ok(LogFormat::Json),
        other => Err(wrong("log-format", other, "console or json")),
    }
}

fn output(word: &str, warnings: &mut Vec<String>) -> Result<LogOutput, FlagError> {
    let path = match word {
        // The paths in /dev cannot be opened if they are sockets, as under systemd.
        "default" | "stderr" | "/dev/stderr" => return Ok(LogOutput::Stderr),
        "stdout" | "/dev/stdout" => return Ok(LogOutput::Stdout),
        "systemd/journal" => {
            warnings.push(
                "--log-outputs=systemd/journal writes to standard error, which systemd keeps in its journal".to_owned(),
            );
            return Ok(LogOutput::Stderr);
        }
        url if url.contains("://") => url
            .strip_prefix("file://")
            .map(|rest| rest.strip_prefix("localhost").unwrap_or(rest))
            .filter(|path| path.starts_with('/'))
            .ok_or_else(|| wrong("log-outputs", word, "stderr, stdout or file paths"))?,
        path => path,
    };
    Ok(LogOutput::File(PathBuf::from(path)))
}

/// Returns the rotation settings, or `None` without rotation.
fn rotation(
    values: &Values,
    outputs: &[LogOutput],
    warnings: &mut Vec<String>,
) -> Result<Option<Rotation>, FlagError> {
    const NAME: &str = "log-rotation-config-json";
    let text = values.get(NAME).unwrap_or_default();
    if !switch(values, "enable-log-rotation")? {
        if !matches!(text.trim(), "" | "{}") {
            warnings.push(format!("--{NAME} has no effect without --enable-log-rotation"));
        }
        return Ok(None);
    }
    if !outputs.iter().any(|output| matches!(output, LogOutput::File(_))) {
        return Err(FlagError::Together(
            "--enable-log-rotation requires a file path in --log-outputs".to_owned(),
        ));
    }
    if text.is_empty() {
        return Ok(Some(Rotation::default()));
    }
    let must = "a JSON object such as {\"maxsize\": 100, \"maxbackups\": 5}";
    match serde_json::from_str(text) {
        Ok(Value::Object(fields)) => Ok(Some(Rotation::of(&fields)?)),
        // As in Go, `null` selects the defaults.
        Ok(Value::Null) => Ok(Some(Rotation::default())),
        Ok(_) => Err(wrong(NAME, text, must)),
        Err(error) => {
            Err(FlagError::Together(format!("--{NAME} is not JSON: {error}; it must be {must}")))
        }
    }
}

impl Rotation {
    /// Reads the fields of etcd's JSON. As in Go, names are case-insensitive and unknown names are ignored.
    fn of(fields: &Map<String, Value>) -> Result<Self, FlagError> {
        let mut rotation = Self::default();
        for (name, value) in fields {
            let wrong = |must: &str| {
                let why =
                    format!("--log-rotation-config-json: invalid {name:?} {value}: must be {must}");
                FlagError::Together(why)
            };
            let number = || match value {
                Value::Null => Ok(0),
                value => {
                    let number = value.as_u64().and_then(|number| u32::try_from(number).ok());
                    number.ok_or_else(|| wrong("a whole number, 0 or more"))
                }
            };
            let parse_bool = || match value {
                Value::Null => Ok(false),
                value => value.as_bool().ok_or_else(|| wrong("true or false")),
            };
            match name.to_ascii_lowercase().as_str() {
                "maxsize" => match number()? {
                    0 => {}
                    mib => rotation.bytes_max = u64::from(mib) * MIB,
                },
                "maxage" => rotation.age_max = Some(DAY * number()?).filter(|age| !age.is_zero()),
                "maxbackups" => {
                    let backups = usize::try_from(number()?).unwrap_or(usize::MAX);
                    rotation.backups_max = Some(backups).filter(|backups| *backups > 0);
                }
                "localtime" => rotation.local_time = parse_bool()?,
                "compress" => rotation.compress = parse_bool()?,
                _ => {}
            }
        }
        Ok(rotation)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(arguments: &[&str]) -> Result<(LogOptions, Vec<String>), FlagError> {
        let arguments: Vec<_> = arguments.iter().map(|&argument| argument.to_owned()).collect();
        LogOptions::new(&Values::read(&arguments, std::iter::empty())?)
    }

    fn file(path: &str) -> LogOutput {
        LogOutput::File(path.into())
    }

    #[test]
    fn each_log_output_is_written_once() {
        let cases = [
            ("", vec![LogOutput::Stderr]),
            ("default", vec![LogOutput::Stderr]),
            ("stdout", vec![LogOutput::Stdout]),
            ("stderr,/var/log/etcd.log", vec![LogOutput::Stderr, file("/var/log/etcd.log")]),
            ("/a, b/c ,/a", vec![file("/a"), file("b/c")]),
            ("default,stderr,stdout", vec![LogOutput::Stderr, LogOutput::Stdout]),
            ("/dev/stderr,/dev/stdout", vec![LogOutput::Stderr, LogOutput::Stdout]),
            ("file:///a,file://localhost/b", vec![file("/a"), file("/b")]),
        ];
        for (list, outputs) in cases {
            let (options, warnings) = read(&[&format!("--log-outputs={list}")]).unwrap();
            assert_eq!((options.outputs, warnings), (outputs, Vec::new()), "{list}");
        }
        let (options, warnings) = read(&["--log-outputs=systemd/journal"]).unwrap();
        assert_eq!(options.outputs, [LogOutput::Stderr]);
        assert!(warnings[0].contains("writes to standard error"), "{warnings:?}");
        for url in ["http://h/x", "file://h/x"] {
            let error = read(&[&format!("--log-outputs={url}")]).unwrap_err().to_string();
            assert!(error.contains("must be stderr, stdout or file paths"), "{error}");
        }
    }

    #[test]
    fn log_levels_ignore_case() {
        for (word, level) in [
            ("debug", Level::DEBUG),
            ("INFO", Level::INFO),
            ("Warn", Level::WARN),
            ("error", Level::ERROR),
            ("FATAL", Level::ERROR),
        ] {
            assert_eq!(read(&[&format!("--log-level={word}")]).unwrap().0.level, level, "{word}");
        }
        let error = read(&["--log-level=loud"]).unwrap_err().to_string();
        assert!(error.contains("must be debug, info, warn or error"), "{error}");
    }

    #[test]
    fn rotation_is_configured_as_in_etcd() {
        let rotation = |json: &str| {
            let json = format!("--log-rotation-config-json={json}");
            read(&["--enable-log-rotation", "--log-outputs=/x", &json])
        };
        for usual in
            ["", "{}", "null", r#"{"maxsize":100,"maxage":0,"localtime":false}"#, r#"{"x":1}"#]
        {
            let found = rotation(usual).unwrap().0.rotation;
            assert_eq!(found, Some(Rotation::default()), "{usual}");
        }
        let all =
            r#"{"maxsize": 2, "MaxAge": 3, "maxbackups": 4, "localtime": true, "compress": true}"#;
        let expected = Rotation {
            bytes_max: 2 << 20,
            age_max: Some(Duration::from_secs(3 * 86_400)),
            backups_max: Some(4),
            local_time: true,
            compress: true,
        };
        assert_eq!(rotation(all).unwrap().0.rotation, Some(expected));
        for (json, words) in [
            ("[]", "must be a JSON object such as"),
            ("{maxsize: 1}", "is not JSON: key must be a string"),
            (r#"{"maxsize": -1}"#, "invalid \"maxsize\" -1: must be a whole number, 0 or more"),
            (r#"{"maxage": 1.5}"#, "invalid \"maxage\" 1.5: must be a whole number"),
            (r#"{"maxbackups": 4294967296}"#, "must be a whole number"),
            (r#"{"compress": "yes"}"#, "invalid \"compress\" \"yes\": must be true or false"),
        ] {
            let error = rotation(json).unwrap_err().to_string();
            assert!(error.contains(words), "{error:?} lacks {words:?}");
        }
        let error = read(&["--enable-log-rotation"]).unwrap_err().to_string();
        assert_eq!(error, "--enable-log-rotation requires a file path in --log-outputs");
        let (options, warnings) = read(&["--log-rotation-config-json={\"maxsize\": 1}"]).unwrap();
        assert_eq!(options.rotation, None);
        assert_eq!(
            warnings,
            ["--log-rotation-config-json has no effect without --enable-log-rotation"]
        );
        assert_eq!(read(&["--log-rotation-config-json={}"]).unwrap().1, [""; 0]);
    }
}
