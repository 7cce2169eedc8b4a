//! Tests of the values of metrics and of the Prometheus text.

use super::*;

const TABLE: &str = include_str!("../../docs/operating/metrics.md");

fn metrics() -> (Metrics, Arc<Meters>) {
    let meters = Arc::new(Meters::default());
    (Metrics::new("m1", Arc::clone(&meters)), meters)
}

#[test]
fn metrics_page_lists_exactly_the_exported_metrics() {
    let named: Vec<&str> = TABLE
        .lines()
        .filter_map(|line| line.strip_prefix("| `bowline_"))
        .filter_map(|line| line.split('`').next())
        .collect();
    let listed: Vec<&str> = NAMES.iter().filter_map(|name| name.strip_prefix("bowline_")).collect();
    assert_eq!(named, listed, "docs/operating/metrics.md and the catalogue, in the same order");
}

#[test]
fn limits_page_names_existing_metrics() {
    const LIMITS: &str = include_str!("../../docs/operating/limits.md");
    let named: Vec<&str> = LIMITS
        .split('`')
        .filter(|word| word.starts_with("bowline_") && !word.contains(' '))
        .collect();
    assert!(named.len() > 30, "{}", named.len());
    for name in named {
        assert!(NAMES.contains(&name), "{name} is in docs/operating/limits.md");
    }
}

#[test]
fn quantile_is_at_most_half_too_high() {
    let (metrics, meters) = metrics();
    assert_eq!(metrics.snapshot().turn_seconds.quantile(0.5), None);
    for ms in 1..=1000 {
        meters.turn_seconds.add(Duration::from_millis(ms));
    }
    let turns = metrics.snapshot().turn_seconds;
    assert_eq!(turns.count(), 1000);
    assert!((turns.sum() - 500.5).abs() < 1e-6);
    for share in [0.01, 0.5, 0.9, 0.99, 1.0] {
        let found = turns.quantile(share).unwrap();
        assert!((share..=share * 1.5 + 0.001).contains(&found), "{share}: {found}");
    }
}

#[test]
fn request_counts_once_by_kind_and_outcome() {
    let (metrics, meters) = metrics();
    meters.ended(RequestKind::Put, Ending::Ok, Duration::from_millis(3));
    meters.ended(RequestKind::Put, Ending::Quota, Duration::from_millis(3));
    let text = metrics.to_prometheus();
    let has = |line: &str| assert!(text.lines().any(|each| each == line), "{line} in\n{text}");
    has(r#"bowline_requests_total{node="m1",kind="put",outcome="ok"} 1"#);
    has(r#"bowline_requests_total{node="m1",kind="put",outcome="quota"} 1"#);
    has(r#"bowline_requests_total{node="m1",kind="delete",outcome="ok"} 0"#);
    has(r#"bowline_request_seconds_count{node="m1",kind="put"} 2"#);
    has(r#"bowline_request_seconds_bucket{node="m1",kind="put",le="0.002048"} 0"#);
    has(r#"bowline_request_seconds_bucket{node="m1",kind="put",le="0.003072"} 2"#);
    has(r#"bowline_request_seconds_bucket{node="m1",kind="put",le="+Inf"} 2"#);
}

#[test]
fn member_names_are_escaped_in_labels() {
    let metrics = Metrics::new("a\"} 1\nb\\", Arc::new(Meters::default()));
    let text = metrics.to_prometheus();
    assert!(text.contains(r#"bowline_leases{node="a\"} 1\nb\\"} 0"#), "{text}");
}

/// Every sample belongs to the metric announced last, and bucket counts do not decrease.
#[test]
fn metrics_text_is_valid_prometheus_format() {
    let (metrics, meters) = metrics();
    meters.ended(RequestKind::Read, Ending::Ok, Duration::from_secs(100));
    meters.peer_lag_entries.set(vec![PeerLag { peer: "m2".into(), entries: 7, active: true }]);
    let text = metrics.to_prometheus();
    let mut metric = "";
    let mut kinds = 0;
    for line in text.lines() {
        if let Some(help) = line.strip_prefix("# HELP ") {
            let (name, words) = help.split_once(' ').expect("a name, then words");
            assert!(words.len() > 10, "{line}");
            metric = name;
        } else if let Some(kind) = line.strip_prefix("# TYPE ") {
            let (name, kind) = kind.split_once(' ').unwrap();
            assert_eq!(name, metric);
            assert_eq!(kind == "counter", name.ends_with("_total"), "{line}");
            kinds += 1;
        } else {
            let (name, rest) = line.split_once('{').expect("every sample has labels");
            let base = ["_bucket", "_sum", "_count"].iter().find_map(|end| name.strip_suffix(end));
            assert!(name == metric || base == Some(metric), "{line} after {metric}");
            let value = rest.rsplit_once("} ").expect("braces are closed").1;
            assert!(value.parse::<f64>().is_ok(), "{line}");
        }
    }
    assert_eq!(kinds, NAMES.len());
    assert!(text.contains(r#"bowline_peer_lag_entries{node="m1",peer="m2"} 7"#));
}
