"""Parses OpenMetrics text from standard input with the parser of prometheus_client and prints each sample as JSON."""

import json
import sys

from prometheus_client.openmetrics.parser import text_string_to_metric_families

families = []
for family in text_string_to_metric_families(sys.stdin.read()):
    samples = [{"name": s.name, "labels": s.labels, "value": s.value} for s in family.samples]
    families.append(
        {"name": family.name, "type": family.type, "unit": family.unit, "help": family.documentation, "samples": samples}
    )
json.dump(families, sys.stdout)
