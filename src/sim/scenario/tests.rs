//! Tests of [`Scenario`] and [`Host`].

use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;
use std::time::SystemTime;

use super::*;
use crate::api::{Blocking, Effect};
use crate::model::Moment;
use crate::sim::{FaultTarget, parts_of_seed};

#[test]
fn panicking_program_is_reported_with_its_timeline() {
    let scenario = Scenario::new(|host| async move {
        host.sleep(Duration::from_secs(5)).await;
        panic!("no way out");
    });
    let failure = scenario.run(1).unwrap_err();
    assert_eq!(
        (failure.violation.invariant, &failure.violation.detail[..]),
        ("PANIC", "no way out")
    );
    assert!(failure.at >= Duration::from_secs(5) && !failure.trace.is_empty(), "{failure}");
}

#[test]
fn timer_of_tokio_is_explained() {
    let scenario = Scenario::new(|host| async move {
        assert!(host.now() > Moment::default());
        tokio::time::sleep(Duration::from_secs(1)).await;
    });
    let failure = scenario.run(1).unwrap_err();
    assert!(failure.violation.detail.contains("use `sleep` of the host"), "{failure}");
    assert_eq!(format!("{failure:?}"), failure.to_string());
}

#[test]
fn blocking_call_is_explained() {
    let scenario = Scenario::new(|host| async move {
        drop(host.client().put("k", "v").block());
    });
    let failure = scenario.run(1).unwrap_err();
    assert_eq!(failure.violation.invariant, "PANIC");
    assert!(failure.violation.detail.contains("use `.await` instead"), "{failure}");
    // Afterwards the thread may block again.
    assert_eq!(async { 1 }.block(), 1);
}

#[test]
#[should_panic(
    expected = "no way out\nit needs none of its faults\nrun it again with run_without(1, "
)]
fn failure_that_needs_no_fault_says_so() {
    Scenario::new(|_| async { panic!("no way out") }).run_all(1..=1);
}

#[test]
fn timeline_names_nodes_by_their_ids() {
    let idle = Scenario::new(|host| async move { host.sleep(ms(1)).await });
    let scenario = idle.nodes(3).quiet().finally(|_| async { Err("never".to_owned()) });
    let failure = scenario.run(1).unwrap_err();
    assert!(failure.trace.contains("everything heals around [n1, n2, n3]"), "{failure}");
    assert_eq!(failure.violation.detail, "on n1: never");
}

#[test]
fn panic_in_drop_does_not_hide_the_first_panic() {
    struct InUse;
    impl Drop for InUse {
        fn drop(&mut self) {
            assert!(std::thread::panicking(), "it is in use");
        }
    }
    let scenario = Scenario::new(|host| async move {
        let _in_use = InUse;
        host.sleep(Duration::from_secs(host.id().get())).await;
        assert!(host.id().get() < 2, "no way out");
        std::future::pending().await
    });
    let failure = scenario.nodes(3).run(1).unwrap_err();
    assert_eq!(failure.violation.detail, "no way out");
}

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

