// Positions in a stream: their numbers in a checkpoint, and how one group's positions become
// another's. Every worker has remainders of parts: the example that is next, and a stride. Where
// the number of ranks or workers changes, all remainders are gathered and dealt anew. A remainder
// that must be shared is cut by a larger stride, which keeps each example with exactly one worker.
#include "muster/data/stream_position.h"

#include <algorithm>
#include <cstddef>
#include <functional>
#include <iterator>
#include <numeric>
#include <string>
#include <utility>

#include "muster/base/divided_up.h"
#include "muster/base/error.h"
#include "muster/base/indices_of.h"
#include "muster/base/mapped.h"
#include "muster/base/strings.h"

namespace muster {

namespace {

// No number of a position is larger: sums and products of a few stay below 2^63.
constexpr int64_t kMostOfANumber = int64_t{1} << 40;
constexpr int64_t kMostEpochsApart = 1000;
constexpr int64_t kMostStride = int64_t{1} << 16;  // of a part that is divided again
constexpr std::ptrdiff_t kMostShown = 20;          // numbers of a position, in an error

void check_stream_number(const char* what, int64_t value, int64_t least) {
  if (value >= least)
    return;
  throw invalid_argument("stream loader: expected ", what, " of at least ", least, ", got ", value);
}

// Takes one number after the other from values().
class PositionNumbers {
 public:
  explicit PositionNumbers(const Int64s& values) : values_(values) {}

  // A seed may be any number, so no bound holds for it.
  int64_t any() {
    if (at_ == values_.size())
      refuse();
    return values_[at_++];
  }
  int64_t at_least(int64_t least) {
    const int64_t value = any();
    if (value < least || value > kMostOfANumber)
      refuse();
    return value;
  }
  // The count of things that take at least one more number each.
  int64_t count() {
    const int64_t value = at_least(0);
    if (std::cmp_greater(value, values_.size() - at_))
      refuse();
    return value;
  }
  void end() const {
    if (at_ != values_.size())
      refuse();
  }
  [[noreturn]] void refuse() const {
    const auto end = values_.begin() + std::min(std::ssize(values_), kMostShown);
    throw invalid_argument("stream loader: expected the numbers of a position, got [",
                           join(std::vector(values_.begin(), end), ", "),
                           std::ssize(values_) > kMostShown ? ", …" : "",
                           "]; give what values() has given");
  }

