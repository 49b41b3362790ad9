"""Receives schemas with the official Python client and compares them with an offline replay of the same input, record by record.

    live_schemas.py PORT DATASET FOLDER [ended] [levels] SCHEMA…

FOLDER has the records of the replay in SCHEMA.dbn, and all records that the gateway publishes, and mbp-1, in their order in all.dbn. What
tbbo, bars and samples must be is computed here from those, without code of the gateway. With `ended` the venue has ended the last session,
which closes all intervals; without it, those with the last records are still open. With `levels` the gateway publishes mbp-10 and no mbp-1.
"""

import sys
from collections import defaultdict

import databento
from databento_dbn import UNDEF_ORDER_SIZE, UNDEF_PRICE
from live_session import records

PORT, DATASET, FOLDER = int(sys.argv[1]), sys.argv[2], sys.argv[3]
HAS_ENDED = "ended" in sys.argv[4:]
HAS_LEVELS_ALONE = "levels" in sys.argv[4:]
SCHEMAS = [name for name in sys.argv[4:] if name not in ("ended", "levels")]
SECONDS = {"1s": 1, "1m": 60, "1h": 3_600, "1d": 86_400}
LAST, MAYBE_BAD_BOOK = 128, 4


def offline(schema: str) -> list:
    return list(databento.DBNStore.from_file(f"{FOLDER}/{schema}.dbn"))


def best_levels() -> list:
    """The records of mbp-1, each with the latest event time of the channel so far, which is what intervals go by."""
    found, clock, tops = [], 0, {}
    for record in offline("all"):
        clock = max(clock, record.ts_event)
        if HAS_LEVELS_ALONE and isinstance(record, databento.MBP10Msg):
            before = tops.get(record.instrument_id)
            tops[record.instrument_id] = level(record)
            if record.action == "T" or record.depth == 0 or before != level(record):
                found.append((clock, record))
        elif not HAS_LEVELS_ALONE and isinstance(record, databento.MBP1Msg):
            found.append((clock, record))
    return found


BEST_LEVELS = []


def sessions() -> list:
    """The records of mbp-1, cut where the venue's numbering begins again."""
    cut, before = [[]], 0
    for clock, record in BEST_LEVELS:
        if record.sequence < before:
            cut.append([])
        before = record.sequence
        cut[-1].append((clock, record))
    return cut


def level(record: object) -> tuple:
    top = record.levels[0]
    return (top.bid_px, top.ask_px, top.bid_sz, top.ask_sz, top.bid_ct, top.ask_ct)


def bars(length_ns: int) -> list:
    """Start, instrument, open, high, low, close and volume of each bar. The venue's numbering may begin again within one."""
    found, of_bar = [], defaultdict(list)
    for clock, record in BEST_LEVELS:
        if record.action == "T" and record.price != UNDEF_PRICE:
            of_bar[clock // length_ns * length_ns, record.instrument_id].append((record.price, record.size))
    for key, trades in sorted(of_bar.items()):
        prices = [price for price, _ in trades]
        volume = sum(size for _, size in trades)
        found.append((*key, prices[0], max(prices), min(prices), prices[-1], volume))
    return found


def samples(length_ns: int) -> list:
    """Interval end, instrument, event time, last trade, sequence, flags and best level of each sample. Books of a session begin empty."""
    trades, found = {}, {}
    for session in sessions():
        levels = {}
        for clock, record in session:
            instrument = record.instrument_id
            if record.action == "T":
                trades[instrument] = (record.price, record.size, str(record.side))
            else:
                levels[instrument] = level(record)
            end = (clock // length_ns + 1) * length_ns
            found[end, instrument] = (
                record.ts_event,
                *trades.get(instrument, (UNDEF_PRICE, UNDEF_ORDER_SIZE, "N")),
                record.sequence,
                LAST | int(record.flags) & MAYBE_BAD_BOOK,
                levels.get(instrument, (UNDEF_PRICE, UNDEF_PRICE, 0, 0, 0, 0)),
            )
    return [(*key, *sample) for key, sample in sorted(found.items())]


def expected(schema: str) -> list:
    kind, _, length = schema.partition("-")
    if schema == "tbbo" or (schema == "mbp-1" and HAS_LEVELS_ALONE):
        return [fields(record) for _, record in BEST_LEVELS if schema != "tbbo" or record.action == "T"]
    if kind not in ("ohlcv", "bbo"):
        return [bytes(record) for record in offline(schema)]
    length_ns = SECONDS[length] * 1_000_000_000
    found = bars(length_ns) if kind == "ohlcv" else samples(length_ns)
    open_from = max(record.ts_event for record in offline("all")) // length_ns * length_ns
    open_from += 0 if kind == "ohlcv" else length_ns
    return [row for row in found if HAS_ENDED or row[0] < open_from]


def fields(record: object) -> tuple:
    head = (record.publisher_id, record.instrument_id, record.ts_event, record.sequence, record.ts_recv, record.ts_in_delta)
    return (*head, record.price, record.size, str(record.action), str(record.side), int(record.flags), record.depth, level(record))


def shown(record: object, schema: str) -> object:
    if isinstance(record, databento.OHLCVMsg):
        prices = (record.open, record.high, record.low, record.close)
        return (record.ts_event, record.instrument_id, *prices, record.volume)
    if isinstance(record, databento.BBOMsg):
        trade = (record.price, record.size, str(record.side))
        head = (record.ts_recv, record.instrument_id, record.ts_event)
        return (*head, *trade, record.sequence, int(record.flags), level(record))
    if schema == "tbbo" or (schema == "mbp-1" and HAS_LEVELS_ALONE):
        return fields(record)
    return bytes(record)


def received(schema: str) -> tuple:
    """The records of a replay, and how many ends of intervals were announced."""
    found, mapped, acknowledged, ends = [], set(), 0, 0
    for record in records(PORT, DATASET, schema, start=0):
        if isinstance(record, databento.ErrorMsg):
            sys.exit(f"{schema}: error record: {record.err}")
        if isinstance(record, databento.SystemMsg):
            acknowledged += record.msg == f"Subscription request 0 for {schema} data succeeded"
            ends += record.msg == f"End of interval for {schema}"
            if "replay" in record.msg:
                break
        elif isinstance(record, databento.SymbolMappingMsg):
            mapped.add(record.instrument_id)
        elif record.instrument_id not in mapped:
            sys.exit(f"{schema}: {record} comes before its mapping")
        else:
            found.append(shown(record, schema))
    if acknowledged != 1:
        sys.exit(f"{schema}: {acknowledged} acknowledgements")
    return found, ends


BEST_LEVELS += best_levels()
for name in SCHEMAS:
    ours, announced = received(name)
    theirs = expected(name)
    for index, pair in enumerate(zip(ours, theirs)):
        if pair[0] != pair[1]:
            sys.exit(f"{name}: record {index} differs:\n{pair[0]}\n{pair[1]}")
    if len(ours) != len(theirs):
        sys.exit(f"{name}: {len(ours)} records instead of {len(theirs)}")
    if not theirs and not (name.endswith(("1h", "1d")) and not HAS_ENDED):
        sys.exit(f"{name}: the replay has no records to compare")
    if name.startswith(("ohlcv", "bbo")) and announced < len({row[0] for row in theirs}):
        sys.exit(f"{name}: the end of an interval was not announced")
    print(f"{name}: {len(ours)} records")
