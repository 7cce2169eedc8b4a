//! Selects the keys of a command: a single key, a prefix, all keys from one on, or a range.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

use bowline_client::prefix_end;
use bytes::Bytes;
use clap::Args;

use super::failure::Failure;
use super::put::read;

/// Key arguments, as in etcdctl's commands.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct Keys {
    /// Key, or start of the range; or use --key-file
    #[arg(required_unless_present = "key_file")]
    key: Option<OsString>,

    /// Read the key from a file, which may contain any bytes (-: standard input)
    #[arg(long, value_name = "FILE", conflicts_with = "key")]
    key_file: Option<PathBuf>,

    /// End of the range (exclusive)
    #[arg(conflicts_with_all = ["prefix", "from_key"])]
    range_end: Option<OsString>,

    /// Treat KEY as a prefix (an empty prefix selects all keys)
    #[arg(long, conflicts_with = "from_key")]
    prefix: bool,

    /// Select all keys greater than or equal to KEY
    #[arg(long)]
    from_key: bool,
}

/// Range end that means "up to the last key".
const END_OF_KEYS: Bytes = Bytes::from_static(b"\0");

impl Keys {
    /// Returns whether the command reads standard input.
    pub(crate) fn reads_input(&self) -> bool {
        self.key_file.as_ref().is_some_and(|file| file.as_os_str() == "-")
    }

    /// Returns the first key and the end of the range. For a single key, the end is empty.
    pub(crate) fn range(self) -> Result<(Bytes, Bytes), Failure> {
        let key = match &self.key_file {
            Some(file) => Bytes::from(read(file)?),
            None => Bytes::from(self.key.unwrap_or_default().into_vec()),
        };
        let end = match self.range_end {
            Some(end) => Bytes::from(end.into_vec()),
            None if self.from_key => END_OF_KEYS,
            None if self.prefix => prefix_end(&key),
            None => Bytes::new(),
        };
        let first =
            if key.is_empty() && (self.prefix || self.from_key) { END_OF_KEYS } else { key };
        Ok((first, end))
    }
}

/// Parses a revision.
pub(crate) fn revision(text: &str) -> Result<i64, String> {
    match text.parse() {
        Ok(revision) if revision >= 0 => Ok(revision),
        _ => Err("expected a revision, a whole number".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn empty_prefix_selects_all_keys() {
        let all = Keys { prefix: true, ..Keys::default() };
        assert_eq!(all.range().unwrap(), (END_OF_KEYS, END_OF_KEYS));
    }
}
