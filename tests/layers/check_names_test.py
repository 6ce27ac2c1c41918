#!/usr/bin/env python3
"""check_names.py finds what it is there for."""
import pathlib
import tempfile
import unittest

import check_names

SOURCE = "namespace x {{\nnamespace {{\n\n{0}\n\n}}  // namespace\n}}  // namespace x\n"


class CheckNames(unittest.TestCase):
    def clashes(self, *bodies):
        with tempfile.TemporaryDirectory() as folder:
            for i, body in enumerate(bodies):
                (pathlib.Path(folder) / f"{i}.cc").write_text(SOURCE.format(body), encoding="utf-8")
            return check_names.clashes(pathlib.Path(folder))

    def test_one_name_twice(self):
        self.assertEqual(self.clashes("int count(int x) {\n  return x;\n}", "std::string count(const std::string& a,\n                  int b) {\n  return a;\n}"),
                         {"count()": ["0.cc", "1.cc"]})

    def test_attributes_and_structs(self):
        self.assertEqual(self.clashes("[[noreturn]] void refuse(int x) {\n  throw x;\n}", "struct flock refuse(short x) {\n  return {};\n}"),
                         {"refuse()": ["0.cc", "1.cc"]})

    def test_constants(self):
        self.assertEqual(self.clashes("constexpr int kSteps = 6;", "constexpr const char* kSteps[] = {\"a\"};"), {"kSteps": ["0.cc", "1.cc"]})
        self.assertEqual(self.clashes("constexpr int kSteps = 6;", "int twice() {\n  constexpr int kSteps = 2;\n  return kSteps;\n}"), {})

    def test_different_names_methods_and_calls(self):
        self.assertEqual(self.clashes("int count(int x) {\n  return size(x);\n}", "class A {\n  int count() { return 1; }\n};\n\nint size_of(int x) {\n  return count(x);\n}"), {})

    def test_two_headers_with_one_type(self):
        def types(*texts):
            with tempfile.TemporaryDirectory() as folder:
                (pathlib.Path(folder) / "muster").mkdir()
                for i, text in enumerate(texts):
                    (pathlib.Path(folder) / f"muster/{i}.h").write_text(text, encoding="utf-8")
                return check_names.type_clashes(pathlib.Path(folder))
        one = "namespace muster {\n\nstruct Member {\n  int rank;\n};\n\n}  // namespace muster\n"
        self.assertEqual(types(one, one.replace("struct", "class")), {"muster::Member": ["muster/0.h", "muster/1.h"]})
        self.assertEqual(types(one, one.replace("namespace muster {", "namespace muster {\nnamespace shm {")), {})
        after_another = one.replace("muster {\n\n", "muster {\nnamespace rate {\n}  // namespace rate\n\n")
        self.assertEqual(types(one, after_another), {"muster::Member": ["muster/0.h", "muster/1.h"]})
        self.assertEqual(types(one, one.replace("struct Member {", "struct Member::State {")), {})
        self.assertEqual(types(one, "namespace muster {\n\nstruct Member;\n\n}  // namespace muster\n"), {})


class Words(unittest.TestCase):
    def test_another_word_is_found(self):
        with tempfile.TemporaryDirectory() as folder:
            source = pathlib.Path(folder, "muster/launch/a.h")
            source.parent.mkdir(parents=True)
            source.write_text("struct WorkerExit {};\n// a DataLoader's Worker stays\n", encoding="utf-8")
            self.assertEqual(list(check_names.other_words(pathlib.Path(folder))),
                             ["muster/launch/a.h: 'WorkerExit': the word is rank, and its process"])


if __name__ == "__main__":
    unittest.main()
