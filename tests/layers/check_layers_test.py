#!/usr/bin/env python3
"""The layer check itself, on small trees of which each breaks one rule."""

import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

CHECK = pathlib.Path(__file__).with_name("check_layers.py")

# A tree that breaks nothing: every kind of include that is allowed, the easily confused ones included.
GOOD = {
    "muster/base/error.h": "#include <string>\n#include <sys/types.h>\n",
    "muster/base/fd.h": '#include "muster/base/error.h"\n',
    "muster/base/log.cc": "#include <spdlog/spdlog.h>\n",
    "muster/base/torch_names.h": "#include <c10/core/Layout.h>\n",
    "cmake/other_public_headers.txt": "# More.\nmuster/base/fd.h\n",
    "muster/store/store.h": '#include "muster/base/error.h"\n',
    "muster/store/frame.h": "#include <openssl/evp.h>\n",
    "muster/store/store.cc": '#include <fmt/format.h>\n#include <nlohmann/json.hpp>\n#include "muster/base/fd.h"\n',
    "muster/placement/plan.cc": '#include "muster/base/fd.h"\n#include "muster/device/inventory.h"\n',
    "muster/device/inventory.h": "// #include <torch/torch.h>\n/*\n#include <torch/torch.h>\n*/\n",
    "muster/comm/group.cc": '#include "muster/base/torch_names.h"\n',
    "muster/comm/group.h": '#include <ATen/core/Tensor.h>\n#include "muster/store/store.h"\n',
    "muster/checkpoint/files/manifest.cc": '#include "muster/base/fd.h"\n',
    "muster/checkpoint/peers.cc": '#include "muster/comm/group.h"\n#include "muster/checkpoint/files/manifest.h"\n',
    "muster/cli/checkpoint.cc": '#include "muster/checkpoint/files/manifest.h"\n',
    "muster/tasks/task.h": '#include "muster/base/error.h"\n',
    "muster/tasks/spec/sweep.h": '#include "muster/tasks/task.h"\n',
    "muster/tasks/hosts/local.h": '#include "muster/tasks/spec/sweep.h"\n#include "muster/tasks/task.h"\n',
    "muster/tasks/journal/line.h": '#include "muster/tasks/task.h"\n',
    "muster/tasks/runner.cc": '#include "muster/tasks/hosts/local.h"\n#include "muster/tasks/journal/line.h"\n',
    "muster/cli/tasks.cc": '#include "muster/tasks/spec/sweep.h"\n',
    "muster/run/run.cc": '#include "muster/launch/launch.h"\n#include "muster/comm/group.h"\n',
    "muster/muster.h": '#include "muster/comm/group.h"\n#include "muster/base/error.h"\n',
    "python/torch/muster_torch/_backend.cc": '#include <torch/csrc/utils/pybind.h>\n#include "muster/comm/group.h"\n',
}

