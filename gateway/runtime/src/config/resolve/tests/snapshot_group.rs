//! `[output.snapshots]`

use mdgw_feeds::published::snapshot::CHUNK_OVERHEAD_BYTES;

use super::*;

#[test]
fn a_snapshot_group_has_an_address_of_its_own_and_the_senders_of_the_lines() {
    let table = |address: &str, more: &str| {
        format!("[output.snapshots]\naddress = \"{address}\"\ninterface = \"lo\"\n{more}[retransmission]")
    };
    let with = |address: &str, more: &str| with_edit("[retransmission]", &table(address, more));
    let text = with("239.1.1.2:31000", "interval_ms = 250\npasses = 1\n");
    let resolved = load(&text).unwrap();
    let snapshots = resolved.outputs[0].snapshots.as_ref().unwrap();
    assert_eq!((snapshots.interval_ns, snapshots.passes, snapshots.bytes_per_second), (250_000_000, 1, 12_500_000));
    assert!(snapshots.line.sources.is_empty());
    assert!(resolved.takes_snapshots_of(resolved.channels[0].group));
    assert!(!load(MINIMAL).unwrap().takes_snapshots_of(resolved.channels[0].group));
    assert!(resolved.memory().snapshots_bytes > 0);
    let of_lines = text.replacen(OUTPUT_LINE, &format!("{OUTPUT_LINE}source = [\"10.0.0.2\", \"10.0.0.1\"]\n"), 1);
    let snapshots = load(&of_lines).unwrap().outputs[0].snapshots.clone().unwrap();
    assert_eq!(snapshots.line.sources, [Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2)]);
    let own = of_lines.replacen("passes = 1", "passes = 1\nsource = [\"10.0.0.7\"]", 1);
    let snapshots = load(&own).unwrap().outputs[0].snapshots.clone().unwrap();
    assert_eq!(snapshots.line.sources, [Ipv4Addr::new(10, 0, 0, 7)]);
    refused(
        &with("239.1.1.1:31000", ""),
        expect!["x.toml:26:11: output[0].snapshots.address: 239.1.1.1:31000 on lo: duplicate output line"],
    );
    refused(
        &with("233.54.12.111:26477", "passes = 0\n"),
        expect![[r#"
            2 problems
            x.toml:26:11: output[0].snapshots.address: 233.54.12.111:26477: is also line A of channel "nasdaq"; the gateway would receive its own output
            x.toml:28:10: output[0].snapshots.passes: 0: must be between 1 and 16 (passes)"#]],
    );
}

#[test]
fn a_packet_holds_a_chunk_with_a_definition() {
    let with = |payload_bytes_max: u32| {
        let keys = format!(
            "payload_bytes_max = {payload_bytes_max}\n[output.snapshots]\naddress = \"239.1.1.2:31000\"\ninterface = \"lo\"\n\
             [[output.line]]"
        );
        with_edit("[[output.line]]", &keys)
    };
    let smallest = load(&with(712)).unwrap();
    let chunk_bytes = CHUNK_OVERHEAD_BYTES + size_of::<dbn::InstrumentDefMsg>();
    assert_eq!(smallest.outputs[0].frame_bytes_max(), chunk_bytes);
    refused(
        &with(711),
        expect![
            "x.toml:21:21: output[0].payload_bytes_max: 711 bytes: at least 712 with a snapshot group, whose chunks hold definitions"
        ],
    );
}
