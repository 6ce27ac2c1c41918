"""Which samples a rank trains on, index for index as the samplers of muster's C++ library. They need torch, whose random
numbers they draw on the CPU, whatever torch's default device is."""
from __future__ import annotations

import operator
import warnings
from typing import TYPE_CHECKING, Any, Dict, Iterator, List, NoReturn, Optional, Sequence, Sized, Tuple, Union

from muster import _loaders
from muster.errors import FailedPrecondition, InvalidArgument
from muster.rank import rank as own_rank, unequal_shares, world_size

if TYPE_CHECKING:
    import torch

_MOST_OF_MULTINOMIAL = 2**24  # torch.multinomial refuses more weights

State = Dict[str, int]


class _Sampler:
    """An epoch's order, the same on every rank, of which each rank takes its part; and a place in it."""

    def __init__(self, dataset_size: int, samples: int, num_replicas: Optional[int], rank: Optional[int], shuffle: bool, seed: int) -> None:
        self.num_replicas = world_size() if num_replicas is None else _whole("num_replicas", num_replicas)
        self.rank = own_rank() if rank is None else _whole("rank", rank)
        self.shuffle = shuffle
        self.seed = _whole("seed", seed)
        self.epoch = 0
        self._dataset_size = dataset_size
        self._samples = samples
        self._consumed = 0
        self._begun = False          # since set_epoch
        self._told_of_rest = False
        self._told_of_dropped = False
        self._global_batch_now = 0   # of all ranks; 0: not known
        self._global_batch_then = 0  # that of the state that was loaded, until it was compared
        self._ranks_then = 0
        if dataset_size < 1 or samples < 1:
            raise InvalidArgument(f"sampler: expected a data set of 1 sample or more, got {dataset_size}, and {samples} of an epoch; give one")
        if self.num_replicas < 1:
            raise InvalidArgument(f"sampler: expected num_replicas of 1 or more, got {self.num_replicas}; pass the number of ranks")
        if not 0 <= self.rank < self.num_replicas:
            raise InvalidArgument(f"sampler: expected a rank from 0 to {self.num_replicas - 1}, got {self.rank}; pass this rank's own number")

    def set_epoch(self, epoch: int, consumed: Optional[int] = None) -> None:
        """Sets the next epoch. With `consumed`, it goes on behind the samples that all ranks together have used; the rest is
        divided among the ranks that there are now, whatever their number was before. Without it, a loop over epochs keeps the
        place that `load_state_dict` has just set in this epoch, and an epoch that was begun begins anew; rank 0 warns where that
        drops such a place."""
        epoch = _whole("epoch", epoch)
        if consumed is None:
            consumed = self._kept_place(epoch)
        consumed = _whole("consumed", consumed)
        if epoch < 0 or not 0 <= consumed <= self._samples:
            raise InvalidArgument(f"sampler: expected an epoch of 0 or more and 0 to {self._samples} consumed samples, got {epoch} and {consumed}; "
                                  "correct them")
        self.epoch, self._consumed, self._begun = epoch, consumed, False

    def _kept_place(self, epoch: int) -> int:
        """Of set_epoch without `consumed`. Whether the rest was trained on, or a batch was looked at, cannot be seen here."""
        if epoch != self.epoch:
            return 0
        if not self._begun:
            return self._consumed
        if self._consumed > 0 and not self._told_of_dropped and self.rank == 0:
            self._told_of_dropped = True
            warnings.warn(f"sampler: expected set_epoch({epoch}) before the first batch behind {self._consumed} samples of that epoch, got it "
                          "after one, so the whole epoch comes; if only a batch was looked at, load the state again before set_epoch",
                          stacklevel=3)
        return 0

    def state_dict(self, batches: int = 0, batch_size: int = 1) -> State:
        """The place after so many batches of each rank since set_epoch, for a checkpoint."""
        if batches < 0 or batch_size < 1:
            raise InvalidArgument(f"sampler: expected 0 batches or more of 1 sample or more, got {batches} of {batch_size}; correct them")
        used = min(self._samples, self._consumed + batches * self._global_batch(batch_size))
        if batches > 0:
            self._take_global_batch(self._global_batch(batch_size))
        return {"epoch": self.epoch, "consumed": used, "dataset_size": self._dataset_size, "seed": self.seed, "ranks": self.num_replicas,
                "global_batch": self._global_batch_now}

    def load_state_dict(self, state: State, batch_size: Optional[int] = None) -> None:
        """Goes on at that place, with any number of ranks. Warns if all ranks together take another number of samples at once
        than before. With `batch_size`, the samples that this rank takes at once, it is compared now; else state_dict does it."""
        missing = {"epoch", "consumed", "dataset_size", "seed"} - set(state)
        if missing:
            raise InvalidArgument(f"sampler: expected a state of state_dict(), got one without {', '.join(sorted(missing))}; load the sampler's own")
        if state["dataset_size"] != self._dataset_size or state["seed"] != self.seed:
            raise FailedPrecondition(f"sampler: expected the data set of {state['dataset_size']} samples and the seed {state['seed']} of the "
                                     f"checkpoint, got {self._dataset_size} and {self.seed}; give the same")
        if batch_size is not None and batch_size < 1:
            raise InvalidArgument(f"sampler: expected a batch size of 1 sample or more, got {batch_size}; correct it")
        self.set_epoch(state["epoch"], state["consumed"])
        self._global_batch_then, self._ranks_then = state.get("global_batch", 0), state.get("ranks", 0)
        now = self._global_batch(batch_size)
        if now > 0:
            self._take_global_batch(now)
        elif self._ranks_then not in (0, self.num_replicas):
            self._warn_of_other_ranks()

    def weight(self, batch: int) -> float:
        """What a loss that is a mean over this rank's samples is multiplied by, so that gradients which are averaged over the ranks
        are those of the mean over all samples of the global batch. `batch` counts those of the loop from 0.

        >>> for number, batch in enumerate(loader):
        ...     (loss(model(batch)) * sampler.weight(number)).backward()
        """
        mine, together = self._counts(_whole("batch", batch))
        return mine * self.num_replicas / together

    def _counts(self, batch: int) -> Tuple[int, int]:
        """The samples of this rank, and of all, in a batch."""
        raise NotImplementedError

    def _refuse_batch(self, batch: int, batches: str) -> NoReturn:
        raise InvalidArgument(f"sampler: expected a batch of the {batches}, got number {batch} (rank {self.rank}); "
                              "count those of the loop from 0: enumerate(loader)")

    def _take_global_batch(self, samples: int) -> None:
        then, self._global_batch_then, self._global_batch_now = self._global_batch_then, 0, samples
        if self.rank == 0 and then not in (0, samples):
            warnings.warn(f"sampler: the global batch was {_shown(then, self._ranks_then)} and is {_shown(samples, self.num_replicas)} now; give "
                          "each rank another batch size to keep it, or fit the learning rate to it", stacklevel=3)

    def _warn_of_other_ranks(self) -> None:
        """Of a batch size that is not known here."""
        if self.rank == 0:
            before = _shown(self._global_batch_then, self._ranks_then) if self._global_batch_then else f"that of {self._ranks_then} ranks"
            warnings.warn(f"sampler: the global batch was {before}, and is another with {self.num_replicas} unless each rank has another batch "
                          "size; pass it to load_state_dict(state, batch_size), which compares", stacklevel=3)

    def _global_batch(self, batch_size: Optional[int]) -> int:
        """0 where the batch size of this rank is not known."""
        return (batch_size or 0) * self.num_replicas

    def _begin(self) -> None:
        """An epoch that went on in its middle has the same rest again, until set_epoch says otherwise."""
        if self._begun and self._consumed > 0 and not self._told_of_rest and self.rank == 0:
            self._told_of_rest = True
            warnings.warn(f"sampler: expected set_epoch before the next epoch, got none since epoch {self.epoch} went on behind {self._consumed} "
                          "samples, so its rest comes again; call set_epoch(epoch) in the loop", stacklevel=4)
        self._begun = True

    def _generator(self) -> "torch.Generator":
        import torch
        return torch.Generator("cpu").manual_seed(self.seed + self.epoch)

    def _order(self) -> List[int]:
        """Of the whole epoch: a permutation of the data set, or its own order."""
        if not self.shuffle:
            return list(range(self._dataset_size))
        import torch
        order: List[int] = torch.randperm(self._dataset_size, generator=self._generator(), device="cpu").tolist()
        return order

    def _left(self) -> int:
        return max(0, self._samples - self._consumed)


