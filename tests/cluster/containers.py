"""Pods for tests: containers made by podman in the network of pods.py, each with what its manifest asks for.

Needs root, podman, and crun or runc; `missing()` says what is not there, and tries a container. Pods are made of the image
that scripts/image.sh makes.
"""

import json
import os
import pathlib
import shutil
import subprocess

import hosts
import manifests

ROOT = pathlib.Path(__file__).resolve().parents[2]
CANNOT = 125  # what scripts/image.sh ends with where no system can be made
LIMITS = {"--cpus": "1", "--memory": "512m", "--shm-size": "64m"}  # of each pod; 64 MB is what Kubernetes gives


class Podman:
    """podman with a storage of its own, below the folder."""

    def __init__(self, folder, runtime):
        self.folder = folder
        self.command = ["podman", "--root", f"{folder}/storage", "--runroot", f"{folder}/run", "--cgroup-manager", "cgroupfs",
                        "--runtime", runtime, "--log-level", "error"]

    def run(self, *arguments, timeout=300):
        done = subprocess.run([*self.command, *arguments], capture_output=True, text=True, timeout=timeout, check=False,
                              stdin=subprocess.DEVNULL, env={**os.environ, "TMPDIR": str(self.folder)})
        return done.returncode, done.stdout, done.stderr

    def must(self, *arguments):
        code, out, err = self.run(*arguments)
        assert code == 0, f"podman {' '.join(arguments)}: {err}"
        return out.strip()

    def remove_containers(self):
        self.run("rm", "--all", "--force", "--time", "0")

    def close(self):
        """Nothing of it is mounted any more."""
        self.remove_containers()
        self.run("rmi", "--all", "--force")
        subprocess.run(["umount", f"{self.folder}/storage/overlay"], capture_output=True, check=False)


def limits_of_processes():
    """podman's own are higher than what a container may set where this process may not raise its own."""
    return ["--ulimit=nofile=4096:4096", "--ulimit=nproc=4096:4096"]


def working_podman(folder, image):
    """podman with a runtime that starts a container here, or why there is none."""
    tried = []
    for runtime in ("crun", "runc"):
        if shutil.which(runtime) is None:
            tried.append(f"no {runtime}")
            continue
        podman = Podman(folder, runtime)
        code, _, err = podman.run("load", "--input", str(image), timeout=900)  # some GB with LibTorch
        if code == 0:
            limits = [f"{name}={value}" for name, value in LIMITS.items()]
            code, _, err = podman.run("run", "--rm", "--network=none", *limits, *limits_of_processes(), image_of(podman), "--version")
        if code == 0:
            return podman, ""
        podman.close()
        tried.append(f"{runtime}: {err.strip()}")
        print("no container by", tried[-1], flush=True)
    return None, "no containers here: " + "; ".join(tried)


def image_of(podman):
    [name] = {name for image in json.loads(podman.must("images", "--format", "json")) for name in image["Names"]}
    return name


def missing():
    """Why no containers can be made here, as far as that is known before one is tried."""
    why = hosts.missing() or manifests.missing()
    for program in ("podman", "debootstrap"):
        if not why and shutil.which(program, path=os.environ["PATH"] + ":/usr/sbin:/sbin") is None:
            why = f"no {program} (package {program})"
    return why


def make_image(build, folder, components, programs):
    """The image of the build and the programs, or why there is none."""
    image = pathlib.Path(folder) / "muster.tar"
    done = subprocess.run([ROOT / "scripts/image.sh", image], capture_output=True, text=True, check=False,
                          env={**os.environ, "IMAGE_BUILD": str(build), "IMAGE_COMPONENTS": components, "IMAGE_PROGRAMS": programs,
                               "IMAGE_BASE": os.environ.get("IMAGE_BASE", f"{build}/image")})
    if done.returncode == CANNOT:
        return None, done.stderr.strip()
    assert done.returncode == 0, done.stdout + done.stderr
    return image, ""


class RunningPod:
    """A container that is a pod, started as kubelet starts it."""

    def __init__(self, podman, cluster, pod, command, volumes, program=()):
        self.podman, self.pod = podman, pod
        host = cluster.new_host(pod)
        folder = cluster.files_of(host)
        self.id = podman.must("run", "--detach", f"--network=ns:/run/netns/{host.namespace}", f"--hostname={pod.host}",
                              f"--volume={folder}/hosts:/etc/hosts:ro", f"--volume={folder}/resolv.conf:/etc/resolv.conf:ro",
                              *self.security(), *[f"{name}={value}" for name, value in LIMITS.items()], *limits_of_processes(),
                              *self.mounts(volumes), *[f"--env={name}={value}" for name, value in pod.environment.items()],
                              *program, "--entrypoint", json.dumps(command), image_of(podman))

    def security(self):
        asked, own = self.pod.spec["securityContext"], self.pod.container["securityContext"]
        assert asked["runAsNonRoot"] and own["readOnlyRootFilesystem"] and not own["allowPrivilegeEscalation"]
        return [f"--user={asked['runAsUser']}:{asked['runAsGroup']}", f"--group-add={asked['fsGroup']}", "--read-only",
                "--read-only-tmpfs=false", "--security-opt=no-new-privileges", *[f"--cap-drop={name}" for name in own["capabilities"]["drop"]],
                f"--workdir={self.pod.container['workingDir']}"]

    def mounts(self, volumes):
        """`volumes` has a folder for each volume of the pod that is one; those without a name there are left out."""
        flags = []
        for mount in self.pod.container["volumeMounts"]:
            [volume] = [one for one in self.pod.spec["volumes"] if one["name"] == mount["name"]]
            if mount["name"] in volumes:
                mode = "ro" if mount.get("readOnly") else "rw"
                flags.append(f"--volume={volumes[mount['name']]}:{mount['mountPath']}:{mode}")
            elif volume.get("emptyDir") == {}:
                flags.append(f"--tmpfs={mount['mountPath']}:mode=1777")
        return flags

    def said(self):
        """Its standard output and standard error."""
        return self.podman.run("logs", self.id)[1:]

    def kill(self):
        self.podman.must("kill", "--signal", "KILL", self.id)

    def stop(self):
        """As Kubernetes ends a pod: SIGTERM, and SIGKILL after the grace period."""
        return subprocess.Popen([*self.podman.command, "stop", "--time", str(self.pod.grace), self.id], stdout=subprocess.DEVNULL)

    def exit_code(self, seconds=100):
        code, out, err = self.podman.run("wait", self.id, timeout=seconds)
        assert code == 0, err
        return int(out)
