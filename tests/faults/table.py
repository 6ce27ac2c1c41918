"""The rows: who they are, how one is run, and how the table is shown."""

import concurrent.futures
import json
import time
import traceback

from page import not_held
from place import Place, Skip, expect

ROWS = []
AT_ONCE = 4


def row(number, injected, expected):
    """Makes a function a row: it is given a Place, and says what was seen; not as expected is an exception."""
    def add(function):
        ROWS.append((number, injected, expected, function))
        return function
    return add


def run_rows(muster, probe, wanted, left_out=()):
    """What became of every row, or of those `wanted`, in the order of their numbers; of none that is `left_out`."""
    rows = sorted((entry for entry in ROWS if (not wanted or entry[0] in wanted) and entry[0] not in left_out),
                  key=lambda entry: entry[0])
    with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
        return list(pool.map(lambda entry: run_row(entry, muster, probe), rows))


def run_row(entry, muster, probe):
    number, injected, expected, function = entry
    start = time.monotonic()
    try:
        with Place(muster, probe) as place:
            seen, state = function(place), "ok"
            missed = not_held(number, "\n".join(place.heard), place.exit_codes())
            expect(not missed, f"docs/faults.md says, and no job of the row did: {missed}; they said: {place.heard}")
    except Skip as why:
        seen, state = f"skipped: {why}", "skipped"
    except Exception as error:  # whatever went wrong, the other rows are still of interest
        seen, state = f"{type(error).__name__}: {str(error)[:1500]}", "failed"
        if not isinstance(error, AssertionError):
            seen += "\n" + traceback.format_exc()[-800:]
    return {"row": number, "injected": injected, "expected": expected, "seen": seen, "state": state,
            "seconds": round(time.monotonic() - start, 1)}


def show(results):
    widths = [max(len(r["injected"]) for r in results), max(len(r["expected"]) for r in results)]
    print(f"row  {'injected':{widths[0]}}  {'expected':{widths[1]}}  seen")
    for r in results:
        mark = {"ok": " ", "skipped": "-", "failed": "!"}[r["state"]]
        print(f"{r['row']:3}{mark} {r['injected']:{widths[0]}}  {r['expected']:{widths[1]}}  {r['seen']}")


def show_json(results):
    print(json.dumps({"schema": "muster.faults/1", "rows": results}, indent=1))
