"""What a person at a terminal sees of several ranks, and what a pipe gets.

    terminal_test.py MUSTER      the program
"""

import os
import pathlib
import pty
import re
import subprocess
import sys
import tempfile
import unittest

MUSTER = ""


def on_terminal(*command, term="xterm", react=lambda seen, folder: None):
    """The output of a command on a terminal of its own. `react` is told what has come so far, and its folder."""
    master, slave = pty.openpty()
    with tempfile.TemporaryDirectory() as folder:
        env = dict(os.environ, CUDA_VISIBLE_DEVICES="", MUSTER_RUNTIME_DIR=folder, TERM=term)
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
            react(seen.decode(errors="replace"), pathlib.Path(folder))
        os.close(master)
        assert process.wait(timeout=30) == 0, seen
    return seen.decode().replace("\r\n", "\n")


def left_on_screen(text):
    """The lines that a terminal shows after all that: of its language what a launcher speaks."""
    lines, row, column = [""], 0, 0
    for piece in re.findall("\033\\[[?0-9]*[A-Za-z]|\r|\n|[^\033\r\n]+", text):
        if piece == "\r":
            column = 0
        elif piece == "\n":
            row, column = row + 1, 0
            lines += [""] * (row + 1 - len(lines))
        elif piece == "\033[J":
            lines[row:] = [lines[row][:column]]
        elif re.fullmatch("\033\\[[0-9]+A", piece):
            row -= int(piece[2:-1])
        elif not piece.startswith("\033"):
            lines[row] = lines[row][:column].ljust(column) + piece + lines[row][column + len(piece):]
            column += len(piece)
    return [line for line in lines if line]


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
                                 env=dict(os.environ, CUDA_VISIBLE_DEVICES="", MUSTER_RUNTIME_DIR=folder)).stdout
        self.assertEqual(out.count("] hello\n"), 4)

    # Each bar stands until it has been seen on the terminal.
    BARS = "; ".join(("bar() { printf '\\r%s' \"$1\"; until [ -e \"$2\" ]; do sleep 0.02; done; }",
                      "bar 10% same", "bar $RANK% different", "printf '\\rrank %s is done\\n' $RANK"))

    @staticmethod
    def go_on(seen, folder):
        if "[0,1] 10% ×2" in seen:
            (folder / "same").touch()
        if "[0] 0%\n[1] 1%" in seen.replace("\r\n", "\n"):
            (folder / "different").touch()

    def test_progress_bars_of_several_ranks_live_together(self):
        said = on_terminal(MUSTER, "run", "-q", "--timeout", "60", "-n", "2", "sh", "-c", self.BARS, react=self.go_on)
        self.assertEqual(sorted(left_on_screen(said)), ["[0] rank 0 is done", "[1] rank 1 is done"], repr(said))

    def test_other_lines_stay_above_a_progress_bar(self):
        said = on_terminal(MUSTER, "run", "-q", "--timeout", "60", "-n", "2", "sh", "-c",
                           "[ $RANK = 0 ] && { printf '\\r50%%'; until [ -e same ]; do sleep 0.02; done; printf '\\r100%%\\n'; exit; }; "
                           "until [ -e bar ]; do sleep 0.02; done; echo news",
                           react=lambda seen, folder: ((folder / "bar").touch() if "[0] 50%" in seen else None,
                                                       (folder / "same").touch() if "news" in seen else None))
        self.assertEqual(left_on_screen(said), ["[1] news", "[0] 100%"], repr(said))

    def test_what_does_not_go_to_the_terminal_has_nothing_of_it(self):
        said = on_terminal("sh", "-c", '"$@" >out; cat out', "sh", MUSTER, "run", "-q", "--timeout", "60", "-n", "2", "sh", "-c",
                           "[ $RANK = 0 ] && { printf '\\r50%%' >&2; until [ -e more ]; do sleep 0.02; done; exit; }; "
                           "until [ -e bar ]; do sleep 0.02; done; head -c 70000 /dev/zero | tr '\\0' x; echo; touch more",
                           react=lambda seen, folder: (folder / "bar").touch() if "[0] 50%" in seen else None)
        self.assertIn("[1] " + 70000 * "x" + "\n", said)
        self.assertNotIn("\033[J[1]", said)

    def test_a_progress_bar_lives_on_a_dumb_terminal(self):
        said = on_terminal(MUSTER, "run", "-q", "-n", "2", "sh", "-c", "[ $RANK = 1 ] || printf 'one\\rtwo\\rthree\\n'", term="dumb")
        self.assertIn("[0] one\r[0] two\r[0] three\n", said)

    def test_a_dumb_terminal_is_not_told_to_draw_a_table_anew(self):
        said = on_terminal(MUSTER, "devices", "--watch", "1ms", "--count", "2", term="dumb")
        self.assertIn("\n----\n", said)
        self.assertNotIn("\033", said)


if __name__ == "__main__":
    MUSTER = str(pathlib.Path(sys.argv.pop(1)).resolve())
    unittest.main(verbosity=2)
