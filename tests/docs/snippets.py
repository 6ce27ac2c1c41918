#!/usr/bin/env python3
"""Compiles and runs the code blocks of the documentation.

  snippets.py generate OUT.cc PAGE.md...   one C++ source from all C++ blocks; Python blocks are parsed
  snippets.py run PROGRAM PAGE.md...       runs what was compiled from OUT.cc, on CPU ranks
  snippets.py check-files                  every file and heading that a page of this repository names exists, what it
                                           starts by its path can be run, and its C++ says that it is C++
  snippets.py update PAGE.md...            writes the C++ files that blocks show into them

A C++ block says in its first line what it is:

  ```cpp                        statements; they become `void body_N(muster::Context& ctx) { ... }`
  ```cpp 8 ranks                the same, run on that many ranks instead of two
  ```cpp compile-only           the same, only compiled (it needs files or GPUs)
  ```cpp file                   declarations that the blocks after it use
  ```cpp program                a program with its own main
  ```cpp program by-hand        the same, started once a rank with the arguments METHOD RANK WORLD_SIZE
  ```cpp program compile-only   the same, only compiled (it needs GPUs)

  ```cpp examples/x/main.cc     the whole of that file, which is compiled as the build says

A Python block may name a file in a folder, as in ```python examples/python/ddp.py: then it shows lines of that file in their
order, with `...` alone on a line for those that are left out. (What commands.py writes for a page's commands has no folder.)
"""

import ast
import glob
import os
import re
import socket
import subprocess
import sys
import tempfile
from typing import NamedTuple

KINDS = {"": "body", "compile-only": "unused body", "file": "file", "program": "program", "program by-hand": "by-hand",
         "program compile-only": "compile-only"}
RANKS_OF_BODY = re.compile(r"(\d+) ranks")
RUN_SECONDS = 120
STATEMENT = re.compile(r"^.*\bmuster::.*;.*$", re.MULTILINE)
STARTED = re.compile(r"(?:^ {4}|^\$ |`)((?:benchmarks|scripts)/[\w/]+\.(?:py|sh)) [^\s`]", re.MULTILINE)


class Block(NamedTuple):
    page: str
    line: int  # of the first line of code
    kind: str  # a value of KINDS, or "python"
    code: str
    ranks: int = 2
    shows: str = ""  # the file that a Python block shows lines of, or a C++ block shows whole


def fail(page, line, what):
    raise SystemExit(f"{page}:{line}: {what}")


def blocks_of(page, text):
    """The C++ and Python blocks of one page, in order."""
    return [block for start, info, code in fenced(page, text) for block in block_of(page, start, info, code)]


def unnamed_statement(page, text):
    """A statement of a block that does not say that it is C++, so that nothing would compile it; or None."""
    codes = [code for _, info, code in fenced(page, text) if not info]
    return next((found.group().strip() for found in map(STATEMENT.search, codes) if found), None)


def fenced(page, text):
    """The line, the info and the text of each fenced block of one page, in order."""
    blocks, info, start, code = [], None, 0, []
    for number, line in enumerate(text.splitlines(), 1):
        fence = re.match(r"```(.*)$", line)
        if not fence:
            code.append(line)
        elif info is None:
            info, start, code = fence.group(1).strip(), number + 1, []
        elif fence.group(1).strip():
            fail(page, number, f"expected the end of the block that begins before line {start}, got '{line}'")
        else:
            blocks.append((start, info, "\n".join(code) + "\n"))
            info = None
    if info is not None:
        fail(page, start - 1, "expected an end of this block, got none")
    return blocks


def block_of(page, line, info, code):
    language, _, rest = info.partition(" ")
    if language == "python":
        return [Block(page, line, "python", code, shows=rest if "/" in rest else "")]
    if language != "cpp":
        return []
    if "/" in rest:
        return [Block(page, line, "shown", code, shows=rest)]
    on_ranks = RANKS_OF_BODY.fullmatch(rest)
    if on_ranks:
        return [Block(page, line, "body", code, int(on_ranks.group(1)))]
    if rest not in KINDS:
        fail(page, line - 1, f"expected 'N ranks' or one of {sorted(KINDS)} after cpp, got '{rest}'")
    return [Block(page, line, KINDS[rest], code)]


def read_blocks(pages):
    found = []
    for page in pages:
        with open(page, encoding="utf-8") as file:
            found += blocks_of(page, file.read())
    return found


def name_of(block):
    """The page's folder is part of it: several pages are called README.md."""
    folder, page = os.path.split(block.page)
    return os.path.join(os.path.basename(folder), f"{page}:{block.line}")


