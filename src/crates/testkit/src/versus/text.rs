//! The text on standard output.

use std::io::{Result, Write};

use super::failover;
use super::format::{number, spread};
use super::report::{Headline, Report, RowReport};
use super::systems::System;

/// The ratios of the table.
const RATIOS: [(System, System); 3] = [
    (System::Embedded, System::Etcd),
    (System::Served, System::Etcd),
    (System::Embedded, System::Redis),
];

/// Writes the versions, the machine, and which systems are skipped.
pub(super) fn head(report: &Report, out: &mut dyn Write) -> Result<()> {
    for system in &report.systems {
        match &system.skipped {
            Some(why) => writeln!(out, "SKIPPED: {}: {why}", system.name)?,
            None => {
                writeln!(out, "{}: {}", system.name, system.version.as_deref().unwrap_or_default())?
            }
        }
    }
    let (machine, settings) = (&report.machine, &report.settings);
    writeln!(
        out,
        "{} processors, {}, Linux {}, load {}",
        machine.processors, machine.model, machine.kernel, machine.load_before
    )?;
    writeln!(
        out,
        "{} rounds of {} s, {} keys, values of {} bytes",
        settings.rounds, settings.seconds, settings.keys, settings.value_bytes
    )
}

/// Writes the head of the table.
pub(super) fn rows_head(out: &mut dyn Write) -> Result<()> {
    write!(out, "\n| work | figure |")?;
    for system in System::ALL {
        write!(out, " {} |", system.name())?;
    }
    for (of, to) in RATIOS {
        write!(out, " {} / {} |", of.word(), to.word())?;
    }
    writeln!(out, "\n|---|---|{}", "---|".repeat(System::ALL.len() + RATIOS.len()))
}

/// Writes a row of the table: medians with minimum and maximum.
pub(super) fn row(row: &RowReport, out: &mut dyn Write) -> Result<()> {
    let figure = match row.headline {
        Headline::Rate => "operations/s",
        Headline::Latency => "median µs",
    };
    write!(out, "| {} | {figure} |", row.name)?;
    for system in System::ALL {
        let figure = row.of(system).map(|result| spread(result.headline(row.headline)));
        write!(out, " {} |", figure.as_deref().unwrap_or("-"))?;
    }
    for (of, to) in RATIOS {
        let ratio = row.ratio(of, to).map(spread);
        write!(out, " {} |", ratio.as_deref().unwrap_or("-"))?;
    }
    writeln!(out)
}

/// Writes the times of killed leaders, and the gaps of the timelines.
pub(super) fn failover(report: &Report, out: &mut dyn Write) -> Result<()> {
    writeln!(out, "\n{}, in ms:\n", failover::NAME)?;
    writeln!(out, "| system | kills | median | p99 | longest gap in the timeline |")?;
    writeln!(out, "|---|---|---|---|---|")?;
    for kills in &report.kills {
        let gap = report.timelines.iter().find(|timeline| timeline.system == kills.system);
        writeln!(
            out,
            "| {} | {} | {} | {} | {} |",
            kills.system.name(),
            kills.times_ms.len(),
            spread(kills.spread_ms),
            number(kills.p99_ms),
            gap.map_or("-".to_owned(), |timeline| timeline.gap_ms.to_string()),
        )?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::report::tests::{assert_golden, example};
    use super::*;

    #[test]
    fn text_names_skipped_systems_and_all_figures() {
        let (report, mut out) = (example(), Vec::new());
        head(&report, &mut out).unwrap();
        rows_head(&mut out).unwrap();
        report.rows.iter().for_each(|each| row(each, &mut out).unwrap());
        failover(&report, &mut out).unwrap();
        assert_golden("text.txt", &String::from_utf8(out).unwrap());
    }
}
