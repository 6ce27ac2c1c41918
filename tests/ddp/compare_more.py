"""compare_more.py FOLDER RANKS: every run of ddp_more.cc has the losses of ddp_more.py, to the last bit."""
import struct
import sys

# LibTorch's own optimizers round otherwise than Python's.
NEAR = {"adam", "adamw", "lbfgs"}


def read(path):
    return dict(line.rstrip("\n").split(": ", 1) for line in open(path))


def numbers(result):
    *losses, total = result.split()
    return [struct.unpack(">f", bytes.fromhex(bits))[0] for bits in losses] + [float(total)]


folder, ranks, failed, table = sys.argv[1], int(sys.argv[2]), False, {}
for rank in range(ranks):
    ours, python = read(f"{folder}/ours-{rank}"), read(f"{folder}/python-{rank}")
    assert ours.keys() == python.keys() and len(ours) == 22, "the runs are others"
    for name, result in ours.items():
        a, b = numbers(result), numbers(python[name])
        assert len(a) == len(b), f"{name}: {len(a)} losses on rank {rank}, and {len(b)} in Python"
        same = result.split()[:-1] == python[name].split()[:-1] and abs(a[-1] - b[-1]) < 1e-6
        distance = max(abs(x - y) / (abs(y) + 1e-3) for x, y in zip(a, b))
        was_same, was_distance = table.get(name, (True, 0))
        table[name] = (was_same and same, max(was_distance, distance))
for name, (same, distance) in table.items():
    bad = not same and (name not in NEAR or distance > 1e-3)
    failed |= bad
    print(f"{name:<28} {'the same bits' if same else 'OTHER' if bad else 'near':<14} {distance:.2g}")
print(f"{len(table)} runs on {ranks} ranks beside Python's")
sys.exit(failed)
