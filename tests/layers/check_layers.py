#!/usr/bin/env python3
"""Reads the #include lines of muster/** and python/** and fails on one that the architecture does not allow.

    check_layers.py [ROOT]      ROOT: the folder that holds muster/ and python/ (default: this repository)

Prints one line for each wrong include and returns 1, or returns 0. The tables below are the rules: a new
folder, library or system header is entered here first. docs/design.md says why.
"""

import pathlib
import re
import sys

# Folder -> the folders it may include directly. What those may include, it may include too.
MAY_USE = {
    "base": [],
    "trace": ["base"],
    "store": ["base"],
    "draw": ["base"],
    "device": ["base"],
    "placement": ["device", "draw"],
    "supervise": ["base"],
    "launch": ["placement", "supervise", "store", "trace"],
    "cluster": ["launch"],
    "tasks": ["launch", "placement", "supervise"],
    "report": ["tasks", "launch", "placement", "trace"],
    "shm": ["base"],
    "comm": ["store", "shm", "trace"],
    "cuda": ["comm"],  # the CUDA and NCCL side of comm, a library of its own
    "ddp": ["comm", "optim"],
    "data": ["base", "trace"],
    "checkpoint files": ["base"],  # muster/checkpoint/files, see PARTS
    "checkpoint": ["comm", "checkpoint files", "optim"],
    "parallel": ["comm", "ddp", "checkpoint", "optim"],
    "checkpoint training": ["checkpoint", "ddp", "data"],  # muster/checkpoint/training, see PARTS
    "optim": ["base"],
    "train": ["ddp", "data", "checkpoint training", "optim"],
    "run": ["comm", "data", "launch", "parallel", "train"],
    "bench": ["run", "ddp"],  # a program of its own
    "python": ["comm"],  # the module's C++ side, in python/torch
    "c_api": ["launch"],  # the control plane behind C functions
    "cli": ["report", "tasks", "cluster", "launch", "checkpoint files"],
}
# Rooms with arrows of their own to other folders: checkpoint/files knows no LibTorch and belongs to muster_control, and
# checkpoint/training knows loaders and hooks, which a checkpoint's tensors do not.
PARTS = {"checkpoint files": "checkpoint/files", "checkpoint training": "checkpoint/training"}
# Rooms: folders inside of a folder, with arrows of their own. Room -> the rooms it may include directly; what those may,
# it may too. "": the folder's own files, but for those that ROOM_FILES gives to a room.
ROOMS = {
    "tasks": {
        "task": [],  # the value that all pass on
        "spec": ["task"],
        "schedule": ["spec"],
        "hosts": ["schedule"],
        "journal": ["task"],
        "slurm": ["hosts"],
        "report": ["hosts"],
        "": ["journal", "slurm", "report"],  # the spine
    },
    "placement": {
        "selection": [],  # which GPUs there are, and which of them are asked for
        "network": [],  # the order of hosts below switches
        "request": ["selection", "network"],  # what is asked, and the plan that answers it
        "policy": ["request"],  # a file a policy
        "picture": ["request"],
        "": ["policy"],  # the planner, and the plan as text
    },
    "parallel": {
        "": [],  # the mesh
        "averaging": [""],
        "tensor": [""],
        "pipeline": ["tensor"],
        "sharded": [""],
    },
    "comm": {
        "options": [],  # what a group is made with
        "compat": [],  # the differences between LibTorch's versions
        "call": ["compat"],  # what every call has: its record, time limit, failure
        "host": ["call"],  # what backends that move plain memory share
        "shm": ["host"],
        "gloo": ["call"],
        "hierarchical": ["shm"],
        "nccl": ["call", "options"],
        "mpi": ["host"],
        "rendezvous": ["host", "options"],
        "": ["gloo", "hierarchical", "nccl", "mpi", "rendezvous"],  # the façade
    },
}
ROOM_FILES = {  # folder -> stem -> room
    "tasks": {"task": "task", "stop_pause": "task"},
    "placement": {"plan": "request", "request": "request", "network_order": "network"},
    "parallel": {},
    "comm": {"init_options": "options", "nccl_options": "options", "torch_compat": "compat"},
}
# The same for a single file that gathers more than its folder may; nothing in muster/ may include it.
FILE_MAY_USE = {
    "muster.h": ["run", "train", "ddp", "data", "checkpoint", "parallel"],  # the one line a user needs
}
# The header of the C interface. It includes nothing of muster. Its folder includes it, and what calls
# it as another language does.
C_HEADER = "c_api.h"
# Files of other top folders that a folder may include.
MAY_ALSO_USE = {
    "bench": ["examples/02_gpt/gpt.h"],  # the model that is timed is the one that users read
    "python": ["python/torch/muster_torch/_activity.h"],  # its own
}
CONTROL_PLANE = ["base", "trace", "store", "shm", "draw", "device", "placement", "supervise", "launch", "cluster", "tasks", "report", "c_api",
                 "cli", "checkpoint files"]

