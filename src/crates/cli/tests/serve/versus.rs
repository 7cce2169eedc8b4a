//! The benchmark that compares Bowline with etcd and Redis, briefly.

use bowline_testkit::versus;

#[test]
fn versus_skips_aloud_what_is_not_installed() {
    let dir = tempfile::tempdir().unwrap();
    let files = dir.path().join("files");
    let args = ["--quick", "--only", "put, 1 caller", "--in-process", "--out"];
    let args = args.into_iter().chain([files.to_str().unwrap()]);
    let args = args.chain(["--etcd", "/there/is/no/etcd", "--redis", "/there/is/no/redis"]);
    let (args, mut out): (Vec<_>, _) = (args.map(str::to_owned).collect(), Vec::new());
    versus::run(&args, dir.path(), &mut out).unwrap();
    let out = String::from_utf8(out).unwrap();
    for line in [
        "SKIPPED: etcd: /there/is/no/etcd does not run",
        "SKIPPED: Redis: /there/is/no/redis does not run",
        "| put, 1 caller | median µs | ",
    ] {
        assert!(out.contains(line), "{out}");
    }
    let json = std::fs::read_to_string(files.join("versus.json")).unwrap();
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    let results = json["rows"][0]["results"].as_array().unwrap();
    let systems: Vec<_> = results.iter().map(|result| &result["system"]).collect();
    assert_eq!(systems, ["embedded", "served"]);
    assert!(results.iter().all(|result| result["rate"]["median"].as_f64().unwrap() > 0.0));
    let html = std::fs::read_to_string(files.join("versus.html")).unwrap();
    assert!(html.contains("not measured: not installed"), "{html}");
}
