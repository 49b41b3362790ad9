#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| mdgw_feeds_fuzz::snapshot(input));
