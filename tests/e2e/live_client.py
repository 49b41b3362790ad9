"""Receives one schema with the official Python client and compares it with a DBN file, record by record.

    live_client.py PORT DATASET SCHEMA EXPECTED.dbn [zstd] [until-close]

With `until-close` the client goes on after the replay, until the server closes the session.
"""

import sys

import databento
from live_session import records


def main() -> None:
    port, dataset, schema, path = sys.argv[1:5]
    compression = databento.Compression.ZSTD if "zstd" in sys.argv[5:] else databento.Compression.NONE
    expected = [bytes(record) for record in databento.DBNStore.from_file(path)]
    received, mapped, texts = [], set(), []
    for record in records(int(port), dataset, schema, compression, start=0):
        if isinstance(record, databento.ErrorMsg):
            sys.exit(f"error record: {record.err}")
        if isinstance(record, databento.SystemMsg):
            texts.append(record.msg)
            if "replay" in record.msg:
                print("replay finished", file=sys.stderr, flush=True)
                if "until-close" not in sys.argv:
                    break
        elif isinstance(record, databento.SymbolMappingMsg):
            mapped.add(record.instrument_id)
        else:
            if record.instrument_id not in mapped:
                sys.exit(f"{record} comes before its mapping")
            received.append(bytes(record))
    if f"Subscription request 0 for {schema} data succeeded" not in texts:
        sys.exit(f"no acknowledgement: {texts}")
    for index, (ours, theirs) in enumerate(zip(received, expected)):
        if ours != theirs:
            sys.exit(f"record {index} differs:\n{ours.hex()}\n{theirs.hex()}")
    if len(received) != len(expected) or not expected:
        sys.exit(f"{len(received)} records instead of {len(expected)}")
    print(f"{len(received)} records")


main()
