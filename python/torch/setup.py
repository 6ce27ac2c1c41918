"""pip install --no-build-isolation ./python/torch: the backend "muster" of torch.distributed, built against the torch that this
Python has."""
import os
import pathlib
import platform
import re
import sys
import sysconfig
import tempfile

import setuptools
from torch.utils.cpp_extension import BuildExtension, CppExtension

if not (header := pathlib.Path(sysconfig.get_path("include"), "Python.h")).is_file():
    sys.exit(f"building the Python module: expected {header}, got no such file; install this Python's headers (Debian: python3-dev)")

root = pathlib.Path(__file__).resolve().parents[2]
version = re.search(r"VERSION ([\d.]+)\b.*LANGUAGES", (root / "CMakeLists.txt").read_text()).group(1)
# The rooms that the module is made of, but for what needs a library's headers, the process's activity, which the package muster
# has, and warnings of graphs, which PyTorch gives itself.
ROOMS = {"base": {"compress", "folder_lock", "log", "process_lock", "version"}, "trace": {"activity", "breakdown", "merge_trace", "own_activity"}, "comm/call": {"unseen_graph"}, "comm/host": {}, "comm/shm": {}, "comm/hierarchical": {}}
sources = sorted(root.glob("muster/shm/*.cc"))
if platform.machine() != "x86_64":
    sources = [source for source in sources if "avx" not in source.name]

# Nothing is left in the repository, and no object of another torch is ever linked.
with tempfile.TemporaryDirectory() as folder:
    # A room in one go, and what includes torch in one: its headers cost more than all else.
    together = {pathlib.Path(folder, "comm.cc"): '#include "python/torch/muster_torch/_backend.cc"\n',
                pathlib.Path(folder, "trace.cc"): '#include "python/torch/muster_torch/_activity.cc"\n'}
    for room, left_out in ROOMS.items():
        file = pathlib.Path(folder, room.split("/")[0] + ".cc")
        names = sorted(path.name for path in root.glob(f"muster/{room}/*.cc") if path.stem not in left_out)
        together[file] = together.get(file, "") + "".join(f'#include "muster/{room}/{name}"\n' for name in names)
    for file, text in together.items():
        file.write_text(text, encoding="utf-8")
    setuptools.setup(
        version=version,
        install_requires=["torch>=2.11,<2.16", f"muster=={version}"],
        ext_modules=[CppExtension(
            "muster_torch._backend", [*map(str, together), *map(str, sources)], include_dirs=[str(root)],
            extra_compile_args=["-std=c++20", f"-O{os.environ.get('MUSTER_OPTIMIZE') or 3}", "-g0", "-ffp-contract=off",
                                "-fvisibility=hidden", "-fstack-protector-strong", "-U_FORTIFY_SOURCE",
                                "-D_FORTIFY_SOURCE=2"],  # as cmake/hardening.cmake
            extra_link_args=["-Wl,-z,relro,-z,now"])],
        cmdclass={"build_ext": BuildExtension.with_options(use_ninja=False)},
        options={"build": {"build_base": folder}, "egg_info": {"egg_base": folder}},
    )
