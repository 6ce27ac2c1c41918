#!/usr/bin/env python3
"""The table "The environment of a rank" in docs/design/rank.md and the one in muster/base/rank_env_table.cc name the same
variables, and the same members of RankEnv. Run from the root of the sources."""
import pathlib
import re
import sys

# Told to nobody as a rank: the page has them among the variables that muster reads, or for tasks.
NOT_IN_THE_PAGES_TABLE = {"MUSTER_SECRET_FILE", "MUSTER_TASK_ORDER", "MUSTER_GPUS", "MUSTER_INVENTORY", "MUSTER_RUNTIME_DIR"}


def of_source(text, policy_header):
    """{variable: member, or None}"""
    policy = re.search(r'kFailurePolicyVariable = "(\w+)"', policy_header).group(1)
    text = text[text.index("kRankVariables[] = {"):]
    text = text[:text.index("\n};")].replace("kFailurePolicyVariable", f'"{policy}"')
    rows = re.findall(r'\{"([A-Z_]+)",\s*(\{\}|[^,}]*&RankEnv::(\w+))', text)
    assert len(rows) == text.count("\n    {"), "a row was not understood"
    return {name: member or None for name, _, member in rows}


def of_page(text):
    """{variable: member, or None} of the table, and the text of the whole section"""
    section = text[text.index("\n## The environment of a rank\n"):]
    section = section[:section.index("\n## ", 1)]
    told = {}
    for row in re.findall(r"^\| ([A-Z].*) \|$", section, re.M):
        cells = row.split(" | ")
        names = re.findall(r"\b[A-Z][A-Z_]{3,}\b", cells[0])
        members = re.findall(r"`(\w+)`", cells[-1].rstrip(" |")) if len(cells) == 3 else []
        if members and len(members) != len(names):
            sys.exit(f"docs/design/rank.md: expected as many members of RankEnv as variables: {row}")
        told.update(zip(names, members or [None] * len(names)))
    return told, section


def main():
    base = pathlib.Path("muster/base")
    source = of_source((base / "rank_env_table.cc").read_text(), (base / "failure_policy.h").read_text())
    page, section = of_page(pathlib.Path("docs/design/rank.md").read_text())
    wrong = [f"{name}: in the page's table only" for name in page if name not in source]
    for name, member in source.items():
        if name in NOT_IN_THE_PAGES_TABLE:
            if not re.search(rf"\b{name}\b", section):
                wrong.append(f"{name}: the section does not name it")
        elif name not in page:
            wrong.append(f"{name}: not in the page's table")
        elif page[name] != member:
            wrong.append(f"{name}: RankEnv::{member} in the source, `{page[name]}` in the page")
    for line in wrong:
        print(f"The environment of a rank: {line}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
