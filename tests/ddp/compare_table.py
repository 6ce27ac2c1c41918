"""compare_table.py FOLDER RANKS: every cell of ddp_table.cc has the losses of ddp_table.py, or both refuse.

A cell may do more than Python's DistributedDataParallel: then it has the losses of another cell of Python's.
"""
import struct
import sys

# Ours -> Python's cell that does the same mathematics.
BEYOND = {
    # Python refuses parameters that are frozen after wrapping, but with find_unused_parameters.
    **{f"freezing {column}": "freezing unused" for column in ("plain", "static", "copies", "buckets")},
    "freezing accumulate": "freezing unused_accumulate",
    # A static graph learns that a head is not part of the loss; Python's sink hides it.
    "two_outputs static": "two_outputs unused",
    # Python takes torch.autograd.grad for the first backward, and never reduces.
    "penalty static": "penalty plain",
    # While a model is frozen, Python's next no_sync() is none.
    "frozen_whole unused_accumulate": "frozen_whole accumulate",
}
# The Reducer alone knows that it took a parameter that is recomputed for an unused one.
RAW = {f"{row} {column}" for row in ("checkpointed", "checkpointed_twice") for column in ("unused", "unused_accumulate")}


def read(path):
    return dict(line.rstrip("\n").split(": ", 1) for line in open(path))


def numbers(result):
    *losses, total = result.split()
    return [struct.unpack(">f", bytes.fromhex(bits))[0] for bits in losses], float(total)


def differ(ours, python, exact):
    if ours.startswith("refused") or python.startswith("refused"):
        return ours.split(":")[0] != python.split(":")[0]
    (losses, total), (other_losses, other_total) = numbers(ours), numbers(python)
    near = all(abs(a - b) <= 1e-5 * abs(b) for a, b in zip(losses, other_losses, strict=True))
    same = ours.split()[:-1] == python.split()[:-1] if exact else near
    return not same or abs(total - other_total) > 1e-5 * abs(other_total)


folder, ranks = sys.argv[1], int(sys.argv[2])
failures, more, refused = [], 0, 0
totals = [{} for _ in range(ranks)]
for rank in range(ranks):
    ours, python = read(f"{folder}/ours-{rank}"), read(f"{folder}/python-{rank}")
    assert ours.keys() == python.keys() and len(ours) == 112, "the tables have other cells"
    for cell, result in ours.items():
        reference = BEYOND.get(cell, cell)
        # Three addends in buckets cut elsewhere are added in another order.
        if differ(result, python[reference], exact=reference == cell or ranks == 2):
            failures.append(f"rank {rank}, {cell}:\n  ours   {result}\n  python {python[reference]}")
        more += reference != cell
        refused += result.startswith("refused")
        if result.startswith("refused") and "DistributedDataParallel: " not in result and cell not in RAW:
            failures.append(f"rank {rank}, {cell} is refused without our words: {result}")
        totals[rank][cell] = result.split()[-1]
if any(of_rank != totals[0] for of_rank in totals):
    failures.append("the ranks' parameters have drifted apart")
print("\n".join(failures) or f"{len(ours)} cells on {ranks} ranks: the same losses or refusals as Python's DistributedDataParallel")
print(f"{more // ranks} of them do more than Python's, {refused // ranks} are refused by both")
sys.exit(bool(failures))
