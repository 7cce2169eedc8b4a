//! Settings as flags of a program that uses clap.

use std::ffi::OsString;

use clap::builder::ValueParser;
use clap::{Arg, ArgMatches, Command};

use super::table::{Form, SETTINGS, Setting};
use super::{PartialConfig, REQUIRED, SettingSource};

impl clap::Args for PartialConfig {
    fn augment_args(command: Command) -> Command {
        SETTINGS.iter().fold(command, |command, setting| command.arg(arg(setting)))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

/// Settings that most programs need. The short help (`-h`) lists only these.
const COMMON: [&str; 7] =
    ["data_dir", "node_name", "members", "join", "advertise", "listen", "session_ttl"];

fn arg(setting: &'static Setting) -> Arg {
    let required = if REQUIRED.contains(&setting.key) { " (required)" } else { "" };
    let arg = Arg::new(setting.flag())
        .long(setting.flag())
        .value_name(setting.form.value_name())
        .value_parser(parser(setting))
        .help(format!("{}{required}", setting.help))
        .hide_short_help(!COMMON.contains(&setting.key))
        .help_heading("Bowline");
    match setting.form {
        Form::Switch => arg.num_args(0..=1).require_equals(true).default_missing_value("true"),
        _ => arg,
    }
}

/// Returns a parser that checks a value and keeps its text.
fn parser(setting: &'static Setting) -> ValueParser {
    match setting.form {
        Form::Path => ValueParser::os_string(),
        _ => ValueParser::new(move |text: &str| -> Result<OsString, String> {
            let text = OsString::from(text);
            setting.check(&text).map(|()| text)
        }),
    }
}

impl clap::FromArgMatches for PartialConfig {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut all = Self::default();
        all.update_from_arg_matches(matches)?;
        Ok(all)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        for setting in SETTINGS {
            if let Some(value) = matches.get_one::<OsString>(&setting.flag()) {
                self.insert(setting, value.clone(), SettingSource::Flag).map_err(|why| {
                    clap::Error::raw(clap::error::ErrorKind::ValueValidation, why)
                })?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use clap::{Args, FromArgMatches};

    use super::*;
    use crate::api::settings::tests::variables;

    fn parse(args: &[&str]) -> Result<PartialConfig, clap::Error> {
        let command = PartialConfig::augment_args(Command::new("app"));
        let args = ["app"].iter().chain(args);
        PartialConfig::from_arg_matches(&command.try_get_matches_from(args)?)
    }

    #[test]
    fn flags_override_variables() {
        let env = variables(&[("BOWLINE_DATA_DIR", "d"), ("BOWLINE_NODE_NAME", "a")]).unwrap();
        let flags = parse(&[
            "--bowline-node-name=b",
            "--bowline-insecure-peers",
            "--bowline-join",
            "h:1,h:2",
        ]);
        let config = env.overridden_by(flags.unwrap()).into_config().unwrap();
        assert_eq!((config.name.as_str(), config.insecure_peers), ("b", true));
        assert_eq!(config.join, ["h:1", "h:2"]);
        let off = parse(&["--bowline-insecure-peers=false"]).unwrap();
        assert_eq!(off.given["insecure_peers"].value, "false");
    }

    #[test]
    fn invalid_values_name_the_flag() {
        let why = parse(&["--bowline-heartbeat", "100"]).unwrap_err().to_string();
        assert!(
            why.contains("--bowline-heartbeat") && why.contains("a number with a unit"),
            "{why}"
        );
        let small = ["--bowline-data-dir=d", "--bowline-node-name=a", "--bowline-heartbeat=1ms"];
        let why = parse(&small).unwrap().into_config().unwrap_err().to_string();
        assert!(why.starts_with("flag --bowline-heartbeat: "), "{why}");
    }

    #[test]
    fn flags_form_a_valid_command_with_help() {
        let mut command = PartialConfig::augment_args(Command::new("app"));
        command.clone().debug_assert();
        let help = command.render_long_help().to_string();
        for setting in SETTINGS {
            assert!(help.contains(&format!("--{}", setting.flag())) && help.contains(setting.help));
        }
        let short = command.render_help().to_string();
        let shown = |key: &str| short.contains(&*Setting::find(key).unwrap().flag());
        assert!(COMMON.into_iter().all(shown) && !shown("open_writes_max"), "{short}");
        assert!(short.contains("--bowline-node-name <TEXT>") && short.contains("(required)"));
    }
}
