"""Runs the kit's parts one after the other, and writes what came of each as it goes: OUT/log and OUT/results.json.

    ./run [MINUTES] [--only TEXT] [--list]     OUT: where results go (default: the kit's folder out)
"""
import argparse
import contextlib
import datetime
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import time

from parts import PARTS

KIT = pathlib.Path(__file__).resolve().parents[3]
MIN_SECONDS = 15  # that a part is still begun with


def torch_folder(python):
    code = "import importlib.util as u; print(u.find_spec('torch').submodule_search_locations[0])"
    done = subprocess.run([python, "-c", code], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"kit: expected a Python with torch, got '{python}' ({done.stderr.strip().splitlines()[-1]}); set PYTHON")
    return pathlib.Path(done.stdout.strip())


def brought_libraries(out):
    """A folder of those of the kit's libraries that this system does not have."""
    ldconfig = shutil.which("ldconfig", path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")
    here = subprocess.run([ldconfig, "-p"], capture_output=True, text=True).stdout
    folder = out / "lib"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for library in (KIT / "lib").iterdir():
        if f"{library.name} " not in here:
            (folder / library.name).symlink_to(library)
    return folder


def environment(out):
    python = os.path.abspath(os.environ.get("PYTHON") or shutil.which("python3"))
    torch = torch_folder(python)
    libraries = [KIT / "build/lib", brought_libraries(out), torch / "lib", os.environ.get("LD_LIBRARY_PATH", "")]
    return {**os.environ, "BUILD": f"{KIT}/build", "SOURCE": f"{KIT}/source", "PYTHON": python, "OUT": str(out),
            "MUSTER_BUILD": f"{KIT}/build", "MUSTER_SOURCE": f"{KIT}/source", "MUSTER_TEST_PYTHON": python, "PYTHON_MODULE": f"{KIT}/python",
            "PYTHONPATH": os.pathsep.join(filter(None, [f"{KIT}/python", os.environ.get("PYTHONPATH", "")])),
            "LD_LIBRARY_PATH": os.pathsep.join(filter(None, map(str, libraries)))}


def end(shell):
    """First politely; then nothing of it is left on the GPU, where the next part measures. What it said."""
    said = b""
    for sign in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(shell.pid, sign)  # a launcher's ranks end with it
            said, _ = shell.communicate(timeout=15)
            break
        except subprocess.TimeoutExpired as late:
            said = late.output or said
        except ProcessLookupError:
            break
    with contextlib.suppress(ProcessLookupError):
        os.killpg(shell.pid, signal.SIGKILL)
    return said


def run_part(part, env, limit, log):
    """What came of it, and the output."""
    shell = subprocess.Popen(["bash", "-c", "set -euo pipefail; " + part.command], cwd=KIT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                             stdin=subprocess.DEVNULL, env={**env, "PART": re.sub("[^a-zA-Z0-9]+", "_", part.name)}, start_new_session=True)
    try:
        said, _ = shell.communicate(timeout=limit)
        late = False
    except subprocess.TimeoutExpired:
        said, late = end(shell), True
    text = said.decode(errors="replace")
    log.write(text)
    if late:
        return "timed out", text
    if shell.returncode == 77:
        return "skipped", text
    if shell.returncode != 0:
        return f"failed ({shell.returncode})", text
    return ("passed" if re.search(part.expect, text) else f"failed (no '{part.expect}')"), text


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("minutes", nargs="?", type=float, default=60, help="in all [60]")
    parser.add_argument("--only", metavar="TEXT", default="", help="parts whose names have this")
    parser.add_argument("--list", action="store_true", help="name the parts and end")
    args = parser.parse_args()
    if args.list:
        print("\n".join(f"{part.limit:4} s  {'GPU' if part.gpu else 'CPU'}  {part.name}" for part in PARTS))
        return 0
    parts = [part for part in PARTS if args.only in part.name]
    if not parts:
        sys.exit(f"kit: expected parts whose names have '{args.only}', got none; --list names them")
    out = pathlib.Path(os.path.abspath(os.environ.get("OUT") or KIT / "out"))
    out.mkdir(parents=True, exist_ok=True)
    env = environment(out)
    has_gpu = subprocess.run("nvidia-smi -L", shell=True, capture_output=True).returncode == 0
    end = time.monotonic() + args.minutes * 60
    results = []
    with open(out / "log", "w", encoding="utf-8") as log:
        for part in parts:
            begin, left = time.monotonic(), end - time.monotonic()
            log.write(f"\n===== {part.name}: {part.command}\n")
            log.flush()
            if part.gpu and not has_gpu:
                state, text = "skipped (no GPU)", ""
            elif left < MIN_SECONDS:
                state, text = "not reached", ""
            else:
                state, text = run_part(part, env, min(part.limit, left), log)
            seconds = time.monotonic() - begin
            log.flush()
            shown = text.rstrip().splitlines()[-part.shows:] if part.shows else []
            if state.startswith(("failed", "timed")):
                shown = text.rstrip().splitlines()[-25:]
            results.append({"part": part.name, "state": state, "seconds": round(seconds, 1), "at": datetime.datetime.now().isoformat(), "output": shown})
            (out / "results.json").write_text(json.dumps(results, indent=1, ensure_ascii=False))
            print(f"{state:24} {seconds:6.1f} s  {part.name}", *(f"    {line}" for line in shown), sep="\n", flush=True)
    print("\n" + "-" * 72)
    for result in results:
        print(f"{result['state']:24} {result['seconds']:6.1f} s  {result['part']}")
    failed = sum(result["state"].startswith(("failed", "timed")) for result in results)
    count = {state: sum(result["state"].startswith(state) for result in results) for state in ("passed", "skipped", "not reached")}
    print(f"{count['passed']} passed, {failed} failed, {count['skipped']} skipped, {count['not reached']} not reached; {out}/results.json, {out}/log")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