#[test]
fn scripted_faults_happen_at_their_times_only() {
    let (starts, failures) = (Rc::new(RefCell::new(Vec::new())), Rc::new(RefCell::new(Vec::new())));
    let (seen_starts, seen_failures) = (Rc::clone(&starts), Rc::clone(&failures));
    let program = move |host: Host| {
        let (starts, failures) = (Rc::clone(&starts), Rc::clone(&failures));
        async move {
            let elapsed = || host.scene.timeline.now();
            starts.borrow_mut().push((host.id().get(), elapsed()));
            while !host.is_closing() {
                host.sleep(ms(100)).await;
                let begun = elapsed();
                if host.client().get("x").deadline(ms(400)).await.is_err() {
                    failures.borrow_mut().push((host.id().get(), begun));
                }
            }
        }
    };
    let kill = ScriptedFault::Kill { who: FaultTarget::Node(2), down: ms(4_000) };
    let power_loss = ScriptedFault::PowerLoss { who: FaultTarget::Node(1), down: ms(250) };
    let isolate = ScriptedFault::Isolate { who: FaultTarget::Node(3), time: ms(5_000) };
    let unknown = ScriptedFault::Kill { who: FaultTarget::Node(9), down: ms(1) };
    let scenario = Scenario::new(program).nodes(3).quiet();
    // The faults are added out of order. One is before the time at which drawn faults begin, and two are after the
    // usual end of the storm.
    let scenario = scenario.at(ms(20_000), isolate).at(ms(2_000), kill);
    let report = scenario.at(ms(70_000), power_loss).at(ms(71_000), unknown).run(5).unwrap();
    let starts = seen_starts.take();
    let (first, later) = starts.split_at(3);
    let mut founding: Vec<u64> = first.iter().map(|(id, _)| *id).collect();
    founding.sort_unstable();
    assert_eq!(founding, [1, 2, 3]);
    assert_eq!(later, [(2, ms(6_000)), (1, ms(70_250))]);
    let cut_off = |(id, at): &&(u64, Duration)| *id == 3 && (ms(8_000)..ms(69_000)).contains(at);
    let failures = seen_failures.take();
    let failed: Vec<Duration> = failures.iter().filter(cut_off).map(|(_, at)| *at).collect();
    assert!(failed.len() > 5, "{failures:?}");
    // A call may begin just before the partition, and a leader may be found shortly after it.
    let window = ms(19_600)..ms(27_000);
    assert!(failed.iter().all(|at| window.contains(at)), "{failed:?}");
    let faults = report.counts.iter().filter(|(name, _)| name.starts_with("fault: "));
    let faults: Vec<(&str, u64)> = faults.map(|(name, count)| (*name, *count)).collect();
    assert_eq!(faults, [("fault: kill", 1), ("fault: partition", 1), ("fault: power loss", 1)]);
    assert_eq!(report.crashes, 2);
}

#[test]
fn scripted_runs_of_one_seed_have_the_same_trace() {
    let idle = Scenario::new(|host| async move {
        while !host.is_closing() {
            host.sleep(ms(200)).await;
            drop(host.client().put("x", "y").await);
        }
    });
    let pause = |at| {
        let fault = ScriptedFault::Pause { who: FaultTarget::Leader, time: ms(3_000) };
        idle.clone().at(ms(at), fault)
    };
    let trace = |scenario: &Scenario| scenario.run(3).unwrap().trace;
    assert_eq!(trace(&pause(9_000)), trace(&pause(9_000)));
    assert_ne!(trace(&pause(9_000)), trace(&pause(9_001)));
    assert_ne!(trace(&pause(9_000)), trace(&idle));
    let quiet = pause(9_000).quiet().nodes(3);
    assert_eq!(trace(&quiet), trace(&quiet));
    let (quiet, silent) = (quiet.run(3).unwrap(), idle.clone().nodes(3).quiet().run(3).unwrap());
    assert_eq!((quiet.crashes, quiet.counts["fault: pause"]), (0, 1));
    assert!(quiet.leader_changes > silent.leader_changes, "the leader was paused");
    assert!(silent.counts.keys().all(|name| !name.starts_with("fault: ")), "{silent:?}");
    assert!(silent.is_valid() && !Report { recoverable: false, ..silent }.is_valid());
}

#[test]
#[should_panic(expected = "\"sold\" was counted 0 times in 1 seeds, not 1")]
fn runs_without_enough_activity_fail() {
    let idle = Scenario::new(|host| async move { host.sleep(Duration::from_secs(1)).await });
    idle.at_least("sold", 1).run_all(1..=1);
}

/// Returns the message with which `run_all` fails.
fn failure_of<S: 'static>(scenario: &Scenario<S>, seed: u64) -> String {
    let run = || scenario.run_all([seed]);
    let panic = catch_unwind(AssertUnwindSafe(run)).expect_err("the run fails");
    panic.downcast_ref::<String>().expect("a text").clone()
}

#[test]
fn loop_without_a_sleep_is_reported_with_its_node() {
    type Program = fn(Host) -> LocalFuture<()>;
    let local_reads: Program = |host| {
        Box::pin(async move {
            let kv = host.client();
            host.sleep(ms(5_000)).await;
            while host.id().get() == 2 {
                drop(kv.get("k").local().await);
            }
        })
    };
    let no_sleep: Program = |host| {
        Box::pin(async move {
            while host.id().get() == 2 {
                host.sleep(Duration::ZERO).await;
            }
        })
    };
    let self_wakes: Program = |host| {
        Box::pin(std::future::poll_fn(move |context| {
            context.waker().wake_by_ref();
            if host.id().get() == 2 { Poll::Pending } else { Poll::Ready(()) }
        }))
    };
    for program in [local_reads, no_sleep, self_wakes] {
        let failure = Scenario::new(program).nodes(3).quiet().run(1).unwrap_err();
        assert_eq!(failure.violation.invariant, "C-SPIN");
        let expected =
            "a program on n2 loops, and no simulated time passes: sleep between attempts";
        assert!(failure.violation.detail.starts_with(expected), "{failure}");
    }
}

