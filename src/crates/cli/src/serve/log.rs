//! The server's log: lines for people, or JSON objects for programs, with the field names of etcd's log (`level`, `ts`,
//! `caller`, `msg`).

mod outputs;
mod rotation;

use std::fmt;
use std::io::{self, Write};

use serde_json::{Map, Value, json};
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use tracing_subscriber::fmt::writer::BoxMakeWriter;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields, FormattedFields};
use tracing_subscriber::registry::LookupSpan;

use super::flags::{LogFormat, LogOptions, LogOutput, Options};
pub(super) use outputs::OpenError;
use outputs::Outputs;

/// The initialized log.
pub(super) struct Log {
    outputs: Outputs,
    format: LogFormat,
    is_on_stderr: bool,
}

/// Initializes the log.
///
/// # Errors
/// Fails if a log file cannot be opened.
pub(super) fn begin(options: &LogOptions) -> Result<Log, OpenError> {
    let outputs = Outputs::open(options)?;
    let writer = outputs.clone();
    // Lines that cannot be written, because the disk is full or the pipe has no reader, are lost. A panic would end the
    // member.
    let log = tracing_subscriber::fmt().log_internal_errors(false);
    let log = log
        .with_max_level(options.level)
        .with_ansi(false)
        .with_writer(BoxMakeWriter::new(move || writer.clone()));
    match options.format {
        LogFormat::Console => log.init(),
        LogFormat::Json => log.event_format(Json).init(),
    }
    let is_on_stderr = options.outputs.contains(&LogOutput::Stderr);
    Ok(Log { outputs, format: options.format, is_on_stderr })
}

impl Log {
    /// Writes the final error of a failed server to the log, and to standard error in any case.
    pub(super) fn print_failure(&self, error: &impl fmt::Display) {
        if self.format == LogFormat::Json || !self.is_on_stderr {
            tracing::error!("{error}");
        }
        if self.format == LogFormat::Console || !self.is_on_stderr {
            crate::print_failure(error);
        }
    }

    /// Writes the line that programs wait for when they start a server. It goes to standard error and to the log files,
    /// at any log level.
    pub(super) fn print_ready(&self, options: &Options) {
        let line = ready_line(options);
        drop(io::stderr().lock().write_all(line.as_bytes()));
        self.outputs.write_to_files(line.as_bytes());
    }
}

fn ready_line(options: &Options) -> String {
    let listens: Vec<_> = options.listen_clients.iter().map(ToString::to_string).collect();
    let words = format!(
        "member {:?} is ready to serve client requests on {} (advertised client URLs: {})",
        options.name,
        listens.join(","),
        options.advertise_clients.join(","),
    );
    match options.log.format {
        LogFormat::Console => format!("bowline: {words}\n"),
        LogFormat::Json => {
            let fields = Map::from_iter([("msg".to_owned(), Value::from(words))]);
            format!("{}\n", whole(fields, Level::INFO, concat!(module_path!(), ":", line!())))
        }
    }
}

/// Adds the fields that every line has.
fn whole(mut fields: Map<String, Value>, level: Level, caller: &str) -> Value {
    let level = match level {
        Level::ERROR => "error",
        Level::WARN => "warn",
        Level::INFO => "info",
        Level::DEBUG | Level::TRACE => "debug",
    };
    let mut now = String::new();
    SystemTime.format_time(&mut Writer::new(&mut now)).expect("writing to memory cannot fail");
    fields.extend([
        ("level".to_owned(), json!(level)),
        ("ts".to_owned(), json!(now)),
        ("caller".to_owned(), json!(caller)),
    ]);
    Value::Object(fields)
}

/// Formats each event as a JSON object.
struct Json;

impl<S, N> FormatEvent<S, N> for Json
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let mut fields = Fields::default();
        event.record(&mut fields);
        let spans = context.event_scope().into_iter().flat_map(|scope| scope.from_root());
        let spans: Vec<Value> = spans
            .map(|span| match span.extensions().get::<FormattedFields<N>>() {
                Some(of) if !of.is_empty() => json!(format!("{}{{{of}}}", span.name())),
                _ => json!(span.name()),
            })
            .collect();
        if !spans.is_empty() {
            fields.0.insert("spans".to_owned(), Value::Array(spans));
        }
        let of = event.metadata();
        let caller = match of.line() {
            Some(line) => format!("{}:{line}", of.target()),
            None => of.target().to_owned(),
        };
        writeln!(writer, "{}", whole(fields.0, *of.level(), &caller))
    }
}

/// The fields of an event.
#[derive(Default)]
struct Fields(Map<String, Value>);

impl Fields {
    fn add(&mut self, field: &Field, value: Value) {
        let name = match field.name() {
            "message" => "msg",
            name => name,
        };
        self.0.insert(name.to_owned(), value);
    }
}

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.add(field, format!("{value:?}").into());
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.add(field, value.into());
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.add(field, value.into());
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.add(field, value.into());
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.add(field, value.into());
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.add(field, value.into());
    }

    fn record_error(&mut self, field: &Field, value: &(dyn std::error::Error + 'static)) {
        self.add(field, value.to_string().into());
    }
}
