"""Percentiles of interval logs, as the HdrHistogram project's own port to Python (package hdrhistogram) reads them.

Prints one JSON object: channel and stage, or channel and leading line ("1 lead A"), to count, maximum and percentiles,
all threads together.
"""

import json
import math
import sys

from hdrh.histogram import HdrHistogram
from hdrh.log import HistogramLogReader

merged = {}
for path in sys.argv[1:]:
    reader = HistogramLogReader(path, HdrHistogram(1, 3_600_000_000_000, 2))
    while (interval := reader.get_next_interval_histogram()) is not None:
        fields = dict(field.split("=", 1) for field in interval.get_tag().split(";"))
        name = fields["channel"] + " " + (fields["stage"] if "stage" in fields else "lead " + fields["lead"])
        merged.setdefault(name, HdrHistogram(1, 3_600_000_000_000, 2)).add(interval)


def value_at(histogram, quantile):
    # The port rounds the rank to the nearest value, the other readers up.
    count = histogram.get_total_count()
    return histogram.get_value_at_percentile(100.0 * math.ceil(quantile * count - 1e-6) / count)


quantiles = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p99.9": 0.999, "p99.99": 0.9999}
print(json.dumps({
    name: {
        "count": histogram.get_total_count(),
        "max_ns": histogram.get_max_value(),
        **{f"{key}_ns": value_at(histogram, quantile) for key, quantile in quantiles.items()},
    }
    for name, histogram in merged.items()
}))
