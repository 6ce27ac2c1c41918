"""The timeline in a real browser: what is there, in light and dark, and that no name becomes markup.

    timeline_test.py PROGRAM       timeline_example
"""

import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

SKIPPED = 77
PROGRAM = ""
BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


class InABrowser(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def browse(self, num_tasks, *flags):
        """(the page, what the browser made of it)"""
        page = pathlib.Path(self.folder.name) / "timeline.html"
        page.write_bytes(subprocess.run([PROGRAM, str(num_tasks)], check=True, capture_output=True).stdout)
        done = subprocess.run(
            [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
             f"--user-data-dir={self.folder.name}/profile", "--no-first-run", *flags, page.as_uri()],
            check=True, capture_output=True, text=True, timeout=240, cwd=self.folder.name)
        return page.read_text(encoding="utf-8"), done.stdout

    def check(self, num_tasks):
        page, dom = self.browse(num_tasks, "--dump-dom")
        bars = len(re.findall(r'<rect class="bar [a-z]+"', dom))
        self.assertGreaterEqual(bars, num_tasks)
        self.assertEqual(bars, len(re.findall(r'<rect class="bar [a-z]+"', page)), "bars were lost in reading")
        self.assertEqual(len(re.findall(r"</title></rect>", dom)), bars, "every bar says what it is")
        self.assertNotIn("<script", dom)
        self.assertIn("<title>sweep.toml in runs/sweep</title>", dom)
        self.assertIn("NVIDIA A100-SXM4-80GB", dom)
        self.assertNotRegex(page, r'(src|href)=|url\((?!#hatch)|@import')

    def test_five_tasks(self):
        self.check(5)

    def test_five_thousand_tasks(self):
        self.check(5000)

    def test_it_is_drawn(self):
        self.browse(20, "--window-size=1400,700", "--screenshot=shot.png")
        shot = (pathlib.Path(self.folder.name) / "shot.png").read_bytes()
        self.assertEqual(shot[:8], b"\x89PNG\r\n\x1a\n")
        self.assertGreater(len(shot), 10_000, "an empty page is smaller")


if __name__ == "__main__":
    PROGRAM = str(pathlib.Path(sys.argv.pop(1)).resolve())
    if BROWSER is None:
        print("skipped: no browser (package chromium)")
        sys.exit(SKIPPED)
    unittest.main(verbosity=2)
