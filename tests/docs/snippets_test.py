#!/usr/bin/env python3
"""Tests of snippets.py: that it takes what it should, and that a page that is wrong is an error."""

import contextlib
import io
import os
import sys
import tempfile
import unittest

import snippets

PAGE = """
```cpp file
#include <vector>
struct Shared {};
```
text
```cpp
Shared shared;
```
```bash
not code
```
```cpp program
int main(int argc, char** argv) { return argc > 99; }
```
```python
x = 1
```
"""


class Blocks(unittest.TestCase):
    def test_bodies_on_other_numbers_of_ranks_and_those_that_are_not_run(self):
        blocks = snippets.blocks_of("p.md", "```cpp 8 ranks\nint x;\n```\n```cpp\nint y;\n```\n```cpp compile-only\nint z;\n```\n")
        self.assertEqual([(block.kind, block.ranks) for block in blocks], [("body", 8), ("body", 2), ("unused body", 2)])
        self.assertEqual(snippets.numbers_of_ranks(blocks), [2, 8])
        source = snippets.generate(blocks)
        self.assertIn('if (name == "bodies on 8 ranks") return muster::run(argc, argv, on_8_ranks);', source)
        self.assertIn("void body_2(", source)
        self.assertNotIn("  body_2(ctx);", source)

    def test_kinds_and_lines(self):
        found = [(block.kind, block.line) for block in snippets.blocks_of("p.md", PAGE)]
        self.assertEqual(found, [("file", 3), ("body", 8), ("program", 14), ("python", 17)])

    def test_unknown_kind(self):
        with self.assertRaisesRegex(SystemExit, "p.md:1: expected .* got 'bodyy'"):
            snippets.blocks_of("p.md", "```cpp bodyy\n```\n")

    def test_no_end(self):
        with self.assertRaisesRegex(SystemExit, "p.md:2: expected an end"):
            snippets.blocks_of("p.md", "\n```cpp\nint x;\n")

    def test_begin_inside_a_block(self):
        with self.assertRaisesRegex(SystemExit, "p.md:2: expected the end"):
            snippets.blocks_of("p.md", "```cpp\n```python\n```\n")


class Generate(unittest.TestCase):
    def test_source(self):
        source = snippets.generate(snippets.blocks_of("p.md", PAGE))
        self.assertLess(source.index("#include <vector>"), source.index("struct Shared {};"))
        self.assertEqual(source.count("#include <vector>"), 1)
        self.assertRegex(source, r'void body_1\(muster::Context& ctx\) \{\n\(void\)ctx;\n#line 8 ".*p.md"\nShared shared;')
        self.assertIn('if (name == "p.md:14") return program_2::main(argc, argv);', source)
        self.assertNotIn("not code", source)

    def test_python_that_does_not_parse(self):
        with self.assertRaisesRegex(SystemExit, "p.md:3: Python: "):
            snippets.generate(snippets.blocks_of("p.md", "```python\nx = 1\nx ==== 2\n```\n"))


class Run(unittest.TestCase):
    def test_failure_is_named(self):
        with self.assertRaisesRegex(SystemExit, r"p.md:14: expected exit code 0, got \[1\]"), \
                contextlib.redirect_stdout(io.StringIO()):
            snippets.run("/bin/false", [b for b in snippets.blocks_of("p.md", PAGE) if b.kind == "program"])

    def test_ranks_know_nothing_of_a_launcher_around(self):
        os.environ["RANK"] = "7"
        self.assertNotIn("RANK", snippets.rank_free_environment("x"))


class Files(unittest.TestCase):
    def test_names(self):
        quoted, links = snippets.named_files(
            "`muster/a.h`, `launch/launch.cc`, `docs/b.md: run()`, [c](d.md#e), [f](https://g)\n```cpp\n[](int x) {}\n```\n")
        self.assertEqual((quoted, links), (["muster/a.h", "docs/b.md"], ["d.md#e"]))

    def complaint_of(self, readme):
        before = os.getcwd()
        with tempfile.TemporaryDirectory() as folder:
            os.chdir(folder)
            try:
                for name, text in (("README.md", readme), ("there.md", "# One `two`: three")):
                    with open(name, "w", encoding="utf-8") as file:
                        file.write(text)
                snippets.check_files()
            except SystemExit as error:
                return str(error)
            finally:
                os.chdir(before)
        return ""

    def test_what_is_there(self):
        self.assertEqual(self.complaint_of("# Here\n[x](there.md) [y](there.md#one-two-three) [z](#here)"), "")

    def test_code_that_nothing_compiles(self):
        self.assertIn("README.md: a block of C++ does not begin with ```cpp: muster::Mesh mesh;",
                      self.complaint_of("text\n```\nint x;\nmuster::Mesh mesh;\n```\n"))
        self.assertEqual(self.complaint_of("```cpp\nmuster::Mesh mesh;\n```\ntext of muster::Mesh; and\n```\n$ muster run\n```\n"), "")

    def test_lines_of_a_file(self):
        text = "import x\n\ndef f():\n    return 1\n\nf()\n"
        for code in "import x\ndef f():\n", "    return 1\n", "import x\n...\nf()\n", "def f():\n    ...\nf()\n":
            self.assertIsNone(snippets.line_not_in(code, text), code)
        for code, line in ("import y\n", "import y"), ("import x\n    return 1\n", "return 1"), ("f()\n...\nimport x\n", "import x"):
            self.assertEqual(snippets.line_not_in(code, text), line)
        self.assertEqual(self.complaint_of("```python ./there.md\n# One `two`: three\n```\n"), "")
        self.assertIn("README.md:2: expected the lines of ./there.md, got 'x = 1'", self.complaint_of("```python ./there.md\nx = 1\n```\n"))
        self.assertIn("README.md:2: shows './not.py', which is not there", self.complaint_of("```python ./not.py\nx = 1\n```\n"))

    def test_a_whole_file_of_cpp(self):
        text = "int main() {\n  return 0;\n}\n"
        with tempfile.TemporaryDirectory() as folder:
            program, page = os.path.join(folder, "main.cc"), os.path.join(folder, "page.md")
            for path, content in ((program, text), (page, f"# A\n```cpp {program}\nold\n```\ntext\n")):
                with open(path, "w", encoding="utf-8") as file:
                    file.write(content)
            blocks = snippets.read_blocks([page])
            self.assertEqual([(block.kind, block.shows) for block in blocks], [("shown", program)])
            self.assertNotIn("old", snippets.generate(blocks))
            with open(page, encoding="utf-8") as file:
                self.assertIn(f"README.md:3: expected the whole of {program}", self.complaint_of(file.read()))
            snippets.update(page)
            with open(page, encoding="utf-8") as file:
                updated = file.read()
            self.assertEqual(updated, f"# A\n```cpp {program}\n{text}```\ntext\n")
            self.assertEqual(self.complaint_of(updated), "")

    def test_what_cannot_be_run(self):
        for command in ("`benchmarks/not.py BUILD`", "    scripts/not.sh BUILD", "$ benchmarks/not.py BUILD"):
            self.assertIn("README.md: starts '", self.complaint_of(command))
        self.assertNotIn("starts", self.complaint_of("x `benchmarks/not.py` y"))

    def test_missing(self):
        self.assertIn("README.md: names 'muster/not_there.h'", self.complaint_of("`muster/not_there.h`"))
        self.assertIn("README.md: links to 'not.md'", self.complaint_of("[x](not.md)"))
        self.assertIn("README.md: links to 'there.md#four'", self.complaint_of("[x](there.md#four)"))


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], "-q"])
