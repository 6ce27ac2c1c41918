"""`muster report`: the page and its JSON tell the same, of made and of real runs; nothing of a run is markup.

    report_test.py MUSTER REPORT_EXAMPLE
"""

import html
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest

MUSTER = ""
EXAMPLE = ""
MARKUP = "<script>document.title = 'broken'</script>"


class Report(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.folder = pathlib.Path(scratch.name).resolve()

    def muster(self, *arguments, code=0):
        done = subprocess.run([MUSTER, *arguments], cwd=self.folder, capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, code, done.stderr)
        return done

    def report(self, run):
        """(the page, the JSON) of a run's folder"""
        path = self.muster("report", run).stdout.strip()
        self.assertEqual(path, str(self.folder / run / "report.html"))
        page = pathlib.Path(path).read_text(encoding="utf-8")
        self.check_closed(page)
        return page, json.loads(self.muster("report", run, "--json").stdout)

    def check_closed(self, page):
        """Nothing is loaded and nothing runs, and every element ends."""
        self.assertNotIn("<script", page)
        self.assertNotRegex(page, r"(src|href)=|url\((?!#hatch)|@import|\son[a-z]+=")
        self.assertIn("default-src 'none'", page)
        for element in ("div", "section", "table", "figure", "svg", "span", "g", "dl", "details", "ul"):
            self.assertEqual(len(re.findall(rf"<{element}[ >]", page)), page.count(f"</{element}>"), element)

    def sections(self, page):
        return re.findall(r'<section id="([a-z]+)">', page)

    def test_pipes_and_devices_in_place_of_files_are_left_out(self):
        names = ["run.json", "plan.json", "failure.json", "metrics.jsonl", "activity/0/0"]
        for kind in ("pipe", "device"):
            run = self.folder / kind
            (run / "activity/0").mkdir(parents=True)
            for name in names:
                os.mkfifo(run / name) if kind == "pipe" else (run / name).symlink_to("/dev/zero")
            _, data = self.report(kind)
            self.assertEqual(len([text for text in data["problems"] if "expected a file at" in text]), 5, data["problems"])
            self.assertIn("expected a file at", self.muster("top", "--once", kind).stdout)
            self.muster("report", "--ranks", kind, code=1)

    def test_pipes_in_place_of_the_files_of_tasks_are_errors(self):
        self.muster("tasks", "--quiet", "--run-dir", "sweep", "--sweep", "x=1", "--", "true", "{x}")
        (self.folder / "sweep/journal").unlink()
        os.mkfifo(self.folder / "sweep/journal")
        _, data = self.report("sweep")
        self.assertIn("expected a file at", str(data["problems"]))
        (self.folder / "sweep/tasks.json").unlink()
        os.mkfifo(self.folder / "sweep/tasks.json")
        self.assertIn("expected a file at", self.muster("report", "sweep", code=1).stderr)

    def test_a_reader_that_is_gone_is_no_error(self):
        subprocess.run([EXAMPLE, self.folder / "run"], check=True)
        for command in ("report run --json", "top --once run", "devices", "checkpoint ls run", "ps", "completion bash"):
            read, write = os.pipe()
            os.close(read)
            done = subprocess.run([MUSTER, *command.split()], cwd=self.folder, stdout=write, stderr=subprocess.PIPE, text=True, timeout=60)
            os.close(write)
            self.assertEqual((done.returncode, done.stderr), (-signal.SIGPIPE, ""), command)
        done = subprocess.run(f"{MUSTER} devices --watch=0.1 | head -1", shell=True, cwd=self.folder, capture_output=True,
                              text=True, timeout=60)
        self.assertEqual(done.stderr, "")

    def test_a_job_that_was_restarted(self):
        subprocess.run([EXAMPLE, self.folder / "run"], check=True)
        page, data = self.report("run")
        self.assertEqual(self.sections(page),
                         ["metrics", "time", "collectives", "attempts", "placement", "environment"])
        self.assertEqual((data["schema"], data["kind"], data["outcome"]), ("muster.report/1", "job", "done"))
        self.assertEqual(len(data["launches"][0]["attempts"]), 3)
        self.assertEqual((data["launches"][0]["libtorch"], data["launches"][0]["backend"]), ("2.15.0", "nccl"))
        self.assertIn("2.15.0", page)
        self.assertIn("NVIDIA H100 80GB HBM3", page)
        self.assertEqual(page.count('class="track" title='), 3)
        self.assertEqual(page.count('class="bar" role="img"'), len(data["ranks"]))
        self.assertEqual(page.count('class="track calls"'), 8)
        self.assertEqual(page.count("<figure>"), 5, "loss and validation_loss share one")
        for series in data["metrics"]["series"]:
            self.assertIn(html.escape(series["name"]).replace("&#x27;", "&#39;"), page)
            self.assertLessEqual(len(series["points"]), 2000)
            self.assertEqual(sum(point[4] for point in series["points"]), series["num_values"])
        self.assertNotIn("replaced", [series["name"] for series in data["metrics"]["series"]])
        self.assertEqual((data["metrics"]["num_broken"], data["metrics"]["first_broken"]), (1, 11))
        self.assertIn("1 of 5001 lines is not a JSON object and is left out", page)
        shares = re.search(r'aria-label="(compute [^"]*)"', page).group(1)
        seconds = data["ranks"][0]["seconds"]
        self.assertIn(f"compute {round(100 * seconds['compute'] / sum(seconds.values()))} %", shares)
        self.assertGreater(page.count("&lt;script&gt;"), 3, "the markup is there, as text")
        self.assertEqual(page.count('class="rank"'), 8, "the placement's picture has all ranks")

    def test_a_job_that_failed(self):
        subprocess.run([EXAMPLE, self.folder / "run", "fails"], check=True)
        page, data = self.report("run")
        self.assertEqual(self.sections(page)[0], "failure")
        self.assertEqual(data["outcome"], "failed")
        self.assertEqual(data["failure"]["exits"][0]["rank"], 5)
        self.assertIn("CUDA out of memory", data["failure"]["card"])
        for line in data["failure"]["card"].splitlines():
            self.assertIn(html.escape(line).replace("&#x27;", "&#39;"), page)
        self.assertIn("the GPU&#39;s memory is full", page, "what the error means")
        self.assertEqual([rank["doing"] for rank in data["ranks"]][4:6],
                         ["step > backward > all_gather #3000 f32[512, 1024]", "step > " + MARKUP[:39]])

        self.assertTrue(data["divergences"][0].startswith("rank 5 left the common path first"), data["divergences"])
        self.assertIn(html.escape(data["divergences"][0]).replace("&#x27;", "&#39;"), page)
        self.assertEqual(self.muster("report", "run", "--ranks").stdout, data["divergences"][0] + "\n")

    def test_ranks_that_agree(self):
        subprocess.run([EXAMPLE, self.folder / "run"], check=True)
        self.assertEqual(self.muster("report", "run", "--ranks").stdout, "the collectives of 8 ranks agree\n")
        page = self.report("run")[0]
        self.assertIn("The others wait for rank 6 (host n1, cuda:2)", page)
        shutil.rmtree(self.folder / "run/activity")
        self.assertIn("--ranks: expected activity files", self.muster("report", "run", "--ranks", code=1).stderr)

    def test_a_real_job(self):
        self.muster("run", "-q", "-n", "2", "--run-dir", "run", "--max-restarts", "1", "sh", "-c",
                    'test "$RANK" = 0 && echo "{\\"step\\":$MUSTER_ATTEMPT,\\"loss\\":1.5}" >> $MUSTER_RUN_DIR/metrics.jsonl; '
                    'exit $((RANK * 3))', code=3)
        page, data = self.report("run")
        self.assertEqual((data["outcome"], data["title"], data["failure"]["exit_code"]), ("failed", "sh", 3))
        self.assertEqual([a["attempt"] for a in data["launches"][0]["attempts"]], [0, 1])
        self.assertEqual(self.sections(page), ["failure", "metrics", "attempts", "placement", "environment"])
        self.assertIn("rank 1: exit code 3", page)
        latest = self.muster("report", code=2).stderr
        self.assertIn("runs/latest', which is not there", latest)

    def test_a_job_of_two_hosts(self):
        self.muster("run", "-q", "--hosts", "localhost:1,127.0.0.1:1", "--max-restarts", "1", "--run-dir", "run", "sh", "-c",
                    'test "$MUSTER_ATTEMPT" != 0 || exit $((RANK * 3))')
        page, data = self.report("run")
        self.assertEqual([launch["outcome"] for launch in data["launches"]], ["done"])
        first, second = data["launches"][0]["attempts"]
        self.assertIn("rank 1", first["fault"])
        self.assertEqual(second["fault"], "")
        self.assertEqual(page.count('<span class="failed" style'), 1)
        self.assertIn(html.escape(first["fault"]).replace("&#x27;", "&#39;"), page)

    def test_the_newest_run_is_the_default(self):
        self.muster("run", "-q", "-n", "1", "sh", "-c", "echo '{\"x\":1}' > $MUSTER_RUN_DIR/metrics.jsonl")
        path = pathlib.Path(self.muster("report").stdout.strip())
        self.assertEqual(path.parent, (self.folder / "runs/latest").resolve())
        self.assertEqual(self.muster("report", "--out", "page.html").stdout, "page.html\n")
        self.assertTrue((self.folder / "page.html").exists())

    def test_a_sweep(self):
        (self.folder / "sweep.toml").write_text(
            '[[task]]\nname = "t-{lr}"\nargv = ["sh", "-c", "echo \'{{\\"loss\\": {lr}}}\'"]\neach = { lr = [0.5, 0.25, 2] }\n'
            '[[task]]\nname = "<script>alert(1)"\nargv = ["false"]\n', encoding="utf-8")
        self.muster("tasks", "sweep.toml", "--run-dir", "run", code=1)
        page, data = self.report("run")
        self.assertEqual(data["kind"], "tasks")
        self.assertEqual(self.sections(page), ["best", "failures", "timeline", "results", "environment"])
        self.assertEqual([task["name"] for task in data["tasks"]], ["t-0.5", "t-0.25", "t-2", "<script>alert(1)"])
        self.assertEqual((data["best"][0]["task"], data["best"][0]["parameters"]), ("t-0.25", {"lr": "0.25"}))
        self.assertIn("lowest loss", page)
        self.assertIn("&lt;script&gt;alert(1)", page)
        self.assertEqual(len(re.findall(r'<rect class="bar [a-z]+"', page)), 4)

    def test_what_is_damaged_is_said_and_the_rest_is_shown(self):
        run = self.folder / "run"
        subprocess.run([EXAMPLE, run], check=True)
        (run / "plan.json").write_text("{", encoding="utf-8")
        (run / "run.json").write_bytes(b"\xff\xfe")
        (run / "failure.json").write_text("[" * 100_000, encoding="utf-8")
        (run / "activity/2/3").write_bytes(b"mustract" + b"\xff" * 4000)
        page, data = self.report("run")
        self.assertEqual(len(data["problems"]), 5, data["problems"])
        self.assertEqual(page.count('class="notice"'), 5)
        self.assertEqual(len(data["ranks"]), 7)
        self.assertIn("metrics", self.sections(page))

    def test_what_is_no_run_is_one_line(self):
        (self.folder / "empty").mkdir()
        (self.folder / "file").write_text("", encoding="utf-8")
        for name, why in (("empty", "has no plan.json"), ("file", "is no folder"), ("nowhere", "is not there")):
            said = self.muster("report", name, code=2).stderr
            self.assertEqual(said.count("\n"), 1)
            self.assertRegex(said, f"expected the folder of a run, got .*{why}.*; runs are in runs/")
        subprocess.run([EXAMPLE, self.folder / "run"], check=True)
        self.assertIn("--out: expected a file", self.muster("report", "run", "--out", "no/such/x.html", code=2).stderr)


if __name__ == "__main__":
    EXAMPLE = str(pathlib.Path(sys.argv.pop(2)).resolve())
    MUSTER = str(pathlib.Path(sys.argv.pop(1)).resolve())
    unittest.main(verbosity=2)
