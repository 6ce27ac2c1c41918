"""Ranks of one host that die, stop, or leave something behind, and a launcher that dies."""

import json
import os
import pathlib
import re
import signal
import time

from clock import FakedClock
from page import told
from place import at_once, expect, read_until, sh, state_of
from table import row


@row(1, "SIGKILL a rank in mid all-reduce", "others end, card names it, all start again")
def kill_in_all_reduce(place):
    job = place.start("run", "-q", "-n", "2", "--max-restarts", "1", place.probe(), "reduce")
    pids = dict(re.findall(r"rank (\d) pid (\d+)", read_until(job, "reduces") + read_until(job, "reduces")))
    start = time.monotonic()
    os.kill(int(pids["1"]), signal.SIGKILL)
    again = read_until(job, "reduces")
    took = time.monotonic() - start
    rank0 = int(pids["0"])
    expect(not pathlib.Path(f"/proc/{rank0}").exists(), "the other rank lives on")
    job.terminate()
    err = job.communicate(timeout=60)[1].decode()
    expect("rank 1 failed: killed by SIGKILL" in err, err)
    error = error_of_peer(place)
    expect(error["message"].startswith("peer_failed: all_reduce #"), str(error))
    expect(error["extraInfo"]["muster"]["code"] == "peer_failed" and error["extraInfo"]["muster"]["lost_ranks"] == [1], str(error))
    return f"rank 1 named, {len(re.findall('reduces', again))} rank reduces again after {took:.2f} s"


def error_of_peer(place):
    """What rank 0 writes to its error file when rank 1 is killed, in a job that does not end it meanwhile."""
    job = place.start("run", "-q", "-n", "2", "--run-dir", f"{place.folder}/goes_on", "--on-failure", "continue", place.probe(), "reduce")
    pids = dict(re.findall(r"rank (\d) pid (\d+)", read_until(job, "reduces") + read_until(job, "reduces")))
    os.kill(int(pids["1"]), signal.SIGKILL)
    job.communicate(timeout=60)
    return json.loads((place.folder / "goes_on/logs/0/0.error.json").read_text())["message"]


def in_place(place, *argv, flags=()):
    """A training of which ranks are killed under --on-failure replace: its output, and by rank the processes that called its function."""
    probe = str(pathlib.Path(place.probe()).with_name("elastic_probe"))
    code, out, err = place.run("run", "-q", "-n", "3", "--run-dir", f"{place.folder}/run", "--on-failure", "replace", *flags, probe, *argv)
    processes = {}
    for rank, pid in re.findall(r"begin rank (\d) pid (\d+)", out):
        processes.setdefault(int(rank), []).append(pid)
    return code, out, err, {rank: len(set(pids)) for rank, pids in processes.items()}


@row(56, "SIGKILL a rank, --on-failure replace", "the others keep their processes and their steps")
def replaced_in_place(place):
    code, out, err, processes = in_place(place, "--kill", "1@4:backward")
    expect(code == 0 and processes == {0: 1, 1: 2, 2: 1}, f"{processes} {out}{err}")
    expect("the others keep their processes (1 of 3 restarts)" in err and "resume: step 3 in memory" in err, err)
    killed, after = (float(re.search(pattern, out)[1]) for pattern in (r"killed at ([\d.]+)", r"step 4 at ([\d.]+)"))
    return f"step 4 was done {after - killed:.2f} s after the kill"


@row(57, "a second rank dies while the others come together again", "one more generation, to which all come")
def killed_while_rejoining(place):
    code, out, err, processes = in_place(place, "--kill", "1@4", "--kill", "2@0/1:restore")
    expect(code == 0 and processes == {0: 1, 1: 2, 2: 2}, f"{processes} {out}{err}")
    expect("(2 of 3 restarts)" in err, err)
    return "two ranks were replaced, the third kept its process"


@row(58, "a rank that is left does not come back to the others", "it is ended and replaced")
def hangs_while_others_rejoin(place):
    code, out, err, processes = in_place(place, "--kill", "2@4", "--hang", "1@4", flags=("--collective-timeout", "3"))
    expect(code == 0 and processes == {0: 1, 1: 2, 2: 2}, f"{processes} {out}{err}")
    expect("rank 1 has not come back to the others within 3.0s; ending it" in err, err)
    return "'has not come back to the others within 3.0s': ended, and replaced"


@row(92, "a rank saves, and its save does not end, while others wait for it", "it has five minutes more, and is replaced")
def endless_save(place):
    """The save takes 5 s, and the rank is stopped in it. The launcher's clock jumps over the minutes."""
    probe = str(pathlib.Path(place.probe()).with_name("elastic_probe"))
    clock = FakedClock(place, monotonic=True)
    job = place.start("run", "-q", "-n", "3", "--cpu-slots", "3", "--env", "LD_PRELOAD=", "--run-dir", f"{place.folder}/run",
                      "--on-failure", "replace", "--collective-timeout", "3", probe, "--kill", "1@4:keep", "--slow", "0@4", env=clock.environment)
    saver = int(re.search(r"begin rank 0 pid (\d+) generation 0", read_until(job, "begin rank 0 pid"))[1])
    read_until(job, "rank 0 is saving a checkpoint; the others wait for it", job.stderr)
    os.kill(saver, signal.SIGSTOP)
    minutes = told(92, "() minutes more")
    clock.jump_to(60 * minutes - 10)
    time.sleep(1)  # for the launcher to do something about it, which it must not
    expect(state_of(saver) == "T", "it was ended too early")
    clock.jump_to(60 * minutes + 10)
    out, err = job.communicate(timeout=60)
    expect(job.returncode == 0 and re.search(rb"begin rank 0 pid \d+ generation [1-9]", out), out + err)
    return f"ended after {minutes:.0f} minutes more, and replaced"


