"""Compares the orders of a snapshot with those that a replay of the same session's mbo records leaves.

    live_snapshot.py PORT DATASET

While the replays before and after a snapshot differ, records are still on their way, and all three are taken again.
"""

import faulthandler
import queue
import sys
from collections.abc import Iterator

import databento

# A client that waits without end shows where, and fails.
faulthandler.dump_traceback_later(50, exit=True)

KEY = "db-unitTESTkey0123456789abcdefgh"
LAST, SNAPSHOT, BAD_TS_RECV = 128, 32, 8


def records_of(**subscription: object) -> Iterator[databento.DBNRecord]:
    """The records of a session of its own, which ends with the iteration."""
    client = databento.Live(key=KEY, gateway="127.0.0.1", port=int(sys.argv[1]))
    client.subscribe(dataset=sys.argv[2], schema="mbo", symbols="ALL_SYMBOLS", **subscription)
    # The client's own iteration loses the records that come before it has begun.
    records = queue.SimpleQueue()
    client.add_callback(records.put)
    client.start()
    try:
        while True:
            yield records.get()
    finally:
        client.terminate()


def replayed() -> dict:
    orders = {}
    for record in records_of(start=0):
        if isinstance(record, databento.SystemMsg) and "replay" in record.msg:
            return orders
        if not isinstance(record, databento.MBOMsg):
            continue
        if record.action == "A":
            orders[record.order_id] = [record.instrument_id, str(record.side), record.price, record.size]
        elif record.action == "C":
            orders[record.order_id][3] -= record.size
            if orders[record.order_id][3] == 0:
                del orders[record.order_id]


def snapshot() -> dict:
    orders, mapped, ended = {}, set(), set()
    for record in records_of(snapshot=True):
        if isinstance(record, databento.SymbolMappingMsg) and not ended:
            mapped.add(record.instrument_id)
        if not isinstance(record, databento.MBOMsg):
            continue
        flags = int(record.flags)
        if flags & (SNAPSHOT | BAD_TS_RECV) != SNAPSHOT | BAD_TS_RECV or record.instrument_id in ended:
            sys.exit(f"not a record of a snapshot: {record}")
        if record.action == "A":
            orders[record.order_id] = [record.instrument_id, str(record.side), record.price, record.size]
        elif record.action != "R":
            sys.exit(f"neither a clear nor an order: {record}")
        if flags & LAST:
            ended.add(record.instrument_id)
            if ended == mapped:
                return orders


before = replayed()
while True:
    received, after = snapshot() if before else {}, replayed()
    if before == after and before:
        break
    before = after
if received != before:
    sys.exit(f"{len(received)} orders instead of {len(before)}")
print(f"{len(received)} orders")
