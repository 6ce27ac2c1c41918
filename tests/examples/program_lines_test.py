"""The table of lines on the pages is what the script prints, no program is longer than its twins, and none is shorter by what it
leaves out."""
import os
import pathlib
import re
import sys
import unittest

SOURCE = pathlib.Path(os.environ["MUSTER_SOURCE"])
sys.path.insert(0, str(SOURCE / "benchmarks"))
import program_lines


class ProgramLines(unittest.TestCase):
    def test_no_program_is_longer_than_its_twins(self):
        self.assertEqual(program_lines.longer_ones(), [])

    def test_the_page_has_the_table_that_the_script_prints(self):
        page = (SOURCE / "docs/programs/README.md").read_text(encoding="utf-8")
        rows = [re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", line) for line in page.splitlines()]
        first = rows.index(program_lines.table()[0])
        self.assertEqual(rows[first:first + len(program_lines.table())], program_lines.table())

    def test_each_page_says_the_lines_of_its_programs(self):
        pages = "".join(path.read_text(encoding="utf-8") for path in (SOURCE / "docs/programs").glob("*.md"))
        for program in program_lines.PROGRAMS:
            with self.subTest(program=program):
                self.assertIn(program_lines.sentence(program), pages)

    def test_no_program_runs_its_model_a_second_time_to_save_a_line(self):
        """A batch norm would count each sample twice, and the numbers would be those of the weights after the step."""
        for path in program_lines.OURS.glob("*.cc"):
            with self.subTest(program=path.stem):
                self.assertNotIn("module()(", path.read_text(encoding="utf-8"))

    def test_what_counts(self):
        python = '"""What it does.\n\nMore."""\nimport x\n\n# why\ndef f():\n    """What."""\n    return "a"  # this\n'
        self.assertEqual(program_lines.lines_of_python(python), 3)
        cpp = "// What it does.\n#include <x>\n\nint main() {\n  // why\n  return 0;  // this\n}\n"
        self.assertEqual(program_lines.lines_of_cpp(cpp), 4)

    def test_the_shared_network_counts(self):
        alone = program_lines.lines_of_cpp((program_lines.OURS / "predict.cc").read_text())
        network = program_lines.lines_of_cpp((program_lines.OURS / "network.h").read_text())
        self.assertEqual(program_lines.lines_of(program_lines.OURS / "predict.cc"), alone + network)

    def test_every_program_is_counted(self):
        self.assertEqual(sorted(path.stem for path in program_lines.OURS.glob("*.cc")), sorted(program_lines.PROGRAMS))


if __name__ == "__main__":
    unittest.main()
