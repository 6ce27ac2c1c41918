#!/usr/bin/env python3
"""Installs a build into an empty folder and uses it from there. The build and what it has are told by
MUSTER_TEST_* (CMakeLists.txt beside this file)."""

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

SOURCE = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(SOURCE / "tests/support"))
from long import long  # noqa: E402

BUILD = os.environ["MUSTER_TEST_BUILD"]
VERSION = os.environ["MUSTER_TEST_VERSION"]
HAS_LIBRARY = os.environ["MUSTER_TEST_LIBRARY"] == "1"
HAS_CUDA = os.environ["MUSTER_TEST_CUDA"] == "1"
MPI_LIBRARIES = [name for name in os.environ["MUSTER_TEST_MPI"].split(",") if name]
SANITIZE = os.environ["MUSTER_TEST_SANITIZE"]

# What must not help the installed tree: places to look in, another LibTorch, a launcher's variables.
HELPERS = re.compile(r"(LD_LIBRARY_PATH|LIBRARY_PATH|CPATH|CMAKE_PREFIX_PATH|DESTDIR|TORCH|RANK|WORLD_SIZE|"
                     r"LOCAL_RANK|MASTER_ADDR|MASTER_PORT|MUSTER_.*|TORCHELASTIC_.*)$")
ENVIRONMENT = {name: value for name, value in os.environ.items() if not HELPERS.match(name)}