#[test]
fn loop_on_a_stopped_node_is_reported() {
    let scenario = Scenario::new(|host| async move {
        while !host.is_closing() {
            let Ok(_session) = host.session().await else { continue };
            host.sleep(ms(100)).await;
        }
    });
    // A node whose disk fails stops, and its program runs until the process ends.
    let fails = |seed: &u64| scenario.parts(*seed).iter().any(|part| part.contains("DiskError"));
    let mut failures = (1..=60).filter(fails).filter_map(|seed| scenario.run(seed).err());
    let failure = failures.next().expect("a node stops");
    assert_eq!(failure.violation.invariant, "C-SPIN", "{failure}");
    let (_, node) = failure.violation.detail.split_once("a program on ").unwrap();
    let stopped = format!("{} has stopped", &node[..2]);
    assert!(failure.trace.contains(&stopped), "{failure}");
}

#[test]
fn failure_that_does_not_repeat_is_not_minimized() {
    static STARTS: AtomicU64 = AtomicU64::new(0);
    let counts = Scenario::new(|host| async move {
        host.sleep(ms(1_000 + STARTS.fetch_add(1, Ordering::Relaxed))).await;
        panic!("no way out");
    });
    let reads_the_clock = Scenario::new(|host| async move {
        host.sleep(ms(4_000)).await;
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
        drop(host.client().put("k", format!("{:040}", now.as_nanos())).await);
        panic!("no way out");
    });
    for scenario in [counts, reads_the_clock] {
        let message = failure_of(&scenario.nodes(3).quiet(), 1);
        let (first, note) = message.rsplit_once("\nseed 1 does ").expect(&message);
        assert!(first.ends_with("PANIC is broken: no way out"), "{message}");
        let expected = "not repeat: the program uses time or randomness that is not the host's";
        assert!(note.starts_with(expected), "{message}");
        assert!(!message.contains("run_without"), "{message}");
    }
}

#[test]
fn each_run_has_its_own_state_and_one_check_at_its_end() {
    let (created, checked) = (Rc::new(Cell::new(0)), Rc::new(RefCell::new(Vec::new())));
    let (creations, checks) = (Rc::clone(&created), Rc::clone(&checked));
    let create = move || {
        creations.set(creations.get() + 1);
        RefCell::new(Vec::new())
    };
    let scenario = Scenario::with_state(create, |host, starts| async move {
        starts.borrow_mut().push(host.id().get());
        host.sleep(ms(2_000)).await;
        drop(host.client().put("k", "v").await);
    });
    let kill = ScriptedFault::Kill { who: FaultTarget::Node(2), down: ms(100) };
    let scenario = scenario.nodes(3).quiet().at(ms(10_000), kill);
    let scenario = scenario.finally(|_| async { Ok(()) }).at_end("STARTS", move |starts, rows| {
        let mut starts = starts.borrow().clone();
        starts.sort_unstable();
        checks.borrow_mut().push((starts, rows.get("k").is_some()));
        Ok(())
    });
    scenario.run_all(1..=2);
    let of_each_run = (vec![1, 2, 2, 3], true);
    assert_eq!(created.get(), 2);
    assert_eq!(*checked.borrow(), [of_each_run.clone(), of_each_run]);
}

#[test]
fn check_at_the_end_fails_the_run_under_its_name() {
    let count = Scenario::with_state(
        || Cell::new(0),
        |host, count| async move {
            host.sleep(ms(1)).await;
            count.set(count.get() + 1);
        },
    );
    let scenario = count.nodes(3).at_end("FEW", |count, _| match count.get() {
        0..3 => Ok(()),
        many => Err(format!("{many} starts")),
    });
    let failure = scenario.clone().quiet().run(1).unwrap_err();
    assert_eq!(failure.violation.to_string(), "FEW is broken: 3 starts");
    // The repeats that minimize the failure do not share its state.
    let message = failure_of(&scenario.quiet(), 1);
    assert!(message.contains("FEW is broken: 3 starts\nit needs none"), "{message}");
}