class DistributedSampler(_Sampler):
    """torch.utils.data.DistributedSampler, index for index, and three things more: it goes on in the middle of an epoch with any
    number of ranks, with `pad=False` no sample counts twice, as an evaluation wants it, and it divides each global batch by
    `shares`, the samples of each rank. Those of `muster run --global-batch` are taken where they are unequal; `shares=()` takes
    none. A rank's batch size is its share then: `muster.batch_share(32)`.

    >>> sampler = muster.DistributedSampler(data, seed=1)
    >>> loader = DataLoader(data, batch_size=muster.batch_share(32), sampler=sampler)
    >>> for epoch in range(3):
    ...     sampler.set_epoch(epoch)
    ...     for batch in loader: ...
    """

    def __init__(self, dataset: Union[int, Sized], num_replicas: Optional[int] = None, rank: Optional[int] = None, shuffle: bool = True,
                 seed: int = 0, drop_last: bool = False, *, pad: bool = True, shares: Optional[Sequence[int]] = None) -> None:
        is_number = hasattr(dataset, "__index__") and not getattr(dataset, "shape", ())  # tensors of any shape have __index__
        size = _whole("dataset", dataset) if is_number else len(dataset)  # type: ignore[arg-type]
        super().__init__(size, size, num_replicas, rank, shuffle, seed)
        if drop_last and not pad:
            raise InvalidArgument("sampler: expected drop_last or pad=False, got both: one cuts the tail, the other keeps it; leave one out")
        self.drop_last, self.pad = drop_last, pad
        self.shares = self._checked(shares) if shares is not None else self._launchers()
        self._told_of_unequal = self._told_of_share = False
        if self.num_replicas > 1 and (self.shares or not pad):
            _loaders.tell_samplers()

    def _launchers(self) -> List[int]:
        """The launcher's shares, where this sampler's ranks are the job's."""
        shares = unequal_shares()
        return shares if len(shares) == self.num_replicas and self.rank == own_rank() else []

    def _checked(self, shares: Sequence[int]) -> List[int]:
        numbers = [_whole("shares", share) for share in shares]
        if numbers and (len(numbers) != self.num_replicas or min(numbers) < 1):
            raise InvalidArgument(f"sampler: expected {self.num_replicas} shares of at least 1, one a rank, got {numbers}; leave them out for equal ones")
        return numbers

    def __len__(self) -> int:
        return self._samples_of(self.rank)

    def _samples_of(self, rank: int) -> int:
        if self.shares:
            full = self._left() // sum(self.shares)
            return full * self.shares[rank] + self._parts(full)[rank]
        rest = self._left() % self.num_replicas
        has_more = not self.drop_last and (rest > 0 if self.pad else rank < rest)
        return self._left() // self.num_replicas + int(has_more)

    def _parts(self, batch: int) -> List[int]:
        """The samples of each rank in a global batch that is divided by shares. One of a smaller last one goes to each rank at
        least, unless it is not padded."""
        left = self._left() - batch * sum(self.shares)
        if left >= sum(self.shares):
            return self.shares
        if left <= 0 or self.drop_last:
            return [0] * self.num_replicas
        return divided(max(left, self.num_replicas), self.shares, 1) if self.pad else divided(left, self.shares, 0)

    def _counts(self, batch: int) -> Tuple[int, int]:
        if not self.shares and not self.pad:
            raise FailedPrecondition("sampler: expected shares, or padding, for the weight of a batch, got pad=False, with which it depends on the "
                                     "batch size; leave pad=False out in training")
        if not self.shares:
            return 1, self.num_replicas
        parts = self._parts(batch)
        if batch < 0 or parts[self.rank] == 0:
            self._refuse_batch(batch, f"{-(-len(self) // self.shares[self.rank])} of the epoch")
        return parts[self.rank], sum(parts)

    def _global_batch(self, batch_size: Optional[int]) -> int:
        return sum(self.shares) or super()._global_batch(batch_size)

    def begin_batches(self, batch_size: int, drop_last: bool) -> None:
        """A DataLoader begins an epoch. In training, a rank with fewer batches than others goes on to the next one without them.
        Whether this loop averages gradients, or is within model.join(), cannot be seen here."""
        import torch
        if not torch.is_grad_enabled():
            return
        if self.shares and (batch_size != self.shares[self.rank] or drop_last):
            self._refuse_or_warn(
                f"sampler: expected batches of this rank's share, {self.shares[self.rank]} of [{', '.join(map(str, self.shares))}], and drop_last of the "
                f"sampler alone, got a batch size of {batch_size}{' and drop_last of the loader' if drop_last else ''} (rank {self.rank}); give "
                "batch_size=muster.batch_share(), or shares=() for as many samples on every rank; put torch.no_grad() around an evaluation")
        batches = [self._samples_of(rank) // size if drop_last else -(-self._samples_of(rank) // size)
                   for rank, size in enumerate(self.shares or [batch_size] * self.num_replicas)]
        self._warn_of_unequal(max(batches), min(batches))

    def _refuse_or_warn(self, text: str) -> None:
        """Without padding the loop may be an evaluation, which averages no gradients."""
        if self.pad:
            raise FailedPrecondition(text)
        if not self._told_of_share:
            self._told_of_share = True
            warnings.warn(text, stacklevel=5)

    def _warn_of_unequal(self, most: int, least: int) -> None:
        if self.rank != 0 or most == least or self._told_of_unequal:
            return
        self._told_of_unequal = True
        warnings.warn(f"sampler: expected as many batches on every rank in training, got {most} on some and {least} on others in epoch "
                      f"{self.epoch}; if this loop trains with averaged gradients, those of different epochs are averaged, or ranks wait "
                      "for ever: leave pad=False out there, or train within model.join(); leave it where the loop is within it, or averages "
                      "nothing; put torch.no_grad() around the loop of an evaluation", stacklevel=5)

    def __iter__(self) -> Iterator[int]:
        self._begin()
        order = self._order()
        return iter([order[place % len(order)] for place in self._places()])

    def _places(self) -> Iterator[int]:
        """Of this rank's samples in the order of the epoch: every num_replicas-th one, or its part of each global batch."""
        if not self.shares:
            return iter(range(self._consumed + self.rank, self._consumed + self.rank + len(self) * self.num_replicas, self.num_replicas))
        batches = self._left() // sum(self.shares) + 1
        begins = ((self._consumed + batch * sum(self.shares), self._parts(batch)) for batch in range(batches))
        return (begin + sum(parts[:self.rank]) + i for begin, parts in begins for i in range(parts[self.rank]))


