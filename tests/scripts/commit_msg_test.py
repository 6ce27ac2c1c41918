"""The hook that looks at commit messages, called as git calls it."""
import pathlib
import subprocess
import tempfile
import unittest

HOOK = pathlib.Path(__file__).resolve().parents[2] / "scripts/hooks"


class CommitMessage(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.git("init", "-q")
        self.git("config", "core.hooksPath", str(HOOK))

    def git(self, *words):
        settings = ("-c", "user.name=a", "-c", "user.email=a@b")
        return subprocess.run(["git", *settings, *words], cwd=self.folder, capture_output=True, text=True, check=False)

    def commit(self, message, lines):
        (self.folder / "file").write_text("".join(f"{message} {i}\n" for i in range(lines)), encoding="utf-8")
        self.git("add", "-A")
        return self.git("commit", "-m", message)

    def test_a_short_change_needs_a_short_first_line_only(self):
        self.assertEqual(self.commit("store: refuse frames out of order", 50).returncode, 0)

    def test_a_long_first_line_is_refused(self):
        done = self.commit("x" * 73, 1)
        self.assertEqual(done.returncode, 1)
        self.assertIn("73 characters, expected at most 72", done.stderr)

    def test_a_long_change_needs_a_body(self):
        done = self.commit("store: more", 51)
        self.assertEqual(done.returncode, 1)
        self.assertIn("51 lines changed, expected a body", done.stderr)
        self.assertEqual(self.git("commit", "-m", "store: more\n\nFrames came twice.").returncode, 0)

    def test_a_body_begins_after_an_empty_line(self):
        self.assertEqual(self.commit("store: more\nFrames", 1).returncode, 1)


if __name__ == "__main__":
    unittest.main()
