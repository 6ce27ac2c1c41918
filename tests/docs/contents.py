#!/usr/bin/env python3
"""Tables of contents of long pages: every page of more than two screens has one, of its sections.

    contents.py check PAGE...     names each page whose contents are not its sections; 1 when there is one
    contents.py update PAGE...    writes them, after the page's first paragraph
"""
import pathlib
import re
import sys

TWO_SCREENS = 75  # lines
WIDTH = 120
LINK = r"\[[^]\n]+\]\(#[^)\n]+\)"
CONTENTS = re.compile(rf"^{LINK}(?:[ \n]·[ \n]{LINK}|·\n?| ·\n{LINK}| · {LINK})*\n\n", re.MULTILINE)


def anchor(title):
    """As GitHub makes it."""
    text = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", title.lower())
    return re.sub(r"[^\w\- ]", "", text).replace(" ", "-")


def sections(text):
    """Titles of the second level, outside of code; of the third where there is but one of the second, as in a changelog."""
    found, in_code = {"##": [], "###": []}, False
    for line in text.splitlines():
        level, _, title = line.partition(" ")
        if line.startswith("```"):
            in_code = not in_code
        elif level in found and not in_code:
            found[level].append(title.strip())
    return found["##"] if len(found["##"]) != 1 else found["###"]


def contents(text):
    """Links to the sections, in lines of a bounded width."""
    lines = [""]
    for title in sections(text):
        plain = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", title)
        link = f"[{plain}](#{anchor(title)})"
        if lines[-1] and len(lines[-1]) + len(link) > WIDTH:
            lines[-1] += " ·"
            lines.append("")
        lines[-1] += f" · {link}" if lines[-1] else link
    return "\n".join(lines)


def without(text):
    return CONTENTS.sub("", text, count=1)


def with_contents(text):
    """Before the first thing after the page's first paragraph."""
    plain = without(text)
    if len(plain.splitlines()) <= TWO_SCREENS or len(sections(plain)) < 2:
        return plain
    head = re.match(r"# [^\n]*\n\n(?!```)(?:[^\n]+\n)+\n|# [^\n]*\n\n", plain)
    return plain[:head.end()] + contents(plain) + "\n\n" + plain[head.end():]


def main(what, pages):
    wrong = 0
    for page in map(pathlib.Path, pages):
        text = page.read_text(encoding="utf-8")
        if text == with_contents(text):
            continue
        wrong += 1
        if what == "update":
            page.write_text(with_contents(text), encoding="utf-8")
        else:
            print(f"{page}: expected a table of its sections as its contents; run tests/docs/contents.py update {page}")
    return 1 if wrong and what == "check" else 0


if __name__ == "__main__":
    if len(sys.argv) < 3 or sys.argv[1] not in ("check", "update"):
        sys.exit(__doc__)
    sys.exit(main(sys.argv[1], sys.argv[2:]))