class WeightedSampler(DistributedSampler):
    """Draws samples in proportion to `weights`, one a sample of the data set. All ranks draw the same, and each takes its part:
    together they see what one process with torch's WeightedRandomSampler (seeded with seed + epoch) sees.

    >>> sampler = muster.WeightedSampler(weights, num_samples=10_000)
    >>> loader = DataLoader(data, batch_size=32, sampler=sampler)
    """

    def __init__(self, weights: Sequence[float], num_samples: Optional[int] = None, replacement: bool = True, *,
                 num_replicas: Optional[int] = None, rank: Optional[int] = None, seed: int = 0, drop_last: bool = False,
                 pad: bool = True, shares: Optional[Sequence[int]] = None) -> None:
        import torch
        self._weights = torch.as_tensor(weights if hasattr(weights, "__len__") else list(weights), dtype=torch.double, device="cpu")
        if self._weights.dim() != 1:
            raise InvalidArgument(f"sampler: expected a weight of each sample, got a tensor of the shape {tuple(self._weights.shape)}; "
                                  "give one of one dimension")
        super().__init__(self._weights.numel(), num_replicas, rank, True, seed, drop_last, pad=pad, shares=shares)
        possible = int((self._weights > 0).sum())
        if not bool(torch.isfinite(self._weights).all()) or bool((self._weights < 0).any()) or possible == 0:
            raise InvalidArgument("sampler: expected weights of 0 or more, some above 0, got others, or NaN or infinity; correct them")
        self._samples = self._weights.numel() if num_samples is None else _whole("num_samples", num_samples)
        self.replacement = replacement
        if self._samples < 1 or (not replacement and self._samples > possible):
            raise InvalidArgument(f"sampler: expected 1 to {possible} samples of an epoch without replacement, or 1 or more with it, "
                                  f"got {self._samples}; correct num_samples")

    def _order(self) -> List[int]:
        drawn: List[int] = _drawn(self._weights, self._samples, self.replacement, self._generator()).tolist()
        return drawn


