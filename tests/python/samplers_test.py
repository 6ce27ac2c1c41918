"""The samplers of Python: PyTorch's own, index for index, and the numbers that tests/data expects of C++."""
import os
import sys
import unittest

if not os.environ.get("MUSTER_TEST_PYTHON"):
    print("skipped: no Python that imports torch")
    sys.exit(77)
if os.path.realpath(sys.prefix) != os.path.realpath(os.path.dirname(os.path.dirname(os.environ["MUSTER_TEST_PYTHON"]))):
    os.execv(os.environ["MUSTER_TEST_PYTHON"], [os.environ["MUSTER_TEST_PYTHON"], "-B", *sys.argv])

import pathlib

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "python"))

import torch
from torch.utils.data import DataLoader
from torch.utils.data import DistributedSampler as TorchSampler
from torch.utils.data import WeightedRandomSampler

import muster


class Distributed(unittest.TestCase):
    def test_as_pytorch(self):
        for size in (1, 5, 10, 13):
            for ranks in (1, 2, 3):
                for how in ({}, {"shuffle": False}, {"drop_last": True}):
                    if how.get("drop_last") and size < ranks:
                        continue
                    for rank in range(ranks):
                        ours = muster.DistributedSampler(size, ranks, rank, seed=3, **how)
                        theirs = TorchSampler(range(size), ranks, rank, seed=3, **how)
                        ours.set_epoch(2)
                        theirs.set_epoch(2)
                        self.assertEqual(list(ours), list(theirs), (size, ranks, rank, how))
                        self.assertEqual(len(ours), len(theirs))

    def test_without_padding_each_sample_counts_once(self):
        parts = [list(muster.DistributedSampler(11, 3, rank, pad=False)) for rank in range(3)]
        self.assertEqual(sorted(sum(parts, [])), list(range(11)))
        self.assertEqual([len(part) for part in parts], [4, 4, 3])

    def test_an_epoch_goes_on_with_other_ranks(self):
        whole = list(muster.DistributedSampler(24, 1, 0, seed=1))
        before = [muster.DistributedSampler(24, 3, rank, seed=1) for rank in range(3)]
        used = [sample for sampler in before for sample in list(sampler)[:4]]
        state = before[0].state_dict(batches=2, batch_size=2)
        self.assertEqual(state["consumed"], 12)
        after = [muster.DistributedSampler(24, 2, rank, seed=1) for rank in range(2)]
        rest = []
        for sampler in after:
            sampler.load_state_dict(state)
            rest += list(sampler)
        self.assertEqual(sorted(used + rest), sorted(whole))

    def test_wrong_places_are_refused(self):
        sampler = muster.DistributedSampler(10, 2, 0)
        for wrong in (lambda: muster.DistributedSampler(10, 2, 2), lambda: sampler.set_epoch(-1), lambda: sampler.set_epoch(0, 11),
                      lambda: sampler.state_dict(-3), lambda: sampler.state_dict(1, 0), lambda: muster.DistributedSampler(0, 1, 0),
                      lambda: muster.DistributedSampler(5, 1, 0, drop_last=True, pad=False)):
            self.assertRaises(muster.InvalidArgument, wrong)
        self.assertRaises(muster.FailedPrecondition, sampler.load_state_dict, {"epoch": 0, "consumed": 2, "dataset_size": 11, "seed": 0})


class Weighted(unittest.TestCase):
    def test_together_the_ranks_draw_what_one_process_draws(self):
        weights = torch.rand(50, generator=torch.Generator().manual_seed(1)).tolist()
        for replacement in (True, False):
            one = list(WeightedRandomSampler(weights, 40, replacement, generator=torch.Generator().manual_seed(5 + 1)))
            parts = []
            for rank in range(2):
                sampler = muster.WeightedSampler(weights, 40, replacement, num_replicas=2, rank=rank, seed=5)
                sampler.set_epoch(1)
                parts.append(list(sampler))
            self.assertEqual([sample for pair in zip(*parts) for sample in pair], one)

    def test_more_weights_than_torch_takes(self):
        weights = torch.zeros(2**24 + 8)
        weights[-4:] = 1
        for replacement in (True, False):
            drawn = list(muster.WeightedSampler(weights, 4, replacement, num_replicas=1, rank=0))
            self.assertTrue(set(drawn) <= set(range(2**24 + 4, 2**24 + 8)), drawn)
        self.assertEqual(len(set(drawn)), 4)

    def test_wrong_weights_are_refused(self):
        self.assertRaisesRegex(muster.InvalidArgument, r"shape \(2, 3\)", muster.WeightedSampler, torch.ones(2, 3), num_replicas=1, rank=0)
        for weights in ([0.0, 0.0], [1.0, -1.0], [1.0, float("nan")]):
            self.assertRaises(muster.InvalidArgument, muster.WeightedSampler, weights, num_replicas=1, rank=0)
        self.assertRaises(muster.InvalidArgument, muster.WeightedSampler, [1.0, 0.0], 2, False, num_replicas=1, rank=0)


class CostBalanced(unittest.TestCase):
    def test_loads_are_equal_and_each_sample_counts_once(self):
        costs = [float(cost) for cost in torch.randint(1, 100, (64,), generator=torch.Generator().manual_seed(2))]
        ranks = [muster.CostBalancedSampler(costs, 16, num_replicas=4, rank=rank, seed=7) for rank in range(4)]
        batches = list(zip(*ranks))
        self.assertEqual(sorted(sample for batch in batches for part in batch for sample in part), list(range(64)))
        for batch in batches:
            loads = [sum(costs[sample] for sample in part) for part in batch]
            self.assertLess(max(loads) - min(loads), 100)

    # CostBalanced.GivesTheCostliestFirst (tests/data/sample_order_test.cc) expects the same.
    def test_as_in_cpp(self):
        parts = [list(muster.CostBalancedSampler([1, 5, 2, 3, 8, 1], 6, num_replicas=2, rank=rank, shuffle=False)) for rank in range(2)]
        self.assertEqual(parts, [[[2, 4]], [[0, 1, 3, 5]]])

    def test_a_loader_takes_it(self):
        sampler = muster.CostBalancedSampler([1.0] * 10, 4, num_replicas=2, rank=0)
        loader = DataLoader(range(10), batch_sampler=sampler)
        self.assertEqual(len(loader), 3)
        self.assertEqual(sum(len(batch) for batch in loader), 5)


if __name__ == "__main__":
    unittest.main()
