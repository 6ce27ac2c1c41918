"""Messages of the program and the library, which name flags, as messages of Python's functions, which have keywords."""
from __future__ import annotations

import re
from typing import Match

_FLAG = r"--([a-z][a-z0-9]*(?:-[a-z0-9]+)*)"
# Words that are values of a flag in a message. Others after a flag are words of the message.
_VALUES = ("sequential", "list", "fastest", "memory", "topology", "spread", "pack", "numa", "mesh", "error", "cpu", "gpu", "drop", "share", "job", "own",
           "own-first", "all", "none", "node", "socket", "exclusive", "core-complex", "auto")
# Keywords whose flags have no value.
SWITCHES = {"virtual_local_rank", "no_lease", "no_gpu_check", "quiet", "no_collapse", "no_auth", "standalone"}
_ENDS = r"(?![\w-]|[,.:]\w)"
_VALUE = rf"(?P<word>(?:{'|'.join(sorted(_VALUES, key=len, reverse=True))}|\d+[KMGT]iB)(?::[A-Z]\b)?){_ENDS}|(?P<number>\d+){_ENDS}|[A-Z]{{2,}}{_ENDS}"
_SCORES = re.compile(r"measure them with `muster bench device`, or give `muster run` --scores FILE with all of them")


def keyword_of(flag: str) -> str:
    """As Python's functions call it.

    >>> keyword_of("--nproc-per-node"), keyword_of("--max-restarts")
    ('n', 'max_restarts')
    """
    name = flag.lstrip("-").replace("-", "_")
    return "n" if name == "nproc_per_node" else name


def by_keywords(message: str) -> str:
    """The message with keywords for flags.

    >>> by_keywords("--nproc-per-node: expected at most 8 ranks, got 9; give --nproc-per-node 8 or less, or --surplus share")
    'n: expected at most 8 ranks, got 9; give n=8 or less, or surplus="share"'
    >>> by_keywords("plan: expected a number from 1 at request.n, got 0")
    'n: expected a number from 1, got 0'
    >>> by_keywords("lease: expected free GPUs; wait for them with --wait, or give others with --gpus")
    'lease: expected free GPUs; wait for them with wait=True, or give others with gpus'
    >>> by_keywords("--policy memory: expected how much free memory a rank needs, got nothing; give --rank-memory 20GiB")
    'policy="memory": expected how much free memory a rank needs, got nothing; give rank_memory="20GiB"'
    """
    message = re.sub(r"^plan: (expected .*?) at request\.(\w+(?:\[\d+\])?)", r"\2: \1", message)
    message = _SCORES.sub("give scores= with all of them, or select those that have one by gpus=", message)
    message = message.replace("see muster run --help", "see help(muster.spawn)")
    message = message.replace("--surplus cpu, drop or share", 'surplus="cpu", "drop" or "share"')
    message = re.sub(rf"^{_FLAG} (?!{_VALUE})(\S[^\n]*?): expected", lambda told: f"{keyword_of(told[1])}={told[4]!r}: expected", message)
    message = re.sub(rf"'{_FLAG}'", lambda told: f"'{keyword_of(told[1])}'", message)
    message = re.sub(rf"(?m)^  {_FLAG} (.*)$", _shown, message)
    return re.sub(rf"{_FLAG}(?: (?:{_VALUE}))?", _named, message)


def _shown(told: Match[str]) -> str:
    """A line with a mark below it keeps its places."""
    return f"  {keyword_of(told[1]) + ':':<{len(told[1]) + 2}} {told[2]}"


def _named(told: Match[str]) -> str:
    name = keyword_of(told[1])
    if told["word"]:
        return f'{name}="{told["word"]}"'
    if told["number"]:
        return f"{name}={told['number']}"
    return f"{name}=True" if name in SWITCHES or name == "wait" else name