def bodies_on(ranks):
    return f"bodies on {ranks} ranks"


def numbers_of_ranks(blocks):
    return sorted({block.ranks for block in blocks if block.kind == "body"})


def generate(blocks):
    """One source: the includes of all blocks, then each block under its own line numbers, then a main that runs the
    block named in SNIPPET (bodies_on(N): all bodies for N ranks, one after the other)."""
    includes, out, bodies, programs = ["<iostream>", "<string>", "<muster/muster.h>"], [], {}, []
    for number, block in enumerate(blocks):
        if block.kind == "python":
            try:
                ast.parse(block.code)
            except SyntaxError as error:
                fail(block.page, block.line + (error.lineno or 1) - 1, f"Python: {error.msg}")
            continue
        if block.kind == "shown":
            continue
        # Includes go first; an empty line in their place keeps the line numbers right.
        includes += re.findall(r"^#include (.*)$", block.code, flags=re.M)
        code = re.sub(r"^#include .*$", "", block.code, flags=re.M)
        placed = f'#line {block.line} "{os.path.abspath(block.page)}"\n{code}'
        if block.kind.endswith("body"):
            out.append(f"void body_{number}(muster::Context& ctx) {{\n(void)ctx;\n{placed}}}\n")
            if block.kind == "body":
                bodies.setdefault(block.ranks, []).append(f'  begin(ctx, "{name_of(block)}");\n  body_{number}(ctx);\n')
        elif block.kind == "file":
            out.append(placed)
        else:
            out.append(f"namespace program_{number} {{\n{placed}}}  // namespace\n")
            programs.append(f'  if (name == "{name_of(block)}") return program_{number}::main(argc, argv);\n')
    head = "// Generated from the documentation by tests/docs/snippets.py.\n"
    head += "".join(f"#include {name}\n" for name in dict.fromkeys(includes))
    head += '#pragma GCC diagnostic error "-Wreturn-type"\n\n'
    functions = [f"void on_{ranks}_ranks(muster::Context& ctx) {{\n{''.join(calls)}}}\n" for ranks, calls in sorted(bodies.items())]
    programs += [f'  if (name == "{bodies_on(ranks)}") return muster::run(argc, argv, on_{ranks}_ranks);\n' for ranks in sorted(bodies)]
    return head + "\n".join(out) + MAIN.format(functions="\n".join(functions), programs="".join(programs))


MAIN = """
#line 1 "generated main"
void begin(muster::Context& ctx, const char* name) {{
  if (ctx.is_main()) std::cerr << name << std::endl;
}}

{functions}
int main(int argc, char** argv) {{
  const char* snippet = std::getenv("SNIPPET");
  const std::string name = snippet == nullptr ? "" : snippet;
{programs}  std::cerr << "SNIPPET: no block '" << name << "'\\n";
  return 2;
}}
"""


def rank_free_environment(snippet, ranks=2):
    """An environment in which nobody is a rank, with no GPU to be seen and `ranks` ranks asked for."""
    rank_names = ("RANK", "WORLD_SIZE", "LOCAL_", "GROUP_", "ROLE_", "MASTER_", "TORCHELASTIC_", "MUSTER_", "OMPI_",
                  "PMI_", "PMIX_", "SLURM_", "JOB_COMPLETION")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(rank_names)}
    environment.update(SNIPPET=snippet, MUSTER_NPROC=str(ranks), CUDA_VISIBLE_DEVICES="", OMP_NUM_THREADS="1")
    return environment


def run_all(name, commands, ranks=2):
    """Starts the commands together, in a folder of their own; all must end with 0."""
    print(f"== {name}", flush=True)
    with tempfile.TemporaryDirectory(prefix="muster-docs-") as folder:
        processes = [subprocess.Popen(command, cwd=folder, env=rank_free_environment(name, ranks), stdin=subprocess.DEVNULL)
                     for command in commands]
        try:
            codes = [process.wait(timeout=RUN_SECONDS) for process in processes]
        finally:
            for process in processes:
                process.kill()
    if any(codes):
        raise SystemExit(f"{name}: expected exit code 0, got {codes}")


def run_by_hand(program, name):
    with tempfile.TemporaryDirectory(prefix="muster-docs-") as folder, socket.socket() as held:
        # Bound and never listened on: nobody else gets the port, and rank 0, which sets SO_REUSEADDR too, may listen.
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("", 0))
        for method in (f"file://{folder}/meeting", f"tcp://localhost:{held.getsockname()[1]}"):
            run_all(name, [[program, method, str(rank), "2"] for rank in range(2)])


