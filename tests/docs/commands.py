#!/usr/bin/env python3
"""Runs the commands that a page shows, and compares what they print with what the page says.

    commands.py check PAGE...     prints each difference; 1 when there is one
    commands.py update PAGE...    writes what they print, and their pictures, into the page's folder

A page shows them in blocks of ```console: a line "$ command", then its output. In the page's output "…" stands for
any text, alone in a line for any lines; lines that begin with "[1]" come from several ranks, in any order. Commands run
through sh, without a GPU; `muster` is the build's (MUSTER_PROGRAM), `python3` is MUSTER_TEST_PYTHON where that is set. A
page's commands run in one folder, one after the other, beside the repository's folders and the files that the page
shows before them, in blocks as ```python train.py. A picture that a command draws into docs/pictures/ is compared too.
"""

import difflib
import itertools
import os
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"^```(console|\w+ [\w-]+\.[a-z]+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PICTURES = "docs/pictures/"
RANK_LINE = re.compile(r"\[(\d+)\] ")
# It is of the machine and not of the page: the pages show one with two CPUs.
TOO_FEW_CPUS = re.compile(r"\[muster\] warning: --cpus \d+: this machine has \d+ CPUs?, which that many tasks will share")
SECONDS = 180


def rank_of(line):
    found = RANK_LINE.match(line)
    return int(found.group(1)) if found else None


def in_order(lines):
    """Lines of ranks that follow each other, by rank: which came first is chance."""
    return [line for ranks, group in itertools.groupby(lines, lambda line: rank_of(line) is not None)
            for line in (sorted(group, key=rank_of) if ranks else group)]


def fits(shown, printed):
    """Whether a command printed what the page shows."""
    pattern = "".join("(?:.*\n)*?" if line == "…" else ".*".join(map(re.escape, line.split("…"))) + "\n" for line in in_order(shown))
    return re.fullmatch(pattern, "".join(f"{line}\n" for line in in_order(printed))) is not None


class Page:
    """Runs the commands of one page; pictures are drawn into the folder `pictures`."""

    def __init__(self, folder, pictures):
        self.folder, self.pictures = pathlib.Path(folder), pictures
        for place in ("bin", "home", "work"):
            (self.folder / place).mkdir()
        (self.folder / "bin/muster").symlink_to(os.environ["MUSTER_PROGRAM"])
        for place in ("tests", "examples", "data"):
            (self.folder / "work" / place).symlink_to(ROOT / place)
        (self.folder / "work/docs").mkdir()
        python = os.environ.get("MUSTER_TEST_PYTHON")
        path = [f"{self.folder}/bin", *([os.path.dirname(python)] if python else []), os.environ["PATH"]]
        self.environment = {"PATH": ":".join(path), "HOME": f"{self.folder}/home", "LC_ALL": "C.UTF-8", "OMP_NUM_THREADS": "1",
                            "MUSTER_RUNTIME_DIR": f"{self.folder}/home", "CUDA_VISIBLE_DEVICES": ""}

    def output_of(self, command):
        done = subprocess.run(["sh", "-c", command.replace(PICTURES, f"{self.pictures}/")], cwd=self.folder / "work", env=self.environment,
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=SECONDS, check=False)
        return [line.rstrip() for line in done.stdout.splitlines() if not TOO_FEW_CPUS.fullmatch(line)]

    def console_as_run(self, block):
        """The block with every output that does not fit as it is now."""
        lines = []
        for part in re.split(r"^(?=\$ )", block, flags=re.MULTILINE):
            if not part.startswith("$ "):
                continue
            command, *shown = part.splitlines()
            printed = self.output_of(command[2:])
            lines += [command, *(shown if fits(shown, printed) else printed)]
        return "".join(f"{line}\n" for line in lines)

    def block_as_run(self, found):
        what, block = found.groups()
        if what == "console":
            return f"```console\n{self.console_as_run(block)}```"
        (self.folder / "work" / what.split()[1]).write_text(block, encoding="utf-8")
        return found.group(0)


def page_as_run(text, pictures):
    with tempfile.TemporaryDirectory() as folder:
        return BLOCK.sub(Page(folder, pictures).block_as_run, text)


def differences(page):
    text = page.read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory() as pictures:
        now = page_as_run(text, pictures)
        if "```console\n" not in text:
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
