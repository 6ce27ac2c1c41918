"""What a person at a terminal sees of several ranks, and what a pipe gets.

    terminal_test.py MUSTER      the program
"""

import os
import pathlib
import pty
import subprocess
import sys
import tempfile
import unittest

MUSTER = ""


def on_terminal(*command):
    """The output of a command on a terminal of its own."""
    master, slave = pty.openpty()
    with tempfile.TemporaryDirectory() as folder:
        env = dict(os.environ, CUDA_VISIBLE_DEVICES="", XDG_RUNTIME_DIR=folder)
        process = subprocess.Popen(command, stdin=slave, stdout=slave, stderr=slave, cwd=folder, env=env, start_new_session=True)
        os.close(slave)
        seen = b""
        while True:
            try:
                piece = os.read(master, 65536)
            except OSError:  # the last writer has gone
                break
            if not piece:
                break
            seen += piece
        os.close(master)
        assert process.wait(timeout=30) == 0, seen
    return seen.decode().replace("\r\n", "\n")


class Terminal(unittest.TestCase):
    # Lines become one when they come within 80 ms of each other, which no rank of a busy machine can promise. So rank 0
    # stops the launcher for as long as all say hello: it then finds all of them at once.
    ONCE_ALL = "until [ $(ls | grep -c ^%s) = 4 ]; do sleep 0.02; done"
    HELLO = "; ".join((
        ": > up$RANK", ONCE_ALL % "up",
        "if [ $RANK = 0 ]; then kill -STOP $PPID; until grep -q '^State:.T' /proc/$PPID/status; do sleep 0.02; done; : > go; fi",
        "until [ -e go ]; do sleep 0.02; done", "echo hello", ": > said$RANK",
        f"if [ $RANK = 0 ]; then {ONCE_ALL % 'said'}; kill -CONT $PPID; fi", "echo rank $RANK"))
    JOB = ("run", "-q", "-n", "4", "sh", "-c", HELLO)

    def test_the_same_lines_become_one(self):
        said = on_terminal(MUSTER, *self.JOB)
        self.assertIn("[0-3] hello ×4\n", said)
        self.assertIn("[2] rank 2\n", said)

    def test_unless_they_are_not_to(self):
        said = on_terminal(MUSTER, "run", "--no-collapse", *self.JOB[1:])
        self.assertEqual(said.count("] hello\n"), 4, said)

    def test_a_pipe_gets_every_line(self):
        with tempfile.TemporaryDirectory() as folder:
            out = subprocess.run([MUSTER, *self.JOB], capture_output=True, text=True, cwd=folder,
                                 env=dict(os.environ, CUDA_VISIBLE_DEVICES="", XDG_RUNTIME_DIR=folder)).stdout
        self.assertEqual(out.count("] hello\n"), 4)

    def test_a_progress_bar_lives(self):
        said = on_terminal(MUSTER, "run", "-q", "-n", "2", "sh", "-c", "[ $RANK = 1 ] || printf 'one\\rtwo\\rthree\\n'")
        self.assertIn("[0] one\r[0] two\r[0] three\n", said)


if __name__ == "__main__":
    MUSTER = str(pathlib.Path(sys.argv.pop(1)).resolve())
    unittest.main(verbosity=2)