#[test]
fn recorder_of_a_run_finds_stale_reads() {
    use bowline_check::{Budget, Recorder, Register, RegisterCall, RegisterReply, linear};
    type Log = Recorder<RegisterCall, RegisterReply>;

    let scenario = |is_local: bool| {
        let program = move |host: Host, log: Rc<Log>| async move {
            while !host.is_closing() {
                host.sleep(ms(50 + host.random(200))).await;
                let (me, value) = (host.id().get(), host.random(1 << 40) as i64);
                let write = log.begin(me, "x", RegisterCall::Write(Some(value.into())));
                match host.client().put("x", value.to_string()).await {
                    Ok(_) => log.ok(write, RegisterReply::Written),
                    Err(error) if error.effect() == Effect::NotApplied => log.failed(write),
                    Err(_) => log.unknown(write),
                }
                let read = log.begin(me, "x", RegisterCall::Read);
                let get = host.client().get("x");
                match if is_local { get.local() } else { get }.await {
                    Ok(row) => {
                        let value = row.map(|row| row.parse::<i64>().unwrap().into());
                        log.ok(read, RegisterReply::Read(value));
                    }
                    Err(_) => log.failed(read),
                }
            }
        };
        let cut = ScriptedFault::Isolate { who: FaultTarget::Node(3), time: ms(4_000) };
        let scenario = Scenario::with_state(Log::new, program).nodes(3).quiet();
        let scenario = scenario.configure(|config| config.call_deadline(ms(500)));
        scenario.at(ms(10_000), cut).at_end("LINEARIZABLE", |log, _| {
            let verdict = linear::check(&Register::default(), &log.history(), Budget::default());
            if verdict.is_ok() { Ok(()) } else { Err(verdict.to_string()) }
        })
    };
    scenario(false).run_all(1..=2);
    let failure = scenario(true).run(1).unwrap_err();
    assert_eq!(failure.violation.invariant, "LINEARIZABLE");
}

#[test]
fn unneeded_scripted_faults_are_left_out() {
    let scenario = Scenario::new(|host| async move {
        while !host.is_closing() {
            host.sleep(ms(100)).await;
            let get = host.client().get("x").deadline(ms(3_000)).await;
            host.expect(get.is_ok() || host.id().get() != 3, "SERVES", || format!("{get:?}"));
        }
    });
    let cut = |id| ScriptedFault::Isolate { who: FaultTarget::Node(id), time: ms(6_000) };
    let kill = ScriptedFault::Kill { who: FaultTarget::Node(1), down: ms(100) };
    let pause = ScriptedFault::Pause { who: FaultTarget::Node(1), time: ms(100) };
    let scenario = scenario.nodes(3).quiet().at(ms(5_000), kill).at(ms(10_000), cut(3));
    let scenario = scenario.at(ms(8_000), pause).at(ms(30_000), cut(1));
    assert_eq!(scenario.parts(1).len(), 4);
    let message = failure_of(&scenario, 1);
    let end = "of its faults it needs:\n    1   10.00 s scripted Isolate { who: Node(3), time: 6s }\n\
               run it again with run_without(1, &[0, 2, 3])";
    assert!(message.ends_with(end), "{message}");
    let again = scenario.run_without(1, &[0, 2, 3]).unwrap_err();
    assert_eq!(again.trace.matches("scripted fault").count(), 1);
    assert!(scenario.run_without(1, &[1]).is_ok());
}

#[test]
fn parts_are_the_faults_that_can_be_left_out() {
    let idle = Scenario::new(|host| async move { host.sleep(ms(1)).await });
    let kill = ScriptedFault::Kill { who: FaultTarget::Node(1), down: ms(100) };
    let idle = idle.nodes(3).at(ms(10_000), kill);
    let parts = idle.parts(1);
    let of_seed = parts_of_seed(1);
    let drawn = of_seed.iter().filter(|part| !part.starts_with("program")).count();
    assert!(drawn < of_seed.len(), "{of_seed:?}");
    assert_eq!(parts[..drawn], of_seed[..drawn]);
    let rest = [format!(" 10.00 s scripted {kill:?}"), "crash after the storm".to_owned()];
    assert_eq!(parts[drawn..], rest);
    let all: Vec<usize> = (0..parts.len()).collect();
    let report = idle.run_without(1, &all).unwrap();
    assert_eq!(report.crashes, 0);
    let report = idle.run_without(1, &all[..drawn]).unwrap();
    assert_eq!(report.counts["fault: kill"], 2);
    assert_eq!(idle.quiet().parts(1), parts[drawn..=drawn]);
}

