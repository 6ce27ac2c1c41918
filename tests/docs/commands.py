#!/usr/bin/env python3
"""Runs the commands that a page shows, and compares what they print with what the page says.

    commands.py check PAGE...     prints each difference; 1 when there is one
    commands.py update PAGE...    writes what they print, and their pictures, into the page's folder

A page shows them in blocks of ```console: a line "$ command", then its output (standard output, then standard
error). Commands run in the repository's root, through sh; `muster` is the build's (MUSTER_PROGRAM). A picture that a
command draws into docs/pictures/ is compared too.
"""

import difflib
import os
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PICTURES = "docs/pictures/"


def output_of(command, pictures):
    """What the command prints; it draws into the folder `pictures`."""
    with tempfile.TemporaryDirectory() as folder:
        os.symlink(os.environ["MUSTER_PROGRAM"], f"{folder}/muster")
        environment = {"PATH": f"{folder}:{os.environ['PATH']}", "HOME": folder, "LC_ALL": "C.UTF-8"}
        done = subprocess.run(["sh", "-c", command.replace(PICTURES, f"{pictures}/")], cwd=ROOT, env=environment, stdin=subprocess.DEVNULL,
                              capture_output=True, text=True, timeout=60, check=False)
    return done.stdout + done.stderr


def block_as_run(block, pictures):
    """The block with every output as it is now."""
    lines = []
    for line in block.splitlines():
        if line.startswith("$ "):
            lines += [line, *output_of(line[2:], pictures).splitlines()]
    return "".join(f"{line.rstrip()}\n" for line in lines)


def page_as_run(text, pictures):
    return BLOCK.sub(lambda found: f"```console\n{block_as_run(found.group(1), pictures)}```", text)


def differences(page):
    text = page.read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory() as pictures:
        now = page_as_run(text, pictures)
        if not BLOCK.search(text):
            return [f"{page.name}: expected ```console blocks, got none"]
        found = list(difflib.unified_diff(text.splitlines(), now.splitlines(), f"{page.name} says", "muster prints", lineterm=""))
        for name in sorted(set(re.findall(rf"{PICTURES}([\w.-]+)", text))):
            drawn, kept = pathlib.Path(pictures) / name, ROOT / PICTURES / name
            if not drawn.is_file() or not kept.is_file() or kept.read_bytes() != drawn.read_bytes():
                found.append(f"{PICTURES}{name} is not what muster draws")
    return found


def main(arguments):
    if len(arguments) < 2 or arguments[0] not in ("check", "update"):
        print(__doc__, file=sys.stderr)
        return 2
    pages = [ROOT / name for name in arguments[1:]]
    if arguments[0] == "update":
        for page in pages:
            page.write_text(page_as_run(page.read_text(encoding="utf-8"), ROOT / PICTURES), encoding="utf-8")
        return 0
    found = [line for page in pages for line in differences(page)]
    print("\n".join(found) if found else f"{len(pages)} pages are as muster prints")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
