//! The page `versus.html`: one file without scripts and without references to other files.

use std::fmt::Write;

use jiff::Timestamp;

use super::chart::{bars, better, distribution, escape, kills, rate_over_latency, timeline};
use super::format::{micros, number, spread};
use super::report::{Headline, Report, RowReport};
use super::systems::System;

/// The rows whose latency distributions are drawn.
const DISTRIBUTIONS: [&str; 4] = [
    "put, 1 caller",
    "put, 64 callers",
    "linearizable get, 64 callers",
    "lock and unlock, 64 callers",
];

pub(super) fn page(report: &Report) -> String {
    let mut page = String::from(concat!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n",
        "<meta name=\"viewport\" content=\"width=device-width\">\n",
        "<title>Bowline, etcd and Redis</title>\n<style>\n",
        include_str!("page.css"),
        "</style>\n</head>\n<body>\n<main>\n<h1>Bowline, etcd and Redis</h1>\n",
    ));
    page += &head(report);
    page += &section_of_bars(report);
    page += &distributions(report);
    page += &throughput(report);
    page += &failover(report);
    page += &table(report);
    page += "</main>\n</body>\n</html>\n";
    page
}

fn head(report: &Report) -> String {
    let mut html = String::from("<ul class=\"legend\">\n");
    for system in &report.systems {
        let (word, name) = (system.system.word(), escape(&system.name));
        let note = match (&system.skipped, &system.version) {
            (Some(_), _) => "not measured: not installed".to_owned(),
            (None, version) => {
                let version = escape(version.as_deref().unwrap_or_default());
                format!("{version}, {}", shape(system.system))
            }
        };
        writeln!(
            html,
            "<li><span class=\"swatch {word}\"></span><b>{name}</b> <small>{note}</small></li>"
        )
        .expect("a string");
    }
    let begun = i64::try_from(report.begun_s).ok().and_then(|s| Timestamp::from_second(s).ok());
    let begun = begun.unwrap_or_default();
    let (machine, settings) = (&report.machine, &report.settings);
    writeln!(
        html,
        "</ul>\n<p class=\"note\">{}. One machine for all servers and clients: {} processors, {}, Linux {}. Every write is \
         synced to disk. Values of {} bytes, {} keys. Figures are medians of {} rounds of {} s; all systems are \
         measured in turns. Load average {} before the run and {} after it. Absolute figures hold for this machine \
         only: compare ratios.</p>",
        begun.strftime("%Y-%m-%d"),
        machine.processors,
        escape(&machine.model),
        escape(&machine.kernel),
        settings.value_bytes,
        number(settings.keys as f64),
        settings.rounds,
        settings.seconds,
        machine.load_before,
        machine.load_after
    )
    .expect("a string");
    html
}

/// Describes the servers of a system.
fn shape(system: System) -> &'static str {
    match system {
        System::Embedded => "a library in three processes",
        System::Served | System::Etcd => "three servers, over gRPC",
        System::Redis => "one server, every write synced",
    }
}

fn section_of_bars(report: &Report) -> String {
    if report.rows.is_empty() {
        return String::new();
    }
    let mut html = String::from("<h2>Side by side</h2>\n<div class=\"grid\">\n");
    for row in &report.rows {
        let ratio = |system: System| {
            let ratio = row.ratio(system, System::Etcd)?;
            Some(format!("{} × {}", system.word(), spread(ratio)))
        };
        let ratios: Vec<_> =
            [System::Embedded, System::Served].into_iter().filter_map(ratio).collect();
        let mut caption = better(row.headline).to_owned();
        if !ratios.is_empty() {
            caption += &format!("; beside etcd: {}", ratios.join(", "));
        }
        html += &figure(&row.name, &caption, &bars(row));
    }
    html +=
        "</div>\n<p class=\"note\">The thin line spans the rounds from minimum to maximum.</p>\n";
    html
}

fn figure(title: &str, caption: &str, svg: &str) -> String {
    let (title, caption) = (escape(title), escape(caption));
    format!(
        "<figure>\n<figcaption><b>{title}</b><small>{caption}</small></figcaption>\n{svg}</figure>\n"
    )
}