# What is added or replaced -> what the one complaint must say.
BAD = {
    "arrow up": ({"muster/base/up.h": '#include "muster/store/store.h"\n'}, "muster/base/up.h:1: muster/store/store.h"),
    "arrow sideways": ({"muster/device/a.cc": '\n#include "muster/supervise/child.h"\n'}, "muster/device/a.cc:2"),
    "arrow between the planes": ({"muster/launch/a.cc": '#include "muster/comm/group.h"\n'}, "launch may use only"),
    "indented arrow": ({"muster/base/up.h": '  #  include "muster/cli/run.h"\n'}, "muster/base/up.h:1"),
    "arrow in angles": ({"muster/base/up.h": "#include <muster/store/store.h>\n"}, "muster/base/up.h:1"),
    "arrow to data from a program": ({"muster/cli/a.cc": '#include "muster/data/loader.h"\n'}, "cli may use only"),
    "arrow to a checkpoint's tensors from a program": ({"muster/cli/a.cc": '#include "muster/checkpoint/image.h"\n'},
                                                       "cli may use only"),
    "arrow from a checkpoint's tensors to a loader": ({"muster/checkpoint/image.cc": '#include "muster/data/loader.h"\n'},
                                                      "checkpoint may use only"),
    "arrow from a checkpoint's files to its tensors": ({"muster/checkpoint/files/sha256.cc": '#include "muster/checkpoint/image.h"\n'},
                                                       "may use only"),
    "LibTorch in a checkpoint's files": ({"muster/checkpoint/files/sha256.cc": "#include <torch/torch.h>\n"}, "does not know LibTorch"),
    "LibTorch in the control plane": ({"muster/store/a.cc": "#include <torch/torch.h>\n"}, "does not know LibTorch"),
    "ATen in the control plane": ({"muster/cli/a.cc": "#include <ATen/ATen.h>\n"}, "does not know LibTorch"),
    "c10 in the control plane": ({"muster/base/a.h": "#include <c10/core/Device.h>\n"}, "does not know LibTorch"),
    "LibTorch's names in the control plane": ({"muster/store/a.cc": '#include "muster/base/torch_names.h"\n'}, "does not know LibTorch"),
    "LibTorch's names in a public header": ({"muster/comm/group.h": '#include "muster/base/torch_names.h"\n'},
                                            "no short names of LibTorch's types"),
    "LibTorch's names in a header that a public one includes": (
        {"muster/comm/group.h": '#include "muster/comm/work.h"\n', "muster/comm/work.h": '#include "muster/base/torch_names.h"\n'},
        "muster/comm/work.h:1"),
    "fmt in the data plane": ({"muster/comm/a.cc": "#include <fmt/format.h>\n"}, "never fmt or spdlog"),
    "spdlog in the data plane": ({"muster/data/a.cc": "#include <spdlog/spdlog.h>\n"}, "never fmt or spdlog"),
    "fmt in muster.h": ({"muster/muster.h": "#include <fmt/format.h>\n"}, "never fmt or spdlog"),
    "fmt in a header": ({"muster/store/a.h": "#include <fmt/format.h>\n"}, "no fmt or spdlog in headers"),
    "spdlog beside base/log.cc": ({"muster/store/a.cc": "#include <spdlog/spdlog.h>\n"}, "log through"),
    "a library in a public header": ({"muster/store/store.h": "#include <nlohmann/json.hpp>\n"}, "no library's header"),
    "a library unheard of": ({"muster/base/fd.h": "#include <hwloc.h>\n"}, "no library's header"),
    "a library in a header that a public one includes": ({"muster/store/store.h": '#include "muster/store/frame.h"\n'}, "no library's header"),
    "muster.h inside": ({"muster/comm/a.cc": '#include "muster/muster.h"\n'}, "gathers everything"),
    "program in muster.h": ({"muster/muster.h": '#include "muster/cli/run.h"\n'}, "muster.h may use only"),
    "a relative include": ({"muster/comm/a.cc": '#include "../launch/launch.h"\n'}, 'expected "muster/'),
    "more than groups in Python": ({"python/torch/muster_torch/_backend.cc": '#include "muster/run/context.h"\n'}, "python may use only"),
    "an arrow up between rooms": ({"muster/tasks/spec/a.cc": '#include "muster/tasks/hosts/local.h"\n'},
                                  "muster/tasks/spec/a.cc:1: muster/tasks/hosts/local.h: tasks/spec may use only"),
    "an arrow up to a backend": ({"muster/comm/host/a.cc": '#include "muster/comm/shm/backend.h"\n', "muster/comm/shm/backend.h": ""},
                                 "comm/host may use only"),
    "an arrow sideways between rooms": ({"muster/tasks/hosts/a.cc": '#include "muster/tasks/journal/line.h"\n'},
                                        "tasks/hosts may use only"),
    "an arrow from a room to the spine": ({"muster/tasks/runner.h": "", "muster/tasks/hosts/a.cc": '#include "muster/tasks/runner.h"\n'},
                                          "tasks/hosts may use only"),
    "an arrow up from the value of all rooms": ({"muster/tasks/task.cc": '#include "muster/tasks/spec/sweep.h"\n'},
                                                "tasks/task may use only its own rooms (none)"),
    "a new room": ({"muster/tasks/attic/a.cc": ""}, "expected a room of the table"),
    "a new folder": ({"muster/extras/a.cc": ""}, "expected a folder of the table"),
    "a new file at the top": ({"muster/extras.h": ""}, "expected a folder of the table"),
}


def check(files):
    """Exit code and output of the check on a tree of these files."""
    with tempfile.TemporaryDirectory() as root:
        for name, text in files.items():
            path = pathlib.Path(root, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        return run(root)


def run(root):
    done = subprocess.run([sys.executable, os.fspath(CHECK), os.fspath(root)], capture_output=True, text=True,
                          check=False)
    return done.returncode, done.stdout + done.stderr


class CheckLayers(unittest.TestCase):
    def test_good_tree(self):
        self.assertEqual(check(GOOD), (0, ""))

    def test_every_rule_can_fail(self):
        for rule, (change, expected) in BAD.items():
            with self.subTest(rule):
                code, output = check(GOOD | change)
                self.assertEqual(code, 1, output)
                self.assertIn(expected, output)
                self.assertEqual(len(output.splitlines()), 1, output)

    def test_no_tree(self):
        code, output = run("/nonexistent")
        self.assertEqual(code, 2)
        self.assertIn("/nonexistent", output)


if __name__ == "__main__":
    unittest.main()
