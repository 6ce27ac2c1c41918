#!/usr/bin/env python3
"""Fails when two sources of a folder define functions or constants of one name in anonymous namespaces, or two headers
types.

Also fails for a word that stands for a concept which has another name here (docs/glossary.md).

    check_names.py [ROOT]

A folder's sources are compiled as one (CMake's unity build): there two such functions clash or, with other parameters,
become overloads, and a call may reach the wrong one without an error. Two types of one name and namespace share their
constructors and destructors in the library, without an error too.
"""

import pathlib
import re
import sys

ANONYMOUS = re.compile(r"^namespace \{$(.*?)^\}  // namespace$", re.MULTILINE | re.DOTALL)
FUNCTION = re.compile(r"^(?!using |typedef |return |class |(?:struct|enum) [^(]*\{|TEST|INSTANTIATE|MATCHER|constexpr [^(]*=)"
                      r"(?:\[\[\w+\]\] )?[A-Za-z_][\w:<>,&* \[\]]*?[ &*](\w+)\([^;]*?\)[^;{]*\{", re.MULTILINE)

# Programs of one source each, in a folder of tests that are compiled as one.
PROGRAMS = ("ddp_more.cc", "ddp_table.cc", "hook_table.cc")
CONSTANT = re.compile(r"^(?:inline )?(?:constexpr |const )+[\w:<>,&* ()]+?[ &*](\w+)(?:\[\w*\])* ?(?:=|\{)", re.MULTILINE)

# One word for one concept: what must not come back, where, and the word for it.
WORDS = [
    (re.compile(r"\bWorker(?:Exit|Spec|Starts|Group)\b|\brun_workers\b"), "muster", "rank, and its process"),
    (re.compile(r"\bKind::cuda\b"), "muster", "Kind::gpu: AMD's are meant too"),
    (re.compile(r"\bclass Pool\b"), "muster/tasks", "DevicePool, beside ProcessPool"),
    (re.compile(r"\bbool on_failure\b|\bstring on_failure\b(?!;)"), "muster/launch", "FailurePolicy"),
]

NAMESPACE = re.compile(r"^namespace (?P<opened>[\w:]+) \{$|^\}  // namespace (?P<closed>[\w:]+)$", re.MULTILINE)
TYPE = re.compile(r"^(?:class|struct|enum class) (?:\[\[\w+\]\] )?(?:alignas\(\d+\) )?(\w+)\b(?!::)[^;{(]*\{", re.MULTILINE)


def types_of(path):
    """The types that a header defines, each with its namespace; those of its own functions are indented."""
    text = path.read_text(encoding="utf-8")
    borders = list(NAMESPACE.finditer(text))

    def space_at(place):
        opened = []
        for border in borders:
            if border.start() > place:
                break
            if border["opened"]:
                opened.append(border["opened"])
            elif opened:
                opened.pop()
        return "::".join(opened)

    return {space_at(match.start()) + "::" + match.group(1) for match in TYPE.finditer(text)}


def type_clashes(root):
    seen = {}
    for path in sorted((root / "muster").rglob("*.h")):
        for name in types_of(path):
            seen.setdefault(name, []).append(str(path.relative_to(root)))
    return {name: files for name, files in sorted(seen.items()) if len(files) > 1}


def names_of(path):
    """The functions and constants of its anonymous namespaces; a function ends in ()."""
    parts = ANONYMOUS.findall(path.read_text(encoding="utf-8"))
    functions = {f"{name}()" for part in parts for name in FUNCTION.findall(part)}
    if path.name in PROGRAMS:
        return functions
    return functions | {name for part in parts for name in CONSTANT.findall(part)}


def clashes(folder):
    seen = {}
    for path in sorted(folder.glob("*.cc")):
        for name in names_of(path):
            seen.setdefault(name, []).append(path.name)
    return {name: files for name, files in sorted(seen.items()) if len(files) > 1}


def other_words(root):
    """Places that use another word than the house's."""
    for pattern, folder, word in WORDS:
        for path in sorted((root / folder).rglob("*.*")):
            if path.suffix in (".h", ".cc"):
                for found in pattern.finditer(path.read_text(encoding="utf-8")):
                    yield f"{path.relative_to(root)}: '{found.group()}': the word is {word}"


def main(arguments):
    root = pathlib.Path(arguments[0] if arguments else pathlib.Path(__file__).resolve().parents[2])
    found = 0
    for folder in sorted({path.parent for part in ("muster", "tests") for path in (root / part).rglob("*.cc")}):
        if folder.name in ("bench", "cuda", "fuzz", "docs", "run") and folder.parent.name == "tests":
            continue  # programs of one source each
        for name, files in clashes(folder).items():
            print(f"{folder.relative_to(root)}: {name} in {', '.join(files)}: give it a name of its own")
            found += 1
    for name, files in type_clashes(root).items():
        print(f"{name} in {', '.join(files)}: give it a name of its own")
        found += 1
    for problem in other_words(root):
        print(problem)
        found += 1
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
