"""GPUs that go bad while a job runs, by a stand-in for the driver's library."""

import json
import os
import pathlib
import re
import shutil
import subprocess

from agents import server_first, two_agents
from place import Skip, expect, read_until, sh
from table import row

GPU = "uuid=GPU-{name},name=Test GPU,total=8589934592,free=8589934592,cc=9.0,pci=00000000:0{bus}:00.0,ecc={errors}"


def machine(place, name, errors):
    """A file with GPUs of as many errors, and an environment in which the driver reads it."""
    library = pathlib.Path(place.muster).parents[1] / "lib/libfake_nvml.so"
    if not library.exists():
        raise Skip("built without tests")
    path = place.folder / name
    path.write_text(described(errors))
    return path, {"MUSTER_NVML_LIBRARY": str(library), "FAKE_NVML": f"@{path}"}


def described(errors, first="a"):
    names = [first, "b", "c"]
    return "|".join(["version=570.1"] + [GPU.format(name=names[i], bus=i + 1, errors=count) for i, count in enumerate(errors)])


def script(path, errors):
    """The first attempt's GPU 0 gets errors in its memory, and the rank dies of them."""
    return (f"echo attempt $MUSTER_ATTEMPT on $MUSTER_DEVICE; [ $MUSTER_ATTEMPT -gt 0 ] && exit 0; "
            f"echo '{described(errors)}' >{path}.new; mv {path}.new {path}; kill -9 $$")


def run(place, path, env, flags, errors=(3, 0), before=""):
    place.environment.pop("CUDA_VISIBLE_DEVICES", None)
    return place.run("run", "--run-dir", f"{place.folder}/run", "--max-restarts", "2", *flags, *sh(before + script(path, errors)), env=env)


@row(47, "a GPU gets errors in its memory", "it is set aside, the ranks get another; or the job ends and names it")
def bad_gpu(place):
    path, env = machine(place, "gpus", (0, 0))
    code, out, err = run(place, path, env, ("-n", "1", "--gpus", "free:1"))
    named = "GPU 0 (GPU-a): 3 uncorrected memory errors since the job began"
    expect(code == 0 and "attempt 0 on GPU-a" in out and "attempt 1 on GPU-b" in out, f"{code} {out}{err}")
    expect(f"{named}; muster sets it aside and gives the ranks others" in err, err)

    path.write_text(described((0, 0)))
    code, out, err = run(place, path, env, ("-n", "2"))
    expect(code == 137 and f"{named}; not starting again" in err and f"  GPU       {named}" in err, f"{code} {err}")
    failure = json.loads((place.folder / "run/failure.json").read_text())
    expect(failure["bad_gpus"][0]["uuid"] == "GPU-a", failure)

    path.write_text(described((0, 0)))
    code, out, err = run(place, path, env, ("-n", "2", "--no-gpu-check"))
    expect("set aside" not in err and "starting all ranks again" in err, err)

    path.write_text(described((0, 0, 0)))
    lives = "[ $RANK$MUSTER_ATTEMPT = 10 ] && exec sleep 1000; "
    code, out, err = run(place, path, env, ("-n", "2", "--gpus", "free:2", "--on-failure", "replace"), errors=(3, 0, 0), before=lives)
    expect(code == 0 and "attempt 1 on GPU-b" in out and "attempt 1 on GPU-c" in out, f"{code} {out}{err}")
    expect(f"not replaced in place: {named}" in err and f"{named}; muster sets it aside" in err, err)
    return f"'{named}': the rank went on with GPU-b; a job that needs both ended with 137; no rank was replaced in place"


@row(90, "the kernel's log has a hardware Xid of a rank's GPU", "the GPU is set aside; of a program's Xid it is not")
def bad_by_the_log(place):
    path, env = machine(place, "gpus", (0, 0))
    log = place.folder / "kmsg"
    log.write_text("3,1,1,-;NVRM: Xid (PCI:0000:01:00): 79, before the job began\n")
    in_front_of = ["--mount", "sh", "-c", 'mount --bind "$0" /dev/kmsg && exec "$@"', str(log)]
    if os.geteuid() != 0 or subprocess.run(["unshare", *in_front_of, "true"], capture_output=True).returncode != 0:
        raise Skip("another file in front of /dev/kmsg needs root and a mount namespace")
    place.environment.pop("CUDA_VISIBLE_DEVICES", None)
    dies = place.folder / "dies.py"
    dies.write_text("import os, signal, sys, time\n"
                    "print('attempt', os.environ['MUSTER_ATTEMPT'], 'on', os.environ['MUSTER_DEVICE'], flush=True)\n"
                    "if os.environ['MUSTER_ATTEMPT'] == '0':\n"
                    f"    open('{log}', 'a').write(f'3,2,{{time.monotonic_ns() // 1000}},-;NVRM: Xid (PCI:0000:01:00): {{sys.argv[1]}}, pid=1, told\\n')\n"
                    "    os.kill(os.getpid(), signal.SIGKILL)\n")
    for number, device in (("79", "GPU-b"), ("31", "GPU-a")):
        code, out, err = place.run(*in_front_of, place.muster, "run", "-n", "1", "--gpus", "free:1", "--max-restarts", "1",
                                   "python3", str(dies), number, program="unshare", env=env)
        expect(code == 0 and "attempt 0 on GPU-a" in out and f"attempt 1 on {device}" in out, f"Xid {number}: {code} {out}{err}")
        named = "GPU 0 (GPU-a): Xid 79 in the kernel's log (pid=1, told); muster sets it aside and gives the ranks others"
        expect((named in err) == (number == "79"), err)
    return "'Xid 79 in the kernel's log': the rank went on with GPU-b; after Xid 31, and one from before the job, with GPU-a"


