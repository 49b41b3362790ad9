"""Compares tables that mdgw has made of DBN files with what the official client makes of them.

Arguments: a folder, then schemas. For each there is SCHEMA.dbn, and made of it SCHEMA.csv, SCHEMA.json, SCHEMA-raw.csv
(numbers as they are, no symbols) and perhaps SCHEMA.parquet.
"""

import json
import pathlib
import sys
import tempfile
import warnings

import databento
import pandas
import pyarrow.parquet

# The client's own use of pandas.
warnings.simplefilter("ignore")


def compare(folder, schema, theirs):
    store = databento.DBNStore.from_file(folder / f"{schema}.dbn")
    frame = store.to_df(schema=schema)
    assert len(frame) > 0, "the file has no records"
    csv, lines, raw, parquet = (folder / f"{schema}{end}" for end in (".csv", ".json", "-raw.csv", ".parquet"))

    store.to_csv(theirs / "a.csv", schema=schema)
    assert (theirs / "a.csv").read_bytes() == csv.read_bytes(), "another CSV"
    store.to_csv(theirs / "raw.csv", schema=schema, pretty_px=False, pretty_ts=False, map_symbols=False)
    assert (theirs / "raw.csv").read_bytes() == raw.read_bytes(), "another raw CSV"
    store.to_json(theirs / "a.json", schema=schema)
    assert (theirs / "a.json").read_bytes() == lines.read_bytes(), "other JSON lines"

    columns = [frame.index.name, *frame.columns]
    table = pandas.read_csv(csv)
    assert list(table.columns) == columns, "other columns"
    assert len(table) == len(frame) == sum(1 for line in lines.open() if json.loads(line))

    if parquet.exists():
        assert pyarrow.parquet.read_schema(parquet).names == columns, "other columns"
        table = pandas.read_parquet(parquet).set_index(frame.index.name)
        # Numbers may be of another width and text of another kind of string; values may not differ.
        pandas.testing.assert_frame_equal(
            table, frame, check_dtype=False, check_column_type=False, check_index_type=False
        )
    print(f"{schema}: {len(frame)} records, the same")


for schema in sys.argv[2:]:
    with tempfile.TemporaryDirectory() as theirs:
        try:
            compare(pathlib.Path(sys.argv[1]), schema, pathlib.Path(theirs))
        except AssertionError as difference:
            sys.exit(f"{schema}: {difference}")
