"""Compares tables that mdgw has made of a DBN file with what the official client makes of it.

Arguments: the DBN file, its schema, a CSV with raw numbers, then a CSV, JSON lines and perhaps a Parquet file.
"""

import json
import pathlib
import sys
import tempfile

import databento
import pandas
import pyarrow.parquet

dbn, schema, raw, csv, lines, *rest = sys.argv[1:]
store = databento.DBNStore.from_file(dbn)
frame = store.to_df(schema=schema)
assert len(frame) > 0, "the file has no records"

with tempfile.TemporaryDirectory() as folder:
    folder = pathlib.Path(folder)
    store.to_csv(folder / "a.csv", schema=schema)
    assert (folder / "a.csv").read_bytes() == pathlib.Path(csv).read_bytes(), "another CSV"
    store.to_csv(folder / "raw.csv", schema=schema, pretty_px=False, pretty_ts=False, map_symbols=False)
    assert (folder / "raw.csv").read_bytes() == pathlib.Path(raw).read_bytes(), "another raw CSV"
    store.to_json(folder / "a.json", schema=schema)
    assert (folder / "a.json").read_bytes() == pathlib.Path(lines).read_bytes(), "other JSON lines"

table = pandas.read_csv(csv)
assert list(table.columns) == [frame.index.name, *frame.columns], "other columns"
assert len(table) == len(frame) == sum(1 for line in open(lines) if json.loads(line))

for parquet in rest:
    assert pyarrow.parquet.read_schema(parquet).names == [frame.index.name, *frame.columns], "other columns"
    table = pandas.read_parquet(parquet).set_index(frame.index.name)
    # Numbers may be of another width and text of another kind of string; values may not differ.
    pandas.testing.assert_frame_equal(table, frame, check_dtype=False, check_column_type=False, check_index_type=False)

print(f"{schema}: {len(frame)} records, the same")