class CostBalancedSampler(_Sampler):
    """Batches whose costs (lengths of texts, sizes of graphs) are as equal over the ranks as possible. Each global batch has
    the same samples with any number of ranks. A rank with longer samples has fewer of them, so a loss that is a mean over them
    is multiplied by `weight`.

    >>> sampler = muster.CostBalancedSampler(lengths, global_batch=256)
    >>> loader = DataLoader(data, batch_sampler=sampler)
    >>> for number, batch in enumerate(loader):
    ...     (loss(model(batch)) * sampler.weight(number)).backward()
    """

    def __init__(self, costs: Sequence[float], global_batch: int, *, num_replicas: Optional[int] = None, rank: Optional[int] = None,
                 shuffle: bool = True, seed: int = 0, drop_last: bool = False) -> None:
        self._costs = [float(cost) for cost in costs]
        super().__init__(len(self._costs), len(self._costs), num_replicas, rank, shuffle, seed)
        if any(not 0 <= cost < float("inf") for cost in self._costs):
            raise InvalidArgument("sampler: expected costs of 0 or more, got one that is negative or not finite; correct it")
        global_batch = _whole("global_batch", global_batch)
        if global_batch < self.num_replicas:
            raise InvalidArgument(f"sampler: expected a global batch of at least {self.num_replicas}, one sample a rank, got {global_batch}; "
                                  "give a larger one")
        self.global_batch, self.drop_last = global_batch, drop_last
        self._given: List[Tuple[int, int]] = []  # this rank's samples, and all, of the batches of this epoch until now

    def _counts(self, batch: int) -> Tuple[int, int]:
        if not 0 <= batch < len(self._given):
            self._refuse_batch(batch, f"{len(self._given)} that the epoch has given until now")
        return self._given[batch]

    def _global_batch(self, batch_size: Optional[int]) -> int:
        return self.global_batch

    def __len__(self) -> int:
        return self._left() // self.global_batch + int(not self.drop_last and self._left() % self.global_batch > 0)

    def __iter__(self) -> Iterator[List[int]]:
        self._begin()
        order = self._order()
        given = self._given = []  # a loader reads ahead of its loop
        for batch in range(len(self)):
            begin = self._consumed + batch * self.global_batch
            # A last batch with fewer samples than ranks is filled up from the order's beginning.
            size = max(min(self.global_batch, self._left() - batch * self.global_batch), self.num_replicas)
            samples = [order[(begin + i) % len(order)] for i in range(size)]
            mine = part_by_cost([self._costs[sample] for sample in samples], self.num_replicas, self.rank)
            given.append((len(mine), size))
            yield [samples[i] for i in mine]


