"""The examples of Python, each run as its page shows it, on two ranks or so."""
import re
import subprocess
import sys
import unittest

from package import ROOT, TORCH_PYTHON, PackageCase

sys.path.insert(0, str(ROOT / "tests/support"))
from long import long  # noqa: E402

EXAMPLES = ROOT / "examples/python"
WITHOUT_TORCH = {"a_gpu_each", "by_function", "chosen_devices"}
MOST_LINES = 40
SAYS = {
    "a_gpu_each": r"best: width 64, rate 0.5: loss 0.031",
    "accumulation": r"True \[",
    "balanced": r"^\[\(\d+, (-?[\d.]+)\), \(\d+, \1\)\]$",
    "by_function": r"\[\(0, 0, 2\), \(1, 1, 2\)\]",
    "by_rank": r"rank 1 has .*cpu",
    "by_score": r"\[\(0, 32\), \(1, 32\)\]",
    "chosen_devices": r"\[\(0, True\), \(1, False\)\]",
    "ddp": r"^\[[\d.]+, [\d.]+\]$",
    "device_ids": r"rank 1 of 2: cpu",
    "parameter_server": r"^\[.*\]$",
    "several_hosts": r"rank 1 on .*, local rank 1 of 2",
    "several_machines": r"1 ranks, 10 steps",
    "two_devices_in_one_process": r"\[\(True, True\), \(True, True\)\]",
    "unequal_counts": r"\[16, 16\]",
    "weighted_sampling": r"^\[\d+, \d+\]$",
}


class Examples(PackageCase):
    def test_all_are_here_and_short(self):
        found = {path.stem: path for path in EXAMPLES.glob("*.py")}
        self.assertEqual(sorted(found), sorted(SAYS))
        for name, path in found.items():
            self.assertLess(len(path.read_text(encoding="utf-8").splitlines()), MOST_LINES, name)

    def test_the_page_shows_all(self):
        page = (ROOT / "docs/python_examples.md").read_text(encoding="utf-8")
        shown = re.findall(r"^```python examples/python/(\w+)\.py$", page, re.MULTILINE)
        self.assertEqual(sorted(shown), sorted(SAYS))

    def run_example(self, name):
        python = sys.executable if name in WITHOUT_TORCH else TORCH_PYTHON
        environment = {**self.environment, "MUSTER_CPU_SLOTS": "2", "OMP_NUM_THREADS": "1"}
        done = subprocess.run([python, "-B", str(EXAMPLES / f"{name}.py")], cwd=self.folder, env=environment, capture_output=True,
                              text=True, timeout=300, check=False)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertRegex(done.stdout, SAYS[name])

    @unittest.skipUnless(TORCH_PYTHON, "no Python that imports torch")
    def test_unequal_batches_train_as_one_process_does(self):
        code, out, err = self.run_script(f"""
            import sys
            sys.path.insert(0, {str(EXAMPLES)!r})
            import balanced, muster
            one, many = (muster.spawn(balanced.train, n=n, quiet=True) for n in (1, 3))
            assert sum(tokens for tokens, _ in many) == one[0][0], (one, many)
            print([abs(bias - one[0][1]) < 1e-5 for _, bias in many])
            """, python=TORCH_PYTHON, OMP_NUM_THREADS="1")
        self.assertEqual((code, out), (0, "[True, True, True]\n"), err)


class Peers(PackageCase):
    """The table of docs/python.md that benchmarks/peers_bench.py prints."""

    def test_the_page_has_the_lines_of_the_programs(self):
        sys.path.insert(0, str(ROOT / "benchmarks"))
        import peers_bench
        page = (ROOT / "docs/python.md").read_text(encoding="utf-8")
        rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in page.splitlines() if line.count("|") == 8][2:]
        told = {name: (int(functions), int(training)) for name, _, functions, training, *_ in rows}
        self.assertEqual(told, {name: (peers_bench.lines_of(f"{peer}_functions"), peers_bench.lines_of(f"{peer}_training"))
                                for peer, (_, name) in peers_bench.PEERS.items()})


IN_THE_DEFAULT_RUN = WITHOUT_TORCH | {"by_rank", "by_score", "ddp", "several_hosts"}


def add_cases():
    for name in SAYS:
        def case(self, name=name):
            if name not in WITHOUT_TORCH and not TORCH_PYTHON:
                self.skipTest("no Python that imports torch")
            self.run_example(name)
        setattr(Examples, f"test_{name}", case if name in IN_THE_DEFAULT_RUN else long(case))


add_cases()

if __name__ == "__main__":
    unittest.main()
