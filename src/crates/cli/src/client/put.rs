//! `bowline put`: stores a value under a key.

use std::ffi::OsString;
use std::fs;
use std::io::{self, Read};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use clap::Args;

use super::connect::{CallKind, Client};
use super::failure::{EXIT_CODES, Failure};
use super::lease::lease_id;
use super::print::Output;
use bowline_proto::etcdserverpb::PutRequest;

const EXAMPLES: &str = "\
Examples:
  bowline put greeting hello
  bowline put -- key -5                      a value that begins with a dash
  bowline put config --value-file app.toml   the content of a file
  date | bowline put now                     the value from standard input
  bowline put --key-file k --value-file v    key and value from files
  bowline put alive yes --lease 694d7f3a     deleted when the lease ends";

/// Store a value under a key
///
/// If no value is given, reads the value from standard input.
#[derive(Args, Debug)]
#[command(after_long_help = format!("{EXAMPLES}\n\n{EXIT_CODES}"))]
pub(crate) struct PutOptions {
    /// Key; or use --key-file
    #[arg(required_unless_present = "key_file")]
    key: Option<OsString>,

    /// Value; or use --value-file or standard input
    value: Option<OsString>,

    /// Read the key from a file, which may contain any bytes (-: standard input)
    #[arg(long, value_name = "FILE", conflicts_with = "key")]
    key_file: Option<PathBuf>,

    /// Read the value from a file (-: standard input)
    #[arg(long, value_name = "FILE", conflicts_with_all = ["value", "ignore_value"])]
    value_file: Option<PathBuf>,

    /// Attach the key to this lease, in hexadecimal
    #[arg(long, value_name = "ID", value_parser = lease_id)]
    lease: Option<i64>,

    /// Also print the previous key and value
    #[arg(long)]
    prev_kv: bool,

    /// Keep the key's current value
    #[arg(long, conflicts_with = "value")]
    ignore_value: bool,

    /// Keep the key's current lease
    #[arg(long, conflicts_with = "lease")]
    ignore_lease: bool,
}

impl PutOptions {
    /// Returns whether the command reads standard input.
    pub(crate) fn reads_input(&self) -> bool {
        let is_input = |file: &Option<PathBuf>| file.as_deref() == Some(Path::new("-"));
        is_input(&self.key_file) || is_input(&self.value_file) || self.reads_value()
    }

    fn reads_value(&self) -> bool {
        self.value.is_none() && !self.ignore_value && self.value_file.is_none()
    }

    /// Builds the request.
    pub(crate) fn request(self) -> Result<PutRequest, Failure> {
        let is_input = |file: &Option<PathBuf>| file.as_deref() == Some(Path::new("-"));
        if is_input(&self.key_file) && (is_input(&self.value_file) || self.reads_value()) {
            let why = "standard input cannot be both key and value: pass the value with --value-file FILE";
            return Err(Failure::Usage(why.to_owned()));
        }
        let key = match (self.key, &self.key_file) {
            (Some(key), _) => key.into_vec(),
            (None, Some(file)) => read(file)?,
            (None, None) => Vec::new(),
        };
        let value = match (self.value, self.value_file, self.ignore_value) {
            (_, _, true) => Vec::new(),
            (Some(value), _, _) => value.into_vec(),
            (None, Some(file), _) => read(&file)?,
            (None, None, _) => read(Path::new("-"))?,
        };
        Ok(PutRequest {
            key: key.into(),
            value: value.into(),
            lease: self.lease.unwrap_or_default(),
            prev_kv: self.prev_kv,
            ignore_value: self.ignore_value,
            ignore_lease: self.ignore_lease,
        })
    }
}

/// Returns the contents of a file, or of standard input for `-`.
pub(crate) fn read(file: &Path) -> Result<Vec<u8>, Failure> {
    let mut bytes = Vec::new();
    let read = if file.as_os_str() == "-" {
        io::stdin().lock().read_to_end(&mut bytes).map(drop)
    } else {
        fs::read(file).map(|read| bytes = read)
    };
    read.map_err(|error| Failure::Local(file.display().to_string(), error))?;
    Ok(bytes)
}

pub(crate) async fn run(
    client: &Client,
    output: Output,
    options: PutOptions,
) -> Result<(), Failure> {
    let request = options.request()?;
    let call = async |link: super::connect::Link| link.kv().put(request.clone()).await;
    output.show(&client.ask(CallKind::Change, call).await?)
}