def part_by_cost(costs: Sequence[float], ranks: int, rank: int) -> List[int]:
    """The places of a rank's samples in a global batch. The costliest goes first, each to the rank with the least so far; the
    first of them go to a rank each, so that nobody is left without.

    >>> part_by_cost([1, 5, 2, 3], ranks=2, rank=0), part_by_cost([1, 5, 2, 3], ranks=2, rank=1)
    ([0, 1], [2, 3])
    """
    by_cost = sorted(range(len(costs)), key=lambda place: -costs[place])
    loads = [(0.0, 0)] * ranks  # cost and number of the samples of each rank
    mine = []
    for count, place in enumerate(by_cost):
        least = count if count < ranks else min(range(ranks), key=lambda other: loads[other])
        loads[least] = (loads[least][0] + costs[place], loads[least][1] + 1)
        if least == rank:
            mine.append(place)
    return sorted(mine)


def divided(total: int, shares: Sequence[int], least: int) -> List[int]:
    """In proportion to the shares, by largest remainder. Each part is at least `least`, 0 or 1; what that adds is taken from the
    largest part.

    >>> divided(5, [6, 3, 1], 1)
    [3, 1, 1]
    """
    parts = [total * share // sum(shares) for share in shares]
    by_remainder = sorted(range(len(shares)), key=lambda rank: -(total * shares[rank] % sum(shares)))
    for rank in by_remainder[:total - sum(parts)]:
        parts[rank] += 1
    for rank, part in enumerate(parts):
        if part < least:
            parts[rank] = least
            parts[parts.index(max(parts))] -= 1
    return parts


def _whole(name: str, value: Any) -> int:
    try:
        return operator.index(value)
    except TypeError:
        raise InvalidArgument(f"sampler: expected a whole number as {name}, got {value!r}; correct it") from None


def _shown(samples: int, ranks: int) -> str:
    return f"{samples} samples ({ranks} rank{'s' if ranks != 1 else ''})"


def _drawn(weights: Any, samples: int, replacement: bool, generator: Any) -> Any:
    """Draws as torch.multinomial, also of more weights than it takes."""
    import torch
    if weights.numel() <= _MOST_OF_MULTINOMIAL:
        return torch.multinomial(weights, samples, replacement, generator=generator)
    if not replacement:
        return (weights / torch.empty_like(weights).exponential_(1, generator=generator)).topk(samples).indices
    sums = weights.cumsum(0)
    drawn = torch.rand(samples, generator=generator, dtype=torch.double, device="cpu") * sums[-1]
    below_all = drawn.minimum(torch.nextafter(sums[-1], torch.zeros_like(sums[-1])))
    return torch.searchsorted(sums, below_all, right=True)
