//! Output of responses about members and servers.

use std::time::Duration;

use super::json::{Object, list};
use super::{Page, Show, Table, header_json};
use crate::client::quote;
use bowline_proto::etcdserverpb as pb;

const MEMBER_TITLES: [&str; 6] =
    ["ID", "Status", "Name", "Peer Addrs", "Client Addrs", "Is Learner"];

const STATUS_TITLES: [&str; 16] = [
    "endpoint",
    "ID",
    "version",
    "storage version",
    "db size",
    "in use",
    "percentage not in use",
    "quota",
    "is leader",
    "is learner",
    "raft term",
    "raft index",
    "raft applied index",
    "errors",
    "downgrade target version",
    "downgrade enabled",
];

fn texts(list: &[String]) -> impl Iterator<Item = String> {
    list.iter().map(|text| quote::json(text))
}

fn member_json(member: &pb::Member) -> Object {
    Object::default()
        .number("ID", member.id)
        .text("name", &member.name)
        .list("peerURLs", texts(&member.peer_ur_ls))
        .list("clientURLs", texts(&member.client_ur_ls))
        .flag("isLearner", member.is_learner)
}

fn members_json(members: &[pb::Member]) -> impl Iterator<Item = String> {
    members.iter().map(|member| member_json(member).end())
}

fn member_cells(member: &pb::Member) -> Vec<String> {
    vec![
        format!("{:x}", member.id),
        if member.name.is_empty() { "unstarted" } else { "started" }.to_owned(),
        member.name.clone(),
        member.peer_ur_ls.join(","),
        member.client_ur_ls.join(","),
        member.is_learner.to_string(),
    ]
}

impl Show for pb::MemberListResponse {
    fn simple(&self, page: &mut Page) {
        for member in &self.members {
            page.line(member_cells(member).join(", "));
        }
    }

    fn fields(&self, page: &mut Page) {
        page.header(&self.header);
        for member in &self.members {
            page.id("ID", member.id);
            page.quoted("Name", &member.name);
            for url in &member.peer_ur_ls {
                page.quoted("PeerURL", url);
            }
            for url in &member.client_ur_ls {
                page.quoted("ClientURL", url);
            }
            page.field("IsLearner", member.is_learner);
            page.line("");
        }
    }

    fn json(&self) -> String {
        let object = Object::default().object("header", header_json(&self.header));
        object.list("members", members_json(&self.members)).end()
    }

    /// Formats ids as strings, for shells. Like etcdctl, omits `isLearner`.
    fn json_with_hex(&self) -> String {
        let hex = |id: u64| format!("\"{id:x}\"");
        let urls = |urls: &[String]| match urls {
            [] => "null".to_owned(),
            urls => list(texts(urls)),
        };
        let member = |member: &pb::Member| {
            Object::default()
                .raw("ID", hex(member.id))
                .raw("name", quote::json(&member.name))
                .raw("peerURLs", urls(&member.peer_ur_ls))
                .raw("clientURLs", urls(&member.client_ur_ls))
                .end()
        };
        let header = self.header.unwrap_or_default();
        let header = Object::default()
            .raw("cluster_id", hex(header.cluster_id))
            .raw("member_id", hex(header.member_id))
            .raw("raft_term", header.raft_term);
        let object = Object::default().object("header", Some(header));
        object.list("members", self.members.iter().map(member)).end()
    }

    fn table(&self) -> Option<Table> {
        Some(Table::new(&MEMBER_TITLES, self.members.iter().map(member_cells).collect()))
    }
}

/// Result of a membership change.
pub(crate) struct MemberDone {
    pub(crate) id: u64,
    /// The change, for example `removed from`.
    pub(crate) what: &'static str,
    pub(crate) header: Option<pb::ResponseHeader>,
    /// The added member.
    pub(crate) member: Option<pb::Member>,
    pub(crate) members: Vec<pb::Member>,
    /// Additional text for people.
    pub(crate) more: String,
}

impl Show for MemberDone {
    fn simple(&self, page: &mut Page) {
        let cluster = self.header.map(|header| header.cluster_id).unwrap_or_default();
        page.line(format!("Member {:16x} {} cluster {cluster:16x}", self.id, self.what));
        if !self.more.is_empty() {
            page.line(&self.more);
        }
    }

    fn fields(&self, page: &mut Page) {
        page.header(&self.header);
        page.id("MemberID", self.id);
    }

    fn json(&self) -> String {
        Object::default()
            .object("header", header_json(&self.header))
            .object("member", self.member.as_ref().map(member_json))
            .list("members", members_json(&self.members))
            .end()
    }
}

/// Formats a size in decimal units.
pub(crate) fn size(bytes: i64) -> String {
    const UNITS: [&str; 7] = ["B", "kB", "MB", "GB", "TB", "PB", "EB"];
    if bytes < 10 {
        return format!("{bytes} B");
    }
    let (mut scaled, mut unit) = (bytes as f64, 0);
    while scaled >= 1000.0 && unit + 1 < UNITS.len() {
        scaled /= 1000.0;
        unit += 1;
    }
    let rounded = (scaled * 10.0 + 0.5).floor() / 10.0;
    let digits = usize::from(rounded < 10.0);
    format!("{rounded:.digits$} {}", UNITS[unit])
}

