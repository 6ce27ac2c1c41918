#!/usr/bin/env python3
"""Tests of commands.py: what a page may leave open, and that a page that is wrong is found."""

import os
import pathlib
import tempfile
import unittest

import commands

PAGE = """
```sh greet.sh
echo "hello, $1"
```

```console
$ sh greet.sh you
hello, you
$ sh greet.sh them > said; cat said
SHOWN
```
"""


class Fits(unittest.TestCase):
    def test_text_left_open(self):
        self.assertTrue(commands.fits(["pid …, ended", "…", "last"], ["pid 17, ended", "a", "b", "last"]))
        self.assertTrue(commands.fits(["first", "…"], ["first"]))
        self.assertFalse(commands.fits(["pid …, ended"], ["pid 17, failed"]))
        self.assertFalse(commands.fits(["one"], ["one", "two"]))
        self.assertFalse(commands.fits(["a.c"], ["abc"]))

    def test_ranks_in_any_order(self):
        self.assertTrue(commands.fits(["[0] a", "[1] b", "end"], ["[1] b", "[0] a", "end"]))
        self.assertFalse(commands.fits(["[0] a", "[0] b"], ["[0] b", "[0] a"]), "one rank's lines have an order")


class Pages(unittest.TestCase):
    def differences(self, shown):
        os.environ["MUSTER_PROGRAM"] = "/bin/true"
        with tempfile.TemporaryDirectory() as folder:
            page = pathlib.Path(folder, "page.md")
            page.write_text(PAGE.replace("SHOWN", shown), encoding="utf-8")
            return commands.differences(page)

    def test_commands_share_the_files_of_the_page(self):
        self.assertEqual(self.differences("hello, them"), [])

    def test_another_output_is_a_difference(self):
        self.assertIn("+hello, them", self.differences("hello, us"))


if __name__ == "__main__":
    unittest.main()
