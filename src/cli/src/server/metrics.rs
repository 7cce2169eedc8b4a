//! Measurements under etcd's names, for boards and alarms that were made for etcd: those that mean the same here, behind
//! the node's own. What has no counterpart is left out, rather than said with another meaning.

use std::fmt::{Display, Write};

use bowline::{MetricsSnapshot, NodeStatus};

use super::calls::Calls;
use super::member::{CLUSTER_VERSION, Member, VERSION};

/// All of a member's measurements, in the text format of Prometheus.
pub(super) fn text(member: &Member) -> String {
    let metrics = member.node().metrics();
    let mut families = Families(metrics.to_prometheus());
    families.server(member, &metrics.snapshot(), &member.node().status());
    families.store(&metrics.snapshot());
    families.calls(member.calls());
    families.0
}

/// A text in the making: one family after the other.
struct Families(String);

impl Families {
    fn head(&mut self, name: &str, kind: &str, help: &str) {
        self.line(format_args!("# HELP {name} {help}"));
        self.line(format_args!("# TYPE {name} {kind}"));
    }

    fn one(&mut self, name: &str, kind: &str, help: &str, value: impl Display) {
        self.head(name, kind, help);
        self.line(format_args!("{name} {value}"));
    }

    fn labelled(&mut self, name: &str, kind: &str, help: &str, samples: &[(String, u64)]) {
        self.head(name, kind, help);
        for (labels, value) in samples {
            self.line(format_args!("{name}{{{labels}}} {value}"));
        }
    }

    fn line(&mut self, line: std::fmt::Arguments<'_>) {
        self.0.write_fmt(line).expect("a string takes everything");
        self.0.push('\n');
    }

    fn server(&mut self, member: &Member, metrics: &MetricsSnapshot, status: &NodeStatus) {
        let labelled = |label: &str, value: &str| [(format!("{label}=\"{value}\""), 1)];
        let id = labelled("server_id", &format!("{:x}", status.id.get()));
        self.labelled("etcd_server_id", "gauge", "The member's id, in hexadecimal digits.", &id);
        let version = labelled("server_version", VERSION);
        let help = "The version of etcd whose behaviour this is.";
        self.labelled("etcd_server_version", "gauge", help, &version);
        let version = labelled("cluster_version", CLUSTER_VERSION);
        self.labelled("etcd_cluster_version", "gauge", "The same, of the cluster.", &version);
        let gauges = [
            ("has_leader", "Whether it knows of a leader.", metrics.has_leader),
            ("is_leader", "Whether it leads.", metrics.is_leader),
            ("is_learner", "Whether it does not vote.", u64::from(member.is_learner())),
            (
                "proposals_committed_total",
                "The last index that is committed.",
                metrics.commit_index,
            ),
            ("proposals_applied_total", "The last index that is applied.", metrics.applied_index),
            ("proposals_pending", "Requests without an answer.", metrics.open_requests),
            ("quota_backend_bytes", "The quota of the state.", metrics.quota_bytes),
        ];
        for (name, help, value) in gauges {
            self.one(&format!("etcd_server_{name}"), "gauge", help, value);
        }
        let changes = metrics.leader_changes_total;
        let help = "Times that the leader has changed.";
        self.one("etcd_server_leader_changes_seen_total", "counter", help, changes);
    }

    fn store(&mut self, metrics: &MetricsSnapshot) {
        let in_use = metrics.state_bytes.saturating_sub(metrics.history_bytes);
        let gauges = [
            ("etcd_mvcc_db_total_size_in_bytes", "Bytes of the state.", metrics.state_bytes),
            ("etcd_mvcc_db_total_size_in_use_in_bytes", "The same, without history.", in_use),
            ("etcd_debugging_mvcc_keys_total", "Keys that exist.", metrics.keys),
            ("etcd_debugging_mvcc_current_revision", "The newest revision.", metrics.revision),
            (
                "etcd_debugging_mvcc_compact_revision",
                "The revision that was compacted last.",
                metrics.compacted_revision,
            ),
            ("etcd_debugging_mvcc_watcher_total", "Watchers.", metrics.watchers),
        ];
        for (name, help, value) in gauges {
            self.one(name, "gauge", help, value);
        }
        let name = "etcd_disk_wal_fsync_duration_seconds";
        self.head(name, "histogram", "Time to write and sync what was queued for the log.");
        let syncs = &metrics.log_sync_seconds;
        for (bound, count) in syncs.cumulative() {
            let bound = if bound.is_finite() { bound.to_string() } else { "+Inf".to_owned() };
            self.line(format_args!("{name}_bucket{{le=\"{bound}\"}} {count}"));
        }
        self.line(format_args!("{name}_sum {}", syncs.sum()));
        self.line(format_args!("{name}_count {}", syncs.count()));
    }

    fn calls(&mut self, calls: &Calls) {
        let (begun, ended) = calls.samples();
        let help = "Calls of gRPC that have begun.";
        self.labelled("grpc_server_started_total", "counter", help, &begun);
        let help = "Calls of gRPC that have ended, by how.";
        self.labelled("grpc_server_handled_total", "counter", help, &ended);
    }
}
