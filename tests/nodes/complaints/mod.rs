//! Tests of complaints by users of other lock services. Each test is named after the correct behaviour, and a comment
//! gives the thread of the complaint.
//!
//! Tests in other modules cover these complaints:
//!
//! | thread | test |
//! |---|---|
//! | etcd#10811 (two hold after a partition), curator#727, go-zookeeper#20, libkv#156 | `cluster`: partitioned_holder_reports_its_loss_before_another_holds |
//! | etcd#6127, redisson#3636, consul#1843 | `edge_cases`: session_expiry_frees_the_lock_and_notifies_the_holder |
//! | dynamodb-lock-client#1 (no fencing) | `edge_cases`: pause_beyond_the_ttl_is_detected_by_holder_store_and_resource |
//! | dynamodb-lock-client#6 (an outage is no loss) | `edge_cases`: held_lock_is_lost_after_a_quorum_outage |
//! | redisson#5698, node-consul#54 (the lease is not renewed) | `walkthroughs`: a_lock_is_renewed_while_its_process_lives |
//! | consul#18271, consul#985, kubernetes#67651 (the old leader notices late) | `walkthroughs`: leader_that_cannot_renew_stops_before_another_leads |
//! | consul#1162, consul#912 (an election of the servers drops all locks) | `edge_cases`: leader_change_keeps_locks_and_queue_entries |
//! | etcd#11007, etcd#21128, cadence#7608 (candidates that have gone) | `walkthroughs`: dropped_campaign_leaves_no_candidacy |
//! | redisson#2292, redisson#2665 (a late unlock looks like a bug) | `edge_cases`: release_after_a_loss_does_no_harm_and_reports_it |
//! | redisson#4822 (one node alone gets the lock) | `walkthroughs`: available_while_a_minority_is_down |
//! | curator#600, curator#583 (an interrupt leaves a key) | `edge_cases`: acquire_dropped_with_an_unknown_outcome_is_undone |
//! | curator#1092, curator#625 (no new leader) | `walkthroughs`: leader_elected_cron_runs_once_and_its_successor_takes_over |
//! | goauthentik#23876, neonKUBE#80 (not freed after a crash) | `walkthroughs`: crashed_holder_frees_the_lock |
//! | etcd#19597 (a waiter whose session has died waits on) | `edge_cases`: session_expiry_ends_the_wait_and_removes_the_queue_entry |
//! | kube-vip#282, dynamolock#778, dynamodb-lock-client#34 (waiting for one's own old session) | `edge_cases`: a_node_that_restarts_ends_its_old_session_at_once |
//! | cortx-hare#10 (herd effect) | `walkthroughs`: six_steps_with_the_mutex_serve_in_order_and_wake_one |
//! | etcd#22384 (a mutex cannot be resumed) | `edge_cases`: a_session_that_is_resumed_after_a_restart_keeps_its_lock |
//! | hazelcast#24037, python-etcd#267 (a time limit for one hold) | `walkthroughs`: lock_with_max_hold_is_not_renewed |
//! | portalocker#139 (two holders at once) | `walkthroughs`: mutual_exclusion |

mod leaks;
mod operating;
mod ownership;
mod waiting;

/// A test that is renamed must be renamed in the table above.
#[test]
fn table_names_existing_tests() {
    let tests = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/nodes");
    let mut rows = 0;
    for row in include_str!("mod.rs").lines().filter(|line| line.starts_with("//! | ")) {
        let Some((program, name)) = row.rsplit(" | ").next().and_then(|end| end.split_once("`: "))
        else {
            continue;
        };
        let (program, name) = (program.trim_start_matches('`'), name.trim_end_matches(" |"));
        let files = match std::fs::read_dir(tests.join(program)) {
            Ok(files) => files.map(|file| file.unwrap().path()).collect(),
            Err(_) => vec![tests.join(format!("{program}.rs"))],
        };
        let says = |file| std::fs::read_to_string(file).unwrap().contains(&format!("fn {name}("));
        assert!(files.into_iter().any(says), "{program} has no test {name}");
        rows += 1;
    }
    assert!(rows > 10, "{rows} rows were read");
}
