//! Measurements under etcd's names, for boards and alarms that were made for etcd: those that mean the same here, behind
//! the node's own. What has no counterpart is left out, rather than said with another meaning: docs/operating/metrics.md
//! lists both.

use std::fmt::{Display, Write};

use bowline::{
    MetricsSnapshot, NodeStatus,
    metrics::{Ending, RequestKind},
};

use super::alarms;
use super::calls::{Calls, MethodTimes, SECONDS};
use super::member::{CLUSTER_VERSION_SHORT, Member, VERSION};
use super::process::Process;
use crate::generated::etcdserverpb as pb;

/// All of a member's measurements, in the text format of Prometheus, as of one moment.
pub(super) fn text(member: &Member) -> String {
    let metrics = member.node().metrics().snapshot();
    let mut families = Families(metrics.to_prometheus());
    families.server(member, &metrics, &member.node().status());
    families.store(&metrics);
    families.calls(member.calls());
    if member.options().metrics_extensive {
        families.times(member.calls());
    }
    if let Some(process) = Process::now() {
        families.process(&process);
    }
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
        let version = labelled("cluster_version", CLUSTER_VERSION_SHORT);
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
        let access = member.client().access().revision();
        let help = "Rises with every change of users and roles.";
        self.one("etcd_debugging_auth_revision", "gauge", help, access);
        let said = |alarm: &pb::AlarmMember| {
            let kind = alarm.alarm().as_str_name();
            (format!("alarm_type=\"{kind}\",server_id=\"{:x}\"", alarm.member_id), 1)
        };
        let alarms: Vec<_> = alarms::standing(member).iter().map(said).collect();
        let help = "Alarms that stand.";
        self.labelled("etcd_debugging_server_alarms", "gauge", help, &alarms);
        let (healthy, unhealthy) = member.calls().health_counts();
        let counters = [
            (
                "leader_changes_seen_total",
                "Times that the leader has changed.",
                metrics.leader_changes_total,
            ),
            (
                "proposals_failed_total",
                "Requests that ended without it being known that they were applied, or refused.",
                failed_proposals(metrics),
            ),
            (
                "slow_apply_total",
                "Batches of entries that took longer to apply than --warning-apply-duration.",
                metrics.slow_applies_total,
            ),
            (
                "slow_read_indexes_total",
                "Linearizable reads whose time was up before a leader had confirmed how far they must see.",
                metrics.reads_unconfirmed_total,
            ),
            ("health_success", "Times that /health was asked for and was good.", healthy),
            ("health_failures", "Times that it was not.", unhealthy),
        ];
        for (name, help, value) in counters {
            self.one(&format!("etcd_server_{name}"), "counter", help, value);
        }
    }

    fn store(&mut self, metrics: &MetricsSnapshot) {
        let gauges = [
            ("etcd_mvcc_db_total_size_in_bytes", "Bytes of the state.", metrics.state_bytes),
            // The store has no free pages that a defragmentation would return, so all of it is in use.
            (
                "etcd_mvcc_db_total_size_in_use_in_bytes",
                "Bytes of the state that are in use.",
                metrics.state_bytes,
            ),
            ("etcd_debugging_mvcc_keys_total", "Keys that exist.", metrics.keys),
            ("etcd_debugging_mvcc_current_revision", "The newest revision.", metrics.revision),
            (
                "etcd_debugging_mvcc_compact_revision",
                "The revision that was compacted last.",
                metrics.compacted_revision,
            ),
            ("etcd_debugging_mvcc_watcher_total", "Open watchers.", metrics.watchers),
            (
                "etcd_debugging_mvcc_slow_watcher_total",
                "Open watchers that read changes from the history.",
                metrics.watchers_behind,
            ),
            (
                "etcd_mvcc_total_put_size_in_bytes",
                "Bytes of the keys and values of all puts.",
                metrics.put_bytes_total,
            ),
        ];
        for (name, help, value) in gauges {
            self.one(name, "gauge", help, value);
        }
        let counters = [
            ("etcd_mvcc_put_total", "Puts.", metrics.puts_total),
            ("etcd_mvcc_delete_total", "Deletes.", metrics.deletes_total),
            ("etcd_mvcc_range_total", "Ranges.", metrics.ranges_total),
            ("etcd_mvcc_txn_total", "Transactions of several operations.", metrics.txns_total),
            ("etcd_debugging_lease_granted_total", "Leases granted.", metrics.lease_grants_total),
            ("etcd_debugging_lease_revoked_total", "Leases ended.", metrics.lease_ends_total),
            (
                "etcd_debugging_lease_renewed_total",
                "Leases renewed, as the leader.",
                metrics.lease_margin_seconds.count(),
            ),
            (
                "etcd_debugging_server_lease_expired_total",
                "Leases that have run out, as the leader.",
                metrics.lease_expiries_total,
            ),
        ];
        for (name, help, value) in counters {
            self.one(name, "counter", help, value);
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
        let help = "Calls of gRPC, by what clients say they speak.";
        self.labelled("etcd_server_client_requests_total", "counter", help, &calls.clients());
        let (received, sent) = calls.traffic().bytes();
        let help = "Bytes of clients' messages of gRPC.";
        self.one("etcd_network_client_grpc_received_bytes_total", "counter", help, received);
        let help = "Bytes of messages of gRPC to clients.";
        self.one("etcd_network_client_grpc_sent_bytes_total", "counter", help, sent);
    }

    /// Served only with `--metrics=extensive`, as in etcd: it has fourteen lines a method.
    fn times(&mut self, calls: &Calls) {
        let name = "grpc_server_handling_seconds";
        self.head(name, "histogram", "Time from the head of a call of gRPC to its end.");
        for MethodTimes { labels, cumulative, seconds } in calls.times() {
            let count = cumulative[SECONDS.len()];
            for (bound, below) in SECONDS.iter().zip(cumulative) {
                self.line(format_args!("{name}_bucket{{{labels},le=\"{bound}\"}} {below}"));
            }
            self.line(format_args!("{name}_bucket{{{labels},le=\"+Inf\"}} {count}"));
            self.line(format_args!("{name}_sum{{{labels}}} {seconds}"));
            self.line(format_args!("{name}_count{{{labels}}} {count}"));
        }
    }

    fn process(&mut self, process: &Process) {
        let help = "Seconds of processors that the process has taken.";
        self.one("process_cpu_seconds_total", "counter", help, process.cpu_seconds);
        let help = "When the process was started, in seconds since 1970.";
        self.one("process_start_time_seconds", "gauge", help, process.start_seconds);
        let gauges = [
            (
                "process_resident_memory_bytes",
                "Bytes of memory that it holds.",
                process.resident_bytes,
            ),
            ("process_virtual_memory_bytes", "Bytes that it may touch.", process.virtual_bytes),
            ("process_open_fds", "Its open files and connections.", process.open_files),
            ("os_fd_used", "The same, under etcd's own name.", process.open_files),
        ];
        for (name, help, value) in gauges {
            self.one(name, "gauge", help, value);
        }
        // Where there is no limit Go's programs say the largest number there is.
        let most = process.open_files_max.unwrap_or(u64::MAX);
        self.one("process_max_fds", "gauge", "How many there may be.", most);
        self.one("os_fd_limit", "gauge", "The same, under etcd's own name.", most);
    }
}

/// Changes that ended without anybody knowing here that they were applied, or refused by the store.
fn failed_proposals(metrics: &MetricsSnapshot) -> u64 {
    let changes = metrics.requests_total.iter().filter(|(kind, _)| *kind != RequestKind::Read);
    let failed = changes.flat_map(|(_, ends)| ends).filter(|(end, _)| {
        matches!(
            end,
            Ending::DeadlineExceeded | Ending::Unknown | Ending::Stopped | Ending::Diverged
        )
    });
    failed.map(|(_, count)| count).sum()
}
