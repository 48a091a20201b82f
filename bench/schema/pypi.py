"""Prints `CASE KIND VALIDATIONS_PER_SECOND` for PyPI jsonschema; see ../schema.sh."""

import json
import sys
import time

from jsonschema import Draft202012Validator, validators


def measure(is_valid, instances, expected, seconds):
    def turn(times):
        for _ in range(times):
            for instance in instances:
                if is_valid(instance) is not expected:
                    raise SystemExit("wrong answer")

    times = 50
    turn(times)
    while True:
        start = time.process_time()
        turn(times)
        took = time.process_time() - start
        if took >= seconds:
            return times * len(instances) / took
        times = int(times * max(1.2, 1.2 * seconds / max(took, 1e-4))) + 1


cases, seconds = sys.argv[1], float(sys.argv[2])
with open(cases, encoding="utf-8") as file:
    for case in json.load(file):
        schema = case["schema"]
        kind = validators.validator_for(schema, default=Draft202012Validator)
        validator = kind(schema, format_checker=kind.FORMAT_CHECKER)

        def has_no_errors(instance):
            return not list(validator.iter_errors(instance))

        def has_nothing_to_tell(instance):
            return not [f"{error.json_path} {error.message}"
                        for error in validator.iter_errors(instance)]

        for told, is_valid, instances, expected in [
            ("valid", validator.is_valid, case["valid"], True),
            ("refused", validator.is_valid, case["invalid"], False),
            ("errors", has_no_errors, case["invalid"], False),
            ("sentences", has_nothing_to_tell, case["invalid"], False),
        ]:
            print(case["name"], told, round(measure(is_valid, instances, expected, seconds)))
