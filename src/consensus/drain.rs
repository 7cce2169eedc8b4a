//! Forwards the raft crate's log messages to `tracing`. The crate writes many messages, so all
//! messages below the level of a warning are dropped.

use std::fmt::{self, Write};

use slog::{Drain, KV, Key, Level, Logger, Never, OwnedKVList, Record, Serializer};

/// Returns a logger that forwards to `tracing`.
pub(super) fn logger() -> Logger {
    Logger::root(TracingDrain, slog::o!())
}

struct TracingDrain;

impl Drain for TracingDrain {
    type Ok = ();
    type Err = Never;

    fn log(&self, record: &Record<'_>, values: &OwnedKVList) -> Result<(), Never> {
        match record.level() {
            Level::Critical | Level::Error => {
                tracing::error!(target: "bowline::raft", "{}", line(record, values));
            }
            Level::Warning => tracing::warn!(target: "bowline::raft", "{}", line(record, values)),
            Level::Info | Level::Debug | Level::Trace => {}
        }
        Ok(())
    }
}

/// Returns the message with its key-value pairs.
fn line(record: &Record<'_>, values: &OwnedKVList) -> String {
    let mut line = DrainLine(record.msg().to_string());
    // An incomplete line is still useful.
    let _ = record.kv().serialize(record, &mut line);
    let _ = values.serialize(record, &mut line);
    line.0
}

struct DrainLine(String);

impl Serializer for DrainLine {
    fn emit_arguments(&mut self, key: Key, value: &fmt::Arguments<'_>) -> slog::Result {
        write!(self.0, " {key}={value}").map_err(slog::Error::from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Arc, Mutex};

    struct Spy(Arc<Mutex<Vec<String>>>);

    impl Drain for Spy {
        type Ok = ();
        type Err = Never;
        fn log(&self, record: &Record<'_>, values: &OwnedKVList) -> Result<(), Never> {
            self.0.lock().unwrap().push(line(record, values));
            TracingDrain.log(record, values)
        }
    }

    #[test]
    fn log_line_carries_its_message_and_values() {
        let lines = Arc::new(Mutex::new(Vec::new()));
        let logger = Logger::root(Spy(Arc::clone(&lines)), slog::o!("raft_id" => 3));
        slog::warn!(logger, "stepped {}", "down"; "term" => 7);
        assert_eq!(*lines.lock().unwrap(), ["stepped down term=7 raft_id=3"]);
    }
}
