"""`muster checkpoint` over real files, whole ones and hostile ones.

    checkpoint_test.py MUSTER      the program
"""

import hashlib
import json
import os
import pathlib
import struct
import subprocess
import sys
import tempfile
import unittest

MUSTER = ""
STEER = "\033[31mred\u009b"


def safetensors(tensors):
    """The bytes of a file with these tensors: name -> (dtype, shape, bytes)."""
    head, data = {}, b""
    for name, (dtype, shape, content) in tensors.items():
        head[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(content)]}
        data += content
    text = json.dumps(head, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + data


def floats(*values):
    return "F32", [len(values)], struct.pack(f"<{len(values)}f", *values)


def checkpoint(folder, step, tensors, parts=None, **changes):
    folder.mkdir(parents=True)
    files = []
    for name, content in ("model.safetensors", tensors), ("parts.safetensors", parts):
        if content is None:
            continue
        content = safetensors(content)
        (folder / name).write_bytes(content)
        files.append({"name": name, "bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()})
    manifest = {"schema": "muster.checkpoint/1", "step": step, "epoch": 1, "batch": 2, "epoch_samples": 3, "samples_seen": 4,
                "world_size": 2, "files": files, "user": {"who": STEER}, "optimizer": {"kind": "AdamW"}} | changes
    text = json.dumps(manifest, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
    manifest["sha256"] = hashlib.sha256(text).hexdigest()
    (folder / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")


class Checkpoint(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.folder = pathlib.Path(scratch.name)

    def muster(self, *words, code=0):
        done = subprocess.run([MUSTER, "checkpoint", *words], cwd=self.folder, capture_output=True, text=True, timeout=30,
                              stdin=subprocess.DEVNULL, check=False)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        self.assertNotIn("\033", done.stdout + done.stderr)
        self.assertNotIn("\u009b", done.stdout + done.stderr)
        if code != 0 and not done.stdout:
            self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
        return done.stdout + done.stderr

    def test_ls_is_newest_first_and_says_what_is_damaged(self):
        checkpoint(self.folder / "run/checkpoints/step-9", 9, {"a": floats(1)})
        checkpoint(self.folder / "run/checkpoints/step-10", 10, {"a": floats(1)})
        os.truncate(self.folder / "run/checkpoints/step-10/model.safetensors", 10)
        lines = self.muster("ls", "run").splitlines()
        self.assertRegex(lines[1], r"^ +10 .* B +- +- +- +damaged: .*got 10")
        self.assertRegex(lines[2], r"^ +9 .* B +2 +1 +4 +whole$")
        listed = json.loads(self.muster("ls", "--json", "run/checkpoints"))["checkpoints"]
        self.assertEqual([(row["step"], row["whole"]) for row in listed], [(10, False), (9, True)])
        self.assertEqual([(row["epoch"], row["samples_seen"]) for row in listed], [(None, None), (1, 4)])
        self.assertIn("no checkpoint", self.muster("ls"))

    def test_ls_marks_the_branch_that_was_abandoned(self):
        checkpoint(self.folder / "step-100", 100, {"a": floats(1)}, serial=1)
        checkpoint(self.folder / "step-200", 200, {"a": floats(1)}, serial=2, parent="step-100")
        checkpoint(self.folder / "step-150", 150, {"a": floats(1)}, serial=3, parent="step-100", abandoned=[[1, 2]])
        lines = self.muster("ls", ".").splitlines()
        self.assertRegex(lines[1], r"^ +150 +step-100 .* whole$")
        self.assertRegex(lines[2], r"^ +100 +- .* whole$")
        self.assertRegex(lines[3], r"^ +200 +step-100 .* abandoned, whole$")
        rows = json.loads(self.muster("ls", "--json", "."))["checkpoints"]
        self.assertEqual([(row["step"], row["serial"], row["parent"], row["abandoned"]) for row in rows],
                         [(150, 3, "step-100", False), (100, 1, None, False), (200, 2, "step-100", True)])

    def test_ls_marks_the_best_of_each_training(self):
        def save(step, serial, value, training="a", name="top1", larger=True, **more):
            metric = {"name": name, "larger_is_better": larger, "value": value}
            checkpoint(self.folder / f"step-{step}", step, {"a": floats(1)}, serial=serial, user={"begun_by": training}, metric=metric, **more)
        save(10, 1, 0.95, name="old metric")
        save(20, 2, 0.99)  # abandoned
        save(30, 3, 0.5, abandoned=[[1, 2]])
        save(40, 4, 0.75, abandoned=[[1, 2]])
        save(50, 5, 0.75, abandoned=[[1, 2]])
        save(60, 6, None, abandoned=[[1, 2]])
        save(70, 7, 3.5, "b", "loss", False, abandoned=[[1, 2]])
        save(80, 8, 4.5, "b", "loss", False, abandoned=[[1, 2]])
        lines = self.muster("ls", ".").splitlines()
        self.assertRegex(lines[0], r" metric +state$")
        self.assertRegex(lines[3], r"^ +60 .* top1 not finite +whole$")
        self.assertRegex(lines[5], r"^ +40 .* top1 0.75 +best, whole$")
        rows = json.loads(self.muster("ls", "--json", "."))["checkpoints"]
        self.assertEqual([row["step"] for row in rows if row["best"]], [70, 40])
        self.assertEqual(rows[2]["metric"], {"name": "top1", "larger_is_better": True, "value": None})
        os.truncate(self.folder / "step-40/model.safetensors", 3)
        rows = json.loads(self.muster("ls", "--json", "."))["checkpoints"]
        self.assertEqual([row["step"] for row in rows if row["best"]], [70, 50])
        self.assertIn("metric          top1 0.75", self.muster("show", "step-50"))
        self.assertEqual(json.loads(self.muster("show", "--json", "step-70"))["metric"]["value"], 3.5)

    def test_a_metric_that_is_none_is_damage(self):
        for number, metric in enumerate(([1], {"name": "a", "larger_is_better": 1, "value": 2}, {"name": 3, "larger_is_better": True, "value": 2},
                                         {"name": "a", "larger_is_better": True, "value": "2"})):
            checkpoint(self.folder / f"step-{number}", number, {"a": floats(1)}, metric=metric)
        self.assertEqual([row["whole"] for row in json.loads(self.muster("ls", "--json", "."))["checkpoints"]], [False] * 4)

    def test_show_tells_what_is_in_it(self):
        checkpoint(self.folder / "step-9", 9, {"fc." + STEER: floats(1, 2)})
        text = self.muster("show", "step-9")
        for part in ("AdamW", "2 in 1 tensor", "?[31mred", "F32", "[2]"):
            self.assertIn(part, text)
        shown = json.loads(self.muster("show", "step-9", "--json", "--file", "model"))
        self.assertEqual(shown["files"][0]["tensors"],
                         [{"name": "fc." + STEER, "dtype": "F32", "shape": [2], "bytes": 8}])
        self.assertIn("got 'optim'", self.muster("show", "step-9", "--file", "optim", code=2))

    def test_a_file_of_a_model_hub(self):
        (self.folder / "x.safetensors").write_bytes(safetensors({"a": floats(1, 2)}))
        self.assertIn("2 in 1 tensor", self.muster("show", "x.safetensors"))
        self.assertIn("no checksum", self.muster("verify", "x.safetensors"))

    def test_numbers_of_four_bits_and_scales_are_listed(self):
        (self.folder / "x.safetensors").write_bytes(
            safetensors({"layer.weight": ("F4", [4, 6], bytes(12)), "layer.scales": ("F8_E8M0", [4], bytes(4))}))
        self.assertIn("28 in 2 tensors", self.muster("show", "x.safetensors"))
        shown = json.loads(self.muster("show", "x.safetensors", "--json"))["files"][0]["tensors"]
        self.assertEqual([(row["dtype"], row["shape"], row["bytes"]) for row in shown], [("F8_E8M0", [4], 4), ("F4", [4, 6], 12)])

    def test_files_that_are_something_else_are_named(self):
        pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"a" * 64 + b"\nsize 12345\n"
        for content, named in ((b"GGUF" + bytes(60), "a GGUF file"), (pointer, "git lfs pull")):
            (self.folder / "x.safetensors").write_bytes(content)
            for command in "show", "verify":
                self.assertIn(named, self.muster(command, "x.safetensors", code=1))

    def test_a_folder_of_a_model_hub_is_one_model(self):
        hub = self.folder / "hub"
        hub.mkdir()
        parts = {"a.safetensors": {"x": floats(1), "y": floats(2)}, "b.safetensors": {"z": floats(3), "w": floats(4)}}
        for name, tensors in parts.items():
            (hub / name).write_bytes(safetensors(tensors))
        index = {"weight_map": {tensor: name for name, tensors in parts.items() for tensor in tensors}}
        (hub / "model.safetensors.index.json").write_text(json.dumps(index))
        self.assertIn("4 in 4 tensors", self.muster("show", "hub"))
        self.assertIn("4 tensors", self.muster("export", "hub", "one.safetensors"))
        self.assertIn("equal", self.muster("diff", "hub", "one.safetensors"))
        text = self.muster("verify", "hub")
        self.assertEqual(text.count("no checksums to compare"), 1)
        self.assertNotIn("damaged", text)
        self.assertIn("`muster checkpoint show`", self.muster("ls", "hub", code=2))
        (hub / "b.safetensors").write_bytes(safetensors({"z": floats(3)}))
        self.assertIn("expected 'w'", self.muster("verify", "hub", code=1))
        self.assertIn("expected 'w'", self.muster("export", "hub", "two.safetensors", code=1))

    def test_verify_finds_a_changed_bit(self):
        checkpoint(self.folder / "step-1", 1, {"a": floats(1)})
        checkpoint(self.folder / "step-2", 2, {"a": floats(1)})
        self.assertEqual(self.muster("verify", ".").count("whole"), 4)
        path = self.folder / "step-2/model.safetensors"
        content = path.read_bytes()
        path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        self.assertIn("other content", self.muster("verify", ".", code=1))
        self.muster("verify", "step-1")

    def test_hostile_files_are_errors_in_a_line(self):
        def entry(offsets):
            return {"dtype": "U8", "shape": [2], "data_offsets": offsets}

        def head(document):
            text = document if isinstance(document, bytes) else json.dumps(document).encode()
            return struct.pack("<Q", len(text)) + text

        bad = {
            "empty": b"", "length": b"\xff" * 8 + b"{}", "cut": safetensors({"a": floats(1, 2)})[:-1],
            "overlap": head({"a": entry([0, 2]), "b": entry([1, 3])}) + b"abc",
            "deep": head(b'{"a":' * 1_000_000), "arrays": head(b"[" * 1_000_000),
            "steer": head({STEER: {"dtype": STEER, "shape": [], "data_offsets": [0, 0]}}),
            "name": head({"x" * 1_000_000: {"dtype": "?", "shape": [], "data_offsets": [0, 0]}}),
        }
        for name, content in bad.items():
            (self.folder / name).write_bytes(content)
            self.assertLess(len(self.muster("show", name, code=1)), 2000, name)
            self.muster("verify", name, code=1)
        os.mkfifo(self.folder / "fifo")
        for name in ("fifo", "/dev/zero", "."):
            self.muster("show", name, code=1)
            self.muster("verify", name, code=1)

    def test_hostile_manifests_are_damaged_rows(self):
        tensors = {"a": floats(1)}
        checkpoint(self.folder / "step-1", 1, tensors, files=[{"name": "../x", "bytes": 1, "sha256": ""}])
        checkpoint(self.folder / "step-2", 2, tensors, files=[{"name": "/etc/passwd", "bytes": 1, "sha256": ""}])
        checkpoint(self.folder / "step-3", 3, tensors, files=[{"name": f"f{i}", "bytes": 1, "sha256": ""} for i in range(200_000)])
        (self.folder / "step-4").mkdir()
        (self.folder / "step-4/manifest.json").write_text("[" * 1_000_000)
        (self.folder / "step-5").symlink_to("/dev")
        checkpoint(self.folder / "step-6", 6, tensors)
        (self.folder / "step-6/model.safetensors").unlink()
        os.mkfifo(self.folder / "step-6/model.safetensors")
        text = self.muster("ls")
        self.assertEqual(text.count("  damaged: "), 6)
        self.assertLess(len(text), 6000)
        self.muster("verify", ".", code=1)

    def test_diff_tells_which_tensors_differ_and_how_much(self):
        checkpoint(self.folder / "step-1", 1, {"a": floats(1, 2), "b": floats(3), STEER: floats(1), "d": floats(1)})
        checkpoint(self.folder / "step-2", 2, {"a": floats(1, 2.5), "b": floats(3), "d": floats(1, 2)})
        self.assertIn("equal", self.muster("diff", "step-1", "step-1"))
        text = self.muster("diff", "step-1", "step-2", code=1)
        self.assertRegex(text, r"a +other values +F32\[2\] +F32\[2\] +1 +0.5")
        self.assertIn("only in A", text)
        [file] = json.loads(self.muster("diff", "--json", "step-1", "step-2", code=1))["files"]
        self.assertEqual(file["equal_tensors"], 1)
        self.assertEqual([row["what"] for row in file["different_tensors"]],
                         ["only in A", "other values", "other type or shape"])
        self.muster("diff", "step-1", "step-1/model.safetensors")
        os.truncate(self.folder / "step-2/model.safetensors", 20)
        self.muster("diff", "step-1", "step-2", code=2)

    def test_export_writes_one_plain_file(self):
        checkpoint(self.folder / "step-1", 1, {"net.a": floats(1, 2)})
        self.muster("export", "step-1", "out.safetensors", "--strip", "net.", "--prefix", "x.")
        self.assertEqual((self.folder / "out.safetensors").read_bytes(), safetensors({"x.a": floats(1, 2)}))
        self.assertIn("--force", self.muster("export", "step-1", "out.safetensors", code=2))
        self.muster("export", "step-1", "out.safetensors", "--force")
        path = self.folder / "step-1/model.safetensors"
        path.write_bytes(path.read_bytes()[:-1] + b"?")
        self.assertIn("other content", self.muster("export", "step-1", "two.safetensors", code=1))
        self.assertEqual(sorted(os.listdir(self.folder)), ["out.safetensors", "step-1"])

    def test_export_of_a_part_writes_its_tensors(self):
        parts = {"numbers/ema/": floats(1), "numbers/ema/updates": floats(3), "tensors/ema/a": floats(5, 6), "tensors/ema2/a": floats(7)}
        checkpoint(self.folder / "step-1", 1, {"a": floats(1, 2)}, parts | {"tensors/" + STEER + "/a": floats(7)})
        self.muster("export", "step-1", "out.safetensors", "--part", "ema")
        self.assertEqual((self.folder / "out.safetensors").read_bytes(), safetensors({"a": floats(5, 6)}))
        text = self.muster("export", "step-1", "two.safetensors", "--part", "em", code=1)
        self.assertIn("expected a part with tensors in 'step-1/parts.safetensors' (", text)
        self.assertIn("ema, ema2), got 'em'", text)
        self.assertIn("which has parts", self.muster("export", "out.safetensors", "two.safetensors", "--part", "ema", code=1))
        path = self.folder / "step-1/parts.safetensors"
        path.write_bytes(path.read_bytes()[:-1] + b"?")
        self.assertIn("other content", self.muster("export", "step-1", "two.safetensors", "--part", "ema", code=1))
        self.assertEqual(sorted(os.listdir(self.folder)), ["out.safetensors", "step-1"])

    def test_wrong_usage_is_two(self):
        checkpoint(self.folder / "step-1", 1, {"a": floats(1)})
        self.assertIn("`muster checkpoint show`", self.muster("ls", "step-1", code=2))
        for words in ([], ["lss"], ["ls", "nowhere"], ["ls", "--jsn"], ["show"], ["show", "nowhere"], ["verify"], ["diff", "step-1"],
                      ["diff", "step-1", "nowhere"], ["export", "step-1"], ["export", "nowhere", "x"]):
            self.muster(*words, code=2)
        for words in ([], ["ls"], ["show"], ["verify"], ["diff"], ["export"]):
            self.assertIn("Examples:", self.muster(*words, "--help"))


if __name__ == "__main__":
    MUSTER = os.path.abspath(sys.argv.pop(1))
    unittest.main()
