"""What happens to checkpoints: while they are written, on the disk, and with another number of ranks."""

import collections
import contextlib
import os
import pathlib
import re
import shutil
import signal
import subprocess
import time

from hosts import wait_for
from place import Skip, expect, read_until
from table import row

SAMPLES, BATCH = 96, 12  # of chaos_probe's data, and of each of its steps


def train(place, probe, *argv, ranks=2, flags=()):
    program = str(pathlib.Path(place.probe()).with_name(probe))
    return place.run("run", "-q", "-n", str(ranks), "--cpu-slots", str(ranks), "--run-dir", f"{place.folder}/run", *flags, program, *argv)


def folder_of(place, step):
    return place.folder / f"run/checkpoints/step-{step}"


def verify(place):
    code, out, err = place.run("checkpoint", "verify", "run")
    return code, out + err


def weights(said):
    return sorted(re.findall(r"rank \d weights \S+", said))


def resumed(place, from_step, damage):
    """A training of 12 steps that saves every third; then its last checkpoint is damaged, and it resumes."""
    code, calm, err = train(place, "resume_probe")
    expect(code == 0, err)
    damage(folder_of(place, 12) / "model.safetensors", folder_of(place, 9) / "model.safetensors")
    code, report = verify(place)
    expect(code == 1 and "damaged" in report, report)
    code, out, err = train(place, "resume_probe", "--resume")
    expect(code == 0 and weights(out) == weights(calm), f"{out}{err}")
    expect(re.search(rf"step-12' is skipped: .*\n(.*\n)*.*resume: \S+step-{from_step}\b", err), err)
    return re.search(r"step-12' is skipped: checkpoint: (.*?);", err).group(1)


@contextlib.contextmanager
def small_disk(place, limit):
    """The checkpoints of a training that has come to step 4, on a disk of their own."""
    where = place.folder / "run/checkpoints"
    where.mkdir(parents=True)
    if subprocess.run(["mount", "-t", "tmpfs", "-o", limit, "muster-fault", where], capture_output=True).returncode != 0:
        raise Skip("mounting a small disk needs root")
    try:
        code, _, err = train(place, "chaos_probe", "--steps", "8", "--until", "4")
        expect(code == 0, err)
        yield where
    finally:
        subprocess.run(["umount", "-l", where])


def fails_without_room(place, pattern):
    """The training cannot save, and step 4 stays whole. Returns what it said."""
    code, _, err = train(place, "chaos_probe", "--steps", "8", "--resume")
    said = re.search(pattern, err)
    expect(code == 1 and said, err)
    code, report = verify(place)
    expect(code == 0 and "step-4" in report, report)
    return said


def goes_on_with_room(place):
    code, out, err = train(place, "chaos_probe", "--steps", "8", "--resume")
    expect(code == 0 and "weights" in out and "step-4" in err, f"{out}{err}")
    return "step-4 is whole, and training went on from it when there was room"


@row(31, "the disk is full while a checkpoint is written", "a clear error, the older ones stay whole")
def full_disk(place):
    with small_disk(place, "size=2m") as where:
        with open(where / "junk", "wb", buffering=0) as junk:
            try:
                while junk.write(b"x" * 4096):
                    pass
            except OSError:
                pass
        said = fails_without_room(place, r"checkpoint: (expected \S+ MiB free in .*?, got .*?); free some")
        os.unlink(where / "junk")
        return f"'{said[1]}'; {goes_on_with_room(place)}"


@row(91, "a disk has no room for the files of a checkpoint that is being written", "the same")
def full_during_the_write(place):
    with small_disk(place, "nr_inodes=64") as where:
        left = os.statvfs(where).f_ffree
        (where / "junk").mkdir()
        for number in range(left - 4):  # for the folder, its lock, this one, and the first file
            (where / f"junk/{number}").touch()
        said = fails_without_room(place, r"checkpoint: cannot create '(\S+)': No space left on device")
        expect(not list(where.glob("*.tmp-*")), "what was half written is left")
        shutil.rmtree(where / "junk")
        return f"{pathlib.Path(said[1]).name} could not be made; {goes_on_with_room(place)}"


