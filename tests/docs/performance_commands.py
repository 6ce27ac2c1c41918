#!/usr/bin/env python3
"""docs/performance.md names a command beside each table, and the programs, scripts and flags of its commands exist. Whether a
command prints what the table says is not looked at. Run from the root of the sources."""
import pathlib
import re
import sys

PAGE = pathlib.Path("docs/performance.md")
# What starts a command that is none of benchmarks/.
OTHERS = ("muster bench", "ctest -R", "time ", "cmake ", "ninja ", "make ", "scripts/gpu_kit/", "gpu_probe ")


def benchmarks():
    """The source of each program and script of benchmarks/, by the name that commands have."""
    build = pathlib.Path("benchmarks/CMakeLists.txt").read_text(encoding="utf-8")
    build = build.replace("foreach(program save_bench load_memory_bench)", "add_executable(save_bench)\nadd_executable(load_memory_bench)")
    names = set(re.findall(r"add_executable\((\w+)", build))
    sources = {name: pathlib.Path(f"benchmarks/{name}.cc").read_text(encoding="utf-8") for name in names}
    scripts = pathlib.Path("benchmarks").glob("*.py"), pathlib.Path("benchmarks").glob("*.sh")
    sources.update({path.name: path.read_text(encoding="utf-8") for paths in scripts for path in paths})
    return sources


def flags_of(source):
    return {"--help", *re.findall(r'"(?:-\w,)?(--[a-z][a-z-]*)"', source)}


def parts(text):
    """Of the page: what stands between a heading or a paragraph that begins bold, and the next."""
    return re.split(r"^(?=#|\*\*)", text, flags=re.M)


def commands(part):
    """Code in the text and lines of code, each from one shell separator to the next."""
    code = re.findall(r"`([^`]+)`", part) + re.findall(r"^ {4}(\S.*)$", part, re.M)
    return [piece.strip() for text in code for piece in re.split(r"[;&|]+|\bdo\b", text.replace("\n", " ")) if piece.strip()]


def program_of(command, known):
    """The program or script of benchmarks/ that the command starts, and its flags; those before it are muster's."""
    words = command.split()
    for place, word in enumerate(words):
        if pathlib.Path(word).name in known and not word.endswith(".cc"):
            return pathlib.Path(word).name, words[:place], words[place + 1:]
    return None, words, []


def flags_in(words):
    return {word.split("=")[0] for word in words if word.startswith("--")}


def wrong_in(part, known, of_run, of_bench):
    title, wrong, may_have, loose, is_named = part.strip().split("\n")[0][:60], [], set(), set(), False
    for command in commands(part):
        name, before, after = program_of(command, known)
        if missing := [word for word in before if re.search(r"(^|/)benchmarks/\w|\w_bench$", word) and not word.endswith((".cc", "/"))]:
            wrong.append(f"{title}: {missing[0]} is nothing that benchmarks/ has")
        elif name:
            is_named = True
            may_have |= flags_of(known[name])
            wrong += [f"{title}: {name} has no flag {flag}" for flag in flags_in(after) - flags_of(known[name])]
            wrong += [f"{title}: muster run has no flag {flag}" for flag in flags_in(before) - of_run if "run" in before]
        elif command.startswith(OTHERS):
            is_named = True
            if command.startswith("muster bench"):
                may_have |= of_bench
                wrong += [f"{title}: muster bench has no flag {flag}" for flag in flags_in(before) - of_bench]
        elif command.startswith("--"):
            loose |= flags_in(before)
    wrong += [f"{title}: no program that it names has the flag {flag}" for flag in loose - may_have - of_run]
    if re.search(r"^\|---", part, re.M) and not is_named:
        wrong.append(f"{title}: a table without a command that prints it")
    return wrong


def main():
    known = benchmarks()
    of_run = set(re.findall(r"`(--[a-z-]+)", pathlib.Path("docs/options.md").read_text(encoding="utf-8")))
    of_bench = flags_of(pathlib.Path("muster/bench/main.cc").read_text(encoding="utf-8"))
    text = PAGE.read_text(encoding="utf-8")
    wrong = [line for part in parts(text) for line in wrong_in(part, known, of_run, of_bench)]
    if len(re.findall(r"^\|---", text, re.M)) < 10 or len(known) < 10:
        wrong.append("nothing was found to compare")
    for line in wrong:
        print(f"{PAGE}: {line}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
