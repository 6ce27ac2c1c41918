"""The manifests of examples/kubernetes, by the schemas of Kubernetes and of the projects whose kinds they use.

    manifests_test.py
"""

import copy
import pathlib
import re
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import manifests
from hosts import main

PAGE = manifests.ROOT / "docs/how/kubernetes.md"
EXAMPLES = sorted(path.name for path in manifests.EXAMPLES.glob("*.yaml"))


def pod_spec_of(document):
    """The pod's part of a document; nothing for one that has none."""
    if document["kind"] == "Job":
        return document["spec"]["template"]["spec"]
    jobs = {"JobSet": lambda: document["spec"], "TrainingRuntime": lambda: document["spec"]["template"]["spec"]}
    if document["kind"] not in jobs:
        return None
    return jobs[document["kind"]]()["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]


class ManifestsTest(unittest.TestCase):
    def documents(self):
        return [(name, document) for name in EXAMPLES for document in manifests.load_example(name)]

    def refused(self, document):
        with self.assertRaises(Exception) as raised:
            manifests.validate(document)
        self.assertEqual(type(raised.exception).__name__, "ValidationError")

    def test_every_manifest_is_valid(self):
        kinds = []
        for name, document in self.documents():
            with self.subTest(name, kind=document["kind"]):
                manifests.validate(document)
                kinds.append(document["kind"])
        self.assertEqual(sorted(kinds), ["Job", "JobSet", "Service", "TrainJob", "TrainingRuntime"])

    def test_a_field_that_is_misspelled_or_of_another_type_is_refused(self):
        for name, document in self.documents():
            with self.subTest(name, kind=document["kind"]):
                wrong = copy.deepcopy(document)
                wrong["spec"]["misspelled"] = 1
                self.refused(wrong)
                wrong = copy.deepcopy(document)
                wrong["metadata"]["name"] = 1
                self.refused(wrong)

    def test_so_is_one_within_the_pods(self):
        seen = 0
        for name, document in self.documents():
            if pod_spec_of(document) is None:
                continue
            with self.subTest(name, kind=document["kind"]):
                for change in ({"misspelled": 1}, {"terminationGracePeriodSeconds": "long"}, {"containers": [{}]}):
                    wrong = copy.deepcopy(document)
                    pod_spec_of(wrong).update(change)
                    self.refused(wrong)
                seen += 1
        self.assertEqual(seen, 3)

    def test_the_grace_period_is_longer_than_what_the_ranks_get(self):
        for name in EXAMPLES:
            for pod in manifests.pods_of(manifests.load_example(name)):
                [given] = [word for word in pod.command if word.startswith("--shutdown-timeout=")]
                self.assertLess(int(re.fullmatch(r"--shutdown-timeout=(\d+)s", given).group(1)), pod.grace, name)

    def test_the_pods_are_as_restricted_as_the_strictest_standard_of_kubernetes_asks(self):
        """Of "Pod Security Standards", level Restricted, for those manifests that say that they are."""
        for name in ("indexed-job.yaml", "jobset.yaml"):
            for pod in manifests.pods_of(manifests.load_example(name)):
                with self.subTest(pod.name):
                    self.assertTrue(pod.spec["securityContext"]["runAsNonRoot"])
                    self.assertEqual(pod.spec["securityContext"]["seccompProfile"], {"type": "RuntimeDefault"})
                    self.assertFalse(pod.container["securityContext"]["allowPrivilegeEscalation"])
                    self.assertEqual(pod.container["securityContext"]["capabilities"], {"drop": ["ALL"]})

    def test_what_the_page_shows_is_in_the_manifests(self):
        whole = [(manifests.EXAMPLES / name).read_text(encoding="utf-8") for name in EXAMPLES]
        blocks = re.findall(r"^```yaml\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
        self.assertGreater(len(blocks), 2)
        for block in blocks:
            with self.subTest(block):
                self.assertTrue(any(self.has(text, block) for text in whole), "not a piece of a manifest")

    @staticmethod
    def has(text, block):
        """Whether the lines follow each other there, as far in as they may be."""
        return any(re.sub(f"(?m)^ {{{depth}}}", "", text).find(block) >= 0 for depth in range(0, 21, 2))


if __name__ == "__main__":
    main(manifests.missing())
