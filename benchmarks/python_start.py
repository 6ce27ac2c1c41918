#!/usr/bin/env python3
"""How long muster.spawn and muster.Executor take for functions that return at once, beside plain processes of Python.

    PYTHONPATH=python MUSTER_PROGRAM=build/release/bin/muster MUSTER_LIBRARY=build/release/lib/libmuster.so.0 \\
        python3 benchmarks/python_start.py [ROUNDS]
"""
import statistics
import subprocess
import sys
import time

import muster

# What a rank of spawn imports before it makes its call.
IMPORTS = "import muster._rank_main"


def nothing():
    return 0


def seconds(call):
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


def plain():
    processes = [subprocess.Popen([sys.executable, "-c", IMPORTS]) for _ in range(2)]
    for process in processes:
        process.wait()


def import_seconds(rounds):
    """What importing the package adds to a start of Python."""
    def start(code):
        return seconds(lambda: subprocess.run([sys.executable, "-c", code], check=True))
    return min(start("import muster") for _ in range(rounds)) - min(start("pass") for _ in range(rounds))


def tasks_per_second(warm, count):
    with muster.Executor(warm=warm) as pool:
        pool.submit(nothing).result()
        begin = time.perf_counter()
        for future in [pool.submit(nothing) for _ in range(count)]:
            future.result()
        return count / (time.perf_counter() - begin)


def main():
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 15
    times = [(seconds(plain), seconds(lambda: muster.spawn(nothing, n=2, quiet=True))) for _ in range(rounds)]
    theirs, ours = (statistics.median(column) for column in zip(*times))
    print(f"import muster:                {1000 * import_seconds(rounds):8.1f} ms")
    print(f"Executor, a process a task:   {tasks_per_second(False, 20):8.1f} tasks/s")
    print(f"Executor, warm:               {tasks_per_second(True, 2000):8.1f} tasks/s")
    print(f"two python -c:                {1000 * theirs:8.1f} ms")
    print(f"muster.spawn of two ranks:    {1000 * ours:8.1f} ms")
    print(f"ratio                         {ours / theirs:8.2f}")


if __name__ == "__main__":
    main()