/// Formats a duration as Go does.
pub(crate) fn took(span: Duration) -> String {
    let nanos = span.as_nanos();
    let (unit, name) = match nanos {
        0..1_000 => return format!("{nanos}ns"),
        1_000..1_000_000 => (1_000, "µs"),
        1_000_000..1_000_000_000 => (1_000_000, "ms"),
        _ => (1_000_000_000, "s"),
    };
    let digits = unit.to_string().len() - 1;
    let text = format!("{}.{:0digits$}", nanos / unit, nanos % unit);
    format!("{}{name}", text.trim_end_matches('0').trim_end_matches('.'))
}

pub(crate) struct Health(pub(crate) Vec<EndpointHealth>);

pub(crate) struct EndpointHealth {
    pub(crate) endpoint: String,
    pub(crate) took: Duration,
    /// Reason why the endpoint is unhealthy.
    pub(crate) error: Option<String>,
}

impl Show for Health {
    fn simple(&self, page: &mut Page) {
        // Unhealthy endpoints are reported on standard error.
        for health in self.0.iter().filter(|health| health.error.is_none()) {
            let (endpoint, took) = (&health.endpoint, took(health.took));
            page.line(format!(
                "{endpoint} is healthy: successfully committed proposal: took = {took}"
            ));
        }
    }

    fn fields(&self, page: &mut Page) {
        for health in &self.0 {
            page.quoted("Endpoint", &health.endpoint);
            page.field("Health", health.error.is_none());
            page.field("Took", took(health.took));
            page.field("Error", health.error.as_deref().unwrap_or_default());
            page.line("");
        }
    }

    fn json(&self) -> String {
        list(self.0.iter().map(|health| {
            Object::default()
                .raw("endpoint", quote::json(&health.endpoint))
                .raw("health", health.error.is_none())
                .raw("took", quote::json(&took(health.took)))
                .text("error", health.error.as_deref().unwrap_or_default())
                .end()
        }))
    }

    fn table(&self) -> Option<Table> {
        let row = |health: &EndpointHealth| {
            vec![
                health.endpoint.clone(),
                health.error.is_none().to_string(),
                took(health.took),
                health.error.clone().unwrap_or_default(),
            ]
        };
        let titles = ["endpoint", "health", "took", "error"];
        Some(Table::new(&titles, self.0.iter().map(row).collect()))
    }
}

/// Status of the endpoints.
pub(crate) struct Statuses(pub(crate) Vec<(String, pb::StatusResponse)>);

fn status_cells((endpoint, status): &(String, pb::StatusResponse)) -> Vec<String> {
    let member = status.header.map(|header| header.member_id).unwrap_or_default();
    let downgrade = status.downgrade_info.clone().unwrap_or_default();
    // Old servers do not report the size in use, and an unknown size has no percentage.
    let in_use = status.db_size_in_use.saturating_mul(100).checked_div(status.db_size);
    vec![
        endpoint.clone(),
        format!("{member:x}"),
        status.version.clone(),
        status.storage_version.clone(),
        size(status.db_size),
        size(status.db_size_in_use),
        format!("{}%", 100 - in_use.unwrap_or(100)),
        size(status.db_size_quota),
        (status.leader == member).to_string(),
        status.is_learner.to_string(),
        status.raft_term.to_string(),
        status.raft_index.to_string(),
        status.raft_applied_index.to_string(),
        status.errors.join(", "),
        downgrade.target_version,
        downgrade.enabled.to_string(),
    ]
}

impl Show for Statuses {
    fn simple(&self, page: &mut Page) {
        for status in &self.0 {
            page.line(status_cells(status).join(", "));
        }
    }

    fn fields(&self, page: &mut Page) {
        for (endpoint, status) in &self.0 {
            page.header(&status.header);
            page.quoted("Version", &status.version);
            page.quoted("StorageVersion", &status.storage_version);
            page.field("DBSize", status.db_size);
            page.field("DBSizeInUse", status.db_size_in_use);
            page.field("DBSizeQuota", status.db_size_quota);
            page.field("Leader", status.leader);
            page.field("IsLearner", status.is_learner);
            page.field("RaftIndex", status.raft_index);
            page.field("RaftAppliedIndex", status.raft_applied_index);
            page.field("Errors", format!("[{}]", status.errors.join(" ")));
            page.quoted("Endpoint", endpoint);
            let downgrade = status.downgrade_info.clone().unwrap_or_default();
            page.quoted("DowngradeTargetVersion", downgrade.target_version);
            page.field("DowngradeEnabled", downgrade.enabled);
            page.line("");
        }
    }

