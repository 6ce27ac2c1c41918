#!/usr/bin/env python3
"""All-reduce of floats between ranks of this host: muster's shared memory beside Gloo, Open MPI and MPICH.

    all_reduce_bench.py MUSTER [--ranks 2] [--sizes 4,1K,16K,1M,25M,100M] [--rounds 3] [--seconds 0.3] [--json]

Peers and muster take turns, round by round; the least of a size's medians counts. Ratios come last. An MPI that has no
compiler wrapper here (packages libopenmpi-dev, libmpich-dev) is left out, and said so.
"""

import argparse
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
SOURCE = pathlib.Path(__file__).with_name("mpi_all_reduce.c")
MPIS = {"Open MPI": ("mpicc.openmpi", ["mpirun.openmpi", "--allow-run-as-root", "--oversubscribe"]),
        "MPICH": ("mpicc.mpich", ["mpirun.mpich"])}


def bytes_of(text):
    return int(text[:-1]) * UNITS[text[-1]] if text[-1] in UNITS else int(text)


def output_of(command, **more):
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, **more)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))} ended with {done.returncode}: {done.stderr[-2000:]}")
    return done.stdout


def ours(args, size):
    command = [args.muster, "bench", "collectives", "-n", str(args.ranks), "--min", str(size), "--max", str(size),
               "--seconds", str(args.seconds), "--json"]
    rows = json.loads(output_of(command, env=dict(os.environ, OMP_NUM_THREADS="1")))["rows"]
    return {row["backend"]: (row["us"], row["wrong"]) for row in rows}


def theirs(args, program, launcher, size, copied):
    line = output_of([*launcher, "-n", str(args.ranks), program, "1" if copied else "0", str(size), str(size), "2",
                      str(args.seconds)], env=dict(os.environ, OMPI_MCA_rmaps_base_oversubscribe="1"))
    _, us, wrong = line.split()
    return float(us), int(wrong)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("muster")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--sizes", default="4,1K,16K,1M,25M,100M")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=0.3)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="muster-bench-") as folder:
        programs = {}
        for name, (compiler, launcher) in MPIS.items():
            if not shutil.which(compiler) or not shutil.which(launcher[0]):
                print(f"left out: {name} ({compiler} or {launcher[0]} is not there)", file=sys.stderr)
                continue
            program = f"{folder}/{compiler}"
            if subprocess.run([compiler, "-O3", str(SOURCE), "-o", program], capture_output=True).returncode != 0:
                print(f"left out: {name} ({compiler} does not find mpi.h)", file=sys.stderr)
                continue
            programs[name] = (program, launcher)
        table = [measure(args, programs, bytes_of(size)) for size in args.sizes.split(",")]
    if args.json:
        print(json.dumps({"ranks": args.ranks, "rows": table}, indent=1))
    else:
        show(args, programs, table)


def measure(args, programs, size):
    best, wrong = {}, 0
    for _ in range(args.rounds):
        seen = ours(args, size)
        for name, (program, launcher) in programs.items():
            seen[name] = theirs(args, program, launcher, size, copied=False)
            seen[name + ", copied"] = theirs(args, program, launcher, size, copied=True)
        for name, (us, bad) in seen.items():
            best[name] = min(best.get(name, us), us)
            wrong += bad
    if wrong:
        sys.exit(f"{wrong} wrong elements at {size} bytes")
    return {"bytes": size, "us": best}


def show(args, programs, table):
    names = list(table[0]["us"])
    print(f"all-reduce, float32, {args.ranks} ranks; microseconds, least of {args.rounds} medians")
    print(f"{'bytes':>10}" + "".join(f"{name:>18}" for name in names))
    for row in table:
        print(f"{row['bytes']:>10}" + "".join(f"{row['us'][name]:>18.1f}" for name in names))
    print("\nratios" + " " * 4 + "".join(f"{text:>26}" for text in (
        "Gloo / shm in place", "Gloo / shm", "best MPI / shm in place", "best MPI / shm")))
    for row in table:
        us = row["us"]
        mpi = min((us[name + kind] for name in programs for kind in ("", ", copied")), default=float("nan"))
        print(f"{row['bytes']:>10}" + "".join(f"{ratio:>26.2f}" for ratio in (
            us["gloo"] / us["shm-in-place"], us["gloo"] / us["shm"], mpi / us["shm-in-place"], mpi / us["shm"])))


if __name__ == "__main__":
    main()
