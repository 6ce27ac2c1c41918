"""PyTorch's own tests of its backends (torch.testing._internal.distributed.distributed_test) over another backend: those that
PyTorch runs over gloo, but for the names. `torch_suite.py BACKEND RANKS [--hosts aab] [--only REGEX] [--least N]` ends with 1
where one fails, or fewer than N pass.

Ranks are forked, since importing torch takes longer than most of the tests."""
import argparse
import os
import re
import sys
import tempfile
import types
import unittest
from unittest import mock

parser = argparse.ArgumentParser()
parser.add_argument("backend")
parser.add_argument("ranks", type=int)
parser.add_argument("--hosts", default="", help="what the ranks take themselves to be on, a letter a rank")
parser.add_argument("--only", default="", help="tests whose name this regular expression finds")
parser.add_argument("--least", type=int, default=1, help="how many must pass")
arguments = parser.parse_args()

folder = tempfile.TemporaryDirectory(prefix="muster-torch-suite-")
# When it is imported the suite decides by BACKEND what is to run; later, what that runs over.
os.environ.update(BACKEND="gloo", WORLD_SIZE=str(arguments.ranks), TEMP_DIR=folder.name, TMPDIR=folder.name,
                  INIT_METHOD=f"file://{folder.name}/init")

try:
    import expecttest  # which PyTorch's tests need as the class of theirs
except ModuleNotFoundError:
    sys.modules["expecttest"] = types.SimpleNamespace(TestCase=unittest.TestCase)
import torch
try:
    from torch.testing._internal.distributed import distributed_test as suite
except ModuleNotFoundError as missing:
    print(f"skipped: PyTorch's tests need a module that this Python has not: {missing}")
    sys.exit(77)

import muster

suite.BACKEND = arguments.backend
for supported in (suite.PROFILING_SUPPORTED_BACKENDS, suite.SEND_RECV_PROFILING_SUPPORTED_BACKENDS):
    supported.append(arguments.backend)


class Suite(suite.TestDistBackend, suite.DistributedTest._DistTestBase):
    def setUp(self):
        super().setUp()
        self._start_processes(torch.multiprocessing.get_context("fork").Process)

    @classmethod
    def _run(cls, rank, *argv, **options):
        if arguments.hosts:
            os.environ["MUSTER_HOST_ID"] = arguments.hosts[rank]
        super()._run(rank, *argv, **options)

    def _test_accumulate_gradients_no_sync(self, *argv, **options):
        with mock.patch.object(suite, "BACKEND", "gloo"):  # it asks for the name, to know whether ranks are on the CPU
            super()._test_accumulate_gradients_no_sync(*argv, **options)


# DistributedDataParallel's log calls every backend that is not PyTorch's own "custom".
Suite.test_ddp_logging_data_cpu = unittest.expectedFailure(Suite.test_ddp_logging_data_cpu)

names = [name for name in unittest.TestLoader().getTestCaseNames(Suite) if re.search(arguments.only, name)]
result = unittest.TextTestRunner(verbosity=2).run(unittest.TestSuite(map(Suite, names)))
passed = result.testsRun - sum(map(len, (result.skipped, result.failures, result.errors, result.expectedFailures)))
print(f"{len(names)} tests over {arguments.backend} on {arguments.ranks} ranks: {passed} passed, {len(result.skipped)} skipped")
for test, _ in result.failures + result.errors:
    print("failed:", test.id().rsplit(".", 1)[-1])
if passed < arguments.least:
    print(f"expected at least {arguments.least} to pass, got {passed}")
sys.exit(not result.wasSuccessful() or passed < arguments.least)
