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
import warnings
from unittest import mock

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "python"))

import torch
from torch.utils.data import BatchSampler, DataLoader
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

    def test_torchs_default_device_changes_nothing(self):
        for most in 2**24, 1:
            with mock.patch("muster.samplers._MOST_OF_MULTINOMIAL", most):
                for name, make in SAMPLERS.items():
                    expected = list(make())
                    with torch.device("meta"):
                        self.assertEqual(list(make()), expected, name)

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
            sampler.load_state_dict(state, batch_size=3)
            rest += list(sampler)
        self.assertEqual(sorted(used + rest), sorted(whole))

    def test_training_on_unequal_numbers_of_batches_is_told(self):
        """LoaderSteps.TrainingOnUnequalNumbersOfBatchesIsAnErrorOnEveryRank (tests/data/loader_workers_test.cc) says it in C++."""
        def told(batch_size=1, drop_last=False, rank=0, own=False, pad=False, weighted=False):
            sampler = muster.WeightedSampler([1.0] * 7, num_replicas=2, rank=rank, pad=pad) if weighted else \
                muster.DistributedSampler(7, 2, rank, pad=pad)
            loader = DataLoader(range(7), batch_sampler=BatchSampler(sampler, batch_size, drop_last)) if own else \
                DataLoader(range(7), batch_size, sampler=sampler, drop_last=drop_last)
            said = _told(list, loader)
            self.assertEqual(_told(list, loader), [], "once")
            return said
        for how in ({}, {"own": True}, {"weighted": True}, {"batch_size": None}):
            said, = told(**how)
            self.assertRegex(said, r"^sampler: expected as many batches on every rank in training, got 4 on some and 3 on others in epoch 0; if ")
        self.assertRegex(told(batch_size=4, drop_last=True)[0], "got 1 on some and 0 on others")
        for how in ({"batch_size": 4}, {"batch_size": 2, "own": True}, {"rank": 1}, {"pad": True}, {"batch_size": 3, "drop_last": True}):
            self.assertEqual(told(**how), [], how)
        with torch.no_grad():
            self.assertEqual(told(), [], "an evaluation")

    def test_a_loop_over_epochs_keeps_the_place_of_a_state(self):
        """DistributedSampler.AnEpochLoopKeepsTheRestoredPosition (tests/data/distributed_sampler_test.cc) says the same in C++."""
        for name, make in SAMPLERS.items():
            before = make()
            before.set_epoch(3)
            used = _samples(before)[:60]
            state = before.state_dict(batches=6, batch_size=10)
            sampler = make()
            sampler.load_state_dict(state)
            loader = _loader(sampler)
            seen = []
            for epoch in range(sampler.epoch, 6):
                sampler.set_epoch(epoch)
                seen.append(torch.cat(list(loader)).tolist())
            self.assertEqual([len(epoch) for epoch in seen], [40, 100, 100], name)
            before.set_epoch(3)
            self.assertEqual(used + seen[0], _samples(before), name)

    def test_what_was_begun_begins_anew(self):
        for name, make in SAMPLERS.items():
            sampler = make()
            sampler.set_epoch(3, 60)
            sampler.set_epoch(4)
            sampler.set_epoch(3)
            self.assertEqual(len(_samples(sampler)), 100, name)
            sampler.set_epoch(3, 60)
            self.assertEqual(len(_samples(sampler)), 40, name)
            self.assertEqual(len(_told(sampler.set_epoch, 3)), 1, name)
            self.assertEqual(len(_samples(sampler)), 100, name)
            sampler.set_epoch(3, 60)
            sampler.set_epoch(3, 0)
            self.assertEqual(len(_samples(sampler)), 100, name)

    def test_the_rest_of_an_epoch_that_comes_again_is_told(self):
        for name, make in SAMPLERS.items():
            sampler = make()
            self.assertEqual(_told(_samples, sampler) + _told(_samples, sampler), [], name)
            sampler.set_epoch(3, 60)
            self.assertEqual(_told(_samples, sampler), [], name)
            self.assertRegex(_told(_samples, sampler)[0], r"^sampler: expected set_epoch before the next epoch, got none since epoch 3 went on behind 60 ")
            self.assertEqual(_told(_samples, sampler), [], name)  # once

    def test_a_place_that_a_look_at_a_batch_drops_is_told(self):
        for name, make in SAMPLERS.items():
            before = make()
            before.set_epoch(3)
            sampler = make()
            sampler.load_state_dict(before.state_dict(batches=6, batch_size=10))
            self.assertEqual(_told(sampler.set_epoch, 3), [], name)
            next(iter(_loader(sampler)))
            self.assertRegex(_told(sampler.set_epoch, 3)[0], r"^sampler: expected set_epoch\(3\) before the first batch behind 60 samples ", name)
            self.assertEqual(_told(sampler.set_epoch, 3), [], name)
            self.assertEqual(len(_samples(sampler)), 100, name)
            self.assertEqual(_told(sampler.set_epoch, 3) + _told(sampler.set_epoch, 4), [], "an epoch without such a place")

    def test_wrong_places_are_refused(self):
        sampler = muster.DistributedSampler(10, 2, 0)
        for wrong in (lambda: muster.DistributedSampler(10, 2, 2), lambda: sampler.set_epoch(-1), lambda: sampler.set_epoch(0, 11),
                      lambda: sampler.state_dict(-3), lambda: sampler.state_dict(1, 0), lambda: muster.DistributedSampler(0, 1, 0),
                      lambda: muster.DistributedSampler(5, 1, 0, drop_last=True, pad=False)):
            self.assertRaises(muster.InvalidArgument, wrong)
        self.assertRaises(muster.FailedPrecondition, sampler.load_state_dict, {"epoch": 0, "consumed": 2, "dataset_size": 11, "seed": 0})


