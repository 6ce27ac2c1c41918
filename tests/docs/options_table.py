#!/usr/bin/env python3
"""docs/options.md has a row for every flag of `muster run`: with its member of RunOptions and its keyword in Python, or with
the reason why there is none. Run from the root of the sources, with the program's path as the argument."""
import pathlib
import re
import subprocess
import sys
import tempfile

# Members that have no flag: MUSTER_BACKEND, and the ranks' own.
WITHOUT_A_FLAG = {"backend", "nccl", "backtrace"}
# Members that are called otherwise than their flag, and keywords than their member.
OTHER_MEMBERS = {"--nproc-per-node": {"nproc_per_node", "cpu_only", "gpu_only"}, "--map-command": {"choose"}}
OTHER_KEYWORDS = {"nproc_per_node": "n", "cpu_only": "n", "gpu_only": "n", "choose": "map", "dry_run": "muster.plan", "json": "muster.plan"}


def flags_of_help(text):
    """The long names of all flags that --help lists."""
    return set(re.findall(r"^  (?:-\w,)?(--[a-z][a-z-]*)", text, re.M)) - {"--help"}


def members_of_header(text):
    struct = re.search(r"struct RunOptions \{(.*)\n\};", text, re.DOTALL).group(1)
    return re.findall(r"(\w+)(?: =[^;]*|\{[^;]*\})?;", re.sub(r"//.*", "", struct))


def rows_of(text, heading):
    """The cells of each row of the table below that heading, but for its head."""
    section = text[text.index(f"\n## {heading}\n"):].split("\n## ")[1]
    return [row.strip("| ").split(" | ") for row in re.findall(r"^\| .* \|$", section, re.M)][1:]


def wrong_in_table(rows):
    """What is wrong with the rows, and the flags and members that they have."""
    wrong, flags, members = [], set(), []
    for flag_cell, member_cell, keyword_cell in rows:
        flag = re.match(r"`(--[a-z-]+)", flag_cell).group(1)
        member = re.match(r"`(\w+)", member_cell).group(1)
        keyword = re.match(r"`([\w.]+)", keyword_cell).group(1)
        flags.add(flag)
        members.append(member)
        if member not in OTHER_MEMBERS.get(flag, {flag[2:].replace("-", "_")}):
            wrong.append(f"{flag}: the member is called {member}")
        if keyword != OTHER_KEYWORDS.get(member, member):
            wrong.append(f"{flag}: the keyword is called {keyword}")
    return wrong, flags, members


def wrong_keywords(rows):
    """Keywords that the Python package does not take for the row's flag."""
    sys.path.insert(0, "python")
    from muster._run_flags import run_flags
    wrong = []
    for flag_cell, _, keyword_cell in rows:
        keyword = re.match(r"`([^`]*)`", keyword_cell).group(1)
        if "lambda" in keyword or keyword.startswith("muster.plan"):
            continue
        with tempfile.TemporaryDirectory() as folder:
            flags = run_flags(eval(f"dict({keyword})"), folder)  # pylint: disable=eval-used
        told = flag_cell.strip("`").split(" ")
        is_name = flags[0] == told[0] or (flags[0], told[0]) == ("-n", "--nproc-per-node")
        is_value = len(told) == 1 or told[1].isupper() or " ".join(flags[1:]) == told[1]
        if not (is_name and is_value):
            wrong.append(f"{flag_cell}: {keyword} is {' '.join(flags)}")
    return wrong


def main():
    page = pathlib.Path("docs/options.md").read_text(encoding="utf-8")
    rows = rows_of(page, "The options")
    wrong, flags, members = wrong_in_table(rows)
    wrong += wrong_keywords(rows)
    left_out = {flag for cells in rows_of(page, "Flags that are no options") for flag in re.findall(r"`(--[a-z-]+)`", cells[0])}
    there = flags_of_help(subprocess.run([sys.argv[1], "run", "--help"], capture_output=True, text=True, check=True).stdout)
    in_header = members_of_header(pathlib.Path("muster/run/run_options.h").read_text(encoding="utf-8"))
    wrong += [f"{flag}: in both tables" for flag in flags & left_out]
    wrong += [f"{flag}: in no table" for flag in there - flags - left_out]
    wrong += [f"{flag}: muster run has no such flag" for flag in (flags | left_out) - there]
    wrong += [f"RunOptions::{member}: in no row" for member in set(in_header) - set(members) - WITHOUT_A_FLAG]
    wrong += [f"RunOptions::{member}: not in the header" for member in set(members) - set(in_header)]
    wrong += [f"RunOptions::{member}: in several rows" for member in set(members) if members.count(member) > 1]
    if not there or not in_header:
        wrong.append("nothing was found to compare with")
    for line in wrong:
        print(f"docs/options.md: {line}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
