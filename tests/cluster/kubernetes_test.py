"""The Kubernetes job of docs/clusters.md: its command, started in pods that are hosts of our own.

    kubernetes_test.py MUSTER
"""

import os
import pathlib
import re
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from hosts import HostsCase, main, missing

MUSTER = ""
PAGE = pathlib.Path(__file__).parents[2] / "docs" / "clusters.md"


def job_of_page():
    """The YAML of the page."""
    return re.search(r"^```yaml\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL).group(1)


def command_of(job):
    listed = re.search(r"^ *command: \[(.*?)\]", job, re.MULTILINE | re.DOTALL).group(1)
    return [word.strip().strip('"') for word in listed.split(",")]


def service_of(job):
    return re.search(r"^kind: Service\nmetadata: \{name: ([\w-]+)\}", job, re.MULTILINE).group(1)


def completions_of(job):
    return int(re.search(r"^ *completions: (\d+)$", job, re.MULTILINE).group(1))


def mounted_secret(folder, text):
    """A secret with mode 0400, through links as Kubernetes mounts it."""
    (folder / "..2026_01_01").mkdir(parents=True)
    secret = folder / "..2026_01_01" / "muster"
    secret.write_text(text)
    secret.chmod(0o400)
    (folder / "..data").symlink_to("..2026_01_01")
    (folder / "muster").symlink_to("..data/muster")
    return folder / "muster"


JOB = job_of_page()
SERVICE = service_of(JOB)


class Pods(HostsCase):
    NAMES = [f"{SERVICE}-{index}.{SERVICE}" for index in range(completions_of(JOB))]

    def test_the_command_of_the_page_starts_a_rank_in_every_pod(self):
        folder = self.world.folder
        program = folder / "train"
        program.write_text("#!/bin/sh\necho pod $GROUP_RANK of $GROUP_WORLD_SIZE\n")
        program.chmod(0o755)
        (folder / "bin").mkdir()
        (folder / "bin" / "muster").symlink_to(MUSTER)
        code, text, err = self.world[self.NAMES[0]].run([MUSTER, "secret"])
        self.assertEqual(code, 0, err)
        secret = str(mounted_secret(folder / "secret", text))
        command = [secret if word == "/secret/muster" else word for word in command_of(JOB)]
        self.assertIn(secret, command)

        path = f"{folder}/bin:{os.environ['PATH']}"
        pods = [self.world[name].start_for(self, command, env={"JOB_COMPLETION_INDEX": str(index), "PATH": path})
                for index, name in enumerate(self.NAMES)]
        for index, pod in enumerate(pods):
            out, err = pod.communicate(timeout=60)
            self.assertEqual(pod.returncode, 0, err)
            self.assertIn(f"pod {index} of {len(pods)}", out)


if __name__ == "__main__":
    MUSTER = str(pathlib.Path(sys.argv.pop(1)).resolve())
    main(missing())
