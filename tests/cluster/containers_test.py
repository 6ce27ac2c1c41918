"""The indexed Job of examples/kubernetes in containers: two pods with networks of their own, without root, with a root file
system that nobody can write, 64 MB of shared memory, and limits of memory and CPUs.

    containers_test.py BUILD [TRAIN]      what scripts/image.sh installs into the image; the program of examples/01_train

LibTorch is on a volume, since an image with it takes minutes and 6 GB to make. With MUSTER_TEST_IMAGE=whole it is in the image.
"""

import os
import pathlib
import shutil
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import containers
import manifests
import pods
from hosts import SKIPPED, main, wait_for

BUILD = ""
TRAIN = ""
IS_WHOLE = os.environ.get("MUSTER_TEST_IMAGE") == "whole"
COMPONENTS = "program development bench libtorch" if IS_WHOLE else "program"
PODS = 2
FACTS = ('echo "rank $RANK of $WORLD_SIZE on $(hostname), user $(id -u)"; touch /x 2>/dev/null || echo root is read-only; '
         "df --output=size -B1M /dev/shm | tail -n 1; touch wrote-$RANK")
SAVES = "trap 'touch saved-$RANK; exit 75' TERM; echo ready; while :; do sleep 0.1; done"


class ContainersTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = pathlib.Path(tempfile.mkdtemp(prefix="muster-containers-", dir="/var/tmp"))
        cls.addClassCleanup(shutil.rmtree, folder, ignore_errors=True)
        image, why = containers.make_image(BUILD, folder, COMPONENTS, TRAIN)
        if not why:
            cls.podman, why = containers.working_podman(folder, image)
        if why:
            cls.doClassCleanups()
            print("skipped:", why)
            sys.exit(SKIPPED)
        cls.addClassCleanup(cls.podman.close)

    def setUp(self):
        self.cluster = pods.Cluster()
        self.cluster.__enter__()
        self.addCleanup(self.cluster.__exit__)
        self.addCleanup(self.podman.remove_containers)
        self.cluster.folder.chmod(0o755)
        self.pods = manifests.pods_of(manifests.load_example("indexed-job.yaml"))[:PODS]
        group = self.pods[0].spec["securityContext"]["fsGroup"]
        self.work = self.cluster.folder / "work"
        self.work.mkdir()
        self.work.chmod(0o775)
        shutil.chown(self.work, 0, group)
        secret = self.podman.must("run", "--rm", "--network=none", *containers.limits_of_processes(),
                                  containers.image_of(self.podman), "secret")
        self.volumes = {"work": self.work, "secret": manifests.mounted_secret(self.cluster.folder / "secret", secret, group)}

    def start(self, index, program, nnodes=str(PODS), more=()):
        """The manifest's command in its pod, for so many nodes, with `program` (of sh) in place of the training."""
        return self.start_words(index, [*more, "-n", "1", "sh", "-c", program], nnodes)

    def start_words(self, index, words, nnodes=str(PODS), flags=()):
        pod = self.pods[index]
        command = [f"--nnodes={nnodes}" if word.startswith("--nnodes=") else word for word in pod.command]
        command[command.index("./train"):] = words
        self.assertIn(f"--nnodes={nnodes}", command)
        return containers.RunningPod(self.podman, self.cluster, pod, command, self.volumes, flags)

    def ended(self, pod, code):
        """What the pod said, once it has ended with this exit code."""
        self.assertEqual((pod.exit_code(), code)[0], code, "\n".join(pod.said()))
        return "".join(pod.said())

    def says(self, pod, text, seconds=100):
        try:
            wait_for(lambda: text in "".join(pod.said()), seconds)
        except AssertionError:
            raise AssertionError(f"not said: {text}\n" + "\n".join(pod.said())) from None

    def test_the_pods_find_each_other_and_have_what_the_manifest_gives_them(self):
        started = [self.start(index, FACTS) for index in range(PODS)]
        for index, pod in enumerate(started):
            said = self.ended(pod, 0)
            self.assertIn(f"rank {index} of 2 on train-{index}, user 1000", said)
            self.assertIn("root is read-only", said)
            self.assertRegex(said, r"\b6[0-4]\n", "megabytes of shared memory")
            self.assertTrue((self.work / f"wrote-{index}").exists(), "the volume that all pods share")

    def test_muster_sees_the_limit_of_cpus(self):
        image = containers.image_of(self.podman)
        said = self.podman.must("run", "--rm", "--network=none", "--cpus=1", *containers.limits_of_processes(), image, "devices")
        self.assertIn("CPU: 1 core,", said)

    def test_sigterm_lets_the_ranks_save_within_the_grace_period(self):
        started = [self.start(index, SAVES) for index in range(PODS)]
        for pod in started:
            self.says(pod, "ready")
        ends = [pod.stop() for pod in started]
        for index, pod in enumerate(started):
            self.ended(pod, 75)
            self.assertTrue((self.work / f"saved-{index}").exists())
        self.assertEqual([end.wait(30) for end in ends], [0] * PODS)

    def test_a_pod_that_is_started_again_joins_an_elastic_job(self):
        """It has another address, as it has in a cluster."""
        program = "echo world $WORLD_SIZE; [ -e finish ] && [ $WORLD_SIZE = 2 ] && exit 0; while :; do sleep 0.1; done"
        first = self.start(0, program, nnodes="1:2", more=["--rdzv-conf", "last_call_timeout=60"])
        second = self.start(1, program, nnodes="1:2")
        self.says(second, "world 2")
        second.kill()
        self.says(first, "world 1")
        (self.work / "finish").touch()
        again = self.start(1, program, nnodes="1:2")
        self.ended(again, 0)
        self.ended(first, 0)

    def test_a_pod_of_a_job_of_fixed_size_that_is_killed_ends_the_others(self):
        """So that the Job starts all of them again, and they resume."""
        program = "echo ready; [ -e finish ] && exit 0; while :; do sleep 0.1; done"
        started = [self.start(index, program) for index in range(PODS)]
        for pod in started:
            self.says(pod, "ready")
        started[1].kill()
        self.assertNotEqual(started[0].exit_code(), 0)
        self.assertIn("train-1", "".join(started[0].said()), "the card names the pod")
        (self.work / "finish").touch()
        for pod in [self.start(index, program) for index in range(PODS)]:
            self.ended(pod, 0)

    def test_a_rank_that_needs_too_much_memory_is_named_with_the_limit(self):
        grows = "[ $RANK = 0 ] && while :; do sleep 0.1; done; x=$(head -c 900000000 /dev/zero | tr '\\0' x); echo ${#x}"
        started = [self.start(index, grows) for index in range(PODS)]
        self.assertNotEqual(started[1].exit_code(), 0)
        said = "".join(started[1].said())
        self.assertIn("rank 1 failed first", said)
        self.assertIn("whose limit is 512.0 MiB", said)
        self.assertNotEqual(started[0].exit_code(), 0)

    def test_orphans_are_taken_away_by_the_entry_point(self):
        """muster is process 1 of its container: a process that loses its parent is its child."""
        program = ("for i in 1 2 3; do (setsid sh -c 'sleep 0.1; touch gone-$0' $i &) ; done; "
                   "until [ -e gone-1 ] && [ -e gone-2 ] && [ -e gone-3 ]; do sleep 0.05; done; "
                   "until ! grep -q '^State:.Z' /proc/[0-9]*/status 2>/dev/null; do sleep 0.05; done; echo none is left")
        started = [self.start(index, program) for index in range(PODS)]
        for pod in started:
            self.assertIn("none is left", self.ended(pod, 0))

    def test_ranks_train_with_the_shared_memory_that_a_pod_has(self):
        """The program is in the image, with the packages that it needs."""
        if not TRAIN:
            self.skipTest("this build has no LibTorch")
        of_libtorch = [*(f"--volume={folder}:{folder}:ro" for folder in (manifests.ROOT, BUILD)), f"--env=LD_LIBRARY_PATH={BUILD}/lib"]
        flags = [*([] if IS_WHOLE else of_libtorch), "--env=OMP_NUM_THREADS=1", "--memory=2g"]
        shutil.copy(manifests.ROOT / "data/digits.csv.gz", self.work)
        words = ["-n", "2", pathlib.Path(TRAIN).name, "--epochs", "2", "--digits", "digits.csv.gz"]
        started = [self.start_words(index, words, flags=flags) for index in range(PODS)]
        for pod in started:
            self.ended(pod, 0)
        self.assertIn("test_accuracy", "".join(started[0].said()))


if __name__ == "__main__":
    BUILD = str(pathlib.Path(sys.argv.pop(1)).resolve())
    TRAIN = sys.argv.pop(1) if len(sys.argv) > 1 and sys.argv[1].startswith("/") else ""
    main(containers.missing())
