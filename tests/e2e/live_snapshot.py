"""Compares the orders of a snapshot with those that a replay of the same session's mbo records leaves.

    live_snapshot.py PORT DATASET

While the replays before and after a snapshot differ, records are still on their way, and all three are taken again.
"""

import sys

import databento
from live_session import records

PORT, DATASET = int(sys.argv[1]), sys.argv[2]
LAST, SNAPSHOT, BAD_TS_RECV = 128, 32, 8


def replayed() -> dict:
    orders = {}
    for record in records(PORT, DATASET, "mbo", start=0):
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
    sys.exit("the replay did not end")


def snapshot() -> dict:
    orders, mapped, ended = {}, set(), set()
    for record in records(PORT, DATASET, "mbo", snapshot=True):
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
    sys.exit("the snapshot did not end")


before = replayed()
while True:
    received, after = snapshot() if before else {}, replayed()
    if before == after and before:
        break
    before = after
if received != before:
    sys.exit(f"{len(received)} orders instead of {len(before)}")
print(f"{len(received)} orders")
