"""Stays connected while a log is removed and the gateway begins a new one: the session ends with an error, and another session gets
the orders of the new log.

    live_new_log.py PORT DATASET
"""

import sys
import time

import databento
from live_session import records

PORT, DATASET = int(sys.argv[1]), sys.argv[2]


def is_received(kind: type) -> bool:
    """Whether a session gets such a record before it ends."""
    has_order = False
    for record in records(PORT, DATASET, "mbo", start=0):
        if isinstance(record, databento.MBOMsg) and not has_order:
            has_order = True
            print("an order received", file=sys.stderr, flush=True)
        if isinstance(record, kind):
            return True
    return False


if not is_received(databento.ErrorMsg):
    sys.exit("the session ended without an error")
while True:
    try:
        if is_received(databento.MBOMsg):
            break
    except databento.BentoError as error:
        # The gateway is not back yet.
        print(error, file=sys.stderr, flush=True)
    time.sleep(0.1)
