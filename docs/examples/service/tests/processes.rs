//! Three processes of the service, of which one is killed.

mod http_client;

use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use http_client::{get, put, send, until};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

/// A running process. Dropping it kills the process.
struct Process {
    child: Child,
    url: String,
}

impl Process {
    fn start(dir: &Path, name: &str, members: &str, http: u16) -> Self {
        let address = format!("127.0.0.1:{http}");
        let child = Command::new(env!("CARGO_BIN_EXE_flag-service"))
            .env("BOWLINE_NODE_NAME", name)
            .env("BOWLINE_DATA_DIR", dir.join(name))
            .env("BOWLINE_MEMBERS", members)
            .env("HTTP_ADDRESS", &address)
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        Self { child, url: format!("http://{address}") }
    }

    fn at(&self, path: &str) -> String {
        format!("{}{path}", self.url)
    }

    /// Kills the process as `kill -9` does.
    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns ports that are free now.
fn free_ports<const N: usize>() -> [u16; N] {
    let listeners = [(); N].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
    listeners.map(|listener| listener.local_addr().unwrap().port())
}

/// Returns the status of a GET, or 0 if there is no response.
async fn status(url: &str) -> u16 {
    send("GET", url, &[], "").await.map_or(0, |answer| answer.status)
}

/// Waits until a running process serves the leader's route, and returns its position.
async fn leader(processes: &[Option<Process>]) -> usize {
    until("a leader", async || {
        for (at, process) in processes.iter().enumerate() {
            if let Some(process) = process
                && status(&process.at("/sweeper")).await == 200
            {
                return Some(at);
            }
        }
        None
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_leader_is_replaced_and_no_acknowledged_put_is_lost() {
    let dir = tempfile::tempdir().unwrap();
    let [a, b, c, http @ ..] = free_ports::<6>();
    let members = format!("n1=127.0.0.1:{a},n2=127.0.0.1:{b},n3=127.0.0.1:{c}");
    let names = ["n1", "n2", "n3"];
    let start = |at: usize| Process::start(dir.path(), names[at], &members, http[at]);
    let mut processes: Vec<_> = (0..3).map(|at| Some(start(at))).collect();
    let urls: Vec<String> = processes.iter().flatten().map(|process| process.url.clone()).collect();
    for url in &urls {
        until("ready", async || (status(&format!("{url}/readyz")).await == 200).then_some(()))
            .await;
    }
    let killed = leader(&processes).await;

    // Writers to all processes, which go on while one of them is killed.
    let stop = Arc::new(AtomicBool::new(false));
    let writers: Vec<_> = urls
        .iter()
        .enumerate()
        .map(|(writer, url)| {
            let (url, stop) = (url.clone(), Arc::clone(&stop));
            tokio::spawn(async move {
                let mut acknowledged = Vec::new();
                for number in 0.. {
                    if stop.load(Ordering::Relaxed) {
                        break;
                    }
                    let name = format!("{writer}-{number}");
                    let url = format!("{url}/flags/{name}");
                    match send("PUT", &url, &[], r#"{"on": true}"#).await {
                        Ok(answer) if answer.status == 200 => acknowledged.push(name),
                        Ok(answer) => assert!(answer.status >= 500, "{answer:?}"),
                        // The process is dead.
                        Err(_) => break,
                    }
                }
                acknowledged
            })
        })
        .collect();
    until("writes", async || {
        let flags = get(format!("{}/flags", urls[killed])).await.json();
        (flags.as_object().unwrap().len() > 100).then_some(())
    })
    .await;
    processes[killed].as_mut().unwrap().kill();
    processes[killed] = None;
    let next = leader(&processes).await;
    assert_ne!(next, killed);

    // The new leader does the job.
    let flag = format!("{}/flags/due", urls[next]);
    assert_eq!(put(&flag, &[], r#"{"on": true, "off_at": 1}"#).await.status, 200);
    until("the flag is off", async || {
        (get(&flag).await.json() == json!({ "on": false })).then_some(())
    })
    .await;

    stop.store(true, Ordering::Relaxed);
    let mut acknowledged = Vec::new();
    for writer in writers {
        let names = writer.await.unwrap();
        assert!(!names.is_empty());
        acknowledged.extend(names);
    }
    processes[killed] = Some(start(killed));
    until("ready again", async || {
        (status(&format!("{}/readyz", urls[killed])).await == 200).then_some(())
    })
    .await;
    for url in &urls {
        let flags = get(format!("{url}/flags")).await.json();
        let lost: Vec<_> = acknowledged.iter().filter(|name| flags.get(name).is_none()).collect();
        assert!(lost.is_empty(), "{url} lost {lost:?} of {}", acknowledged.len());
    }

    // An orderly end.
    let mut stopped = processes[next].take().unwrap();
    kill_process(Pid::from_child(&stopped.child), Signal::TERM).unwrap();
    assert!(stopped.child.wait().unwrap().success());
    assert_ne!(leader(&processes).await, next);
}
