#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| mdgw_gateway_fuzz::log_segment(input));
