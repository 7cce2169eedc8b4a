//! Metrics under etcd's names, for dashboards and alerts that were made for etcd. They are printed after the node's
//! own metrics. If an etcd metric has no counterpart in Bowline, it is omitted instead of given another meaning.
//! `docs/operating/metrics.md` lists the metrics of both kinds.

use std::fmt::{Display, Write};

use bowline::{
    MetricsSnapshot,
    metrics::{Ending, RequestKind},
};

use crate::alarms::Alarms;
use crate::member::Member;
use crate::middleware::call_metrics::{CallMetrics, LabelledTimes};
use crate::web::process::Process;
use bowline_proto::etcdserverpb as pb;

/// Returns all metrics of a member in Prometheus' text format, taken at one moment.
pub(crate) fn text(member: &Member, alarms: &Alarms, calls: &CallMetrics) -> String {
    let metrics = member.node().metrics().snapshot();
    let mut families = Families(metrics.to_prometheus());
    families.server(member, alarms, calls, &metrics);
    families.store(&metrics);
    families.calls(calls);
    families.requests(calls);
    if member.settings().metrics_extensive {
        families.handling_times(calls);
    }
    if let Some(process) = Process::now() {
        families.process(&process);
    }
    families.0
}

/// Text of metric families under construction.
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
        self.0.write_fmt(line).expect("writing to a string cannot fail");
        self.0.push('\n');
    }

    fn server(
        &mut self,
        member: &Member,
        alarms: &Alarms,
        calls: &CallMetrics,
        metrics: &MetricsSnapshot,
    ) {
        let labelled = |label: &str, value: &str| [(format!("{label}=\"{value}\""), 1)];
        let id = labelled("server_id", &format!("{:x}", member.id().get()));
        self.labelled("etcd_server_id", "gauge", "Member ID in hexadecimal.", &id);
        let version = labelled("server_version", member.announced().server());
        let help = "Version of etcd whose behavior this server implements.";
        self.labelled("etcd_server_version", "gauge", help, &version);
        let version = labelled("cluster_version", member.announced().short());
        self.labelled(
            "etcd_cluster_version",
            "gauge",
            "Version of etcd whose behavior the cluster implements.",
            &version,
        );
        let gauges = [
            ("has_leader", "Whether the member knows a leader.", metrics.has_leader),
            ("is_leader", "Whether the member is the leader.", metrics.is_leader),
            ("is_learner", "Whether the member is a learner.", u64::from(member.is_learner())),
            (
                "proposals_committed_total",
                "Index of the last committed entry.",
                metrics.commit_index,
            ),
            ("proposals_applied_total", "Index of the last applied entry.", metrics.applied_index),
            (
                "proposals_pending",
                "Number of requests without a result yet.",
                metrics.open_requests,
            ),
            ("quota_backend_bytes", "Quota of the state in bytes.", metrics.quota_bytes),
        ];
        for (name, help, value) in gauges {
            self.one(&format!("etcd_server_{name}"), "gauge", help, value);
        }
        let access = member.client().access().revision();
        let help = "Revision of users and roles.";
        self.one("etcd_debugging_auth_revision", "gauge", help, access);
        let labels = |alarm: &pb::AlarmMember| {
            let kind = alarm.alarm().as_str_name();
            (format!("alarm_type=\"{kind}\",server_id=\"{:x}\"", alarm.member_id), 1)
        };
        let alarms: Vec<_> = alarms.active().iter().map(labels).collect();
        let help = "Number of active alarms.";
        self.labelled("etcd_debugging_server_alarms", "gauge", help, &alarms);
        let (healthy, unhealthy) = calls.health_counts();
        let counters = [
            (
                "leader_changes_seen_total",
                "Number of leader changes seen.",
                metrics.leader_changes_total,
            ),
            (
                "proposals_failed_total",
                "Number of requests that failed without it being known whether they were applied.",
                failed_proposals(metrics),
            ),
            (
                "slow_apply_total",
                "Number of batches of entries that took longer to apply than --warning-apply-duration.",
                metrics.slow_applies_total,
            ),
            (
                "slow_read_indexes_total",
                "Number of linearizable reads that timed out before a leader confirmed the read index.",
                metrics.reads_unconfirmed_total,
            ),
            ("health_success", "Number of successful /health checks.", healthy),
            ("health_failures", "Number of failed /health checks.", unhealthy),
        ];
        for (name, help, value) in counters {
            self.one(&format!("etcd_server_{name}"), "counter", help, value);
        }
    }

    fn store(&mut self, metrics: &MetricsSnapshot) {
        let gauges = [
            (
                "etcd_mvcc_db_total_size_in_bytes",
                "Size of the state in bytes.",
                metrics.state_bytes,
            ),
            // The store has no free pages that a defragmentation would return, so all of it is in use.
            (
                "etcd_mvcc_db_total_size_in_use_in_bytes",
                "Size of the state in use, in bytes.",
                metrics.state_bytes,
            ),
            ("etcd_debugging_mvcc_keys_total", "Number of keys.", metrics.keys),
            ("etcd_debugging_mvcc_current_revision", "Newest revision.", metrics.revision),
            (
                "etcd_debugging_mvcc_compact_revision",
                "Last compacted revision.",
                metrics.compacted_revision,
            ),
            ("etcd_debugging_mvcc_watcher_total", "Number of open watches.", metrics.watchers),
            (
                "etcd_debugging_mvcc_slow_watcher_total",
                "Number of open watches that still read past events.",
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
            (
                "etcd_mvcc_txn_total",
                "Number of transactions with several operations.",
                metrics.txns_total,
            ),
            (
                "etcd_debugging_lease_granted_total",
                "Number of granted leases.",
                metrics.lease_grants_total,
            ),
            (
                "etcd_debugging_lease_revoked_total",
                "Number of revoked or expired leases.",
                metrics.lease_ends_total,
            ),
            (
                "etcd_debugging_lease_renewed_total",
                "Number of renewals of leases, as the leader.",
                metrics.lease_margin_seconds.count(),
            ),
            (
                "etcd_debugging_server_lease_expired_total",
                "Number of expired leases, as the leader.",
                metrics.lease_expiries_total,
            ),
        ];
        for (name, help, value) in counters {
            self.one(name, "counter", help, value);
        }
        let name = "etcd_disk_wal_fsync_duration_seconds";
        self.head(name, "histogram", "Time to write and sync a batch of the log.");
        let syncs = &metrics.log_sync_seconds;
        for (bound, count) in syncs.cumulative() {
            let bound = if bound.is_finite() { bound.to_string() } else { "+Inf".to_owned() };
            self.line(format_args!("{name}_bucket{{le=\"{bound}\"}} {count}"));
        }
        self.line(format_args!("{name}_sum {}", syncs.sum()));
        self.line(format_args!("{name}_count {}", syncs.count()));
    }

    fn calls(&mut self, calls: &CallMetrics) {
        let (begun, ended) = calls.samples();
        let help = "Number of started gRPC calls.";
        self.labelled("grpc_server_started_total", "counter", help, &begun);
        let help = "Number of completed gRPC calls, by status code.";
        self.labelled("grpc_server_handled_total", "counter", help, &ended);
        let help = "Number of gRPC calls, by the client's API version.";
        self.labelled("etcd_server_client_requests_total", "counter", help, &calls.clients());
        let (received, sent) = calls.traffic().bytes();
        let help = "Bytes of received gRPC messages.";
        self.one("etcd_network_client_grpc_received_bytes_total", "counter", help, received);
        let help = "Bytes of sent gRPC messages.";
        self.one("etcd_network_client_grpc_sent_bytes_total", "counter", help, sent);
    }

    fn requests(&mut self, calls: &CallMetrics) {
        let help = "Time to process a request, by etcd's type of the request.";
        self.histograms("etcd_server_request_duration_seconds", help, calls.request_times());
    }

    /// Served only with `--metrics=extensive`, as in etcd, because it has fourteen lines per method.
    fn handling_times(&mut self, calls: &CallMetrics) {
        let help = "Time from the headers of a gRPC call to its end.";
        self.histograms("grpc_server_handling_seconds", help, calls.handling_times());
    }

    fn histograms(&mut self, name: &str, help: &str, all: impl Iterator<Item = LabelledTimes>) {
        self.head(name, "histogram", help);
        for LabelledTimes { labels, buckets, count, seconds } in all {
            for (bound, below) in buckets {
                self.line(format_args!("{name}_bucket{{{labels},le=\"{bound}\"}} {below}"));
            }
            self.line(format_args!("{name}_bucket{{{labels},le=\"+Inf\"}} {count}"));
            self.line(format_args!("{name}_sum{{{labels}}} {seconds}"));
            self.line(format_args!("{name}_count{{{labels}}} {count}"));
        }
    }

    fn process(&mut self, process: &Process) {
        let help = "CPU time of the process in seconds.";
        self.one("process_cpu_seconds_total", "counter", help, process.cpu_seconds);
        let help = "Start time of the process in seconds since 1970.";
        self.one("process_start_time_seconds", "gauge", help, process.start_seconds);
        let gauges = [
            ("process_resident_memory_bytes", "Resident memory in bytes.", process.resident_bytes),
            ("process_virtual_memory_bytes", "Virtual memory in bytes.", process.virtual_bytes),
            ("process_open_fds", "Number of open file descriptors.", process.open_files),
            (
                "os_fd_used",
                "Number of open file descriptors, under etcd's name.",
                process.open_files,
            ),
        ];
        for (name, help, value) in gauges {
            self.one(name, "gauge", help, value);
        }
        // If there is no limit, report the largest number, as programs in Go do.
        let most = process.open_files_max.unwrap_or(u64::MAX);
        self.one("process_max_fds", "gauge", "Maximum number of open file descriptors.", most);
        self.one(
            "os_fd_limit",
            "gauge",
            "Maximum number of open file descriptors, under etcd's name.",
            most,
        );
    }
}

/// Returns the number of changes whose outcome is unknown here: neither applied nor rejected by the store.
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
