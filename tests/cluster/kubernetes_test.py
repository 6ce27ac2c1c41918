"""The pods of the manifests in examples/kubernetes, as hosts with networks and names of their own: their commands, with
the variables that Kubernetes and Kubeflow Trainer set.

    kubernetes_test.py MUSTER FAKE_NVML      the program; a stand-in for the driver's library
"""

import os
import pathlib
import subprocess
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import hosts
import manifests
from pods import Cluster

MUSTER = FAKE_NVML = ""
PODS = 2  # of the manifests' four
SAY = "#!/bin/sh\necho pod $GROUP_RANK of $GROUP_WORLD_SIZE: $*\n"


def of_two_pods(document):
    """The document for two pods."""
    text = (manifests.EXAMPLES / document).read_text(encoding="utf-8")
    for four in ("--nnodes=4", "completions: 4", "parallelism: 4", "numNodes: 4"):
        text = text.replace(four, four.replace("4", str(PODS)))
    return manifests.pods_of(manifests.load(text))


class KubernetesTest(unittest.TestCase):
    def setUp(self):
        self.cluster = Cluster().__enter__()
        self.addCleanup(self.cluster.__exit__)
        self.folder = self.cluster.folder
        program = self.folder / "train"
        program.write_text(SAY)
        program.chmod(0o755)
        (self.folder / "bin").mkdir()
        (self.folder / "bin" / "muster").symlink_to(MUSTER)

    def in_place(self, word):
        """A path of the manifest, where these pods have it."""
        return word.replace("/secret/", f"{self.folder}/secret/").replace("/work/", f"{self.folder}/")

    def start(self, pod):
        variables = {name: self.in_place(value) for name, value in pod.environment.items()}
        return self.cluster.new_host(pod).start_for(self, [self.in_place(word) for word in pod.command],
                                                    env={**variables, "PATH": f"{self.folder}/bin:{os.environ['PATH']}", "MUSTER_CPU_SLOTS": "1"})

    def run_manifest(self, name):
        pods = of_two_pods(name)
        self.assertEqual(len(pods), PODS)
        secret = subprocess.run([MUSTER, "secret"], capture_output=True, text=True, check=True)
        manifests.mounted_secret(self.folder / "secret", secret.stdout)
        # The last pod comes first: the name by which they meet is not known yet.
        started = [self.start(pod) for pod in reversed(pods)]
        for index, process in enumerate(reversed(started)):
            out, err = process.communicate(timeout=100)
            self.assertEqual(process.returncode, 0, err)
            self.assertIn(f"pod {index} of {PODS}: --resume", out)

    def test_an_indexed_job(self):
        self.run_manifest("indexed-job.yaml")

    def test_a_jobset(self):
        self.run_manifest("jobset.yaml")

    def test_a_train_job(self):
        self.run_manifest("trainjob.yaml")

    def gpus_of_ranks(self, given):
        """The GPUs of a job in a pod that sees two, one of which was `given` to it by this variable."""
        gpus = "|".join(f"uuid=GPU-{index},name=Test GPU,total=8589934592,free=8589934592,cc=9.0,pci=00000000:0{index}:00.0" for index in range(2))
        done = subprocess.run([MUSTER, "run", "-q", "sh", "-c", "echo GPU of rank $RANK of $WORLD_SIZE in $CUDA_VISIBLE_DEVICES"],
                              capture_output=True, text=True, check=True, cwd=self.folder,
                              env={"PATH": os.environ["PATH"], "MUSTER_RUNTIME_DIR": self.cluster.environment["MUSTER_RUNTIME_DIR"],
                                   "MUSTER_NVML_LIBRARY": FAKE_NVML, "FAKE_NVML": f"version=550.54|{gpus}", "NVIDIA_VISIBLE_DEVICES": given})
        return sorted(line.split("GPU of ")[1] for line in done.stdout.splitlines()), done.stderr

    def test_gpus_that_the_device_plugin_gives(self):
        """A privileged pod sees all; by CDI the variable says nothing, and what the pod sees is its own."""
        ranks, said = self.gpus_of_ranks("GPU-1")
        self.assertEqual(ranks, ["rank 0 of 1 in GPU-1"])
        self.assertIn("NVIDIA_VISIBLE_DEVICES='GPU-1' names fewer GPUs than this process sees", said)
        for nothing in ("void", "all", "GPU-0,GPU-1"):
            ranks, said = self.gpus_of_ranks(nothing)
            self.assertEqual(ranks, ["rank 0 of 2 in GPU-0,GPU-1", "rank 1 of 2 in GPU-0,GPU-1"])
            self.assertNotIn("NVIDIA_VISIBLE_DEVICES", said)


if __name__ == "__main__":
    MUSTER, FAKE_NVML = (str(pathlib.Path(sys.argv.pop(1)).resolve()) for _ in range(2))
    hosts.main(hosts.missing() or manifests.missing())