SAMPLERS = {"distributed": lambda: muster.DistributedSampler(100, 1, 0), "in order": lambda: muster.DistributedSampler(100, 1, 0, shuffle=False),
            "weighted": lambda: muster.WeightedSampler([1.0] * 100, num_replicas=1, rank=0),
            "weighted, each once": lambda: muster.WeightedSampler([1.0] * 100, replacement=False, num_replicas=1, rank=0),
            "balanced": lambda: muster.CostBalancedSampler([1.0] * 100, 10, num_replicas=1, rank=0)}


def _loader(sampler):
    own = isinstance(sampler, muster.CostBalancedSampler)
    return DataLoader(range(100), batch_sampler=sampler) if own else DataLoader(range(100), batch_size=10, sampler=sampler)


def _samples(sampler):
    return torch.cat(list(_loader(sampler))).tolist()


def _told(load, state, *args):
    """What loading the state says, line by line."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        load(state, *args)
    return [str(warning.message) for warning in told]


class OtherGlobalBatch(unittest.TestCase):
    """Checkpoints.OtherRanksAreToldOfAnotherGlobalBatch (tests/train/checkpoints_test.cc) says the same in C++."""

    def test_other_ranks_are_told(self):
        for make in (lambda ranks, rank: muster.DistributedSampler(96, ranks, rank),
                     lambda ranks, rank: muster.WeightedSampler([1.0] * 96, num_replicas=ranks, rank=rank)):
            state = make(4, 0).state_dict(batches=2, batch_size=6)
            self.assertEqual(state["consumed"], 48)
            load = make(2, 0).load_state_dict
            self.assertRegex(_told(load, state, 6)[0], r"was 24 samples \(4 ranks\) and is 12 samples \(2 ranks\) now; give each rank another")
            self.assertEqual(_told(load, state, 12), [])  # it was kept
            self.assertRegex(_told(load, state)[0], r"was 24 samples \(4 ranks\), and is another with 2 unless")
            self.assertRegex(_told(load, make(4, 0).state_dict())[0], "was that of 4 ranks, and is another with 2 unless")
            self.assertEqual(_told(make(2, 1).load_state_dict, state, 6), [])  # rank 0 speaks for all
            self.assertEqual(_told(load, {key: state[key] for key in ("epoch", "consumed", "dataset_size", "seed")}, 6), [])  # an old state

    def test_the_next_state_tells_of_another_batch_size(self):
        state = muster.DistributedSampler(96, 2, 0).state_dict(batches=1, batch_size=8)
        sampler = muster.DistributedSampler(96, 2, 0)
        self.assertEqual(_told(sampler.load_state_dict, state), [])
        self.assertEqual(_told(sampler.state_dict, 0), [])
        self.assertRegex(_told(sampler.state_dict, 1, 4)[0], r"was 16 samples \(2 ranks\) and is 8 samples \(2 ranks\) now")
        self.assertEqual(_told(sampler.state_dict, 2, 4), [])  # once
        self.assertEqual(sampler.state_dict()["global_batch"], 8)  # at an epoch's end too
        self.assertRaises(muster.InvalidArgument, sampler.load_state_dict, state, 0)

    def test_a_cost_balanced_batch_is_compared_at_once(self):
        state = muster.CostBalancedSampler([1.0] * 96, 24, num_replicas=4, rank=0).state_dict(batches=1)
        for global_batch, told in ((24, 0), (12, 1)):
            load = muster.CostBalancedSampler([1.0] * 96, global_batch, num_replicas=2, rank=0).load_state_dict
            self.assertEqual(len(_told(load, state)), told)


class Mistakes(unittest.TestCase):
    def must_refuse(self, part, make):
        with self.assertRaises(muster.InvalidArgument) as caught:
            make()
        self.assertIn(part, str(caught.exception))

    def test_name_the_value(self):
        sampler = muster.DistributedSampler(10, num_replicas=2, rank=0)
        self.must_refuse("a whole number as epoch, got 1.5", lambda: sampler.set_epoch(1.5))
        self.must_refuse("a whole number as rank, got '1'", lambda: muster.DistributedSampler(10, 2, "1"))
        self.must_refuse("a whole number as seed, got None", lambda: muster.DistributedSampler(10, 2, 0, seed=None))
        self.must_refuse("num_replicas of 1 or more, got 0", lambda: muster.DistributedSampler(10, 0, 0))
        self.must_refuse("a whole number as global_batch, got 2.5", lambda: muster.CostBalancedSampler([1] * 9, 2.5, num_replicas=2, rank=0))
        self.must_refuse("got one without consumed, dataset_size, seed", lambda: sampler.load_state_dict({"epoch": 1}))

    def test_numbers_of_torch_and_generators_are_taken(self):
        import torch
        size, epoch = torch.tensor(10), torch.tensor(2)
        mine, other = muster.DistributedSampler(size, 2, torch.tensor(1)), muster.DistributedSampler(10, 2, 1)
        for sampler, at in (mine, epoch), (other, 2):
            sampler.set_epoch(at)
        self.assertEqual(list(mine), list(other))
        self.assertEqual(list(muster.WeightedSampler((w for w in (1.0, 2.0, 3.0)), num_replicas=1, rank=0)),
                         list(muster.WeightedSampler([1.0, 2.0, 3.0], num_replicas=1, rank=0)))


class Shares(unittest.TestCase):
    """As DistributedSampler.* (tests/data/distributed_sampler_test.cc) of C++."""

    def test_ranks_have_parts_of_what_one_process_takes(self):
        for size in (9, 10, 11, 13, 29, 30, 31):
            for shares in ([2, 3, 5], [4, 3, 3], [1, 8, 1]):
                for how in ({}, {"drop_last": True}, {"pad": False}):
                    order = list(muster.DistributedSampler(size, 1, 0, seed=7))
                    samplers = [muster.DistributedSampler(size, 3, rank, seed=7, shares=shares, **how) for rank in range(3)]
                    parts = [list(BatchSampler(sampler, share, False)) for sampler, share in zip(samplers, shares)]
                    self.assertEqual([len(sampler) for sampler in samplers], [sum(map(len, part)) for part in parts])
                    for number in range(size // 10):
                        self.assertEqual(sum((part[number] for part in parts), []), order[10 * number:10 * number + 10])
                        self.assertEqual([sampler.weight(number) for sampler in samplers], [3 * share / 10 for share in shares])
                    rest, left = sum((part[size // 10] for part in parts if len(part) > size // 10), []), order[size // 10 * 10:]
                    if how.get("drop_last"):
                        self.assertEqual(rest, [])
                    elif how or len(left) >= 3:
                        self.assertEqual(rest, left)
                    elif left:
                        self.assertEqual(rest, (left + order)[:3], "a sample a rank")

    def test_an_epoch_goes_on_behind_whole_global_batches(self):
        sampler = muster.DistributedSampler(100, 2, 0, seed=1, shares=[6, 2])
        state = sampler.state_dict(batches=3, batch_size=6)
        self.assertEqual((state["consumed"], state["global_batch"]), (24, 8))
        after = muster.DistributedSampler(100, 1, 0, seed=1)
        after.load_state_dict(state, batch_size=8)
        self.assertEqual(list(after), list(muster.DistributedSampler(100, 1, 0, seed=1))[24:])

    def test_wrong_shares_and_batches_are_named(self):
        for wrong in [1], [1, 0], [1, 2, 3]:
            self.assertRaisesRegex(muster.InvalidArgument, "2 shares of at least 1, one a rank, got", muster.DistributedSampler, 10, 2, 0, shares=wrong)
        sampler = muster.DistributedSampler(10, 2, 1, shares=[3, 2])
        for wrong in -1, 2:
            self.assertRaisesRegex(muster.InvalidArgument, rf"a batch of the 2 of the epoch, got number {wrong} \(rank 1\)", sampler.weight, wrong)
        self.assertRaisesRegex(muster.FailedPrecondition, r"share, 2 of \[3, 2\], .* got a batch size of 3 \(rank 1\)", list, DataLoader(range(10), 3, sampler=sampler))
        loader = DataLoader(range(10), 3, sampler=muster.DistributedSampler(10, 2, 1, shares=[3, 2], pad=False))
        self.assertRegex(_told(list, loader)[0], r"share, 2 of \[3, 2\], .* got a batch size of 3 \(rank 1\)")
        self.assertEqual(_told(list, loader), [], "once")
        self.assertEqual(muster.DistributedSampler(10, 2, 1).weight(7), 1)
        self.assertRaisesRegex(muster.FailedPrecondition, "got pad=False", muster.DistributedSampler(11, 2, 1, pad=False).weight, 0)


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

    def test_a_weight_is_of_the_loops_batch(self):
        costs = [float(1 + i * i % 13) for i in range(30)]
        samplers = [muster.CostBalancedSampler(costs, 8, num_replicas=3, rank=rank) for rank in range(3)]
        self.assertRaisesRegex(muster.InvalidArgument, "of the 0 that the epoch has given until now, got number 0", samplers[0].weight, 0)
        for epoch in range(2):
            parts = []
            for sampler in samplers:
                sampler.set_epoch(epoch)
                parts.append([(len(batch), sampler.weight(number)) for number, batch in
                              enumerate(DataLoader(range(30), batch_sampler=sampler, num_workers=1, prefetch_factor=2))])
            for batch, together in zip(zip(*parts), (8, 8, 8, 6)):
                self.assertEqual([weight for _, weight in batch], [3 * mine / together for mine, _ in batch])
        self.assertGreater(len({mine for part in parts for mine, _ in part}), 1)

    def test_a_loader_takes_it(self):
        sampler = muster.CostBalancedSampler([1.0] * 10, 4, num_replicas=2, rank=0)
        loader = DataLoader(range(10), batch_sampler=sampler)
        self.assertEqual(len(loader), 3)
        self.assertEqual(sum(len(batch) for batch in loader), 5)


if __name__ == "__main__":
    unittest.main()