@row(2, "SIGKILL in a sub-group's first collective", "the same")
def kill_in_subgroup(place):
    code, _, err = place.run("run", "-q", "-n", "3", "--cpu-slots", "3", place.probe(), "subgroup")
    expect(code == 137 and "rank 1 failed first: killed by SIGKILL" in err, err)
    return "rank 1 named, exit code 137"


@row(3, "SIGKILL the launcher", "no process left")
def kill_launcher(place):
    # What has a session of its own says so itself: a process in the middle of exec has no environment to be found by.
    job = place.start("run", "-q", "-n", "2", *sh(
        "mkfifo gate$RANK; setsid sh -c 'echo up; read never <gate$RANK' & sleep 1000 & sleep 1000"))
    read_until(job, "up"), read_until(job, "up")
    job.kill()
    took = place.gone_after(30)
    at_once(took)
    return f"all gone after {took * 1000:.0f} ms"


@row(55, "a rank hangs while others wait for it", "where it is, before the deadline")
def hang(place):
    code, _, err = place.run("run", "-q", "-n", "2", "--collective-timeout", "8s", place.probe(), "late")
    said = re.search(r"rank 1: in nothing that muster knows of; last all_reduce #1 f32\[4\], ended ([0-9.]+s) ago; its stack", err)
    expect(code != 0 and said and "probe(" in err.split("its stack", 1)[1], err)
    expect(re.search(r"all_reduce #2 on rank 0 of 2: Timed out waiting 8000ms; missing rank\(s\) 1;", err), err)
    return f"after {said.group(1)}: its last collective and its stack"


@row(7, "restart", "no key of the attempt before is read")
def stale_keys(place):
    code, out, err = place.run("run", "-q", "-n", "2", "--max-restarts", "1",
                               *sh(f"{place.probe()} place && [ $MUSTER_ATTEMPT = 1 ] || exit 1"), timeout=60)
    expect(code == 0 and out.count("rank 0 local 0 of 2") == 2, out + err)
    return "the second attempt met anew under its own keys"


@row(10, "a rank's grandchildren", "ended with it")
def grandchildren(place):
    deaf = "(sh -c 'trap \"\" TERM; : >left0; sleep 1000' &)"
    daemon = "(setsid sh -c ': >left1; exec sleep 1000' &)"
    code, _, err = place.run("run", "-q", "-n", "2", *sh(
        f"if [ $RANK = 0 ]; then {deaf}; else {daemon}; fi; until [ -e left$RANK ]; do sleep 0.02; done"))
    place.gone_after(30)
    expect(code == 0, err)
    return "a daemonised one and one that ignores SIGTERM: gone"


@row(11, "SIGSTOP a rank", "it is named; --stopped-timeout ends it")
def stopped_rank(place):
    job = place.start("run", "-q", "-n", "2", "--stopped-timeout", "3", *sh("echo $$; exec sleep 1000"))
    pid = int(re.search(r"\[1\] (\d+)", read_until(job, "[1] ")).group(1))
    os.kill(pid, signal.SIGSTOP)
    err = job.communicate(timeout=60)[1].decode()
    expect("rank 1" in err and "is stopped" in err and "ending it" in err and job.returncode == 137, err)
    return "named, 'has been stopped for 3.0s', exit code 137"


@row(49, "SIGUSR1 to a job", "saved at a step's end, an exit code of its own")
def asked_to_stop(place):
    probe = str(pathlib.Path(place.probe()).with_name("resume_probe"))
    run = ("run", "-q", "-n", "2", "--run-dir", f"{place.folder}/run", probe)
    code, _, err = place.run(*run, "--stop-at", "4", str(int(signal.SIGUSR1)))
    expect(code == 75 and "stopped after step 4, which is saved" in err, err)
    code, _, err = place.run(*run, "--resume")
    expect(code == 0 and "step-4" in err, err)
    return "stopped after step 4 with exit code 75; the next run went on from step 4"


@row(50, "a grace longer than 30 s", "it is given")
def long_grace(place):
    job = place.start("run", "-q", "-n", "1", "--shutdown-timeout", "40", *sh(
        "trap 'sleep 31; echo saved; exit 0' TERM; echo up; while :; do sleep 0.1; done"))
    read_until(job, "up")
    job.terminate()
    out, err = job.communicate(timeout=60)
    expect(b"saved" in out, err)
    return "31 s to save were given"
