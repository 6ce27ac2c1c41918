#!/usr/bin/env python3
"""Runs clang-tidy over the C++ sources of a build, two at a time, and remembers which are clean.

    tidy.py BUILD [PREFIX...]     sources whose path in the repository starts with one of these; none: all

BUILD compiles folder by folder (MUSTER_UNITY), and so clang-tidy looks at a folder at a time: LibTorch's headers, which take
most of the time, are parsed once for all of its sources. A folder is looked at again only when something changed that it
depends on: a source, a header of this repository that it includes, how it is compiled, .clang-tidy, or clang-tidy. Returns 1
when there is a finding.
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
JOBS = 2
# Of the product alone: a test or an example is read from top to bottom.
PRODUCT_CHECK = "readability-function-cognitive-complexity"
OWN_CODE = r"/(muster|benchmarks|examples|tests|python)/.*\.(h|cc)$"
INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]', re.MULTILINE)


def compile_command(entry):
    """The arguments without g++'s precompiled header, which clang cannot read (the sources do without it)."""
    kept = []
    for argument in shlex.split(entry["command"]):
        if argument.endswith("cmake_pch.hxx") and kept[-1:] == ["-include"]:
            kept.pop()
        elif argument != "-Winvalid-pch":
            kept.append(argument)
    return kept


def own_files(path):
    """The source and every file of the repository that it includes, at any depth."""
    seen, todo = set(), [path]
    while todo:
        path = todo.pop()
        if path in seen or not path.is_file():
            continue
        seen.add(path)
        for included in INCLUDE.findall(path.read_text(encoding="utf-8")):
            todo += [ROOT / included, path.parent / included]
    return sorted(seen)


def units_of(build, prefixes):
    """Name -> path and compile command, for each translation unit of the build with a source of the repository's own that
    begins with a prefix."""
    found = {}
    for entry in json.loads((build / "compile_commands.json").read_text(encoding="utf-8")):
        path = pathlib.Path(entry["directory"], entry["file"]).resolve()
        if path.name.startswith("cmake_pch"):
            continue
        sources = [file.relative_to(ROOT).as_posix() for file in own_files(path)
                   if file.suffix == ".cc" and file.is_relative_to(ROOT) and not file.is_relative_to(build)]
        if any(source.startswith(tuple(prefixes) or "") for source in sources):
            found.setdefault(path.relative_to(ROOT).as_posix(), (path, entry["directory"], compile_command(entry)))
    return found


class Tidy:
    def __init__(self, build, prefixes):
        self.units = units_of(build, prefixes)
        self.product = [build / "muster", ROOT / "muster"]
        self.folder = build / "lint"
        (self.folder / "clean").mkdir(parents=True, exist_ok=True)
        (self.folder / "compile_commands.json").write_text(json.dumps(
            [{"directory": directory, "file": os.fspath(path), "arguments": command}
             for path, directory, command in self.units.values()]), encoding="utf-8")
        version = subprocess.run(["clang-tidy", "--version"], capture_output=True, check=True).stdout
        self.settings = version + (ROOT / ".clang-tidy").read_bytes() + OWN_CODE.encode() + PRODUCT_CHECK.encode()

    def stamp(self, name):
        """The file that is there when this unit, as it is now, was found clean."""
        path, _, command = self.units[name]
        text = hashlib.sha256(self.settings + json.dumps(command).encode())
        for file in own_files(path):
            text.update(os.fspath(file).encode() + b"\0" + file.read_bytes())
        return self.folder / "clean" / text.hexdigest()

    def check(self, name, stamp):
        """Seconds it took, and what was found."""
        start = time.monotonic()
        path = self.units[name][0]
        checks = [f"--checks={PRODUCT_CHECK}"] if any(path.is_relative_to(folder) for folder in self.product) else []
        done = subprocess.run(["clang-tidy", "-p", os.fspath(self.folder), "--quiet", f"--header-filter={OWN_CODE}", *checks, os.fspath(path)],
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False)
        if done.returncode == 0:
            stamp.touch()
            return time.monotonic() - start, ""
        return time.monotonic() - start, done.stdout.strip() or done.stderr.strip()

    def run(self):
        stamps = {name: self.stamp(name) for name in self.units}
        todo = [name for name, stamp in stamps.items() if not stamp.exists()]
        todo.sort(key=lambda name: -sum(file.stat().st_size for file in own_files(self.units[name][0])))
        print(f"clang-tidy: {len(todo)} of {len(self.units)} units to look at", flush=True)
        findings = 0
        with concurrent.futures.ThreadPoolExecutor(JOBS) as pool:
            jobs = {pool.submit(self.check, name, stamps[name]): name for name in todo}
            for job in concurrent.futures.as_completed(jobs):
                seconds, found = job.result()
                findings += bool(found)
                print(f"{seconds:6.1f} s  {jobs[job]}" + (f"\n{found}" if found else ""), flush=True)
        print(f"clang-tidy: findings in {findings} of {len(self.units)} units")
        return 1 if findings else 0


def main(arguments):
    if not arguments or not pathlib.Path(arguments[0], "compile_commands.json").is_file():
        print("tidy.py: expected a build folder with compile_commands.json; run scripts/lint.sh, which makes one", file=sys.stderr)
        return 2
    return Tidy(pathlib.Path(arguments[0]).resolve(), arguments[1:]).run()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
