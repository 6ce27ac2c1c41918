#!/usr/bin/env python3
"""scripts/setup.sh on systems that lack packages, or whose distribution does: apt and dpkg are stand-ins."""

import os
import pathlib
import subprocess
import tempfile
import unittest

SETUP = pathlib.Path(__file__).resolve().parents[2] / "scripts/setup.sh"
STAND_INS = {
    # Installed is everything but $MISSING.
    "dpkg-query": 'for last; do :; done; case " $MISSING " in *" $last "*) exit 1 ;; esac; echo installed',
    # Offered is everything but $ABSENT.
    "apt-cache": 'case " $ABSENT " in *" $2 "*) candidate="(none)" ;; *) candidate=1.0 ;; esac; echo "$2:"; echo "  Candidate: $candidate"; seq 100000',
    "apt-get": 'echo "$@" >>"$CALLS"',
    "dpkg": 'echo "dpkg $@" >>"$CALLS"',
    "dpkg-deb": "",
    "ln": 'echo "ln $@" >>"$CALLS"',
    "sudo": 'exec "$@"',
}


class SetupTest(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory(prefix="muster-setup-")
        self.addCleanup(scratch.cleanup)
        self.folder = pathlib.Path(scratch.name)
        for name, script in STAND_INS.items():
            (self.folder / name).write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
            (self.folder / name).chmod(0o755)

    def setup_sh(self, goal, missing="", absent="", own_arch=""):
        """Exit code, what it said, and the calls of apt-get. TORCH is given, so LibTorch is not its business."""
        calls = self.folder / "calls"
        calls.write_text("")
        environment = os.environ | {"PATH": f"{self.folder}:{os.environ['PATH']}", "MISSING": missing, "ABSENT": absent,
                                    "CALLS": os.fspath(calls), "TORCH": "given", "BARE_OWN_ARCH": own_arch}
        done = subprocess.run([SETUP, goal], env=environment, capture_output=True, text=True)
        return done.returncode, done.stdout, calls.read_text()

    def test_nothing_is_asked_of_apt_where_everything_is_installed(self):
        code, said, calls = self.setup_sh("test")
        self.assertEqual((code, calls), (0, ""), said)

    def test_what_is_missing_is_installed_and_said(self):
        code, said, calls = self.setup_sh("test", missing="python3-dev e2fsprogs")
        self.assertEqual(code, 0, said)
        self.assertIn("installing distribution packages: python3-dev e2fsprogs\n", said)
        self.assertRegex(calls, r"update -qq\ninstall .* python3-dev e2fsprogs\n")

    def test_training_needs_less(self):
        code, said, calls = self.setup_sh("train", missing="python3-dev e2fsprogs slurmd")
        self.assertEqual((code, calls), (0, ""), said)

    def test_the_control_plane_needs_no_library_of_the_data_plane(self):
        code, said, calls = self.setup_sh("control", missing="libgloo-dev libjpeg-dev python3-dev")
        self.assertEqual((code, calls), (0, ""), said)

    def test_an_emulated_system_gets_a_compiler_of_the_machines_own_architecture(self):
        code, said, calls = self.setup_sh("control", missing="cmake:riscv64 g++ libfmt-dev", own_arch="riscv64")
        self.assertEqual(code, 0, said)
        self.assertRegex(calls, r"update -qq\ninstall .* cmake:riscv64 libfmt-dev\n")
        self.assertTrue(calls.startswith("dpkg --add-architecture riscv64\n"), calls)
        self.assertIn("download -qq cpp-12-aarch64-linux-gnu:riscv64 ", calls)

    def test_a_browser_is_for_the_long_tests(self):
        self.assertEqual(self.setup_sh("test", missing="chromium")[2], "")
        code, said, calls = self.setup_sh("long", missing="chromium")
        self.assertEqual(code, 0, said)
        self.assertIn(" chromium\n", calls)

    def test_a_distribution_without_an_optional_package_goes_without_its_tests(self):
        code, said, calls = self.setup_sh("test", missing="etcd-server faketime", absent="etcd-server")
        self.assertEqual(code, 0, said)
        self.assertEqual(said.count("no package etcd-server on this system: without tests with etcd\n"), 1, said)
        self.assertIn(" faketime\n", calls)
        self.assertNotIn("etcd", calls)

    def test_a_distribution_without_a_needed_package_is_refused(self):
        code, said, calls = self.setup_sh("train", missing="libgloo-dev", absent="libgloo-dev")
        self.assertEqual(code, 1, said)
        self.assertIn("expected the package libgloo-dev, which ", said)
        self.assertNotIn("install", calls)


if __name__ == "__main__":
    unittest.main(verbosity=2)
