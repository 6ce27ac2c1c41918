"""`muster plan --map` of many numbers takes memory in proportion to them.  long_map_test.py MUSTER INVENTORY"""
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

MUSTER, INVENTORY = sys.argv[1:3]
GPUS = 4
NUMBERS = 20_000
# 65 in a plain build, more with sanitizers. If each rank kept the whole map, it would be 800 and more.
MOST_MIB = 256


class LongMap(unittest.TestCase):
    def test_a_map_of_many_numbers_takes_memory_in_proportion(self):
        with tempfile.TemporaryDirectory() as folder:
            numbers = pathlib.Path(folder, "map")
            numbers.write_text(",".join(str(rank % GPUS) for rank in range(NUMBERS)), encoding="utf-8")
            with open(pathlib.Path(folder, "plan.json"), "w+b") as out:
                plan = subprocess.Popen([MUSTER, "plan", "--json", "--inventory", INVENTORY, "-n", str(NUMBERS), "--surplus", "share",
                                         "--map", f"@{numbers}"], stdout=out)
                _, status, usage = os.wait4(plan.pid, 0)
                plan.returncode = os.waitstatus_to_exitcode(status)
                self.assertEqual(plan.returncode, 0)
                out.seek(0)
                self.assertEqual(len(json.load(out)["ranks"]), NUMBERS)
        self.assertLess(usage.ru_maxrss / 1024, MOST_MIB)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