def run(program, blocks):
    for ranks in numbers_of_ranks(blocks):
        run_all(bodies_on(ranks), [[program]], ranks)
    for block in blocks:
        if block.kind == "program":
            run_all(name_of(block), [[program]])
        elif block.kind == "by-hand":
            run_by_hand(program, name_of(block))


def line_not_in(code, text):
    """The first line of `code` that does not follow in `text`; None when all do. Empty lines do not count."""
    lines = [line for line in text.splitlines() if line.strip()]
    at, gap = 0, True
    for line in filter(str.strip, code.splitlines()):
        if line.strip() == "...":
            gap = True
            continue
        found = lines.index(line, at) if gap and line in lines[at:] else at
        if lines[found:found + 1] != [line]:
            return line.strip()
        at, gap = found + 1, False
    return None


def wrong_excerpts(page, text):
    """What is wrong with the blocks of a page that show lines of a file."""
    for block in blocks_of(page, text):
        if not block.shows:
            continue
        if not os.path.exists(block.shows):
            yield f"{page}:{block.line}: shows '{block.shows}', which is not there"
            continue
        with open(block.shows, encoding="utf-8") as file:
            shown = file.read()
        if block.kind == "shown":
            if block.code != shown:
                yield f"{page}:{block.line}: expected the whole of {block.shows}; write it with tests/docs/snippets.py update {page}"
            continue
        line = line_not_in(block.code, shown)
        if line:
            yield f"{page}:{block.line}: expected the lines of {block.shows}, got '{line}'"


def update(page):
    """Writes the files that C++ blocks of the page show into these blocks."""
    def whole(match):
        with open(match[1], encoding="utf-8") as file:
            return f"```cpp {match[1]}\n{file.read()}```\n"
    with open(page, encoding="utf-8") as file:
        text = file.read()
    with open(page, "w", encoding="utf-8") as file:
        file.write(re.sub(r"^```cpp (\S+/\S+)\n.*?^```\n", whole, text, flags=re.M | re.S))


def named_files(text):
    """What a page names of the repository: files as `muster/…` in back quotes, and the targets of its links."""
    text = re.sub(r"^```.*?^```", "", text, flags=re.M | re.S)
    folders = r"muster|tests|docs|examples|scripts|cmake|benchmarks|data"
    quoted = re.findall(rf"`((?:{folders})/[A-Za-z0-9_./-]+)(?:: ?[a-z_]+\(\))?`", text)
    return quoted, [target for target in re.findall(r"\]\(([^)]+)\)", text) if "://" not in target]


def anchors_of(page):
    """The anchors of a page's headings, as GitHub makes them."""
    with open(page, encoding="utf-8") as file:
        text = re.sub(r"^```.*?^```", "", file.read(), flags=re.M | re.S)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in re.findall(r"^#+ (.*)$", text, re.M)}


def check_files():
    """Throws: SystemExit naming every page and the file or heading that is not there."""
    missing = []
    for page in sorted(glob.glob("*.md") + glob.glob("docs/**/*.md", recursive=True) + glob.glob("examples/*/*.md")):
        with open(page, encoding="utf-8") as file:
            text = file.read()
        quoted, links = named_files(text)
        statement = unnamed_statement(page, text)
        if statement:
            missing.append(f"{page}: a block of C++ does not begin with ```cpp: {statement}")
        missing += wrong_excerpts(page, text)
        missing += [f"{page}: starts '{path}', which cannot be run" for path in STARTED.findall(text) if not os.access(path, os.X_OK)]
        missing += [f"{page}: names '{path}', which is not there" for path in quoted if not os.path.exists(path)]
        for link in links:
            path, _, anchor = link.partition("#")
            target = os.path.normpath(os.path.join(os.path.dirname(page), path)) if path else page
            if not os.path.exists(target) or (anchor and anchor not in anchors_of(target)):
                missing.append(f"{page}: links to '{link}', which is not there")
    if missing:
        raise SystemExit("\n".join(missing))


def main(arguments):
    if len(arguments) >= 3 and arguments[0] == "generate":
        source = generate(read_blocks(arguments[2:]))
        with open(arguments[1], "w", encoding="utf-8") as file:
            file.write(source)
    elif len(arguments) >= 3 and arguments[0] == "run":
        run(os.path.abspath(arguments[1]), read_blocks(arguments[2:]))
    elif arguments == ["check-files"]:
        check_files()
    elif len(arguments) >= 2 and arguments[0] == "update":
        for page in arguments[1:]:
            update(page)
    else:
        raise SystemExit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