LIBTORCH = re.compile(r"(torch|ATen|c10|c10d|caffe2|gloo)/")
FORMATTING = re.compile(r"(fmt|spdlog)/")  # LibTorch's include path carries another fmt
SPDLOG = re.compile(r"spdlog/")
SPDLOG_USERS = ["base/log.cc"]  # everybody else logs through base/log.h
# LibTorch's types without their namespace. It lies in base because all folders of the data plane use it. A program may have
# types of these names beside its `using namespace muster`.
LIBTORCH_NAMES = "base/torch_names.h"

# <string> and the like have neither a slash nor a dot. Every other angle include that is not here is a library's.
SYSTEM = re.compile(r"(sys|linux|net|netinet|arpa|asm)/|"
                    r"(dirent|dlfcn|elf|errno|fcntl|grp|ifaddrs|limits|netdb|poll|pthread|pwd|sched|semaphore|"
                    r"signal|spawn|stdint|stdio|stdlib|string|syscall|termios|time|unistd)\.h$|[a-z_0-9]+$")

INCLUDE = re.compile(r'^\s*#\s*include\s*(?:<([^>]+)>|"([^"]+)")', re.MULTILINE)
COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)
# Beside muster.h, what programs may include (cmake/public_headers.cmake installs what both reach).
OTHER_PUBLIC_HEADERS = "cmake/other_public_headers.txt"


def reachable(folder, arrows=None):
    """The folder itself and all that it may use, at any depth."""
    arrows = MAY_USE if arrows is None else arrows
    seen, todo = set(), [folder]
    while todo:
        current = todo.pop()
        if current not in seen:
            seen.add(current)
            todo += arrows[current]
    return seen


def part_of(name):
    """The row of MAY_USE that a file below muster/ belongs to: its folder, or the part of it that PARTS has."""
    for part, room in PARTS.items():
        if name.startswith(room + "/"):
            return part
    return name.split("/")[0]


def room_of(name):
    """The room of a file below muster/ in its folder; "" is the folder itself."""
    folder, _, rest = name.partition("/")
    room, slash, _ = rest.partition("/")
    return room if slash else ROOM_FILES[folder].get(pathlib.Path(rest).stem, "")


def public_headers(muster):
    """The headers that a program of a user can reach, relative to muster/. They are installed."""
    others = muster.parent / OTHER_PUBLIC_HEADERS
    named = others.read_text(encoding="utf-8").splitlines() if others.is_file() else []
    todo = ["muster/muster.h", *(name for name in named if name and not name.startswith("#"))]
    found = set()
    while todo:
        name = todo.pop()
        path = muster.parent / name
        if not name.startswith("muster/") or name.removeprefix("muster/") in found or not path.is_file():
            continue
        found.add(name.removeprefix("muster/"))
        todo += [included for _, included, _ in includes(path)]
    return found - {"muster.h"}


def includes(path):
    """(line number, name, whether it was quoted) of each include."""
    text = COMMENT.sub(lambda match: "\n" * match.group().count("\n"), path.read_text(encoding="utf-8"))
    for match in INCLUDE.finditer(text):
        line = text.count("\n", 0, match.start(match.lastindex)) + 1
        yield line, match.group(match.lastindex), match.lastindex == 2


