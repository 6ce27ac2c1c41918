#!/usr/bin/env python3
"""The Debian packages and the Python wheel, made from a build, unpacked elsewhere and used from there; and the tarball of
the sources. The build and what it has are told by MUSTER_TEST_* (CMakeLists.txt beside this file)."""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

SOURCE = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ["MUSTER_TEST_BUILD"])
VERSION = os.environ["MUSTER_TEST_VERSION"]
HAS_LIBRARY = os.environ["MUSTER_TEST_LIBRARY"] == "1"
PYTHON = os.environ["MUSTER_TEST_PYTHON"]  # one that imports torch
MODULE = BUILD / "tests/python/module"  # the fixture python_module puts the wheel there

HELPERS = re.compile(r"(LD_LIBRARY_PATH|LIBRARY_PATH|CPATH|CMAKE_PREFIX_PATH|DESTDIR|TORCH|RANK|WORLD_SIZE|PYTHONPATH|VIRTUAL_ENV|"
                     r"LOCAL_RANK|MASTER_ADDR|MASTER_PORT|MUSTER_.*|TORCHELASTIC_.*)$")
ENVIRONMENT = {name: value for name, value in os.environ.items() if not HELPERS.match(name)}
NO_GPU = {"CUDA_VISIBLE_DEVICES": "-1"}

RANK_OF_TORCH = """
import muster, torch, torch.distributed as dist
dist.init_process_group("cpu:muster")
sum = torch.ones(3)
dist.all_reduce(sum)
print(f"rank {dist.get_rank()} of {dist.get_world_size()}: {sum.tolist()}")
dist.destroy_process_group()
"""


def why_not():
    missing = [name for name in ("cpack", "dpkg-deb", "dpkg-shlibdeps", "file") if not shutil.which(name)]
    if missing:
        return f"no {missing[0]} here"
    return "" if (BUILD / "CPackConfig.cmake").is_file() else "this build makes no packages: its LibTorch lies outside of the checkout"


class PackagesTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.scratch = pathlib.Path(tempfile.mkdtemp(prefix="muster-packages-"))
        cls.addClassCleanup(shutil.rmtree, cls.scratch)
        cls.folder = cls.scratch / "made"
        made = subprocess.run(["cpack", "-G", "DEB", "-B", cls.folder], cwd=BUILD, env=ENVIRONMENT, capture_output=True, text=True)
        assert made.returncode == 0, made.stdout + made.stderr
        for package in cls.folder.glob("*.deb"):
            subprocess.run(["dpkg-deb", "--extract", package, cls.scratch / package.name.split("_")[0]], check=True)

    def must(self, *command, environment=None, cwd=None):
        done = subprocess.run([os.fspath(part) for part in command], env=ENVIRONMENT | (environment or {}), cwd=cwd or self.scratch,
                              stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 0, f"{command}:\n{done.stdout}{done.stderr}")
        return done.stdout

    def field(self, package, name):
        file, = self.folder.glob(f"{package}_{VERSION}_*.deb")
        return self.must("dpkg-deb", "--field", file, name).strip()

    def files(self, package):
        root = self.scratch / package
        return {path.relative_to(root).as_posix() for path in root.rglob("*") if not path.is_dir()}

    def test_the_program_needs_the_c_library_alone(self):
        self.assertRegex(self.field("muster", "Depends"), r"^libc6 \([^()]*\)$")
        self.assertRegex(self.field("muster", "Recommends"), r"^libhwloc15, libcurl4 \| libcurl4t64$")
        self.assertRegex(self.field("muster", "Description"), r"^finds the GPUs .*\n Starts ")

    def test_the_program_runs_from_its_package(self):
        program = self.scratch / "muster/usr/bin/muster"
        self.assertEqual(self.must(program, "--version"), f"muster {VERSION}\n")
        out = self.must(program, "run", "--quiet", "--nproc-per-node", "2", "sh", "-c", "echo rank $RANK of $WORLD_SIZE", environment=NO_GPU)
        self.assertEqual(sorted(re.findall(r"rank (\d) of 2", out)), ["0", "1"], out)

    def test_the_program_brings_pages_and_completion(self):
        files = self.files("muster")
        for name in ("share/man/man1/muster-run.1", "share/bash-completion/completions/muster", "share/zsh/site-functions/_muster",
                     "share/fish/vendor_completions.d/muster.fish", "share/doc/muster/README.md", "share/doc/muster/LICENSE"):
            self.assertIn(f"usr/{name}", files)

    @unittest.skipUnless(HAS_LIBRARY, "this build has no C++ library")
    def test_a_project_is_built_with_the_library_of_the_package(self):
        self.assertIn(f"muster (= {VERSION})", self.field("libmuster-dev", "Depends"))
        usr = self.scratch / "libmuster-dev/usr"
        self.assertFalse([name for name in self.files("libmuster-dev") if "libtorch" in name])  # the user's
        build = self.scratch / "hello"
        self.must("cmake", "-S", usr / "share/doc/muster/examples/00_hello", "-B", build, f"-DCMAKE_PREFIX_PATH={usr}", f"-DTORCH={PYTHON}")
        self.must("cmake", "--build", build)
        out = self.must(build / "hello", environment=NO_GPU | {"MUSTER_NPROC": "2"})
        for rank in range(2):
            self.assertIn(f"rank {rank} of 2 on cpu: sum 1\n", out)

    @unittest.skipUnless(HAS_LIBRARY, "this build has no C++ library")
    def test_without_libtorch_the_library_tells_how_to_get_it(self):
        usr = self.scratch / "libmuster-dev/usr"
        tools = self.scratch / "tools"
        tools.mkdir()
        (tools / "python3").symlink_to("/bin/false")  # a Python without torch
        done = subprocess.run(["cmake", "-S", usr / "share/doc/muster/examples/00_hello", "-B", self.scratch / "refused", f"-DCMAKE_PREFIX_PATH={usr}"],
                              env=ENVIRONMENT | {"PATH": f"{tools}:{os.environ['PATH']}"}, capture_output=True, text=True)
        self.assertNotEqual(done.returncode, 0)
        self.assertRegex(" ".join(done.stderr.split()), r"run python3 -m pip install torch==2\.\d+\.\d+")

    def install(self, venv, *wheels):
        self.must(PYTHON, "-m", "venv", "--without-pip", venv)
        self.must(PYTHON, "-m", "pip", "--python", venv / "bin/python", "install", "--disable-pip-version-check", "--no-index", "--no-deps", *wheels)

    @unittest.skipUnless(HAS_LIBRARY, "this build has no C++ library")
    def test_the_wheel_brings_the_program_and_a_package_for_every_python(self):
        wheel, = (MODULE / "wheel").glob(f"muster-{VERSION}-*.whl")
        self.assertRegex(wheel.name, r"-py3-none-manylinux_2_\d+_\w+\.whl$")
        venv = self.scratch / "plain"
        self.install(venv, wheel)
        self.assertEqual(self.must(venv / "bin/muster", "--version"), f"muster {VERSION}\n")
        self.assertEqual(self.must(venv / "bin/python", "-m", "muster", "--version"), f"muster {VERSION}\n")
        script = "import muster, sys; print(len(muster.plan(n=2)), muster.__version__, 'torch' in sys.modules)"
        self.assertEqual(self.must(venv / "bin/python", "-c", script, environment=NO_GPU), f"2 {VERSION} False\n")

    @unittest.skipUnless(HAS_LIBRARY, "this build has no C++ library")
    def test_the_wheels_bring_the_program_and_the_backend(self):
        wheels = *(MODULE / "wheel").glob(f"muster-{VERSION}-*.whl"), *(MODULE / "wheel").glob(f"muster_torch-{VERSION}-*.whl")
        venv = self.scratch / "venv"
        self.install(venv, *wheels)
        sites = self.must(PYTHON, "-c", "import site; print(*site.getsitepackages(), sep='\\n')")
        site, = venv.glob("lib/python3*/site-packages")
        (site / "torch.pth").write_text(sites)
        (self.scratch / "rank.py").write_text(RANK_OF_TORCH)
        out = self.must(venv / "bin/muster", "run", "--quiet", "--nproc-per-node", "2", venv / "bin/python", "rank.py",
                        environment=NO_GPU | {"OMP_NUM_THREADS": "1"})
        for rank in range(2):
            self.assertIn(f"rank {rank} of 2: [2.0, 2.0, 2.0]", out)

    @unittest.skipUnless((SOURCE / ".git").exists() and shutil.which("git"), "this is no git checkout")
    def test_the_tarball_is_a_project(self):
        tarball = self.scratch / "muster.tar.gz"
        self.must("git", "-c", f"safe.directory={SOURCE}", "archive", "--format=tar.gz", "--prefix=muster-sources/", "-o", tarball, "HEAD", cwd=SOURCE)
        self.must("tar", "xzf", tarball)
        self.must("cmake", "-S", self.scratch / "muster-sources", "-B", self.scratch / "control", "-DMUSTER_LIBTORCH=OFF", "-DMUSTER_TESTS=OFF")


if __name__ == "__main__":
    if reason := why_not():
        print(f"skipped: {reason}")
        sys.exit(77)
    unittest.main(verbosity=2)