def kill_in_a_save(place):
    """Ends a training without a word while a checkpoint is half written; says whether it was in time."""
    program = str(pathlib.Path(place.probe()).with_name("chaos_probe"))
    checkpoints = place.folder / "run/checkpoints"
    job = place.start("run", "-q", "-n", "2", "--cpu-slots", "2", "--run-dir", f"{place.folder}/run", program, "--steps", "100000", "--resume")
    wait_for(lambda: job.poll() is not None or any(re.fullmatch(r"step-\d+", path.name) for path in checkpoints.glob("*")), 60)
    end = time.monotonic() + 60
    while not list(checkpoints.glob("*.tmp-*")) and time.monotonic() < end:
        pass  # a save takes less than any pause
    os.killpg(job.pid, signal.SIGSTOP)  # so that nobody tidies up
    for pid in place.left():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    job.communicate()
    return bool(list(checkpoints.glob("*.tmp-*")))


@row(32, "SIGKILL while a checkpoint is written", "the last whole one is loaded")
def kill_while_saving(place):
    tries = next((number for number in range(1, 21) if kill_in_a_save(place)), None)
    expect(tries is not None, "no save was met in 20 kills")
    code, report = verify(place)
    expect(code == 0, report)
    newest = max(int(step) for step in re.findall(r"step-(\d+)", report))
    code, out, err = train(place, "chaos_probe", "--steps", str(newest + 4), "--resume")
    expect(code == 0 and f"step-{newest}\n" in err, f"{newest} {out}{err}")
    expect(not list((place.folder / "run/checkpoints").glob("*.tmp-*")), "the unfinished save was left")
    return f"step-{newest} is whole and was gone on from; what was half written is removed"


@row(33, "a checkpoint's file is cut, or a bit of it flips", "its checksum tells; the one before is loaded")
def damaged_checkpoint(place):
    def flip(last, _):
        content = bytearray(last.read_bytes())
        content[-1] ^= 1
        last.write_bytes(content)

    flipped = resumed(place, 9, flip)
    cut = resumed(place, 9, lambda last, _: os.truncate(last, last.stat().st_size // 2))
    return f"'{flipped[:70]}…', '{cut[:70]}…'; both went on from step-9"


@row(34, "a checkpoint has a file of another step", "its manifest refuses it; the one before is loaded")
def mixed_steps(place):
    said = resumed(place, 9, lambda last, before: last.write_bytes(before.read_bytes()))
    return f"'{said[:90]}…'; went on from step-9"


@row(94, "two jobs save into one folder of checkpoints", "the second is refused before it trains, the first goes on")
def shared_folder(place):
    program = str(pathlib.Path(place.probe()).with_name("resume_probe"))
    gate = place.folder / "gate"
    argv = ("run", "-q", "-n", "2", "--cpu-slots", "2", program, "--in", f"{place.folder}/shared", str(gate))
    first = place.start(*argv)
    read_until(first, "waits")
    code, out, refused = place.run(*argv)
    expect(code == 1 and "trains" not in out, f"exit code {code}; {out}{refused}")
    gate.touch()
    out, err = first.communicate(timeout=60)
    expect(first.returncode == 0, err.decode())
    there = sorted(path.name for path in (place.folder / "shared").iterdir())
    expect(there == ["step-12", "step-6", "step-9"], there)
    return f"'got one {re.search('got one (.*?);', refused).group(1)}'; the first saved all of its steps"


@row(35, "a job goes on with another number of ranks", "no sample twice, none lost")
def other_ranks(place):
    for ranks, until in ((4, 5), (2, 11), (3, 16)):
        code, _, err = train(place, "chaos_probe", "--steps", "16", "--until", str(until), "--resume", ranks=ranks)
        expect(code == 0, err)
    seen = collections.defaultdict(dict)  # by step: each rank's last word
    for path in sorted((place.folder / "run").glob("samples-*")):
        for line in path.read_text().splitlines():
            step, *samples = map(int, line.split())
            seen[step][path.name] = samples
    for epoch in range(2):
        steps = range(epoch * SAMPLES // BATCH + 1, (epoch + 1) * SAMPLES // BATCH + 1)
        samples = sorted(sample for step in steps for part in seen[step].values() for sample in part)
        expect(samples == list(range(SAMPLES)), f"epoch {epoch}: {samples}")
    return f"4, then 2, then 3 ranks: each of {SAMPLES} samples once in both epochs"