def run(*command, environment=None, cwd=None):
    """Exit code, standard output and standard error."""
    done = subprocess.run([os.fspath(part) for part in command], env=ENVIRONMENT | (environment or {}), cwd=cwd,
                          stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout, done.stderr


class Installed(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.scratch = pathlib.Path(tempfile.mkdtemp(prefix="muster-install-"))
        cls.addClassCleanup(shutil.rmtree, cls.scratch)
        # Installed, then moved. LibTorch's gigabytes are linked: what counts is where they are looked for.
        first, cls.prefix = cls.scratch / "first", cls.scratch / "prefix"
        for component, mode in ("program", "COPY"), ("development", "COPY"), ("bench", "COPY"), ("libtorch", "SYMLINK"):
            code, out, err = run("cmake", "--install", BUILD, "--prefix", first, "--component", component,
                                 environment={"CMAKE_INSTALL_MODE": mode})
            assert code == 0, out + err
        first.rename(cls.prefix)

    def must(self, *command, **options):
        code, out, err = run(*command, **options)
        self.assertEqual(code, 0, f"{command}:\n{out}{err}")
        return out

    def configure(self, *arguments, project="examples/00_hello"):
        """Of an installed example, or all of them."""
        project = self.prefix / "share/doc/muster" / project
        build = self.scratch / "-".join(["build", self._testMethodName])
        command = ["cmake", "-S", project, "-B", build, f"-DCMAKE_PREFIX_PATH={self.prefix}", *arguments]
        if SANITIZE:
            command.append(f"-DCMAKE_CXX_FLAGS=-fsanitize={SANITIZE}")
        return build, run(*command)

    def files(self):
        """What was installed, but for LibTorch."""
        names = (path.relative_to(self.prefix).as_posix() for path in self.prefix.rglob("*") if not path.is_dir())
        return {name for name in names if not name.startswith("lib/muster/libtorch/")}


class Package(Installed):
    def test_program(self):
        self.assertEqual(self.must(self.prefix / "bin/muster", "--version"), f"muster {VERSION}\n")
        for name in "LICENSE", "README.md", "docs/clusters.md":
            self.assertIn(f"share/doc/muster/{name}", self.files())

    @unittest.skipIf(HAS_LIBRARY, "this build has the C++ library")
    def test_launcher_alone(self):
        code = {name for name in self.files() if not name.endswith(".cmake") and not name.startswith("share/")}
        self.assertEqual(code, {"bin/muster", "lib/libmuster.so.0", "include/muster/c_api.h"})
        project = self.scratch / "hello"
        shutil.copytree(SOURCE / "examples/00_hello", project)
        _, (code, out, err) = self.configure(project=project)
        self.assertNotEqual(code, 0)
        self.assertIn("has no C++ library", " ".join((out + err).split()))

    @unittest.skipUnless(HAS_LIBRARY, "this build has no C++ library")
    def test_libraries_lie_beside_each_other(self):
        libraries = {name for name in self.files() if ".so" in name}
        expected = ["muster"] + ["muster_cuda"] * HAS_CUDA + MPI_LIBRARIES
        self.assertEqual(libraries, {f"lib/lib{name}.so" for name in expected} | {"lib/libmuster.so.0"})

    @unittest.skipUnless(HAS_LIBRARY, "this build has no C++ library")
    def test_headers_are_complete(self):
        include = self.prefix / "include"
        headers = [path for path in include.rglob("*.h")]
        self.assertIn(include / "muster/muster.h", headers)
        for header in headers:
            for name in re.findall(r'#include ["<](muster/[^">]+)[">]', header.read_text(encoding="utf-8")):
                self.assertTrue((include / name).is_file(), f"{header} includes {name}, which is not installed")

    @unittest.skipUnless(HAS_LIBRARY, "this build has no C++ library")
    def test_libraries_are_found_without_help(self):
        programs = [*self.prefix.glob("lib/*.so"), self.prefix / "libexec/muster/muster-bench"]
        for program in programs:
            self.assertNotIn("not found", self.must("ldd", program), program)
            self.assertIn("$ORIGIN", self.must("readelf", "-d", program), program)

    @unittest.skipUnless(HAS_LIBRARY, "this build has no C++ library")
    def test_nothing_needs_the_checkout(self):
        checkout = re.compile(f"{re.escape(str(SOURCE))}/|{re.escape(BUILD)}/")
        for path in (self.prefix / name for name in self.files()):
            with path.open("rb") as file:
                is_elf = file.read(4) == b"\x7fELF"
            if is_elf:
                self.assertNotRegex(self.must("readelf", "-d", path), checkout, path)
                self.assertNotRegex(self.must("ldd", path), checkout, path)
            elif path.suffix == ".cmake":
                self.assertNotRegex(path.read_text(encoding="utf-8"), checkout, path)

    def project_of(self, lines):
        """A project of programs of one empty source, with these lines of CMake; as configure() returns it."""
        project = self.scratch / "-".join(["project", self._testMethodName])
        project.mkdir()
        (project / "main.cc").write_text("int main() {}\n", encoding="utf-8")
        head = "cmake_minimum_required(VERSION 3.25)\nproject(programs LANGUAGES CXX)\nfind_package(muster REQUIRED)\n"
        (project / "CMakeLists.txt").write_text(head + lines, encoding="utf-8")
        return self.configure("-DCMAKE_EXPORT_COMPILE_COMMANDS=ON", project=project)

    @unittest.skipUnless(HAS_LIBRARY, "this build has no C++ library")
    def test_targets_with_the_same_flags_share_a_precompiled_header(self):
        build, (code, out, err) = self.project_of("""
            foreach(name one two with_a_macro with_a_flag)
              add_executable(${name} main.cc)
              target_link_libraries(${name} PRIVATE muster::muster)
            endforeach()
            add_library(shared SHARED main.cc)
            target_link_libraries(shared PRIVATE muster::muster)
            muster_precompile(one two with_a_macro with_a_flag shared)
            target_compile_definitions(with_a_macro PRIVATE FILE="x")
            target_compile_options(with_a_flag PRIVATE -O2)
            """)
        self.assertEqual(code, 0, out + err)
        header = {}
        for entry in json.loads((build / "compile_commands.json").read_text(encoding="utf-8")):
            target = re.search(r"CMakeFiles/(\w+)\.dir/main\.cc\.o", entry["command"])
            if target:
                header[target[1]] = re.search(r"-include (\S+)", entry["command"])[1]
        self.assertEqual(set(header), {"one", "two", "with_a_macro", "with_a_flag", "shared"})
        self.assertEqual(header["one"], header["two"])
        self.assertEqual(header["one"], header["with_a_macro"])
        self.assertEqual(len({header["one"], header["with_a_flag"], header["shared"]}), 3)

    @unittest.skipUnless(HAS_LIBRARY, "this build has no C++ library")
    def test_precompiling_what_is_no_target_is_told(self):
        _, (code, out, err) = self.project_of("muster_precompile(nothing)\n")
        self.assertNotEqual(code, 0)
        self.assertIn("muster_precompile: expected a target, got 'nothing'", " ".join((out + err).split()))

    @unittest.skipUnless(HAS_LIBRARY, "this build has no C++ library")
    def test_all_examples_are_a_project(self):
        build, (code, out, err) = self.configure(project="examples")
        self.assertEqual(code, 0, out + err)
        told = self.must("cmake", "--build", build, "--target", "help")
        for name in "hello", "train", "gpt", "three_models", "resnet", "finetune":
            self.assertRegex(told, rf"(?m)\b{name}\b")
        for source in (self.prefix / "share/doc/muster/examples").glob("0*/**/*.*"):
            for header in re.findall(r"^#include <(muster/.*)>", source.read_text(), re.MULTILINE):
                self.assertTrue((self.prefix / "include" / header).is_file(), f"{source} includes {header}, which is not installed")
        self.assertTrue((self.prefix / "share/doc/muster/data/digits.csv.gz").is_file())

    @unittest.skipUnless(HAS_LIBRARY, "this build has no C++ library")
    def test_another_libtorch_is_asked_for_by_torch(self):
        _, (code, out, err) = self.configure(f"-DTORCH={self.scratch}/nothing-here")
        self.assertNotEqual(code, 0)
        self.assertIn("nothing-here", out + err)

    @unittest.skipUnless(HAS_LIBRARY, "this build has no C++ library")
    def test_a_libtorch_of_another_version_is_refused(self):
        torch = self.scratch / "torch"
        for name, text in {
                "lib/libtorch_cpu.so": "", "lib/libc10.so": "",
                "include/torch/csrc/api/include/torch/torch.h": "",
                "include/torch/headeronly/version.h": "#define TORCH_VERSION_MAJOR 2\n#define TORCH_VERSION_MINOR 12\n"
                                                      "#define TORCH_VERSION_PATCH 77\n"}.items():
            (torch / name).parent.mkdir(parents=True, exist_ok=True)
            (torch / name).write_text(text, encoding="utf-8")
        _, (code, out, err) = self.configure(f"-DTORCH={torch}")
        self.assertNotEqual(code, 0)
        self.assertRegex(" ".join((out + err).split()), r"expected LibTorch 2\.\d+\.\d+, .* got 2\.12\.77")


class OnesOwnProgram(Installed):
    def build_hello(self, *arguments, **how):
        build, (code, out, err) = self.configure(*arguments, **how)
        self.assertEqual(code, 0, out + err)
        self.must("cmake", "--build", build)
        self.assertIn(f"=> {self.prefix}/lib/libmuster.so", self.must("ldd", build / "hello"))
        return build

    @long
    @unittest.skipUnless(HAS_LIBRARY, "this build has no C++ library")
    def test_project_of_ones_own(self):
        build = self.build_hello()

        # No GPU, so that the two ranks have two devices on every machine.
        environment = {"MUSTER_NPROC": "2", "CUDA_VISIBLE_DEVICES": "-1"}
        out = self.must(build / "hello", environment=environment, cwd=self.scratch)
        for rank in range(2):
            self.assertIn(f"rank {rank} of 2 on cpu: sum 1\n", out)

    # A precompiled header costs twice as much as the program without one.
    @unittest.skipUnless(HAS_LIBRARY, "this build has no C++ library")
    def test_the_readme_program_prints_what_the_readme_shows(self):
        self.build_readme_program("-DCMAKE_DISABLE_PRECOMPILE_HEADERS=ON")

    @long
    @unittest.skipUnless(HAS_LIBRARY, "this build has no C++ library")
    def test_so_it_does_with_the_precompiled_header(self):
        build = self.build_readme_program()
        self.assertEqual(len(list(build.rglob("cmake_pch.hxx.gch"))), 1)  # muster_precompile

    def build_readme_program(self, *arguments):
        readme = (SOURCE / "README.md").read_text(encoding="utf-8")
        project = self.scratch / self._testMethodName
        project.mkdir()
        for kind, name in ("cpp program", "main.cc"), ("cmake", "CMakeLists.txt"):
            (project / name).write_text(re.search(rf"^```{kind}\n(.*?)^```$", readme, re.M | re.S)[1], encoding="utf-8")
        build = self.build_hello(*arguments, project=project)
        out = self.must(build / "hello", environment={"MUSTER_NPROC": "2", "CUDA_VISIBLE_DEVICES": "-1"}, cwd=self.scratch)
        # Processors differ in the last digits.
        losses = [{int(rank): float(loss) for rank, loss in re.findall(r"(?m)^\[\d\] rank (\d) on cpu: loss (\S+)$", text)}
                  for text in (readme, out)]
        self.assertEqual(sorted(losses[0]), [0, 1])
        for rank, loss in losses[0].items():
            self.assertAlmostEqual(losses[1][rank], loss, places=4, msg=out)
        return build


if __name__ == "__main__":
    unittest.main(verbosity=2)
