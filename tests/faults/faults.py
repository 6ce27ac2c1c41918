"""Injects faults into jobs of the real `muster` and prints what was expected and what was seen.

    faults.py MUSTER [--probe run_probe] [--rows 1,3,27] [--but 41] [--json]

Each row is a fault that users of launchers have met, by the number under which docs/faults.md lists it. Exits with
1 when a row is not as expected. Rows that cannot be injected here say so (root, a package, a file system).
"""

import argparse
import importlib
import pathlib
import sys

TESTS = pathlib.Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS / "cluster"), str(TESTS / "support")]  # their hosts.py and time_limit.py
import page
import table

for concept in ("ranks", "strangers", "agents", "failures", "training", "checkpoints", "gpus", "networks", "machine", "output", "shared_memory", "tasks"):
    importlib.import_module(concept)  # its rows are in the table then


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("muster")
    parser.add_argument("--probe", default="")
    parser.add_argument("--rows", default="")
    parser.add_argument("--but", default="")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    if unlisted := {entry[0] for entry in table.ROWS} ^ set(page.rows()):
        parser.error(f"rows that docs/faults.md has and no test, or the reverse: {sorted(unlisted)}")
    results = table.run_rows(str(pathlib.Path(args.muster).resolve()),
                             args.probe and str(pathlib.Path(args.probe).resolve()),
                             [int(number) for number in args.rows.split(",") if number],
                             [int(number) for number in args.but.split(",") if number])
    if args.json:
        table.show_json(results)
    else:
        table.show(results)
    failed = [r["row"] for r in results if r["state"] == "failed"]
    print(f"{len(results) - len(failed)} of {len(results)} rows as expected"
          + (f"; not: {failed}" if failed else ""), file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
