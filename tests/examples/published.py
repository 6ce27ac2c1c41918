"""Published weights for tests of programs, and the tensors of safetensors files without torch."""
import array
import json
import pathlib
import shutil
import struct
import subprocess
import tempfile
import unittest

from program_case import PYTHON, SOURCE


def publish(test_class):
    """A folder with the files of published_weights.py, for all tests of the class."""
    folder = tempfile.mkdtemp(prefix="muster-published-")
    test_class.addClassCleanup(shutil.rmtree, folder, ignore_errors=True)
    if not PYTHON:
        raise unittest.SkipTest("no Python with torch")
    done = subprocess.run([PYTHON, "-B", f"{SOURCE}/tests/examples/published_weights.py", folder])
    if done.returncode == 77:
        raise unittest.SkipTest("no Python with torch and safetensors")
    done.check_returncode()
    return folder


def tensors_of(path, *names):
    """The shape and numbers of these tensors, or of all of them; they are F32 or I64."""
    data = pathlib.Path(path).read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    head = json.loads(data[8:8 + size])
    head.pop("__metadata__", None)
    begin = 8 + size
    return {name: (entry["shape"], array.array("f" if entry["dtype"] == "F32" else "q",
                                               data[begin + entry["data_offsets"][0]:begin + entry["data_offsets"][1]]))
            for name, entry in head.items() if not names or name in names}
