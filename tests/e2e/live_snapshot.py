"""Compares the orders of a snapshot with those that a replay of the same session's mbo records leaves.

    live_snapshot.py PORT DATASET
"""

import sys

import databento

KEY = "db-unitTESTkey0123456789abcdefgh"
LAST, SNAPSHOT, BAD_TS_RECV = 128, 32, 8


def client():
    return databento.Live(key=KEY, gateway="127.0.0.1", port=int(sys.argv[1]))


def replayed() -> dict:
    orders = {}
    live = client()
    live.subscribe(dataset=sys.argv[2], schema="mbo", symbols="ALL_SYMBOLS", start=0)
    for record in live:
        if isinstance(record, databento.SystemMsg) and "replay" in record.msg:
            break
        if not isinstance(record, databento.MBOMsg):
            continue
        if record.action == "A":
            orders[record.order_id] = [record.instrument_id, str(record.side), record.price, record.size]
        elif record.action == "C":
            orders[record.order_id][3] -= record.size
            if orders[record.order_id][3] == 0:
                del orders[record.order_id]
    live.terminate()
    return orders


def snapshot() -> dict:
    orders, mapped, ended = {}, set(), set()
    live = client()
    live.subscribe(dataset=sys.argv[2], schema="mbo", symbols="ALL_SYMBOLS", snapshot=True)
    for record in live:
        if isinstance(record, databento.SymbolMappingMsg):
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
                break
    live.terminate()
    return orders


expected, received = replayed(), snapshot()
if not expected or expected != received:
    sys.exit(f"{len(received)} orders instead of {len(expected)}")
print(f"{len(received)} orders")
