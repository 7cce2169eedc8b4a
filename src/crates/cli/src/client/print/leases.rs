//! Output of responses about leases.

use super::json::{Object, base64, list};
use super::{Page, Show, header_into};
use crate::client::quote;
use bowline_proto::etcdserverpb as pb;

/// Returns a JSON object that starts with the fields of a response header.
fn headed(header: &Option<pb::ResponseHeader>) -> Object {
    header.as_ref().map(|header| header_into(Object::default(), header)).unwrap_or_default()
}

impl Show for pb::LeaseGrantResponse {
    fn simple(&self, page: &mut Page) {
        page.line(format!("lease {:016x} granted with TTL({}s)", self.id, self.ttl));
    }

    fn fields(&self, page: &mut Page) {
        page.header(&self.header);
        page.lease("ID", self.id);
        page.field("TTL", self.ttl);
    }

    fn json(&self) -> String {
        let object = headed(&self.header).raw("ID", self.id).raw("TTL", self.ttl);
        object.raw("Error", quote::json(&self.error)).end()
    }
}

impl Show for pb::LeaseKeepAliveResponse {
    fn simple(&self, page: &mut Page) {
        page.line(format!("lease {:016x} keepalived with TTL({})", self.id, self.ttl));
    }

    fn fields(&self, page: &mut Page) {
        page.header(&self.header);
        page.lease("ID", self.id);
        page.field("TTL", self.ttl);
    }

    fn json(&self) -> String {
        headed(&self.header).raw("ID", self.id).raw("TTL", self.ttl).end()
    }
}

/// Remaining time of a lease, optionally with the attached keys.
pub(crate) struct Life {
    pub(crate) answer: pb::LeaseTimeToLiveResponse,
    pub(crate) with_keys: bool,
}

impl Show for Life {
    fn simple(&self, page: &mut Page) {
        let pb::LeaseTimeToLiveResponse { id, ttl, granted_ttl, keys, .. } = &self.answer;
        if *granted_ttl == 0 && *ttl == -1 {
            return page.line(format!("lease {id:016x} already expired"));
        }
        let life = format!("lease {id:016x} granted with TTL({granted_ttl}s), remaining({ttl}s)");
        let mut line = life.into_bytes();
        if self.with_keys {
            line.extend_from_slice(b", attached keys([");
            line.extend_from_slice(&keys.join(&b" "[..]));
            line.extend_from_slice(b"])");
        }
        page.line(line);
    }

    fn fields(&self, page: &mut Page) {
        page.header(&self.answer.header);
        page.lease("ID", self.answer.id);
        page.field("TTL", self.answer.ttl);
        page.field("GrantedTTL", self.answer.granted_ttl);
        for key in &self.answer.keys {
            page.quoted("Key", key);
        }
    }

    fn json(&self) -> String {
        let answer = &self.answer;
        let keys = match answer.keys.as_slice() {
            [] => "null".to_owned(),
            keys => list(keys.iter().map(|key| base64(key))),
        };
        headed(&answer.header)
            .raw("id", answer.id)
            .raw("ttl", answer.ttl)
            .raw("granted-ttl", answer.granted_ttl)
            .raw("keys", keys)
            .end()
    }
}

impl Show for pb::LeaseLeasesResponse {
    fn simple(&self, page: &mut Page) {
        page.line(format!("found {} leases", self.leases.len()));
        for lease in &self.leases {
            page.line(format!("{:016x}", lease.id));
        }
    }

    fn fields(&self, page: &mut Page) {
        page.header(&self.header);
        for lease in &self.leases {
            page.lease("ID", lease.id);
        }
    }

    fn json(&self) -> String {
        let leases = self.leases.iter().map(|lease| Object::default().raw("id", lease.id).end());
        headed(&self.header).raw("leases", list(leases)).end()
    }
}