    fn json(&self) -> String {
        list(self.0.iter().map(|(endpoint, status)| {
            let downgrade = |info: &pb::DowngradeInfo| {
                let object = Object::default().flag("enabled", info.enabled);
                object.text("targetVersion", &info.target_version)
            };
            let answer = Object::default()
                .object("header", header_json(&status.header))
                .text("version", &status.version)
                .number("dbSize", status.db_size)
                .number("leader", status.leader)
                .number("raftIndex", status.raft_index)
                .number("raftTerm", status.raft_term)
                .number("raftAppliedIndex", status.raft_applied_index)
                .list("errors", texts(&status.errors))
                .number("dbSizeInUse", status.db_size_in_use)
                .flag("isLearner", status.is_learner)
                .text("storageVersion", &status.storage_version)
                .number("dbSizeQuota", status.db_size_quota)
                .object("downgradeInfo", status.downgrade_info.as_ref().map(downgrade));
            let object = Object::default().raw("Endpoint", quote::json(endpoint));
            object.object("Status", Some(answer)).end()
        }))
    }

    fn table(&self) -> Option<Table> {
        Some(Table::new(&STATUS_TITLES, self.0.iter().map(status_cells).collect()))
    }
}

/// Hashes of the endpoints' keys.
pub(crate) struct Hashes(pub(crate) Vec<(String, pb::HashKvResponse)>);

impl Show for Hashes {
    fn simple(&self, page: &mut Page) {
        for (endpoint, hash) in &self.0 {
            page.line(format!("{endpoint}, {}, {}", hash.hash, hash.hash_revision));
        }
    }

    fn fields(&self, page: &mut Page) {
        for (endpoint, hash) in &self.0 {
            page.header(&hash.header);
            page.quoted("Endpoint", endpoint);
            page.field("Hash", hash.hash);
            page.field("HashRevision", hash.hash_revision);
            page.line("");
        }
    }

    fn json(&self) -> String {
        list(self.0.iter().map(|(endpoint, hash)| {
            let answer = Object::default()
                .object("header", header_json(&hash.header))
                .number("hash", hash.hash)
                .number("compact_revision", hash.compact_revision)
                .number("hash_revision", hash.hash_revision);
            let object = Object::default().raw("Endpoint", quote::json(endpoint));
            object.object("HashKV", Some(answer)).end()
        }))
    }

    fn table(&self) -> Option<Table> {
        let row = |(endpoint, hash): &(String, pb::HashKvResponse)| {
            vec![endpoint.clone(), hash.hash.to_string(), hash.hash_revision.to_string()]
        };
        Some(Table::new(&["endpoint", "hash", "hash_revision"], self.0.iter().map(row).collect()))
    }
}

impl Show for pb::AlarmResponse {
    fn simple(&self, page: &mut Page) {
        for alarm in &self.alarms {
            page.line(alarm.description());
        }
    }

    fn fields(&self, page: &mut Page) {
        page.header(&self.header);
        for alarm in &self.alarms {
            page.id("MemberID", alarm.member_id);
            page.field("AlarmType", alarm.alarm().as_str_name());
            page.line("");
        }
    }

    fn json(&self) -> String {
        let alarm = |alarm: &pb::AlarmMember| {
            let object = Object::default().number("memberID", alarm.member_id);
            object.number("alarm", alarm.alarm).end()
        };
        let object = Object::default().object("header", header_json(&self.header));
        object.list("alarms", self.alarms.iter().map(alarm)).end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_are_listed_in_hexadecimal_as_in_etcdctl() {
        let header =
            pb::ResponseHeader { cluster_id: 0xab, member_id: 1, revision: 0, raft_term: 7 };
        let one = pb::Member {
            id: 1,
            name: "m0".to_owned(),
            peer_ur_ls: vec!["http://a:1".to_owned(), "http://b:1".to_owned()],
            ..Default::default()
        };
        let two = pb::Member { id: 0x1f, is_learner: true, ..Default::default() };
        let listed = pb::MemberListResponse { header: Some(header), members: vec![one, two] };
        let expected = concat!(
            r#"{"header":{"cluster_id":"ab","member_id":"1","raft_term":7},"members":["#,
            r#"{"ID":"1","name":"m0","peerURLs":["http://a:1","http://b:1"],"clientURLs":null},"#,
            r#"{"ID":"1f","name":"","peerURLs":null,"clientURLs":null}]}"#,
        );
        assert_eq!(listed.json_with_hex(), expected);
    }

    #[test]
    fn sizes_and_durations_are_printed_as_in_etcdctl() {
        let sizes =
            [(5, "5 B"), (999, "999 B"), (1000, "1.0 kB"), (20_480, "20 kB"), (9_960_000, "10 MB")];
        for (bytes, text) in sizes {
            assert_eq!(size(bytes), text);
        }
        let spans =
            [(791, "791ns"), (3_791_911, "3.791911ms"), (2_000_000_000, "2s"), (1_500, "1.5µs")];
        for (nanos, text) in spans {
            assert_eq!(took(Duration::from_nanos(nanos)), text);
        }
    }
}
