"""The report's page in a real browser, at the widths of a phone, a tablet and a desk, light and dark: nothing is
wider than the window, no text of a chart is cut, and it is drawn.

    browser_test.py MUSTER REPORT_EXAMPLE
"""

import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

SKIPPED = 77
MUSTER = ""
EXAMPLE = ""
BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
DARK = ("--blink-settings=preferredColorScheme=0",)

# Runs in a copy of the page that may run scripts: tells the page around it what sticks out, and the ground's colour.
LOOK = """<script>addEventListener('load', () => {
  const wide = document.documentElement.scrollWidth - innerWidth;
  let cut = 0;
  for (const text of document.querySelectorAll('.chart > text')) {
    const box = text.getBoundingClientRect();
    if (box.left < -1 || box.right > innerWidth + 1) ++cut;
  }
  parent.postMessage([innerWidth, wide, cut, document.querySelectorAll('section').length,
    getComputedStyle(document.body).backgroundColor, document.title].join(';'), '*');
});</script>"""

# A browser's window has a least width, a frame has none.
FRAME = """<!DOCTYPE html><meta name="color-scheme" content="light dark"><body style="margin:0">
<script>addEventListener('message', (told) => document.body.setAttribute('data-look', told.data));</script>
<iframe src="look.html" style="border:0" width="WIDTH" height="1200"></iframe></body>"""


class InABrowser(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.folder = pathlib.Path(scratch.name).resolve()

    def browse(self, page, *flags):
        return subprocess.run(
            [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars",
             f"--user-data-dir={self.folder}/profile", "--no-first-run", "--window-size=1440,1200", *flags, page.as_uri()],
            check=True, capture_output=True, text=True, timeout=120, cwd=self.folder).stdout

    def check(self, run, sections):
        subprocess.run([MUSTER, "report", run], check=True, capture_output=True, timeout=60)
        page = run / "report.html"
        looked_at = self.folder / "look.html"
        text = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", page.read_text(encoding="utf-8"))
        looked_at.write_text(text.replace("</body>", LOOK + "</body>"), encoding="utf-8")
        grounds = set()
        frame = self.folder / "frame.html"
        for width in (390, 820, 1440):
            frame.write_text(FRAME.replace("WIDTH", str(width)), encoding="utf-8")
            for scheme in ((), DARK):
                dom = self.browse(frame, "--dump-dom", *scheme)
                inner, wide, cut, count, ground, title = re.search(r'data-look="([^"]*)"', dom).group(1).split(";")
                self.assertEqual((int(wide), int(cut), int(count)), (0, 0, sections), f"at {inner} pixels")
                self.assertEqual(int(inner), width)
                self.assertNotEqual(title, "broken")
                grounds.add(ground)
        self.assertEqual(len(grounds), 2, "light and dark")
        self.browse(page, "--screenshot=shot.png")
        self.assertGreater((self.folder / "shot.png").stat().st_size, 30_000, "an empty page is smaller")

    def test_a_job(self):
        subprocess.run([EXAMPLE, self.folder / "run", "fails"], check=True)
        self.check(self.folder / "run", 7)

    def test_a_sweep(self):
        argv = [MUSTER, "tasks", "--run-dir", "run", "--sweep", "lr=0.1,0.2,0.3", "--", "sh", "-c", "echo '{{\"acc\": {lr}}}'"]
        subprocess.run(argv, cwd=self.folder, capture_output=True, check=False, timeout=60)
        self.check(self.folder / "run", 4)


if __name__ == "__main__":
    EXAMPLE = str(pathlib.Path(sys.argv.pop(2)).resolve())
    MUSTER = str(pathlib.Path(sys.argv.pop(1)).resolve())
    if BROWSER is None:
        print("skipped: no browser (package chromium)")
        sys.exit(SKIPPED)
    unittest.main(verbosity=2)
