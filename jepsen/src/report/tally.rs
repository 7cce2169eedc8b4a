//! Many runs added up, perhaps those of several series, as Markdown.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::Summary;

/// Kinds of operations in which something passes from one holder to the next.
const HANDOFFS: &[&str] = &["acquire", "campaign"];
/// Workloads each of whose addings takes a lock.
const ADDS_UNDER_LOCK: &str = "locked-set";
/// Nemeses each of whose windows takes members away without a warning, by how they begin.
const CRASHES: &[&str] = &["kill", "power"];

#[derive(Default)]
struct Row {
    runs: u64,
    ok: u64,
    operations: u64,
    faults: u64,
    handoffs: u64,
    seconds: f64,
}

impl Row {
    fn add(&mut self, summary: &Summary) {
        let count = summary.operations;
        self.runs += 1;
        self.ok += u64::from(summary.verdict == "ok");
        self.operations += count.ok + count.failed + count.unknown;
        self.faults += summary.faults as u64;
        self.handoffs += handoffs(summary);
        self.seconds += summary.seconds;
    }
}

fn handoffs(summary: &Summary) -> u64 {
    let under_lock = summary.workload.starts_with(ADDS_UNDER_LOCK);
    let is_one = |kind: &str| HANDOFFS.contains(&kind) || under_lock && kind == "add";
    summary.kinds.iter().filter(|(kind, _)| is_one(kind)).map(|(_, count)| count.ok).sum()
}

/// Totals, one table by workloads and one by nemeses, and every run that was not ok with the command that runs it again.
pub fn tally(summaries: &[Summary]) -> String {
    let ran: Vec<&Summary> = summaries.iter().filter(|one| one.verdict != "skipped").collect();
    let mut all = Row::default();
    ran.iter().for_each(|summary| all.add(summary));
    let crashes: usize = (ran.iter())
        .filter(|one| CRASHES.iter().any(|crash| one.nemesis.starts_with(crash)))
        .map(|one| one.faults)
        .sum();
    let minutes = ran.iter().filter(|one| one.load_seconds >= 60).count();
    let mut page = format!(
        "{} runs, {minutes} of them of 60 s or more; {} ok, {} not; {} operations, {} times a lock or lead changed \
         hands, {} faults, {crashes} of them kills and losses of power; {:.1} hours\n",
        all.runs,
        all.ok,
        all.runs - all.ok,
        all.operations,
        all.handoffs,
        all.faults,
        all.seconds / 3600.0,
    );
    table(&mut page, "workload", &ran, |one| &one.workload);
    table(&mut page, "nemesis", &ran, |one| &one.nemesis);
    table(&mut page, "clients", &ran, |one| one.over.word());
    for bad in ran.iter().filter(|one| one.verdict != "ok") {
        let Summary { workload, nemesis, members, over, verdict, why, command, .. } = bad;
        let over = over.word();
        write!(
            page,
            "\n{verdict}: {workload}, {nemesis}, {members} members, {over}: {why}\n    {command}\n"
        )
        .expect("a String takes everything");
    }
    page
}

/// The runs by one of their names.
fn table(page: &mut String, title: &str, ran: &[&Summary], name: impl Fn(&Summary) -> &str) {
    let mut rows: BTreeMap<&str, Row> = BTreeMap::new();
    ran.iter().for_each(|summary| rows.entry(name(summary)).or_default().add(summary));
    let mut say = |line: String| page.push_str(&(line + "\n"));
    say(format!(
        "\n| {title} | runs | ok | operations | handoffs | faults |\n|---|---|---|---|---|---|"
    ));
    for (name, row) in rows {
        let Row { runs, ok, operations, handoffs, faults, .. } = row;
        say(format!("| {name} | {runs} | {ok} | {operations} | {handoffs} | {faults} |"));
    }
}
