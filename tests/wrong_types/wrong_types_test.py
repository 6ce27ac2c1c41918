#!/usr/bin/env python3
"""Programs with wrong types (programs.cc): for each the compiler gives the reason, in no more than a screen.

  wrong_types_test.py COMPILE_COMMANDS.json TARGET   compiles as the sources of TARGET are compiled, all in one go
"""

import json
import os
import pathlib
import re
import shlex
import subprocess
import sys
import unittest

PROGRAMS = pathlib.Path(__file__).resolve().parent / "programs.cc"
MOST_LINES = 20
CONTEXT = re.compile(r"In file included from|^\s+from |: In |: At global scope|:\s+(recursively )?required |: required ")
QUOTE = re.compile(r"\s*\d* \| ")


def cases():
    """Of each case its name, its lines in the source, and the reason."""
    lines = PROGRAMS.read_text(encoding="utf-8").splitlines()
    begins = [number for number, line in enumerate(lines, 1) if line.startswith("// CASE ")]
    for begin, end in zip(begins, begins[1:] + [len(lines) + 1]):
        name = re.match(r"void (\w+)\(", lines[begin])[1]
        yield name, range(begin, end), lines[begin - 1].removeprefix("// CASE ")


def messages(output):
    """The lines of each message: those that say where, the error, and its notes."""
    found, is_context = [[]], True
    for line in output.splitlines():
        if is_context and QUOTE.match(line):  # GCC 14 quotes the source of each place
            found[-1].append(line)
            continue
        says_where = bool(CONTEXT.search(line))
        if says_where and not is_context:
            found.append([])
        elif re.search(r": (error|warning): ", line) and not is_context:
            found.append([])
        is_context = says_where
        found[-1].append(line)
    return [message for message in found if message]


def compiler_output(commands, target):
    """Of the programs, compiled as the sources of the target are."""
    entry = next(entry for entry in json.loads(pathlib.Path(commands).read_text(encoding="utf-8"))
                 if f"/{target}.dir/" in entry["command"] and "cmake_pch" not in entry["file"])
    arguments = shlex.split(entry["command"])
    for flag in "-o", "-c":
        at = arguments.index(flag)
        del arguments[at:at + 2]
    arguments = [argument for argument in arguments if argument != "-fdiagnostics-color=always"]
    done = subprocess.run([*arguments, "-fsyntax-only", "-fno-diagnostics-color", PROGRAMS], cwd=entry["directory"],
                          env=os.environ | {"LC_ALL": "C.UTF-8"}, capture_output=True, text=True, check=False)
    return done.returncode, done.stderr


class WrongTypesTest(unittest.TestCase):
    def test_each_wrong_type_is_told_with_its_reason(self):
        code, output = compiler_output(*sys.argv[1:3])
        self.assertNotEqual(code, 0)
        of_case = {name: [] for name, _, _ in cases()}
        owner = None
        for message in messages(output):
            numbers = [int(number) for line in message for number in re.findall(r"programs\.cc:(\d+)", line)]
            owner = next((name for name, lines, _ in cases() for number in numbers if number in lines), owner)
            self.assertIsNotNone(owner, message)
            of_case[owner] += message
        for name, _, reason in cases():
            with self.subTest(name):
                told = of_case[name]
                self.assertTrue(any(": error: " in line for line in told), f"no error:\n{output}")
                self.assertIn(reason, "\n".join(told))
                self.assertLessEqual(len(told), MOST_LINES, "\n".join(told))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
