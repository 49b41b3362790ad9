"""Receives mbo with the official Python client from one gateway of a pair, and goes on at the other when that one is gone.

    live_failover.py HOST PORT DATASET EXPECTED.dbn

The host name resolves to both gateways. The client takes the first address that accepts its connection.

The second session begins with `start` at the last event time of the first. Its overlap is removed here, as a consumer would:
the clients' own reconnects do not ask for what was missed. The result is compared with a DBN file, record by record.
"""

import sys
from collections.abc import Iterator

import databento
from live_session import records

HOST, PORT, DATASET = sys.argv[1], int(sys.argv[2]), sys.argv[3]


def session(start: int) -> Iterator[databento.MBOMsg]:
    """The mbo records from that event time on. A session is over when the gateway's replay is, if the day was over before it began."""
    for record in records(PORT, DATASET, "mbo", host=HOST, start=start):
        if isinstance(record, databento.ErrorMsg):
            if record.err == "The gateway has ended":
                return
            sys.exit(f"error record: {record.err}")
        if isinstance(record, databento.MBOMsg):
            yield record
        elif isinstance(record, databento.SystemMsg) and "replay" in record.msg and len(received) == len(expected):
            return


expected = [bytes(record) for record in databento.DBNStore.from_file(sys.argv[4])]
received: list[bytes] = []
last_event, at_last_event = 0, 0
for record in session(0):
    received.append(bytes(record))
    at_last_event = at_last_event + 1 if record.ts_event == last_event else 1
    last_event = record.ts_event
    if len(received) == len(expected) // 3:
        print("a third received", file=sys.stderr, flush=True)
first_session = len(received)
if not 0 < first_session < len(expected):
    sys.exit(f"the first session had {first_session} of {len(expected)} records")
# `start` is inclusive: the session begins with records that were received already.
for index, record in enumerate(session(last_event)):
    if index >= at_last_event:
        received.append(bytes(record))
    elif bytes(record) != received[first_session - at_last_event + index]:
        sys.exit(f"record {index} of the overlap differs")
for index, (ours, theirs) in enumerate(zip(received, expected)):
    if ours != theirs:
        sys.exit(f"record {index} differs, the second session began at {first_session}:\n{ours.hex()}\n{theirs.hex()}")
if len(received) != len(expected):
    sys.exit(f"{len(received)} records instead of {len(expected)}, the second session began at {first_session}")
print(f"{first_session} records and {len(received) - first_session}")
