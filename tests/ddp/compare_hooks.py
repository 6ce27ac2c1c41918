"""compare_hooks.py FOLDER RANKS: the gradients of hook_table.cc are hook_table.py's, to the last bit."""
import pathlib
import sys

import numpy

folder, ranks = pathlib.Path(sys.argv[1]), int(sys.argv[2])
names = sorted(path.name.split("-", 2)[2] for path in folder.glob("ours-0-*"))
assert len(names) == 16, f"expected 16 hooks, got {names}"
plain = numpy.fromfile(folder / "python-0-none", dtype=numpy.float32)
failed = False
print(f"{'hook':<20} {'bits':<10} {'from Python':>12} {'from no hook':>13}")
for name in names:
    differences = []
    for rank in range(ranks):
        ours = numpy.fromfile(folder / f"ours-{rank}-{name}", dtype=numpy.float32)
        python = numpy.fromfile(folder / f"python-{rank}-{name}", dtype=numpy.float32)
        assert ours.size == python.size == plain.size > 0
        same = ours.tobytes() == python.tobytes()
        differences.append(0 if same else numpy.abs(ours - python).max())
    effect = numpy.abs(ours - plain).max()
    print(f"{name:<20} {'the same' if max(differences) == 0 else 'OTHER':<10} {max(differences):>12.3g} {effect:>13.3g}")
    failed |= max(differences) != 0
print(f"ten steps' gradients of {len(names)} hooks on {ranks} ranks")
sys.exit(failed)
