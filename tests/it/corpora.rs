//! The corpora of the fuzz targets, and the golden messages, through the same functions as in `tests/fuzz`.

use std::panic::catch_unwind;
use std::path::{Path, PathBuf};

use rpc_tests::fuzzing::TARGETS;

/// Most bytes that the corpora may take of the repository.
const BYTES_MAX: usize = 200_000;

fn tests() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn files(directory: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(directory).unwrap_or_else(|error| panic!("{}: {error}", directory.display()));
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

#[test]
fn what_was_found_stays_mended() {
    let mut bytes = 0;
    for target in TARGETS {
        let corpus = files(&tests().join("fuzz/corpus").join(target.name));
        assert!(!corpus.is_empty(), "{} has no corpus", target.name);
        for file in corpus {
            let input = std::fs::read(&file).unwrap();
            bytes += input.len();
            assert!(catch_unwind(|| (target.run)(&input)).is_ok(), "{}", file.display());
        }
    }
    assert!(bytes <= BYTES_MAX, "{bytes} bytes: minimize the corpora with tests/fuzz/run --minimize");
}

#[test]
fn golden_messages_and_standard_scenarios_have_the_properties_too() {
    let golden: Vec<Vec<u8>> = files(&tests().join("golden")).iter().map(|file| std::fs::read(file).unwrap()).collect();
    golden.iter().for_each(|message| rpc_tests::fuzzing::message(message.trim_ascii_end()));
    let frames = golden.iter().flat_map(|message| [&(message.len() as u32).to_be_bytes(), &message[..]].concat());
    let stream: Vec<u8> = [0xff, 0xff, 30].into_iter().chain(frames).collect();
    rpc_tests::fuzzing::frame(&stream);
    for file in files(&tests().join("../rpc-sim/scenarios")) {
        rpc_tests::fuzzing::scenario(&std::fs::read(file).unwrap());
    }
}

#[test]
fn every_target_has_its_files() {
    let fuzz = tests().join("fuzz");
    let manifest = std::fs::read_to_string(fuzz.join("Cargo.toml")).unwrap();
    let names: Vec<&str> = TARGETS.iter().map(|target| target.name).collect();
    for (directory, extension) in [("targets", "rs"), ("dictionaries", "dict"), ("corpus", "")] {
        let found: Vec<PathBuf> = files(&fuzz.join(directory));
        let expected: Vec<PathBuf> =
            names.iter().map(|name| fuzz.join(directory).join(name).with_extension(extension)).collect();
        assert_eq!(found, expected);
    }
    for name in names {
        assert!(manifest.contains(&format!("name = \"{name}\"\npath = \"targets/{name}.rs\"")), "{name} is not built");
    }
}
