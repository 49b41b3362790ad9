"""Sessions with the official Python client, for the programs beside this file."""

import faulthandler
import queue
from collections.abc import Iterator

import databento

# A client that waits without end shows where, and fails.
faulthandler.dump_traceback_later(150, exit=True)

KEY = "db-unitTESTkey0123456789abcdefgh"


def records(
    port: int,
    dataset: str,
    schema: str,
    compression: databento.Compression = databento.Compression.NONE,
    host: str = "127.0.0.1",
    **options: object,
) -> Iterator[databento.DBNRecord]:
    """The records of all symbols, until the server is gone or has ended the session. The session ends with the iteration.

    By callback, not by the client's own iteration: that begins to collect records after it has asked for them, and loses
    those that come before.
    """
    client = databento.Live(key=KEY, gateway=host, port=port, compression=compression)
    client.subscribe(dataset=dataset, schema=schema, symbols="ALL_SYMBOLS", **options)
    received = queue.SimpleQueue()
    client.add_callback(received.put)
    client.start()
    try:
        while True:
            try:
                record = received.get(timeout=0.2)
            except queue.Empty:
                # In this order: nothing is added once the connection is closed.
                if not client.is_connected() and received.empty():
                    return
                continue
            yield record
    finally:
        client.terminate()
