//! Sends requests to the JSON gateways instead of the gRPC services.

use std::sync::LazyLock;

use bowline_testkit::process::http;
use prost::Message;
use prost_reflect::{DescriptorPool, DynamicMessage, SerializeOptions};
use serde_json::{Serializer, Value};
use tonic::Code;

use crate::differential::{Ask, Outcome};

static PROTOCOL: LazyLock<DescriptorPool> = LazyLock::new(|| {
    DescriptorPool::decode(bowline_proto::DESCRIPTORS).expect("the generated descriptors are valid")
});

/// A request to a gateway.
pub(crate) struct JsonAsk {
    path: &'static str,
    body: String,
    /// Whether the rows of the response have no values.
    keys_only: bool,
}

impl JsonAsk {
    /// Returns `None` if the request consists of several ones, or its response is a stream.
    pub(crate) fn of(ask: &Ask) -> Option<Self> {
        let (path, message, bytes) = match ask {
            Ask::Range(request) => ("kv/range", "RangeRequest", request.encode_to_vec()),
            Ask::Put(request) => ("kv/put", "PutRequest", request.encode_to_vec()),
            Ask::Delete(request) => {
                ("kv/deleterange", "DeleteRangeRequest", request.encode_to_vec())
            }
            Ask::Txn(request) => ("kv/txn", "TxnRequest", request.encode_to_vec()),
            Ask::Compact(request) => {
                ("kv/compaction", "CompactionRequest", request.encode_to_vec())
            }
            Ask::Grant(request) => ("lease/grant", "LeaseGrantRequest", request.encode_to_vec()),
            Ask::Revoke(request) => ("lease/revoke", "LeaseRevokeRequest", request.encode_to_vec()),
            Ask::ToLive(request) => {
                ("lease/timetolive", "LeaseTimeToLiveRequest", request.encode_to_vec())
            }
            Ask::Leases => ("lease/leases", "LeaseLeasesRequest", Vec::new()),
            Ask::Stream(_) | Ask::GrantAndRevoke(_) | Ask::Renew(_) => return None,
        };
        let message = format!("etcdserverpb.{message}");
        let message = PROTOCOL.get_message_by_name(&message).expect("a message of the protocol");
        let message = DynamicMessage::decode(message, &bytes[..]).expect("the encoding is valid");
        let mut body = Serializer::new(Vec::new());
        let options = SerializeOptions::new().use_proto_field_name(true);
        message.serialize_with_options(&mut body, &options).expect("every field can be written");
        let body = String::from_utf8(body.into_inner()).expect("JSON is text");
        let keys_only = matches!(ask, Ask::Range(request) if request.keys_only);
        Some(Self { path, body, keys_only })
    }

    /// Returns the response of the gateway at this address, without what differs between servers.
    pub(crate) fn send(&self, address: &str) -> Outcome {
        let (status, mut body) = http(address, "POST", &format!("/v3/{}", self.path), &self.body);
        let text = body.text();
        let mut body: Value = serde_json::from_str(&text)
            .unwrap_or_else(|error| panic!("{status} with invalid JSON ({error}): {text}"));
        if status == 200 {
            mask(&mut body, self.keys_only);
            return Ok(body.to_string());
        }
        let code = body["code"].as_i64().expect("an error has a code");
        let message = body["message"].as_str().expect("an error has a message");
        Err((Code::from_i32(code as i32), message.to_owned()))
    }
}

/// Removes the fields that differ between servers.
fn mask(body: &mut Value, keys_only: bool) {
    if let Some(Value::Object(header)) = body.get_mut("header") {
        header.retain(|field, _| field == "revision");
    }
    if keys_only && let Some(Value::Array(rows)) = body.get_mut("kvs") {
        for row in rows.iter_mut().filter_map(Value::as_object_mut) {
            row.remove("lease");
        }
    }
    for list in ["keys", "leases"] {
        if let Some(Value::Array(entries)) = body.get_mut(list) {
            entries.sort_by_key(Value::to_string);
        }
    }
    // The leases were granted at different times, so their remaining TTLs differ. A granted TTL is the same.
    if body.get("grantedTTL").is_some() {
        let is_expired = body["TTL"].as_str().is_some_and(|ttl| ttl.starts_with('-'));
        body["TTL"] = Value::from(if is_expired { "-1" } else { "1" });
    }
}
