//! Finds and kills the descendants of this process, on Linux.

use std::collections::BTreeMap;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

/// Interval between checks whether the killed processes have ended.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// Maximum number of checks. The number is limited, because a process that hangs in the kernel or has changed its user
/// cannot be killed.
const POLLS_MAX: u32 = 400;

/// Makes this process adopt orphaned descendants, so that all descendants can be found.
pub(crate) fn adopt() -> std::io::Result<()> {
    #[cfg(target_os = "linux")]
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
    Ok(())
}

/// Kills all descendants of this process, and waits until all of them have ended.
pub(crate) async fn kill() {
    for _ in 0..POLLS_MAX {
        let left = descendants();
        if left.is_empty() {
            return;
        }
        for pid in left {
            // The call fails only if the process has already ended.
            kill_process(pid, Signal::KILL).ok();
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
    crate::print_failure(&"cannot kill all processes that the command has started");
}

/// Returns the running descendants of this process, without zombies.
#[cfg(target_os = "linux")]
pub(crate) fn descendants() -> Vec<Pid> {
    let mut parents = BTreeMap::new();
    let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
    for pid in entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok())
    {
        let Ok(stat) = std::fs::read_to_string(format!("/proc/{pid}/stat")) else { continue };
        // The process name, in parentheses, may contain any characters.
        let Some((_, rest)) = stat.rsplit_once(") ") else { continue };
        let mut fields = rest.split(' ');
        let (state, parent) = (fields.next(), fields.next().and_then(|text| text.parse().ok()));
        if let (Some(state), Some(parent)) = (state, parent)
            && !["Z", "X"].contains(&state)
        {
            parents.insert(pid, parent);
        }
    }
    let own = std::process::id();
    let descends = |mut pid: u32| {
        while let Some(parent) = parents.get(&pid) {
            if *parent == own {
                return true;
            }
            pid = *parent;
        }
        false
    };
    let found = parents.keys().filter(|pid| descends(**pid));
    found.filter_map(|pid| Pid::from_raw(i32::try_from(*pid).ok()?)).collect()
}

/// Returns nothing: on other systems, killing the command's process group must suffice.
#[cfg(not(target_os = "linux"))]
pub(crate) fn descendants() -> Vec<Pid> {
    Vec::new()
}
