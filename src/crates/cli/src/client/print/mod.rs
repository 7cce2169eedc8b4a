//! Prints responses as lines for people, as JSON objects, as one line per field, or as tables. If etcdctl has the
//! command, the output is equal to that of etcdctl byte for byte. The submodules `kv`, `leases`, `cluster` and `users`
//! format the individual responses.

use std::io::{self, IsTerminal, Write};

use bowline_proto::etcdserverpb::ResponseHeader;
use bowline_proto::mvccpb::KeyValue;

use super::failure::Failure;
use super::options::{Format, Settings};
use super::quote;

pub(crate) mod cluster;
mod json;
pub(crate) mod kv;
pub(crate) mod leases;
mod table;
pub(crate) mod users;

pub(crate) use json::{Object, base64, list};
pub(crate) use table::Table;

/// A value that can be printed in several formats.
pub(crate) trait Show {
    /// Formats the value for people.
    fn simple(&self, page: &mut Page);
    /// Formats the value with one line per field.
    fn fields(&self, page: &mut Page);
    /// Formats the value as JSON.
    fn json(&self) -> String;
    /// Formats the value as JSON for `--hex`.
    fn json_with_hex(&self) -> String {
        self.json()
    }
    /// Formats the value as a table, if that makes sense.
    fn table(&self) -> Option<Table> {
        None
    }
}

/// Output under construction.
#[derive(Debug, Default)]
pub(crate) struct Page {
    bytes: Vec<u8>,
    hex: bool,
    values_only: bool,
    /// Whether the output is a terminal, which must not receive control characters from keys and values.
    at_terminal: bool,
}

impl Page {
    /// Adds a line of arbitrary bytes.
    pub(crate) fn line(&mut self, line: impl AsRef<[u8]>) {
        self.bytes.extend_from_slice(line.as_ref());
        self.bytes.push(b'\n');
    }

    /// Adds a key and its value, each on a line of its own.
    pub(crate) fn row(&mut self, row: &KeyValue) {
        if !self.values_only {
            self.raw(&row.key);
        }
        self.raw(&row.value);
    }

    fn raw(&mut self, bytes: &[u8]) {
        if self.hex {
            self.line(quote::hex(bytes));
        } else if self.at_terminal && !quote::can_be_shown(bytes) {
            self.line(quote::go(bytes));
        } else {
            self.line(bytes);
        }
    }

    /// Adds a field with a number or a word.
    pub(crate) fn field(&mut self, name: &str, value: impl std::fmt::Display) {
        self.line(format!("\"{name}\" : {value}"));
    }

    /// Adds a field with quoted text.
    pub(crate) fn quoted(&mut self, name: &str, value: impl AsRef<[u8]>) {
        self.line(format!("\"{name}\" : {}", quote::go(value.as_ref())));
    }

    /// Adds a field with the id of a member or a cluster.
    pub(crate) fn id(&mut self, name: &str, id: u64) {
        if self.hex { self.field(name, format_args!("{id:x}")) } else { self.field(name, id) }
    }

    /// Adds a field with the id of a lease.
    pub(crate) fn lease(&mut self, name: &str, id: i64) {
        if self.hex { self.field(name, format_args!("{id:016x}")) } else { self.field(name, id) }
    }

    /// Adds the fields of a header. Responses that do not concern keys have no revision.
    pub(crate) fn header(&mut self, header: &Option<ResponseHeader>) {
        let header = header.unwrap_or_default();
        self.id("ClusterID", header.cluster_id);
        self.id("MemberID", header.member_id);
        if header.revision > 0 {
            self.field("Revision", header.revision);
        }
        self.field("RaftTerm", header.raft_term);
    }

    /// Adds the fields of a row, each with a prefix before its name.
    pub(crate) fn row_fields(&mut self, prefix: &str, row: &KeyValue) {
        self.quoted(&format!("{prefix}Key"), &row.key);
        self.field(&format!("{prefix}CreateRevision"), row.create_revision);
        self.field(&format!("{prefix}ModRevision"), row.mod_revision);
        self.field(&format!("{prefix}Version"), row.version);
        self.quoted(&format!("{prefix}Value"), &row.value);
        self.lease(&format!("{prefix}Lease"), row.lease);
    }
}

/// Converts a header to JSON.
pub(crate) fn header_json(header: &Option<ResponseHeader>) -> Option<Object> {
    header.as_ref().map(|header| header_into(Object::default(), header))
}

