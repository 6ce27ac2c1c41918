#!/usr/bin/env python3
"""own_includes.py: each source of muster/ includes, directly or through others, a header that declares what it uses of muster's.

The unity build hides what is missing: another source of the folder has it. Of types, aliases, constants and functions that
headers declare outside of classes; what some class has as a member, too, is left out, so that nothing is told wrongly.
Returns 1 when something is missing.
"""

import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]

NOT_CODE = re.compile(r'//[^\n]*|/\*.*?\*/|R"(\w*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])+\'|^#[^\n]*',
                      re.DOTALL | re.MULTILINE)
INCLUDE = re.compile(r'^#include "(muster/[^"]+)"', re.MULTILINE)
# What a header declares at the beginning of a line.
DECLARED = [
    re.compile(r"^(?:template <.*>\n?)?(?:class|struct|enum class) (?:\[\[\w+\]\] )?(?:alignas\(\d+\) )?(?!alignas)(\w+)",
               re.MULTILINE),
    re.compile(r"^(?:template <.*>\n?)?using (\w+) =", re.MULTILINE),
    re.compile(r"^using [\w:]+::(\w+);", re.MULTILINE),
    re.compile(r"^(?:inline )?const(?:expr)?\b[^\n(=]*?\b(k[A-Z]\w*)\b", re.MULTILINE),
    re.compile(r"^(?!(?:using|typedef|return|class|struct|enum|namespace|extern|template|static_assert)\b|[#}])"
               r"[\w:\[\]][^\n(=;]*?[ &*](\w+)\(", re.MULTILINE),
]
IS_CONSTANT = re.compile(r"k[A-Z]")
NAME = re.compile(r"(?<![.:\w])(?<!->)(?:muster::)?([A-Za-z_]\w*)")
BEFORE = re.compile(r"(\w+|[>&*\]])\s+[&*]*$|([\w>\]])[&*]+ *$|(\(\*)$")
NO_TYPE = {"return", "throw", "else", "case", "new", "co_return", "in", "sizeof", "requires", "and", "or", "not", "do"}
TYPE_KEYS = {"class", "struct", "using", "enum", "typename", "namespace"}
# Names that a source brings in with `using`, captures, binds or lists.
BOUND = re.compile(r"\busing [\w:]+::(\w+);|\[&?(\w+)[,\] ]|[,\[] ?&?(\w+)(?= ?[=,\]])")


def declares(before, name):
    """Whether a name behind this text is declared there, and not used."""
    match = BEFORE.search(before)
    word = next(filter(None, match.groups()), "") if match else ""
    if name[0].isupper():
        return word in TYPE_KEYS or before.endswith("... ")
    return word != "" and word not in NO_TYPE


def reached(file, included):
    seen, todo = set(), [file]
    while todo:
        current = todo.pop()
        if current not in seen:
            seen.add(current)
            todo += included.get(current, [])
    return seen


def missing(texts):
    """File -> the names that it uses and cannot see, each with a header that declares it."""
    code = {file: NOT_CODE.sub('""', text) for file, text in texts.items()}
    included = {file: INCLUDE.findall(text) for file, text in texts.items()}
    headers = {}
    for file in filter(lambda file: file.endswith(".h"), texts):
        for pattern in DECLARED:
            for name in pattern.findall(code[file]):
                headers.setdefault(name, set()).add(file)
    used, members = {}, set()
    for file, text in code.items():
        own = {name for names in BOUND.findall(text) for name in names}
        for match in NAME.finditer(text):
            name, start = match[1], match.start(1)
            if name not in headers:
                continue
            if name[0].isupper() or IS_CONSTANT.match(name) or text[match.end():match.end() + 1] == "(":
                used.setdefault(file, set()).add(name)
            if declares(text[max(0, start - 24):start], name):
                own.add(name)
                if file.endswith(".h") and text[text.rfind("\n", 0, start) + 1] in " t":  # indented, or a template's
                    members.add(name)
        used[file] = used.get(file, set()) - own
    return {file: found for file, names in used.items()
            if (seen := reached(file, included))
            and (found := {name: min(headers[name]) for name in sorted(names - members) if headers[name].isdisjoint(seen)})}


def main():
    paths = sorted(path for path in (ROOT / "muster").rglob("*") if path.suffix in (".h", ".cc"))
    found = missing({path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in paths})
    for file, names in found.items():
        for name, header in names.items():
            print(f"{file}: uses {name} without including {header}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
