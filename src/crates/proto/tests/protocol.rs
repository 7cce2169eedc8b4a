//! Checks that `src/generated` matches the files in `proto`: the code of the services, and the descriptors.
//! `BOWLINE_REGENERATE=1` regenerates the files in `src/generated`.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use prost::Message;

const FILES: [&str; 6] =
    ["rpc.proto", "kv.proto", "auth.proto", "v3lock.proto", "v3election.proto", "health.proto"];

/// File of the descriptors, in the same directory as the code.
const DESCRIPTORS: &str = "descriptors.bin";

fn files(dir: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    entries
        .map(|path| {
            let name = path.file_name().unwrap().to_str().unwrap().to_owned();
            (name, fs::read(&path).unwrap())
        })
        .collect()
}

#[test]
fn generated_code_matches_the_protocol_files() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let (protos, committed) = (root.join("proto"), root.join("src/generated"));
    let descriptors = protox::compile(FILES, [&protos]).unwrap();
    let made = tempfile::tempdir().unwrap();
    let mut bare = descriptors.clone();
    bare.file.iter_mut().for_each(|file| file.source_code_info = None);
    fs::write(made.path().join(DESCRIPTORS), bare.encode_to_vec()).unwrap();
    tonic_prost_build::configure()
        .out_dir(made.path())
        .bytes(".etcdserverpb")
        .bytes(".mvccpb")
        .bytes(".v3lockpb")
        .bytes(".v3electionpb")
        .build_transport(false)
        .emit_rerun_if_changed(false)
        .compile_fds(descriptors)
        .unwrap();
    if std::env::var_os("BOWLINE_REGENERATE").is_some() {
        for (name, text) in files(made.path()) {
            fs::write(committed.join(name), text).unwrap();
        }
    }
    let (made, committed) = (files(made.path()), files(&committed));
    assert_eq!(
        made.keys().collect::<Vec<_>>(),
        committed.keys().collect::<Vec<_>>(),
        "files in src/generated"
    );
    for (name, text) in &made {
        assert!(
            *text == committed[name],
            "src/generated/{name}: BOWLINE_REGENERATE=1 makes it again"
        );
    }
}