class Checker:
    def __init__(self, root):
        self.muster = pathlib.Path(root) / "muster"
        self.public = public_headers(self.muster)
        self.problems = []

    def run(self):
        for path in sorted(self.muster.rglob("*")):
            if path.suffix in (".h", ".cc"):
                self.check_file(path, path.relative_to(self.muster).as_posix())
        for path in sorted(self.muster.parent.glob("python/**/*.cc")):  # as if it were in muster/python
            self.check_file(path, f"python/{path.name}")
        return self.problems

    def check_file(self, path, name):
        folder = part_of(name) if "/" in name else ""
        if folder not in MAY_USE and name not in FILE_MAY_USE and name != C_HEADER:
            self.problems.append(f"muster/{name}: expected a folder of the table in {pathlib.Path(__file__).name}; "
                                 "enter it there, on its floor")
            return
        if folder in ROOMS and room_of(name) not in ROOMS[folder]:
            self.problems.append(f"muster/{name}: expected a room of the table in {pathlib.Path(__file__).name}; "
                                 "enter it there, on its floor")
            return
        for line, included, quoted in includes(path):
            for problem in self.judge(name, folder, included, quoted):
                self.problems.append(f"muster/{name}:{line}: {included}: {problem}")

    def judge(self, name, folder, included, quoted):
        if included.startswith("muster/"):
            yield from self.judge_own(name, folder, included.removeprefix("muster/"))
        elif quoted and included not in MAY_ALSO_USE.get(folder, []):
            yield 'expected "muster/<folder>/<file>", so that the folder can be seen'
        else:
            yield from self.judge_foreign(name, folder, included)

    def judge_own(self, name, folder, included):
        if included == C_HEADER and folder in ("c_api", "python"):
            return
        if name == C_HEADER:
            yield "the header of the C interface stands alone"
            return
        if included == LIBTORCH_NAMES and folder in CONTROL_PLANE:
            yield "the control plane does not know LibTorch"
        elif included == LIBTORCH_NAMES and name in self.public:
            yield "no short names of LibTorch's types in public headers"
        if included in FILE_MAY_USE or "/" not in included:
            yield "gathers everything for users; include what is needed"
            return
        target = part_of(included)
        roots = [folder] if folder else FILE_MAY_USE[name]
        allowed = set().union(*(reachable(root) for root in roots))
        if target not in allowed:
            yield f"{folder or name} may use only {', '.join(sorted(allowed - {folder})) or 'nothing'}"
        if folder == target and folder in ROOMS:
            yield from self.judge_room(name, folder, included)

    def judge_room(self, name, folder, included):
        room = room_of(name)
        rooms = reachable(room, ROOMS[folder])
        if room_of(included) not in rooms:
            yield f"{folder}/{room} may use only its own rooms {', '.join(sorted(rooms - {room, ''})) or '(none)'}"

    def judge_foreign(self, name, folder, included):
        control = (folder in CONTROL_PLANE and name != LIBTORCH_NAMES) or name == C_HEADER
        if control and LIBTORCH.match(included):
            yield "the control plane does not know LibTorch"
        elif FORMATTING.match(included) and not control:
            yield "the data plane uses muster::cat and base/log.h, never fmt or spdlog"
        elif FORMATTING.match(included) and name.endswith(".h"):
            yield "no fmt or spdlog in headers"
        elif SPDLOG.match(included) and name not in SPDLOG_USERS:
            yield "log through muster/base/log.h"
        elif control and name in self.public and not SYSTEM.match(included):
            yield "no library's header in a public header of the control plane"


def main(arguments):
    root = arguments[0] if arguments else pathlib.Path(__file__).resolve().parents[2]
    if not (pathlib.Path(root) / "muster").is_dir():
        print(f"check_layers: expected a folder that holds muster/, got '{root}'", file=sys.stderr)
        return 2
    problems = Checker(root).run()
    for problem in problems:
        print(problem)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