fn distributions(report: &Report) -> String {
    let rows: Vec<&RowReport> =
        report.rows.iter().filter(|row| DISTRIBUTIONS.contains(&row.name.as_str())).collect();
    if rows.is_empty() {
        return String::new();
    }
    let mut html = String::from("<h2>Latency distributions</h2>\n<div class=\"grid\">\n");
    for row in rows {
        let caption = "share of calls answered within a time; farther left is better";
        html += &figure(&row.name, caption, &distribution(row));
    }
    html + "</div>\n"
}

fn throughput(report: &Report) -> String {
    let rows: Vec<&RowReport> =
        report.rows.iter().filter(|row| row.name.starts_with("put, ")).collect();
    if rows.len() < 2 {
        return String::new();
    }
    let caption = "each point is a number of callers; up and left is better";
    let svg = rate_over_latency(&rows);
    format!("<h2>Throughput over latency</h2>\n{}", figure("put", caption, &svg))
}

fn failover(report: &Report) -> String {
    let mut html = String::new();
    if !report.kills.is_empty() {
        html += "<h2>The leader is killed</h2>\n";
        let count = report.kills[0].times_ms.len();
        let caption = format!("{count} kills with default settings; the bar marks the median");
        html += &figure("Time to the next acknowledged write", &caption, &kills(&report.kills));
    }
    for each in &report.timelines {
        html += &figure(each.system.name(), "one kill", &timeline(each));
    }
    html
}

fn table(report: &Report) -> String {
    if report.rows.is_empty() {
        return String::new();
    }
    let mut html = String::from(
        "<h2>All figures</h2>\n<div class=\"wide\"><table>\n<thead><tr><th>work</th><th>system</th>\
         <th>operations/s</th><th>median</th><th>p99</th><th>CPU µs</th><th>beside etcd</th></tr></thead>\n\
         <tbody>\n",
    );
    for row in &report.rows {
        for (at, result) in row.results.iter().enumerate() {
            let name = if at == 0 { escape(&row.name) } else { String::new() };
            let system = result.system;
            let ratio = row.ratio(system, System::Etcd).map_or(String::new(), |ratio| {
                let of = match row.headline {
                    Headline::Rate => "rate",
                    Headline::Latency => "median",
                };
                format!("{of} × {}", spread(ratio))
            });
            let first = if at == 0 { " class=\"first\"" } else { "" };
            writeln!(
                html,
                "<tr{first}><td>{name}</td><td><span class=\"swatch {}\"></span>{}</td><td>{}</td><td>{}</td>\
                 <td>{}</td><td>{}</td><td>{ratio}</td></tr>",
                system.word(),
                system.name(),
                spread(result.rate),
                micros(result.median_us.median),
                micros(result.p99_us.median),
                number(result.cpu_us.median),
            )
            .expect("a string");
        }
    }
    html += "</tbody>\n</table></div>\n<p class=\"note\">CPU is the time per operation. That of the embedded library includes its callers; \
             that of the servers does not include their clients. Compare-and-set and unlocking in Redis are Lua \
             scripts. Redis has no watch and no leases.</p>\n";
    html
}

#[cfg(test)]
mod tests {
    use super::super::report::tests::{assert_golden, example};
    use super::*;

    #[test]
    fn page_of_the_example_is_the_golden_file() {
        assert_golden("golden.html", &page(&example()));
    }

    #[test]
    fn page_needs_no_other_file() {
        let page = page(&example());
        for words in ["<script", "<link", "src=", "href=", "url(", "@import"] {
            assert!(!page.contains(words), "{words}");
        }
        assert!(page.contains("An &lt;example&gt;"), "texts are escaped");
        for tag in ["figure", "svg", "table", "div", "ul", "h2", "p", "small", "b"] {
            let opened = page.matches(&format!("<{tag}>")).count()
                + page.matches(&format!("<{tag} ")).count();
            assert_eq!(opened, page.matches(&format!("</{tag}>")).count(), "{tag}");
        }
    }
}
