#!/usr/bin/env python3
"""How many lines the programs of docs/programs take here, with Accelerate and with Fabric. A markdown table.

    benchmarks/program_lines.py

The programs are in examples/programs and in benchmarks/peers/programs. A line counts if it is neither empty nor a comment (a
docstring is one) nor a rest of one. The network that several programs share counts in each of them. No line may be longer than
100 columns; the C++ is as clang-format leaves it, the Python as black does. Ends with 1 if a program is longer here than there.
"""
import ast
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
OURS = ROOT / "examples" / "programs"
THEIRS = ROOT / "benchmarks" / "peers" / "programs"
PEERS = ("accelerate", "fabric")
COLUMNS = 100
PROGRAMS = {
    "classifier": "pictures from a folder",
    "language_model": "a language model",
    "table": "a table, standardised",
    "shards": "shards",
    "reinforcement": "reinforcement learning",
    "gan": "a GAN with two loaders",
    "fine_tune": "fine-tuning",
    "k_folds": "k folds",
    "evaluate": "evaluation with several metrics",
    "predict": "predictions in order",
}


def docstring_lines(text):
    """The numbers of the lines of docstrings."""
    found = set()
    for node in ast.walk(ast.parse(text)):
        body = getattr(node, "body", None)
        first = body[0] if isinstance(body, list) and body else None
        if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str):
            found.update(range(first.lineno, first.end_lineno + 1))
    return found


def lines_of_python(text):
    left_out = docstring_lines(text)
    return sum(1 for number, line in enumerate(text.splitlines(), 1)
               if line.strip() and not line.strip().startswith("#") and number not in left_out)


def lines_of_cpp(text):
    return sum(1 for line in text.splitlines() if line.strip() and not line.strip().startswith("//"))


def shared_file(path, text):
    """The file that the program shares with others; None if there is none."""
    pattern = r'^#include "(\w+\.h)"' if path.suffix == ".cc" else r"^from (network) import"
    found = re.search(pattern, text, re.MULTILINE)
    if not found:
        return None
    return path.parent / (found[1] if path.suffix == ".cc" else f"{found[1]}.py")


def lines_of(path):
    """Throws: SystemExit naming a line that is too long."""
    text = path.read_text(encoding="utf-8")
    for number, line in enumerate(text.splitlines(), 1):
        if len(line) > COLUMNS:
            sys.exit(f"{path}:{number}: expected at most {COLUMNS} columns, got {len(line)}")
    count = lines_of_python if path.suffix == ".py" else lines_of_cpp
    shared = shared_file(path, text)
    return count(text) + (lines_of(shared) if shared else 0)


def counts_of(program):
    """Here, and with each peer."""
    return [lines_of(OURS / f"{program}.cc"), *(lines_of(THEIRS / f"{peer}_{program}.py") for peer in PEERS)]


def table():
    rows = ["| | muster | Accelerate | Fabric |", "|---|---|---|---|"]
    rows += [f"| {what} | {' | '.join(map(str, counts_of(program)))} |" for program, what in PROGRAMS.items()]
    return rows


def sentence(program):
    """What the program's page says of it."""
    here, accelerate, fabric = counts_of(program)
    return f"**Lines:** {here} here, {accelerate} with Accelerate, {fabric} with Fabric."


def longer_ones():
    return [program for program in PROGRAMS if counts_of(program)[0] > min(counts_of(program)[1:])]


if __name__ == "__main__":
    print("\n".join(table()))
    if longer_ones():
        sys.exit(f"longer here than there: {', '.join(longer_ones())}")
