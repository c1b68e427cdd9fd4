#!/usr/bin/env python3
"""The JSON Schema of configs and the reader agree: config_schema_test.py PROGRAM, which prints both.

The reader's verdict on each config comes from PROGRAM (schema_cases.cpp); that of the schema from
Debian's python3-jsonschema, which knows nothing of dstrain. Without it the test is skipped (77)."""
import json
import os
import subprocess
import sys

try:
    import jsonschema
except ImportError:
    print("skipped: python3-jsonschema is not here")
    sys.exit(77)

told = json.loads(subprocess.run([sys.argv[1]], check=True, stdout=subprocess.PIPE).stdout)
schema, cases = told["schema"], told["cases"]
if not os.environ.get("DSTRAIN_WHOLE_SWEEPS"):
    cases = cases[::5]
jsonschema.Draft7Validator.check_schema(schema)
validator = jsonschema.Draft7Validator(schema)

accepted = sum(case["accepted"] for case in cases)
if accepted < 500 or len(cases) - accepted < 500:
    sys.exit(f"only {accepted} accepted and {len(cases) - accepted} refused configs: too few to tell")

wrong = []
for case in cases:
    errors = list(validator.iter_errors(json.loads(case["config"])))
    if case["accepted"] != (not errors):
        reader = "accepts" if case["accepted"] else "refuses"
        why = f": {errors[0].json_path}: {errors[0].message[:200]}" if errors else ""
        wrong.append(f"{case['name']}: the reader {reader} it, the schema does not agree{why}")
print("\n".join(wrong[:100]))
print(f"{len(cases)} configs, {accepted} of them accepted: {len(wrong)} disagreements")
sys.exit(1 if wrong else 0)
