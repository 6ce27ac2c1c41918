#!/usr/bin/env python3
"""style.py [FILE...]: the style of the pages' prose, by what a program can tell: no sentence of more than 36 words, no
page on the design of more than 150 lines, and what proselint knows (clichés, hedges, doubled meanings). Without files:
README.md, CONTRIBUTING.md and docs/. Prints FILE:LINE: WHAT, and ends with 1 when there is any."""

import json
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
MOST_WORDS = 36
MOST_LINES_OF_DESIGN = 150
# Straight quotes, dots and dates are as code has them.
CHECKS_LEFT_OUT = ("typography.symbols", "typography.diacritical_marks", "dates_times", "typography.exclamation", "misc.but", "lexical_illusions",
                   "consistency.spacing")


def prose(text):
    """The lines of a page with all that is no prose blanked: code, tables, tables of contents, headings, pictures."""
    lines = []
    fence = ""
    for line in text.splitlines():
        stripped = line.strip()
        mark = re.match(r"```+|~~~+", stripped)
        if mark and (not fence or stripped == fence):
            fence = "" if fence else mark.group()
            lines.append("")
        elif fence or line.startswith(("    ", "|", "#", "![", "\t")) or " · " in line:
            lines.append("")
        else:
            line = re.sub(r"`[^`]*`", "CODE", line)
            line = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", line)
            lines.append(line)
    return lines


def sentences(lines):
    """(line number, sentence), each with the line that it begins in. A list's item begins one."""
    text, begun = "", 0
    for number, line in enumerate([*lines, ""], 1):
        item = re.match(r"\s*(?:[-*]|\d+\.)\s+", line)
        if (item or not line.strip()) and text.strip():
            yield begun, text.strip()
            text = ""
        if item:
            line = line[item.end():]
        for piece in re.split(r"(?<=[.!?:;])\s+(?=[\w\"(*])", line.strip()):
            if not text:
                begun = number
            text += " " + piece
            if re.search(r"[.!?:;][)\"*]*$", piece):
                yield begun, text.strip()
                text = ""


def long_sentences(path):
    for number, sentence in sentences(prose(path.read_text(encoding="utf-8"))):
        words = len(re.findall(r"[\w'’-]+", sentence))
        if words > MOST_WORDS:
            yield number, f"a sentence of {words} words, expected at most {MOST_WORDS}: '{sentence[:60]}…'"


def long_design_page(path):
    lines = len(path.read_text(encoding="utf-8").splitlines())
    if "design" in (path.stem, path.parent.name) and lines > MOST_LINES_OF_DESIGN:
        yield lines, f"a page on the design of {lines} lines, expected at most {MOST_LINES_OF_DESIGN}"


def proselint(path):
    with tempfile.NamedTemporaryFile("w", suffix=".md", encoding="utf-8") as plain:
        plain.write("\n".join(prose(path.read_text(encoding="utf-8"))))
        plain.flush()
        done = subprocess.run(["proselint", "check", "--output-format", "json", plain.name], capture_output=True, text=True, check=False)
    for found in json.loads(done.stdout)["result"].values():
        for diagnostic in found.get("diagnostics", []):
            if not diagnostic["check_path"].startswith(CHECKS_LEFT_OUT):
                yield diagnostic["pos"][0], f"{diagnostic['check_path']}: {diagnostic['message']}"


def main(names):
    paths = [pathlib.Path(name) for name in names] or [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(ROOT.glob("docs/**/*.md"))]
    count = 0
    for path in paths:
        for number, what in sorted([*long_sentences(path), *long_design_page(path), *proselint(path)]):
            print(f"{path.relative_to(ROOT) if path.is_relative_to(ROOT) else path}:{number}: {what}")
            count += 1
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
