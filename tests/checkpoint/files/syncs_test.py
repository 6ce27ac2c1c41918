"""A checkpoint has its name only when its files are on the disk, by the calls that bring it there.

    syncs_test.py CHECKPOINT_WRITER RECORD_SYNCS_LIBRARY
"""

import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "support"))
from syncs import Syncs

WRITER = LIBRARY = ""


class CheckpointSyncs(unittest.TestCase):
    def saved(self, folder, steps):
        """What a program that saves so many steps has synced and renamed."""
        syncs = Syncs(LIBRARY, folder)
        writer = subprocess.Popen([WRITER, f"{folder}/checkpoints"], env=dict(os.environ, **syncs.environment),
                                  stdout=subprocess.PIPE, text=True)
        try:
            for step in range(1, steps + 1):
                self.assertEqual(writer.stdout.readline(), f"saved {step}\n")
        finally:
            writer.kill()
            writer.communicate()
        return syncs.lines()

    def test_files_then_their_names_then_the_folders_name(self):
        with tempfile.TemporaryDirectory(prefix="muster-syncs-") as name:
            folder = os.path.realpath(name)
            lines = self.saved(folder, steps=2)
            self.assertEqual(lines[0], f"fsync {folder}")
            for step in (1, 2):
                published = f"{folder}/checkpoints/step-{step}"
                renamed = next(number for number, line in enumerate(lines) if line.startswith("rename ") and line.endswith(f" {published}"))
                staged = lines[renamed].split()[1]
                self.assertTrue(staged.startswith(f"{published}.tmp-"), staged)
                files = lines[renamed - 3:renamed - 1]
                self.assertEqual(files, [f"fsync {staged}/model.safetensors", f"fsync {staged}/manifest.json"])
                self.assertEqual(lines[renamed - 1], f"fsync {staged}")
                self.assertEqual(lines[renamed + 1], f"fsync {folder}/checkpoints")


if __name__ == "__main__":
    WRITER, LIBRARY = (str(pathlib.Path(path).resolve()) for path in (sys.argv.pop(1), sys.argv.pop(1)))
    unittest.main(verbosity=2)
