#!/usr/bin/env python3
"""density.py [FOLDER...]: how dense the lines of `muster/` (or of these folders) are, against the limits of this house.

Returns 1 where a limit is broken. The counts of tokens, branches and complexity are lizard's, over .h and .cc; casts and
comments are counted in .cc files. With folders, it prints the numbers of each, and every place that breaks a limit.
"""

import dataclasses
import pathlib
import re
import sys

import lizard

ROOT = pathlib.Path(__file__).resolve().parents[2]
MAX_TOKENS_PER_LINE = 8.0
MAX_BRANCHES_PER_100_LINES = 14.0
MAX_COMPLEXITY = 15
MAX_CASTS = 500
MIN_COMMENT_PERCENT = 8.0

CAST = re.compile(r"\b(?:static|reinterpret|const|dynamic)_cast<")
TOKEN = re.compile(
    r"""(?P<skipped>//[^\n]*|/\*.*?\*/|R"(\w*)\(.*?\)\2"|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])+')"""
    r"|(?P<token>::|[!<>=]=|\w+|\S)",
    re.DOTALL,
)


@dataclasses.dataclass
class Counts:
    lines: int = 0
    tokens: int = 0
    branches: int = 0
    source_lines: int = 0
    comment_lines: int = 0
    casts: int = 0
    too_complex: list = dataclasses.field(default_factory=list)
    chained: list = dataclasses.field(default_factory=list)

    @property
    def tokens_per_line(self):
        return self.tokens / max(self.lines, 1)

    @property
    def branches_per_100_lines(self):
        return 100 * self.branches / max(self.lines, 1)

    @property
    def comment_percent(self):
        return 100 * self.comment_lines / max(self.source_lines, 1)


def chained_conditionals(text):
    """Yields the line of each conditional operator that stands within another one, not counting arguments of calls."""
    open_conditionals = [0]  # in each bracket that is open
    is_call = []
    previous = ""
    for match in TOKEN.finditer(text):
        token = match["token"] or "literal"
        if token in "([":
            is_call.append(bool(re.match(r"[\w>\])]", previous)) and previous != "return")
            open_conditionals.append(0 if is_call[-1] else open_conditionals[-1])
        elif token in ")]" and is_call:
            is_call.pop()
            open_conditionals.pop()
        elif token in ";{},=":
            open_conditionals[-1] = 0
        elif token == "?":
            if open_conditionals[-1]:
                yield text.count("\n", 0, match.start()) + 1
            open_conditionals[-1] += 1
        previous = token


def add_source(counts, path):
    text = path.read_text(encoding="utf-8")
    name = path.relative_to(ROOT)
    counts.chained += [f"{name}:{line}" for line in chained_conditionals(text)]
    if path.suffix != ".cc":
        return
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    counts.source_lines += len(lines)
    counts.comment_lines += sum(line.startswith("//") for line in lines)
    counts.casts += len(CAST.findall(text))


def count(folder):
    counts = Counts()
    paths = sorted(path for path in folder.rglob("*") if path.suffix in (".h", ".cc"))
    for source in lizard.analyze_files([str(path) for path in paths], exts=[]):
        counts.lines += source.nloc
        counts.tokens += source.token_count
        for function in source.function_list:
            counts.branches += function.cyclomatic_complexity - 1
            if function.cyclomatic_complexity > MAX_COMPLEXITY:
                place = pathlib.Path(source.filename).relative_to(ROOT)
                counts.too_complex.append(
                    f"{place}:{function.start_line} {function.name}: {function.cyclomatic_complexity}"
                )
    for path in paths:
        add_source(counts, path)
    return counts


def rows(counts):
    """Name, value, limit, and whether it holds."""
    return [
        ("tokens per line", f"{counts.tokens_per_line:.2f}", f"<= {MAX_TOKENS_PER_LINE}",
         counts.tokens_per_line <= MAX_TOKENS_PER_LINE),
        ("branches per 100 lines", f"{counts.branches_per_100_lines:.1f}", f"<= {MAX_BRANCHES_PER_100_LINES}",
         counts.branches_per_100_lines <= MAX_BRANCHES_PER_100_LINES),
        ("chained conditional operators", str(len(counts.chained)), "0", not counts.chained),
        (f"functions of complexity > {MAX_COMPLEXITY}", str(len(counts.too_complex)), "0", not counts.too_complex),
        ("casts in .cc", str(counts.casts), f"<= {MAX_CASTS}", counts.casts <= MAX_CASTS),
        ("comment lines in .cc", f"{counts.comment_percent:.1f} %", f">= {MIN_COMMENT_PERCENT:.0f} %",
         counts.comment_percent >= MIN_COMMENT_PERCENT),
    ]


def show(folder):
    counts = count(folder)
    table = rows(counts)
    print(f"density of {folder.relative_to(ROOT)}: {counts.tokens} tokens in {counts.lines} lines of code")
    for name, value, limit, holds in table:
        print(f"  {name:<34}{value:>8}   {limit:<8}{'' if holds else 'BROKEN'}")
    for place in counts.chained:
        print(f"  {place}: a conditional operator within another; write a function with `if`, or a table")
    for place in counts.too_complex:
        print(f"  {place}: take it apart")
    return all(holds for _, _, _, holds in table)


def main(arguments):
    folders = [ROOT / argument for argument in arguments] or [ROOT / "muster"]
    return 0 if all([show(folder) for folder in folders]) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