 private:
  const Int64s& values_;
  size_t at_ = 0;
};

// Reads a remainder in the order in which values() writes it.
StreamRemainder remainder_of(PositionNumbers& numbers) {
  const StreamRemainder left{.epoch = numbers.at_least(0),
                             .part = numbers.at_least(0),
                             .parts = numbers.at_least(1),
                             .next = numbers.at_least(0),
                             .stride = numbers.at_least(1)};
  if (left.part >= left.parts)
    numbers.refuse();
  return left;
}

// Without workers the training thread itself reads the only part.
int64_t workers_of(const StreamLoaderOptions& options) {
  return std::max(options.workers.value_or(0), 1);
}

// Parts count through the ranks: those of rank 0 come first, then those of rank 1.
std::vector<StreamRemainders> whole_parts(int64_t epoch,
                                          int64_t rank,
                                          int64_t ranks,
                                          int64_t workers) {
  return mapped_indices(workers, [&](int64_t k) {
    return StreamRemainders{{.epoch = epoch, .part = rank * workers + k, .parts = ranks * workers}};
  });
}

void check_seed(const StreamPosition& position, const StreamLoaderOptions& options) {
  if (position.seed == options.seed)
    return;
  throw failed_precondition(
      "stream loader: expected the seed of the saved position, ",
      position.seed,
      ", got ",
      options.seed,
      "; the order of the examples depends on it: keep it, or begin with the next epoch");
}

// Refuses all but the positions of ranks 0, 1, … that saved together.
void check_one_group(const StreamPositions& saved) {
  const auto refuse = [](const std::string& got) {
    throw invalid_argument("stream loader: expected the positions of all ranks of one group, got ",
                           got,
                           "; give all that were saved together");
  };
  if (saved.empty())
    refuse("none");
  for (const size_t i : indices_of(saved)) {
    const auto& position = saved[i];
    if (std::cmp_not_equal(position.rank, i) || position.ranks != std::ssize(saved))
      refuse(cat("that of rank ",
                 position.rank,
                 " of ",
                 position.ranks,
                 " as number ",
                 i,
                 " of ",
                 saved.size()));
    if (position.left.size() != saved[0].left.size() || position.seed != saved[0].seed)
      refuse(cat("another seed or number of workers on rank ", i, " than on rank 0"));
  }
}

// Returns the last epoch that a rank has begun. The bound keeps a damaged position from asking for
// millions of whole parts.
int64_t last_epoch_of(const StreamPositions& saved) {
  const auto [first, last] = std::ranges::minmax_element(saved, {}, &StreamPosition::epoch);
  if (last->epoch - first->epoch <= kMostEpochsApart)
    return last->epoch;
  throw invalid_argument("stream loader: expected ranks at most ",
                         kMostEpochsApart,
                         " epochs apart, got epoch ",
                         first->epoch,
                         " of rank ",
                         first->rank,
                         " and ",
                         last->epoch,
                         " of rank ",
                         last->rank,
                         "; begin anew");
}

// Ranks may be in different epochs. A rank that is behind has its whole parts left of the epochs
// that others have begun.
StreamRemainders all_that_is_left(const StreamPositions& saved) {
  StreamRemainders all;
  const auto add = [&](const std::vector<StreamRemainders>& left) {
    append_all(all, concatenated(left, std::identity()));
  };
  const int64_t last = last_epoch_of(saved);
  for (const auto& position : saved) {
    add(position.left);
    for (int64_t epoch = position.epoch + 1; epoch <= last; ++epoch)
      add(whole_parts(epoch, position.rank, position.ranks, std::ssize(position.left)));
  }
  std::ranges::stable_sort(all, {}, &StreamRemainder::epoch);
  return all;
}

// Deals the remainders to the workers: whole ones as far as they go round, and the rest cut so that
// it goes round too. A worker that has a cut one reads through all of its part. What has been cut
// often is dealt as it is: it is little, and its stride would come to be no number of a position.
std::vector<StreamRemainders> divide_evenly(const StreamRemainders& all, int64_t workers) {
  std::vector<StreamRemainders> divided(workers);
  const int64_t rest = std::ssize(all) % workers;
  const int64_t whole = std::ssize(all) - rest;
  // These are the fewest cuts with which the pieces go round evenly.
  const int64_t cuts = workers / std::gcd(rest, workers);
  size_t next = 0;
  const auto deal = [&](const StreamRemainder& left) {
    divided[next++ % divided.size()].push_back(left);
  };
  for (const int64_t i : indices_below(std::ssize(all))) {
    const auto& left = all[i];
    if (i < whole || left.stride > kMostStride / cuts) {
      deal(left);
      continue;
    }
    for (const int64_t cut : indices_below(cuts)) {
      StreamRemainder piece = left;
      piece.next += cut * left.stride;
      piece.stride *= cuts;
      deal(piece);
    }
  }
  return divided;
}

}  // namespace

// from_values() reads the numbers in this order. A count stands before each list, since lists
// differ in length.
Int64s StreamPosition::values() const {
  Int64s all{epoch, step, batch, seed, rank, ranks, examples, std::ssize(left)};
  for (const auto& of_worker : left) {
    all.push_back(std::ssize(of_worker));
    for (const auto& part : of_worker)
      all.insert(all.end(), {part.epoch, part.part, part.parts, part.next, part.stride});
  }
  return all;
}

// The numbers may come from a damaged checkpoint, so counts are compared with what follows before
// memory is taken.
StreamPosition StreamPosition::from_values(const Int64s& values) {
  PositionNumbers numbers(values);
  StreamPosition position{.epoch = numbers.at_least(0),
                          .step = numbers.at_least(0),
                          .batch = numbers.at_least(0),
                          .seed = numbers.any(),
                          .rank = numbers.at_least(0),
                          .ranks = numbers.at_least(1),
                          .examples = numbers.at_least(0),
                          .left = {}};  // a new position has a whole part
  if (position.rank >= position.ranks)
    numbers.refuse();
  position.left.resize(numbers.count());
  if (position.left.empty())
    numbers.refuse();
  for (auto& of_worker : position.left) {
    for (int64_t parts = numbers.count(); parts > 0; --parts)
      of_worker.push_back(remainder_of(numbers));
  }
  numbers.end();
  return position;
}

StreamLoaderOptions stream_options(const DataLoaderOptions& options) {
  return {.batch_size = options.batch_size,
          .accumulate = options.accumulate,
          .drop_last = options.drop_last,
          .device = options.device,
          .pin_memory = options.pin_memory,
          .workers = options.workers,
          .ahead = options.ahead,
          .timeout = options.timeout,
          .skip_bad = options.skip_bad,
          .check_weight = options.check_weight,
          .undivided = options.undivided};
}

void check_stream_options(const StreamLoaderOptions& options) {
  check_stream_number("a batch size", options.batch_size, 1);
  check_stream_number("batches a step", options.accumulate, 1);
  check_stream_number("workers", options.workers.value_or(0), 0);
  check_stream_number("batches ahead", options.ahead, 0);
  check_stream_number("ranks", options.ranks, 1);
  check_stream_number("a rank", options.rank, 0);
  if (options.rank >= options.ranks)
    throw invalid_argument("stream loader: expected a rank below ",
                           options.ranks,
                           ", got ",
                           options.rank,
                           "; pass rank and ranks of one group");
}

// The number of workers decides the parts, so it belongs to the order that ranks compare.
SamplerIdentity stream_identity(const StreamLoaderOptions& options) {
  return {.num_replicas = options.ranks,
          .rank = options.rank,
          .seed = options.seed,
          .shuffle = false,
          .order = cat("stream(", plural(workers_of(options), "part"), " a rank)")};
}

StreamPosition start_of_stream(int64_t epoch, const StreamLoaderOptions& options) {
  return {.epoch = epoch,
          .seed = options.seed,
          .rank = options.rank,
          .ranks = options.ranks,
          .left = whole_parts(epoch, options.rank, options.ranks, workers_of(options))};
}

void check_stream_position(const StreamPosition& position, const StreamLoaderOptions& options) {
  check_seed(position, options);
  // The message names the number that must stay.
  const auto check = [&](const char* what, int64_t saved, int64_t here) {
    if (saved == here)
      return;
    throw failed_precondition(
        "stream loader: expected the ",
        what,
        " of the saved position, ",
        saved,
        ", got ",
        here,
        "; one rank's position holds its own parts only: restore the positions of all "
        "ranks, or keep the ",
        what);
  };
  check("number of ranks", position.ranks, options.ranks);
  check("rank", position.rank, options.rank);
  check("number of workers", std::ssize(position.left), workers_of(options));
}

StreamPosition divided_position(const StreamPositions& saved, const StreamLoaderOptions& options) {
  check_one_group(saved);
  check_seed(saved[0], options);
  const int64_t workers = workers_of(options);
  if (std::ssize(saved) == options.ranks && std::ssize(saved[0].left) == workers)
    return saved[options.rank];

  StreamPosition mine = start_of_stream(last_epoch_of(saved), options);
  int64_t examples = 0, batch = 0;
  bool has_begun = false;
  for (const auto& position : saved) {
    mine.step = std::max(mine.step, position.step);
    batch = std::max(batch, position.batch);
    examples += position.examples;
    has_begun |= position.batch > 0 || position.epoch != mine.epoch;
  }
  // An epoch of which nobody has read anything has its new whole parts.
  if (!has_begun)
    return mine;
  // Rounded up to a whole turn of the workers, so that worker 0 is next.
  mine.batch = rounded_up(std::max<int64_t>(batch, 1), workers);
  // The examples are shared out so that their sum over the ranks stays.
  mine.examples = examples / options.ranks + (options.rank < examples % options.ranks ? 1 : 0);
  const auto divided = divide_evenly(all_that_is_left(saved), options.ranks * workers);
  const auto first = divided.begin() + options.rank * workers;
  mine.left.assign(first, first + workers);
  return mine;
}

}  // namespace muster
