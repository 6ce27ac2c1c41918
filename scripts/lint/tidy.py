#!/usr/bin/env python3
"""Runs clang-tidy over the C++ sources of a build, two at a time, and remembers which are clean.

    tidy.py [--quick] BUILD [PREFIX...]     sources whose path in the repository starts with one of these; none: all

--quick leaves out the checks that follow paths through functions, which take longer than all others together, and looks at
several sources of a folder in one go, so that the headers which they share are parsed once.

A source is looked at again only when something changed that it depends on: itself, a header of this repository
that it includes, how it is compiled, .clang-tidy, or clang-tidy. Returns 1 when there is a finding.
"""

import concurrent.futures
import hashlib
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
PRELUDE = ROOT / "scripts/lint/prelude.h"
JOBS = 2
IN_ONE_GO = 8
OWN_CODE = r"/(muster|benchmarks|examples|tests)/.*\.(h|cc)$"
SLOW_CHECKS = "-clang-analyzer-*,-performance-unnecessary-value-param,-bugprone-suspicious-include"
DEAR_INCLUDE = re.compile(r"#include <(CLI|nlohmann|torch|ATen|gtest|gmock)/")  # looked at first, so that none is left over
INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]', re.MULTILINE)


def compile_command(entry):
    """The arguments without g++'s precompiled header, which clang cannot read (the sources do without it)."""
    given = shlex.split(entry["command"])
    kept = []
    for argument in given:
        if argument.endswith("cmake_pch.hxx") and kept[-1:] == ["-include"]:
            kept.pop()
        elif argument != "-Winvalid-pch":
            kept.append(argument)
    return kept


def sources_of(build, prefixes):
    """Path in the repository -> compile command, for each source of the build that is the repository's own."""
    found = {}
    for entry in json.loads((build / "compile_commands.json").read_text(encoding="utf-8")):
        path = pathlib.Path(entry["directory"], entry["file"]).resolve()
        if path.is_relative_to(ROOT) and not path.is_relative_to(build):
            name = path.relative_to(ROOT).as_posix()
            if not prefixes or name.startswith(tuple(prefixes)):
                found.setdefault(name, (entry["directory"], compile_command(entry)))
    return found


def own_files(name):
    """The source and every header of the repository that it includes, at any depth."""
    seen, todo = set(), [ROOT / name]
    while todo:
        path = todo.pop()
        if path in seen or not path.is_file():
            continue
        seen.add(path)
        for included in INCLUDE.findall(path.read_text(encoding="utf-8")):
            todo += [ROOT / included, path.parent / included]
    return sorted(seen)


def in_one_go(sources, folder):
    """The same with sources that include several of a folder each."""
    alike = {}
    for name, (directory, command) in sources.items():
        options = tuple(option for option in command if not option.endswith((".cc", ".o", ".d")))
        # A header that is meant to be included again would not bear it here.
        again = any(path.suffix == ".h" and "#pragma once" not in path.read_text(encoding="utf-8") for path in own_files(name))
        alike.setdefault((name if again else os.path.dirname(name), directory, options), []).append((name, command))
    groups = {}
    for (where, directory, _), members in alike.items():
        for first in range(0, len(members), IN_ONE_GO):
            some = members[first:first + IN_ONE_GO]
            path = folder / f"{where.replace('/', '_')}_{first // IN_ONE_GO}_{len(groups)}.cc"
            text = "".join(f'#include "{ROOT / name}"\n' for name, _ in some)
            if not path.is_file() or path.read_text(encoding="utf-8") != text:
                path.write_text(text, encoding="utf-8")
            command = [os.fspath(path) if option.endswith(".cc") else option for option in some[0][1]]
            groups[os.path.relpath(path, ROOT)] = (directory, command)
    return groups


class Tidy:
    def __init__(self, build, prefixes, quick):
        self.sources = sources_of(build, prefixes)
        self.folder = build / "lint"
        (self.folder / "clean").mkdir(parents=True, exist_ok=True)
        if quick:
            self.sources = in_one_go(self.sources, self.folder)
        (self.folder / "compile_commands.json").write_text(json.dumps(
            [{"directory": directory, "file": os.fspath(ROOT / name), "arguments": command}
             for name, (directory, command) in self.sources.items()]), encoding="utf-8")
        version = subprocess.run(["clang-tidy", "--version"], capture_output=True, check=True).stdout
        self.checks = [f"--checks={SLOW_CHECKS}", f"--header-filter={OWN_CODE}"] if quick else []
        self.settings = version + (ROOT / ".clang-tidy").read_bytes() + PRELUDE.read_bytes() + b"".join(
            part.encode() for part in self.checks)

    def stamp(self, name):
        """The file that is there when this source, as it is now, was found clean."""
        text = hashlib.sha256(self.settings + json.dumps(self.sources[name]).encode())
        for path in own_files(name):
            text.update(os.fspath(path).encode() + b"\0" + path.read_bytes())
        return self.folder / "clean" / text.hexdigest()

    def check(self, name, stamp):
        """Seconds it took, and what was found."""
        start = time.monotonic()
        done = subprocess.run(
            ["clang-tidy", "-p", os.fspath(self.folder), "--quiet", "--extra-arg-before=-include",
             f"--extra-arg-before={PRELUDE}", *self.checks, os.fspath(ROOT / name)],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False)
        if done.returncode == 0:
            stamp.touch()
            return time.monotonic() - start, ""
        return time.monotonic() - start, done.stdout.strip() or done.stderr.strip()

    def run(self):
        stamps = {name: self.stamp(name) for name in self.sources}
        todo = [name for name, stamp in stamps.items() if not stamp.exists()]
        todo.sort(key=lambda name: not DEAR_INCLUDE.search((ROOT / name).read_text(encoding="utf-8")))
        print(f"clang-tidy: {len(todo)} of {len(self.sources)} sources to look at", flush=True)
        findings = 0
        with concurrent.futures.ThreadPoolExecutor(JOBS) as pool:
            jobs = {pool.submit(self.check, name, stamps[name]): name for name in todo}
            for job in concurrent.futures.as_completed(jobs):
                seconds, found = job.result()
                findings += bool(found)
                print(f"{seconds:6.1f} s  {jobs[job]}" + (f"\n{found}" if found else ""), flush=True)
        print(f"clang-tidy: findings in {findings} of {len(self.sources)} sources")
        return 1 if findings else 0


def main(arguments):
    quick = arguments[:1] == ["--quick"]
    if quick:
        arguments = arguments[1:]
    if not arguments or not pathlib.Path(arguments[0], "compile_commands.json").is_file():
        print("tidy.py: expected a build folder with compile_commands.json; run scripts/build.sh first", file=sys.stderr)
        return 2
    return Tidy(pathlib.Path(arguments[0]).resolve(), arguments[1:], quick).run()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