@row(59, "a GPU of one host of an elastic job gets errors", "the host leaves the job, the other goes on")
def bad_host(place):
    envs = []
    for name in ("one", "other"):
        path, env = machine(place, name, (0,))
        path.write_text(described((0,), first=name))
        envs.append({**env, "MACHINE": str(path), "CUDA_VISIBLE_DEVICES": f"GPU-{name}"})
    job = ("echo up $WORLD_SIZE; while [ ! -e bad ]; do sleep 0.05; done; [ $WORLD_SIZE = 1 ] && exit 0; [ $(cat bad) = $PPID ] || exec sleep 1000; "
           "sed s/ecc=0/ecc=7/ $MACHINE >$MACHINE.new; mv $MACHINE.new $MACHINE; kill -9 $$")
    agents = two_agents(place, job, nnodes="1:2", envs=envs, first=("--max-restarts", "2"), second=("--max-restarts", "2"))
    for agent in agents:
        read_until(agent, "up 2")
    server, bad = server_first(place, *agents)
    (place.folder / "new").write_text(str(bad.pid))
    (place.folder / "new").rename(place.folder / "bad")
    said = bad.communicate(timeout=60)[1].decode()
    out, err = server.communicate(timeout=60)
    expect(re.search(r"GPU 0 \(GPU-(one|other)\): 7 uncorrected memory errors since the job began; set aside", said), said)
    expect((bad.returncode, server.returncode) == (1, 0) and b"up 1" in out, f"{bad.returncode} {server.returncode} {out}{err}")
    return "its agent ended with 1 and named the GPU, the other host went on alone and ended with 0"


@row(70, "old files are cleared out of /tmp under a job", "its GPU stays its own, and it is listed")
def cleared_away(place):
    if not shutil.which("systemd-tmpfiles", path=place.environment["PATH"]):
        raise Skip("no systemd-tmpfiles")
    _, env = machine(place, "gpus", (0, 0))
    place.environment.pop("CUDA_VISIBLE_DEVICES", None)
    job = place.start("run", "-q", "-n", "1", "--gpus", "0", *sh("echo up; sleep 1000"), env=env)
    read_until(job, "up")
    old = place.folder / "runtime" / "unrelated"
    old.write_text("")
    rules = place.folder / "rules.conf"
    rules.write_text(f"d {place.folder}/runtime 0700 - - 0\n")
    code, _, err = place.run("--clean", str(rules), program="systemd-tmpfiles")
    expect(code == 0 and not old.exists(), f"nothing was cleared away: {err}")
    code, _, err = place.run("run", "-q", "-n", "1", "--gpus", "0", "true", env=env)
    expect(code == 1 and f"pid {job.pid}" in err, f"{code} {err}")
    listed = place.run("ps")[1]
    expect(str(job.pid) in listed, listed)
    job.terminate()
    job.wait(timeout=30)
    return "a second job is refused the GPU; `muster ps` lists the first"


@row(83, "CUDA_VISIBLE_DEVICES names a GPU twice, --quiet", "the CPU is used, and that is said")
def hidden_by_mistake(place):
    _, env = machine(place, "gpus", (0, 0))
    place.environment["CUDA_VISIBLE_DEVICES"] = "0,0"
    code, out, err = place.run("run", "-q", "-n", "1", *sh("echo $MUSTER_DEVICE"), env=env)
    expect(code == 0 and out == "cpu:0\n", f"{code} {out}{err}")
    expect("CUDA_VISIBLE_DEVICES='0,0' shows 0 of 2 GPUs (entry 2, '0', names a GPU twice, which hides all)" in err, err)
    place.environment["CUDA_VISIBLE_DEVICES"] = ""
    code, _, err = place.run("run", "-q", "-n", "1", *sh("true"), env=env)
    expect(code == 0 and not err, err)
    return "said with --quiet; an empty mask is not"