#[test]
fn timeline_names_the_crash_after_the_storm() {
    let idle = Scenario::new(|host| async move { host.sleep(ms(1)).await });
    let scenario = idle.nodes(3).finally(|_| async { Err("never".to_owned()) });
    let all: Vec<usize> = (0..scenario.parts(1).len() - 1).collect();
    let failure = scenario.run_without(1, &all).unwrap_err();
    let (_, after) = failure.trace.split_once("everything heals").unwrap();
    assert!(after.contains(" crash after the storm: a process is killed"), "{failure}");
    assert!(!failure.trace.contains("fault: "), "{failure}");
}

#[test]
fn shorter_call_deadline_makes_a_short_fault_visible() {
    let scenario = Scenario::new(|host| async move {
        while !host.is_closing() {
            host.sleep(ms(100)).await;
            let put = host.client().put("x", "y").await;
            host.count(match put.map_err(|error| error.effect()) {
                Ok(_) => "put",
                Err(Effect::Unknown) => "unknown",
                Err(_) => "other",
            });
        }
    });
    let cut = ScriptedFault::Isolate { who: FaultTarget::Leader, time: ms(4_000) };
    let scenario = scenario.nodes(3).quiet().at(ms(10_000), cut);
    let counts = scenario.run(1).unwrap().counts;
    assert!(!counts.contains_key("unknown") && !counts.contains_key("other"), "{counts:?}");
    let scenario = scenario.configure(|config| config.call_deadline(ms(500)));
    let counts = scenario.run(1).unwrap().counts;
    assert!(counts["unknown"] > 0, "{counts:?}");
}

#[test]
fn notes_stand_between_the_faults() {
    let scenario = Scenario::new(|host| async move {
        for round in 1.. {
            host.sleep(ms(4_000)).await;
            host.note(format_args!("round {round}"));
            host.expect(round < 4, "ROUNDS", || "too many".to_owned());
        }
    });
    let kill = ScriptedFault::Kill { who: FaultTarget::Leader, down: ms(100) };
    let scenario = scenario.nodes(1).quiet();
    let failure = scenario.clone().at(ms(10_000), kill).run(1).unwrap_err();
    let lines: Vec<&str> = failure.trace.lines().collect();
    let at = |text: &str| lines.iter().position(|line| line.ends_with(text)).expect(text);
    assert!(at("  8.000000 n1: round 2") < at("n1 ends: Killed"), "{failure}");
    assert!(at("n1 ends: Killed") < at("n1: round 3"), "{failure}");
    // A note does not change the run.
    let note = |text: &'static str| {
        let scenario = Scenario::new(move |host| async move { host.note(text) });
        scenario.nodes(1).quiet().run(1).unwrap().trace
    };
    assert_eq!(note("a"), note("b"));
}

#[test]
fn host_runs_tasks_workers_and_leaders() {
    let scenario = Scenario::new(|host| async move {
        let closing = |host: Host| async move {
            while !host.is_closing() {
                host.sleep(ms(100)).await;
            }
        };
        let putter = host.clone();
        host.spawn(async move {
            while !putter.is_closing() {
                putter.sleep(ms(500)).await;
                drop(putter.client().queue("jobs").put("job").await);
            }
        });
        let leader = host.clone();
        host.spawn(async move {
            let task = leader.leader_task("chief", leader.id().to_string());
            let work = async |_| {
                leader.count("led");
                std::future::pending::<()>().await;
            };
            drop(task.run_until(closing(leader.clone()), ms(100), work).await);
        });
        let viewer = host.clone();
        host.spawn(async move {
            while !viewer.is_closing() {
                viewer.sleep(ms(500)).await;
                let view = viewer.election_view("chief");
                if view.is_leader() {
                    viewer.count("sees itself lead");
                    let me = viewer.id().to_string();
                    let seen = view.leader().is_some_and(|leader| leader.value == me);
                    viewer.expect(seen, "VIEW", || format!("{:?}", view.leader()));
                }
            }
        });
        let worker = host.queue_worker("jobs");
        let ran = worker.run_until(closing(host.clone()), ms(1_000), async |_| {
            host.count("worked");
            Ok(())
        });
        drop(ran.await);
    });
    let scenario = scenario.nodes(3).at_least("led", 2).at_least("worked", 20);
    let reports = scenario.at_least("sees itself lead", 20).run_all(1..=1);
    assert!(reports[0].crashes > 0);
}
