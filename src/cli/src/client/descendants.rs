//! The processes that descend from this one, where the system tells: Linux.

use std::collections::BTreeMap;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

/// How often to look whether what was killed is gone.
const LOOK: Duration = Duration::from_millis(5);

/// How often at most: what hangs in the system, or is another user's by now, stays.
const LOOKS: u32 = 400;

/// From now on this process adopts what its children leave behind, so that all of it is found.
pub(crate) fn adopt() -> std::io::Result<()> {
    #[cfg(target_os = "linux")]
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
    Ok(())
}

/// Kills all of them, and waits until none runs.
pub(crate) async fn kill() {
    for _ in 0..LOOKS {
        let left = descendants();
        if left.is_empty() {
            return;
        }
        for pid in left {
            // Who is gone needs no signal.
            kill_process(pid, Signal::KILL).ok();
        }
        tokio::time::sleep(LOOK).await;
    }
    crate::complain(&"some of what the command has started cannot be killed");
}

/// All of them that run: whoever is dead, and only not waited for, does not.
#[cfg(target_os = "linux")]
pub(crate) fn descendants() -> Vec<Pid> {
    let mut parents = BTreeMap::new();
    let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
    for pid in entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok())
    {
        let Ok(stat) = std::fs::read_to_string(format!("/proc/{pid}/stat")) else { continue };
        // The name, in brackets, may have anything in it.
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

/// Elsewhere the command's process group has to do.
#[cfg(not(target_os = "linux"))]
pub(crate) fn descendants() -> Vec<Pid> {
    Vec::new()
}
