#!/usr/bin/env python3
"""comments.py HEADER: the header with its comments as Doxygen reads them (`///`), their text taken as it is."""
import pathlib
import re
import sys

CLASS = re.compile(r"^(?:class|struct) (\w+)(?: final)?(?: : .*)? \{")
COMMENT = re.compile(r'^((?:[^"/]|"(?:[^"\\]|\\.)*"|/(?!/))*)//(?!/) ?(.*)$')

# A class template for the types that it refuses: Doxygen 1.9.4 takes the members of the true one for its.
REFUSAL = re.compile(r"^(?://.*\n)*template <.*>\n  requires\(!.*\)\nclass \w+<.*> \{\n(?:.*\n)*?\};\n", re.MULTILINE)


def without_refusals(text):
    return REFUSAL.sub(lambda refusal: "\n" * refusal[0].count("\n"), text)


def plain(text):
    """Signs that are commands, tags or links to Doxygen, as signs; code in back quotes stays."""
    pieces = re.split(r"(`[^`]*`)", text)
    for i in range(0, len(pieces), 2):
        pieces[i] = re.sub(r"[\\@<>&#%\"$]", lambda sign: "\\" + sign.group(), pieces[i])
    return "".join(pieces)


def title(stem):
    """The class that a header is named after: process_group is ProcessGroup."""
    return stem.replace("_", "").lower()


def converted(lines, stem):
    """The comment at a header's top is the file's, and that of the class which the header is named after, where that has none."""
    head, at_top, commented = [], True, False
    for line in lines:
        found = COMMENT.match(line)
        code, text = found.groups() if found else (line, "")
        if found and not code.strip():
            if at_top and not head:
                yield "/// \\file"
            if at_top:
                head.append(f"/// {plain(text)}")
            yield f"{code}/// {plain(text)}"
            commented = True
            continue
        at_top = at_top and not line.strip() and not head
        named = CLASS.match(code)
        if named and not commented and title(named[1]).endswith(title(stem)):  # step.h has TrainStep
            yield from head
        if not found or code.strip().startswith(("}", "#")):
            yield line  # the end of a namespace, the reason of an include
        else:
            yield f"{code}///< {plain(text)}"
        commented = code.startswith("template")


if __name__ == "__main__":
    with open(sys.argv[1], encoding="utf-8") as file:
        text = file.read()
    print(text if sys.argv[1].endswith(".md") else "\n".join(converted(without_refusals(text).splitlines(), pathlib.Path(sys.argv[1]).stem)))
