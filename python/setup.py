"""pip install ./python: the program muster, its C interface libmuster.so.0, and a package of pure Python over both.

MUSTER_PROGRAM names a built program; libmuster.so.0 lies in lib/ beside its bin/, or where MUSTER_LIBRARY says. Otherwise
both are built here, by cmake."""
import os
import pathlib
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile

import setuptools
from distutils.command.install_data import install_data  # setuptools brings it
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

root = pathlib.Path(__file__).resolve().parents[1]
version = re.search(r"VERSION ([\d.]+)\b.*LANGUAGES", (root / "CMakeLists.txt").read_text()).group(1)


class Binaries:
    """The program and the library. They are built once, when the wheel is made, and not when pip only asks what it will be."""

    def __init__(self, folder):
        self.folder = folder
        self.found = None

    def get(self):
        if self.found is None:
            self.found = self.named() or self.built()
        return self.found

    def named(self):
        program = os.environ.get("MUSTER_PROGRAM")
        if not program:
            return None
        if not os.access(program, os.X_OK):
            sys.exit(f"building the wheel: expected MUSTER_PROGRAM to name the program muster, got '{program}', which cannot be run")
        program = pathlib.Path(program).resolve()
        library = pathlib.Path(os.environ.get("MUSTER_LIBRARY") or program.parents[1] / "lib/libmuster.so.0")
        if not library.is_file():
            sys.exit(f"building the wheel: expected libmuster.so.0 of the program {program}, got no file '{library}'; "
                     "build the target muster_c, or set MUSTER_LIBRARY")
        return program, library

    def built(self):
        build = pathlib.Path(self.folder, "control")
        options = ("-DCMAKE_BUILD_TYPE=Release", "-DMUSTER_OPTIMIZE=2", "-DMUSTER_LIBTORCH=OFF", "-DMUSTER_TESTS=OFF", "-DMUSTER_BENCHMARKS=OFF")
        targets = ("--target", "muster_cli", "muster_c")
        for command in ("cmake", "-S", root, "-B", build, *options), ("cmake", "--build", build, "--parallel", str(len(os.sched_getaffinity(0))), *targets):
            if subprocess.run(command, check=False).returncode:
                sys.exit("building the wheel: the program muster could not be built (above); MUSTER_PROGRAM=<a built one> takes that one")
        return build / "bin/muster", build / "lib/libmuster.so.0"


def platform_tag(files):
    """The oldest C library that has what the files ask of it: manylinux_2_34_x86_64."""
    asked = [int(minor) for file in files for minor in re.findall(rb"\0GLIBC_2\.(\d+)", file.read_bytes())]
    return f"manylinux_2_{max(asked, default=17)}_{sysconfig.get_platform().split('-')[-1].replace('-', '_')}"


class WithLibrary(build_py):
    def run(self):
        super().run()
        package = pathlib.Path(self.build_lib, "muster")
        (package / "_lib").mkdir(parents=True, exist_ok=True)
        shutil.copy2(binaries.get()[1], package / "_lib/libmuster.so.0")
        text = (package / "_version.py").read_text(encoding="utf-8")
        (package / "_version.py").write_text(re.sub(r'(__version__ = ).*', rf'\1"{version}"', text), encoding="utf-8")


class WithProgram(install_data):
    def run(self):
        self.data_files = [("bin", [str(binaries.get()[0])])]
        super().run()


class AnyPython(bdist_wheel):
    """One wheel for every Python: nothing in it is compiled against one."""

    def finalize_options(self):
        super().finalize_options()
        self.root_is_pure = False

    def get_tag(self):
        return "py3", "none", platform_tag(binaries.get())


# Nothing is left in the repository.
with tempfile.TemporaryDirectory() as folder:
    binaries = Binaries(folder)
    setuptools.setup(
        version=version,
        extras_require={"torch": [f"muster-torch=={version}"], "notebook": ["cloudpickle"]},
        cmdclass={"bdist_wheel": AnyPython, "build_py": WithLibrary, "install_data": WithProgram},
        data_files=[("bin", [])],  # WithProgram has it
        has_ext_modules=lambda: True,
        options={"build": {"build_base": folder}, "egg_info": {"egg_base": folder}},
    )
