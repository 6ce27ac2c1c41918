#!/usr/bin/env python3
"""comments.py HEADER: the header with its comments as Doxygen reads them (`///`), their text taken as it is."""
import re
import sys

COMMENT = re.compile(r'^((?:[^"/]|"(?:[^"\\]|\\.)*"|/(?!/))*)//(?!/) ?(.*)$')


def plain(text):
    """Signs that are commands, tags or links to Doxygen, as signs; code in back quotes stays."""
    pieces = re.split(r"(`[^`]*`)", text)
    for i in range(0, len(pieces), 2):
        pieces[i] = re.sub(r"[\\@<>&#%\"$]", lambda sign: "\\" + sign.group(), pieces[i])
    return "".join(pieces)


def converted(lines):
    first = True  # the comment at a header's top is the file's
    for line in lines:
        found = COMMENT.match(line)
        if not found:
            first = first and not line.strip()
            yield line
            continue
        code, text = found.groups()
        if code.strip().startswith(("}", "#")):
            yield line  # the end of a namespace, the reason of an include
        elif code.strip():
            yield f"{code}///< {plain(text)}"
        elif first:
            yield f"{code}/// \\file"
            yield f"{code}/// {plain(text)}"
            first = False
        else:
            yield f"{code}/// {plain(text)}"


if __name__ == "__main__":
    with open(sys.argv[1], encoding="utf-8") as file:
        text = file.read()
    print(text if sys.argv[1].endswith(".md") else "\n".join(converted(text.splitlines())))
