#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| rpc_tests::fuzzing::json(data));