/// Adds the fields of a header to an object.
pub(crate) fn header_into(object: Object, header: &ResponseHeader) -> Object {
    object
        .number("cluster_id", header.cluster_id)
        .number("member_id", header.member_id)
        .number("revision", header.revision)
        .number("raft_term", header.raft_term)
}

/// Prints responses in the chosen format.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Output {
    pub(crate) format: Format,
    hex: bool,
    /// Whether to omit the keys.
    pub(crate) values_only: bool,
}

impl Output {
    pub(crate) fn new(settings: &Settings) -> Self {
        Self { format: settings.format, hex: settings.hex, values_only: false }
    }

    /// Returns whether the output is read by programs. In that case nothing but responses may be printed.
    pub(crate) fn is_for_programs(&self) -> bool {
        self.format == Format::Json
    }

    /// Prints a response.
    pub(crate) fn show(&self, answer: &impl Show) -> Result<(), Failure> {
        let mut page = Page {
            bytes: Vec::new(),
            hex: self.hex,
            values_only: self.values_only,
            at_terminal: io::stdout().is_terminal(),
        };
        match self.format {
            Format::Simple => answer.simple(&mut page),
            Format::Fields => answer.fields(&mut page),
            Format::Json if self.hex => page.line(answer.json_with_hex()),
            Format::Json => page.line(answer.json()),
            Format::Table => match answer.table() {
                Some(table) => page.bytes.extend_from_slice(table.to_string().as_bytes()),
                None => {
                    let why = "this command cannot print a table: use -w simple, json or fields";
                    return Err(Failure::Usage(why.to_owned()));
                }
            },
        }
        print(&page.bytes)
    }

    /// Prints a line for people.
    pub(crate) fn say(&self, line: impl AsRef<str>) -> Result<(), Failure> {
        print(format!("{}\n", line.as_ref()).as_bytes())
    }
}

/// Writes bytes to standard output and flushes.
fn print(bytes: &[u8]) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    let printed = out.write_all(bytes).and_then(|()| out.flush());
    printed.map_err(|error| match error.kind() {
        // The reader has closed the pipe, as `head` does.
        io::ErrorKind::BrokenPipe => Failure::Exit(crate::client::EXIT_PIPE),
        _ => Failure::Local("cannot write the output".to_owned(), error),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hex_option_prints_ids_and_revision_is_printed_if_present() {
        let printed = |hex, revision| {
            let mut page = Page { hex, ..Page::default() };
            let header =
                ResponseHeader { cluster_id: 0xab, member_id: 0x1f, revision, raft_term: 12 };
            page.header(&Some(header));
            page.row_fields("", &KeyValue { lease: 0xbeef, ..Default::default() });
            String::from_utf8(page.bytes).unwrap()
        };
        let row = |lease| {
            let revisions = "\"CreateRevision\" : 0\n\"ModRevision\" : 0\n\"Version\" : 0\n";
            format!("\"Key\" : \"\"\n{revisions}\"Value\" : \"\"\n\"Lease\" : {lease}\n")
        };
        let header =
            "\"ClusterID\" : 171\n\"MemberID\" : 31\n\"Revision\" : 7\n\"RaftTerm\" : 12\n";
        assert_eq!(printed(false, 7), [header, &row("48879")].concat());
        let header = "\"ClusterID\" : ab\n\"MemberID\" : 1f\n\"RaftTerm\" : 12\n";
        assert_eq!(printed(true, 0), [header, &row("000000000000beef")].concat());
    }

    #[test]
    fn unprintable_bytes_are_quoted_only_on_a_terminal() {
        let printed = |at_terminal, value: &'static [u8]| {
            let mut page = Page { at_terminal, ..Page::default() };
            let (key, value) = ("k".into(), value.into());
            page.row(&KeyValue { key, value, ..Default::default() });
            page.bytes
        };
        for bytes in [&b"\x1b[2J"[..], b"\xff", b"\x00", b"a\rb"] {
            assert_eq!(printed(false, bytes), [b"k\n", bytes, b"\n"].concat());
            assert_eq!(printed(true, bytes), format!("k\n{}\n", quote::go(bytes)).into_bytes());
        }
        let plain = "two\nlines\tand \u{fc}\u{4e2d}";
        assert_eq!(printed(true, plain.as_bytes()), format!("k\n{plain}\n").into_bytes());
    }
}
