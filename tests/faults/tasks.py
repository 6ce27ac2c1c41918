"""Runs of tasks whose runner dies."""

import os
import signal

from gpus import machine
from hosts import wait_for
from place import at_once, expect
from table import row

SPEC = """
[[task]]
name = "quick-{i}"
argv = ["sh", "-c", "echo x >>quick-{i}"]
each = { i = "1..20" }
needs = { cpus = 1 }
priority = 1

[[task]]
name = "slow"
argv = ["sh", "-c", "echo $MUSTER_ATTEMPT >>slow; [ $MUSTER_ATTEMPT -gt 0 ] && exit; setsid sleep 1000 & sleep 1000"]
needs = { cpus = 1 }

[[task]]
name = "last"
argv = ["sh", "-c", "echo x >>last"]
needs = { cpus = 1 }
after = ["slow"]
"""


@row(53, "the runner of tasks is killed", "no process is left; --resume goes on by the journal")
def runner_killed(place):
    (place.folder / "s.toml").write_text(SPEC)
    run = place.start("tasks", "s.toml", "-q", "--cpus", "2", "--run-dir", "run")
    journal = place.folder / "run" / "journal"
    done = '"how":"done"'
    wait_for(lambda: (place.folder / "slow").exists() and journal.read_text().count(done) == 20, 60)
    os.kill(run.pid, signal.SIGKILL)
    run.wait()
    gone = place.gone_after(10)
    at_once(gone)
    expect(not place.left(), place.left())
    code, _, err = place.run("tasks", "-q", "--resume", "run")
    expect(code == 0, err)
    again = [i for i in range(1, 21) if (place.folder / f"quick-{i}").read_text() != "x\n"]
    expect(not again, f"ran again: {again}")
    expect((place.folder / "slow").read_text().split() == ["0", "1"], "the task that ran was to run again, counted")
    expect((place.folder / "last").read_text() == "x\n", "the last task was to run")
    return f"all gone after {gone * 1000:.0f} ms; 20 done tasks let be, the running one again as attempt 1"


DAEMON = """
import os, time
os.closerange(0, 4096)
open("pid.new", "w").write(str(os.getpid()))
os.rename("pid.new", "pid")
time.sleep(1000)
"""
LEAVER = """
[[task]]
name = "leaver"
argv = ["sh", "-c", "while [ ! -e begun ]; do sleep 0.01; done; env -i setsid python3 daemon.py & while [ ! -e pid ]; do sleep 0.01; done; echo $$ >leaver"]
needs = { gpus = 1 }
priority = 1

[[task]]
name = "beside"
argv = ["sh", "-c", "echo >begun; while [ ! -s leaver ] || [ -d /proc/$(cat leaver) ]; do sleep 0.01; done"]
needs = { gpus = 1 }
priority = 1

[[task]]
name = "next"
argv = ["sh", "-c", "! [ -d /proc/$(cat pid) ]"]
needs = { gpus = 1 }
after = ["leaver"]
"""


@row(71, "a task leaves a daemon that shows nothing of it", "the GPU is kept until it is gone")
def left_on_a_gpu(place):
    _, env = machine(place, "gpus", (0, 0))
    place.environment.pop("CUDA_VISIBLE_DEVICES", None)
    (place.folder / "daemon.py").write_text(DAEMON)
    (place.folder / "s.toml").write_text(LEAVER)
    code, _, err = place.run("tasks", "s.toml", "--run-dir", "run", env=env)
    expect(code == 0, err)
    expect("leaver, or a task that still runs, has left process" in err and "no other task gets what leaver had" in err, err)
    expect(not place.left(), place.left())
    return "it ended with the last task that may have left it, and only then the next got the GPU"


@row(82, "tasks start without descriptors left", "they wait, and all are done")
def no_descriptors(place):
    script = f"ulimit -n 40; exec {place.muster} tasks --cpus 60 --run-dir run --sweep i=1..40 -- sh -c 'echo {{i}}; sleep 0.3'"
    code, _, err = place.run("-c", script, program="/bin/sh")
    expect(code == 0, err)
    expect("Too many open files; raise the limit of descriptors (ulimit -n)), and starts again" in err, err)
    logs = [(place.folder / f"run/logs/i={i}/0.log").read_text() for i in range(1, 41)]
    expect(logs == [f"{i}\n" for i in range(1, 41)], logs)
    return f"{err.count('and starts again')} of 40 tasks had to wait, and all are done"
