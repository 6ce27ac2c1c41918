#!/usr/bin/env python3
"""How long training stands still for an asynchronous save, beside torch.distributed.checkpoint's, in turns; and the peak memory of a
load. The ratios, and the bars that they are to meet, are printed last.

    checkpoint_bench.py BUILD [--python PYTHON] [--mib 256] [--rounds 3]

--mib is the model's size; with Adam's state a checkpoint has three times that.
"""
import argparse
import json
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile


def results(argv, wanted=1):
    """The last lines of JSON that a program prints, without the rank before them."""
    done = subprocess.run([str(word) for word in argv], capture_output=True, text=True, check=False)
    lines = [json.loads(line[line.index("{"):]) for line in done.stdout.splitlines() if line.endswith("}")]
    if done.returncode != 0 or len(lines) < wanted:
        sys.exit(f"checkpoint_bench: {' '.join(map(str, argv))} ended with exit code {done.returncode}:\n{done.stdout}{done.stderr}")
    return lines


def run(options, ranks, folder, program, wanted):
    return results([options.build / "bin/muster", "run", "-q", "-n", ranks, "--cpu-slots", ranks, "--run-dir", folder,
                    options.build / "benchmarks" / program, options.mib], wanted)


def measure_saves(options, folder):
    ours, theirs = [], []
    script = pathlib.Path(__file__).with_name("save_bench.py")
    for turn in range(options.rounds):
        ours += run(options, 1, f"{folder}/save{turn}", "save_bench", wanted=1)
        theirs += results([options.python, script, options.mib])
        for name, each in (("muster", ours[-1]), ("dcp.async_save", theirs[-1])):
            print(f"round {turn + 1}  {name:15} stands still {each['stall_seconds']:.3f} s of {each['written_seconds']:.2f} s", flush=True)
    return ours, theirs


def median_of(results, key):
    return statistics.median(each[key] for each in results)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=lambda text: pathlib.Path(text).resolve())
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--mib", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    programs = (options.build / "bin/muster", options.build / "benchmarks/save_bench", options.build / "benchmarks/load_memory_bench")
    for program in (*programs, options.python):
        if not shutil.which(program):
            parser.error(f"expected the program '{program}', got none that can be run; make bench builds all but Python")
    with tempfile.TemporaryDirectory(prefix="muster-checkpoint-bench-") as folder:
        ours, theirs = measure_saves(options, folder)
        run(options, 2, f"{folder}/load", "load_memory_bench", wanted=0)  # the first saves
        loads = run(options, 2, f"{folder}/load", "load_memory_bench", wanted=2)
    print(f"standing still ÷ the write: muster {median_of(ours, 'stall_ratio'):.3f} (bar 0.05), dcp.async_save {median_of(theirs, 'stall_ratio'):.3f}")
    print(f"standing still, muster ÷ dcp.async_save: {median_of(ours, 'stall_seconds') / median_of(theirs, 'stall_seconds'):.2f}")
    print(f"peak memory of a load ÷ what stays: {max(each['ratio'] for each in loads):.2f} (bar 1.3)")


if __name__ == "__main__":
    main()
