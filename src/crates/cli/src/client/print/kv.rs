//! Output of responses about keys: rows, changes, transactions and watch events.

use super::json::{Object, list};
use super::{Page, Show, header_into, header_json};
use bowline_proto::etcdserverpb as pb;
use bowline_proto::mvccpb::event::EventType;
use bowline_proto::mvccpb::{Event, KeyValue};
use pb::response_op::Response;

fn row_json(row: &KeyValue) -> Object {
    Object::default()
        .bytes("key", &row.key)
        .number("create_revision", row.create_revision)
        .number("mod_revision", row.mod_revision)
        .number("version", row.version)
        .bytes("value", &row.value)
        .number("lease", row.lease)
}

fn rows_json(rows: &[KeyValue]) -> impl Iterator<Item = String> {
    rows.iter().map(|row| row_json(row).end())
}

impl Show for pb::RangeResponse {
    fn simple(&self, page: &mut Page) {
        for row in &self.kvs {
            page.row(row);
        }
    }

    fn fields(&self, page: &mut Page) {
        page.header(&self.header);
        for row in &self.kvs {
            page.row_fields("", row);
        }
        page.field("More", self.more);
        page.field("Count", self.count);
    }

    fn json(&self) -> String {
        Object::default()
            .object("header", header_json(&self.header))
            .list("kvs", rows_json(&self.kvs))
            .flag("more", self.more)
            .number("count", self.count)
            .end()
    }
}

/// A response whose count is printed.
pub(crate) struct Counted(pub(crate) pb::RangeResponse);

impl Show for Counted {
    fn simple(&self, page: &mut Page) {
        page.line(self.0.count.to_string());
    }

    fn fields(&self, page: &mut Page) {
        self.0.fields(page);
    }

    fn json(&self) -> String {
        self.0.json()
    }
}

impl Show for pb::PutResponse {
    fn simple(&self, page: &mut Page) {
        page.line("OK");
        if let Some(row) = &self.prev_kv {
            page.row(row);
        }
    }

    fn fields(&self, page: &mut Page) {
        page.header(&self.header);
        if let Some(row) = &self.prev_kv {
            page.row_fields("Prev", row);
        }
    }

    fn json(&self) -> String {
        Object::default()
            .object("header", header_json(&self.header))
            .object("prev_kv", self.prev_kv.as_ref().map(row_json))
            .end()
    }
}

impl Show for pb::DeleteRangeResponse {
    fn simple(&self, page: &mut Page) {
        page.line(self.deleted.to_string());
        for row in &self.prev_kvs {
            page.row(row);
        }
    }

    fn fields(&self, page: &mut Page) {
        page.header(&self.header);
        page.field("Deleted", self.deleted);
        for row in &self.prev_kvs {
            page.row_fields("Prev", row);
        }
    }

    fn json(&self) -> String {
        Object::default()
            .object("header", header_json(&self.header))
            .number("deleted", self.deleted)
            .list("prev_kvs", rows_json(&self.prev_kvs))
            .end()
    }
}

/// Returns the response of an operation, with its name in JSON.
fn response(op: &pb::ResponseOp) -> Option<(&'static str, &dyn Show)> {
    Some(match op.response.as_ref()? {
        Response::ResponseRange(answer) => ("ResponseRange", answer),
        Response::ResponsePut(answer) => ("ResponsePut", answer),
        Response::ResponseDeleteRange(answer) => ("ResponseDeleteRange", answer),
        Response::ResponseTxn(answer) => ("ResponseTxn", answer),
    })
}

impl Show for pb::TxnResponse {
    fn simple(&self, page: &mut Page) {
        page.line(if self.succeeded { "SUCCESS" } else { "FAILURE" });
        for (_, answer) in self.responses.iter().filter_map(response) {
            page.line("");
            answer.simple(page);
        }
    }

    fn fields(&self, page: &mut Page) {
        page.header(&self.header);
        page.field("Succeeded", self.succeeded);
        for (_, answer) in self.responses.iter().filter_map(response) {
            answer.fields(page);
        }
    }

    fn json(&self) -> String {
        let of = |(name, answer): (&str, &dyn Show)| {
            let inner = Object::default().raw(name, answer.json());
            Object::default().object("Response", Some(inner)).end()
        };
        Object::default()
            .object("header", header_json(&self.header))
            .flag("succeeded", self.succeeded)
            .list("responses", self.responses.iter().filter_map(response).map(of))
            .end()
    }
}

/// Returns the name of the event's type.
pub(crate) fn kind(event: &Event) -> &'static str {
    EventType::try_from(event.r#type).unwrap_or(EventType::Put).as_str_name()
}

impl Show for pb::WatchResponse {
    fn simple(&self, page: &mut Page) {
        for event in &self.events {
            page.line(kind(event));
            for row in event.prev_kv.iter().chain(&event.kv) {
                page.row(row);
            }
        }
    }

    fn fields(&self, page: &mut Page) {
        page.header(&self.header);
        for event in &self.events {
            page.field("Type", kind(event));
            if let Some(row) = &event.prev_kv {
                page.row_fields("Prev", row);
            }
            page.row_fields("", &event.kv.clone().unwrap_or_default());
        }
    }

    fn json(&self) -> String {
        let event = |event: &Event| {
            Object::default()
                .number("type", event.r#type)
                .object("kv", event.kv.as_ref().map(row_json))
                .object("prev_kv", event.prev_kv.as_ref().map(row_json))
                .end()
        };
        let header = header_into(Object::default(), &self.header.unwrap_or_default());
        Object::default()
            .object("Header", Some(header))
            .raw("Events", list(self.events.iter().map(event)))
            .raw("CompactRevision", self.compact_revision)
            .raw("Canceled", self.canceled)
            .raw("Created", self.created)
            .end()
    }
}
