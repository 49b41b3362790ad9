"""Opens a journal with the official Python client as a data frame, and compares it with the output of an offline replay but for local times.

    journal.py JOURNAL.dbn[.zst] EXPECTED.dbn
"""

import sys

import databento


def main() -> None:
    stores = [databento.DBNStore.from_file(path) for path in sys.argv[1:3]]
    for name in ("dataset", "schema", "stype_in", "stype_out", "symbols"):
        values = [getattr(store.metadata, name) for store in stores]
        if values[0] != values[1]:
            sys.exit(f"metadata {name}: {values[0]}, not {values[1]}")
    journal = stores[0].metadata
    received = [record.ts_recv for record in stores[0]]
    if journal.start != min(received) or journal.end != max(received) + 1:
        sys.exit(f"records of [{journal.start}, {journal.end}), not from {min(received)} to {max(received)}")
    for schema in ("mbo", "status", "definition"):
        frames = [store.to_df(schema=schema).reset_index() for store in stores]
        local = [name for name in ("ts_recv", "ts_in_delta") if name in frames[0]]
        ours, theirs = (frame.drop(columns=local) for frame in frames)
        if theirs.empty or not ours.equals(theirs):
            sys.exit(f"{schema}: {len(ours)} rows, not the {len(theirs)} of the replay:\n{ours}\n{theirs}")
        if ours["symbol"].isna().any():
            sys.exit(f"{schema}: rows without a symbol")
        print(f"{schema}: {len(ours)} rows")


main()
