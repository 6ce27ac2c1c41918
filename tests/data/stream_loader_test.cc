#include "muster/data/stream_loader.h"

#include <gmock/gmock.h>
#include <torch/torch.h>

#include <set>

#include "muster/base/error.h"
#include "muster/trace/activity.h"
#include "muster/trace/read_activity.h"
#include "tests/data/files.h"

namespace muster {
namespace {

using test::message_of;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Part p of n gives p, p + n, p + 2n, … below `size`, plus 1000 × epoch; those of `bad` cannot be
// read.
struct Counting : Stream<int64_t> {
  int64_t size = 20;
  std::set<int64_t> bad = {};

  struct Reader : StreamReader<int64_t> {
    Reader(const Counting& stream, const StreamPart& part)
        : size(stream.size), bad(stream.bad), part(part), at(part.part) {}
    std::optional<int64_t> next() override {
      if (at >= size)
        return std::nullopt;
      const int64_t number = std::exchange(at, at + part.parts);
      if (bad.contains(number))
        throw std::runtime_error("number " + std::to_string(number) + " is bad");
      return number + 1000 * part.epoch;
    }
    int64_t size;
    std::set<int64_t> bad;
    StreamPart part;
    int64_t at;
  };
  explicit Counting(int64_t size, std::set<int64_t> bad = {}) : size(size), bad(std::move(bad)) {}
  std::unique_ptr<StreamReader<int64_t>> open(const StreamPart& part) const override {
    return std::make_unique<Reader>(*this, part);
  }
};

std::vector<int64_t> list_of_batch(const at::Tensor& batch) {
  return {batch.data_ptr<int64_t>(), batch.data_ptr<int64_t>() + batch.numel()};
}

template <class Range>
std::vector<std::vector<int64_t>> batches_from(Range&& range) {
  std::vector<std::vector<int64_t>> all;
  for (const auto& batch : range) {
    (void)static_cast<double>(batch.weight);
    all.push_back(list_of_batch(batch));
  }
  return all;
}

// A range over a loader that is gone at the loop's beginning does not compile.
template <class Loader>
concept StreamGivesSteps = requires(Loader&& loader) { std::forward<Loader>(loader).steps(1); } ||
                           requires(Loader&& loader) { std::forward<Loader>(loader).begin(); };
static_assert(StreamGivesSteps<StreamLoader<Counting>&>);
static_assert(!StreamGivesSteps<StreamLoader<Counting>>);
static_assert(!StreamGivesSteps<const StreamLoader<Counting>&>);

// LibTorch's errors carry the frames of its stack.
TEST(StreamLoader, AnErrorOfLibTorchIsOneLine) {
  struct Shapeless : Stream<at::Tensor> {
    struct Reader : StreamReader<at::Tensor> {
      std::optional<at::Tensor> next() override {
        return torch::ones({2, 3}).mm(torch::ones({2, 3}));
      }
    };
    std::unique_ptr<StreamReader<at::Tensor>> open(const StreamPart&) const override {
      return std::make_unique<Reader>();
    }
  };
  for (const int64_t workers : {0, 1}) {
    StreamLoader loader(Shapeless(), {.batch_size = 2, .workers = workers});
    const std::string message = message_of([&] { loader.begin(); });
    EXPECT_THAT(message, HasSubstr("mat1 and mat2 shapes cannot be multiplied (2x3 and 2x3)"));
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
  }
}

TEST(StreamLoader, TakesBatchesFromTheWorkersInTurn) {
  StreamLoader loader(Counting(11), {.batch_size = 2, .workers = 2});
  EXPECT_THAT(batches_from(loader),
              ElementsAre(ElementsAre(0, 2),
                          ElementsAre(1, 3),
                          ElementsAre(4, 6),
                          ElementsAre(5, 7),
                          ElementsAre(8, 10),
                          ElementsAre(9)));
  EXPECT_EQ(loader.batches_of_last_epoch(), 6);
  EXPECT_EQ(loader.stats().samples, 11);
  EXPECT_THAT(batches_from(loader).front(), ElementsAre(1000, 1002));  // the next epoch
}

TEST(StreamLoader, GivesRanksAndWorkersPartsOfTheirOwn) {
  for (const int workers : {0, 1, 3}) {
    std::multiset<int64_t> seen;
    for (int64_t rank = 0; rank < 2; ++rank) {
      StreamLoader loader(Counting(23),
                          {.batch_size = 2, .workers = workers, .rank = rank, .ranks = 2});
      for (const auto& batch : batches_from(loader))
        seen.insert(batch.begin(), batch.end());
    }
    EXPECT_EQ(seen.size(), 23U);
    EXPECT_EQ(std::set<int64_t>(seen.begin(), seen.end()).size(), 23U);
  }
}

TEST(StreamLoader, LeavesOutWhatDoesNotFillABatch) {
  StreamLoader loader(Counting(11), {.batch_size = 2, .drop_last = true, .workers = 2});
  EXPECT_EQ(batches_from(loader).size(), 5U);
  StreamLoader none(Counting(3), {.batch_size = 4, .drop_last = true});
  EXPECT_TRUE(batches_from(none).empty());
  EXPECT_THAT(message_of([&] { batches_from(none.steps(3)); }),
              HasSubstr("at least 1 batch of this rank, got none in epoch 1"));
}

TEST(StreamLoader, MarksTheLastBatchOfAStep) {
  for (const int workers : {0, 2}) {
    StreamLoader loader(Counting(9), {.batch_size = 2, .accumulate = 2, .workers = workers});
    std::vector<bool> last;
    std::vector<double> weights;
    for (const auto& batch : loader) {
      last.push_back(batch.last);
      weights.push_back(batch.weight);
    }
    EXPECT_THAT(last, ElementsAre(false, true, false, true, true));
    EXPECT_THAT(weights, ElementsAre(0.5, 0.5, 0.5, 0.5, 0.25));
    EXPECT_EQ(loader.position().step, 3);
  }
}

TEST(StreamLoader, GoesOnExactlyWhereItStopped) {
  for (const int workers : {0, 1, 3}) {
    for (const int64_t accumulate : {1, 2}) {
      const StreamLoaderOptions options{.batch_size = 2,
                                        .accumulate = accumulate,
                                        .workers = workers,
                                        .skip_bad = true,
                                        .rank = 1,
                                        .ranks = 2};
      const Counting stream(41, {5, 7, 21, 40});
      StreamLoader whole(stream, options);
      const auto all = batches_from(whole.steps(30));
      for (int64_t stop = 0; stop < 30; ++stop) {
        StreamLoader first(stream, options);
        auto seen = batches_from(first.steps(stop));
        StreamLoader second(stream, options);
        second.restore(StreamPosition::from_values(first.position().values()));
        second.set_epoch(second.position().epoch);
        const auto rest = batches_from(second.steps(30));
        seen.insert(seen.end(), rest.begin(), rest.end());
        ASSERT_EQ(seen, all) << workers << " workers, stopped after " << stop;
      }
    }
  }
}

TEST(StreamLoader, LeftEarlyGoesOnAfterTheLastWholeStep) {
  StreamLoader loader(Counting(20), {.batch_size = 2, .accumulate = 2});
  int batches = 0;
  for (const auto& batch : loader) {
    (void)static_cast<double>(batch.weight);
    if (++batches == 3)
      break;  // in the midst of a step
  }
  EXPECT_THAT(list_of_batch(*loader.begin()), ElementsAre(4, 5));
  loader.set_epoch(2);
  EXPECT_THAT(list_of_batch(*loader.begin()), ElementsAre(2000, 2001));
}

TEST(StreamLoader, RefusesAPositionOfAnotherJob) {
  const StreamLoaderOptions options{
      .batch_size = 2, .workers = 2, .seed = 3, .rank = 1, .ranks = 2};
  StreamLoader saved(Counting(20), options);
  const auto refusal = [&](const auto& change) {
    auto other = options;
    change(other);
    StreamLoader loader(Counting(20), other);
    return message_of([&] { loader.restore(saved.position()); });
  };
  EXPECT_THAT(refusal([](auto& o) { o.ranks = 4; }),
              AllOf(HasSubstr("number of ranks"), HasSubstr("2, got 4")));
  EXPECT_THAT(refusal([](auto& o) { o.rank = 0; }),
              HasSubstr("the rank of the saved position, 1, got 0"));
  EXPECT_THAT(refusal([](auto& o) { o.workers = 3; }),
              HasSubstr("number of workers of the saved position, 2, got 3"));
  EXPECT_THAT(refusal([](auto& o) { o.seed = 4; }), HasSubstr("seed"));
}

TEST(StreamLoader, RefusesNumbersThatAreNoPosition) {
  const auto good = StreamPosition{}.values();
  EXPECT_EQ(StreamPosition::from_values(good), StreamPosition{});
  EXPECT_THAT(message_of([] { StreamPosition::from_values({1, 2, 3}); }),
              HasSubstr("got [1, 2, 3]; give"));
  const auto with = [&](size_t i, int64_t value) {
    auto numbers = good;
    numbers[i] = value;
    return numbers;
  };
  constexpr size_t kSeed = 3, kWorkers = 7, kPartsOfAWorker = 8;
  EXPECT_EQ(StreamPosition::from_values(with(kSeed, -1)).seed, -1);
  for (size_t i = 0; i < good.size(); ++i) {
    if (i == kSeed)
      continue;
    EXPECT_THAT(message_of([&] { StreamPosition::from_values(with(i, -1)); }), HasSubstr("-1"))
        << i;
  }
  for (const size_t i : {kWorkers, kPartsOfAWorker}) {
    for (const int64_t value : {int64_t{0}, int64_t{2}, int64_t{1} << 60})
      EXPECT_THAT(message_of([&] { StreamPosition::from_values(with(i, value)); }),
                  HasSubstr("position"))
          << i;
  }
  auto longer = good;
  longer.push_back(0);
  EXPECT_THAT(message_of([&] { StreamPosition::from_values(longer); }), HasSubstr("position"));
}

// One after the other, what ranks read of a stream: some steps, then with other numbers of ranks
// and workers.
struct Group {
  int64_t ranks = 1;
  int workers = 0;
  int64_t steps = 0;  // of each rank; -1: to the end of the epoch
  int64_t batch_size = 2;
  int64_t accumulate = 1;
};

struct ReadByGroups {
  std::multiset<int64_t> seen;
  std::vector<std::vector<int64_t>> batches;  // by group, of each rank
  int64_t epoch = 0;  // the last one begun, of which the last group reads all
};

ReadByGroups read_by(const Counting& stream, const std::vector<Group>& groups) {
  ReadByGroups all;
  std::vector<StreamPosition> positions;
  for (const Group& group : groups) {
    std::vector<StreamPosition> after;
    all.batches.emplace_back();
    for (int64_t rank = 0; rank < group.ranks; ++rank) {
      StreamLoader loader(stream,
                          {.batch_size = group.batch_size,
                           .accumulate = group.accumulate,
                           .workers = group.workers,
                           .skip_bad = true,
                           .seed = 3,
                           .rank = rank,
                           .ranks = group.ranks});
      if (!positions.empty())
        loader.restore(positions);
      if (group.steps < 0)
        all.epoch = loader.position().epoch;
      const auto batches = group.steps < 0
                               ? batches_from(loader)
                               : batches_from(loader.steps(loader.position().step + group.steps));
      for (const auto& batch : batches)
        all.seen.insert(batch.begin(), batch.end());
      all.batches.back().push_back(std::ssize(batches));
      after.push_back(StreamPosition::from_values(loader.position().values()));
    }
    positions = after;
  }
  return all;
}

TEST(StreamLoader, DividesWhatIsLeftOverOtherRanksAndWorkers) {
  const std::set<int64_t> bad = {5, 7, 21, 40, 96};
  for (const int64_t steps : {0, 1, 2, 5, 9, 12, 13, 14, 20, 30}) {
    for (const auto& [ranks, workers] : {std::pair{4, 0}, {2, 2}, {3, 1}, {1, 0}, {1, 3}, {8, 1}}) {
      for (const auto& [then, then_workers] : {std::pair{3, 0}, {2, 1}, {5, 2}, {1, 0}}) {
        const auto read =
            read_by(Counting(97, bad),
                    {{ranks, workers, steps}, {then, then_workers, 2, 3, 2}, {ranks + 6, 1, -1}});
        std::multiset<int64_t> wanted;
        for (int64_t number = 0; number < 97; ++number) {
          for (int64_t epoch = 0; epoch <= read.epoch && !bad.contains(number); ++epoch)
            wanted.insert(number + 1000 * epoch);
        }
        ASSERT_EQ(read.seen, wanted) << ranks << " × " << workers << ", after " << steps
                                     << " steps " << then << " × " << then_workers;
      }
    }
  }
}

TEST(StreamLoader, DividesEvenly) {
  // 240 examples are left, four parts of 60: a part and a third of the fourth for each of three
  // ranks.
  const auto read = read_by(Counting(320), {{4, 0, 10}, {3, 0, -1}});
  EXPECT_THAT(read.batches[1], ElementsAre(40, 40, 40));
  // A rank joins: 300 examples of two parts.
  EXPECT_THAT(read_by(Counting(320), {{2, 0, 5}, {3, 0, -1}}).batches[1], ElementsAre(50, 50, 50));
}

// A job that changes its size again and again within one epoch. At the 12th size its strides were
// no numbers of a position any more.
TEST(StreamLoader, DividesAgainAndAgain) {
  const auto options = [](int64_t rank, int64_t ranks) {
    return StreamLoaderOptions{.batch_size = 1, .rank = rank, .ranks = ranks};
  };
  std::vector<StreamPosition> saved{start_of_stream(0, options(0, 1))};
  saved[0].batch = 1;  // the epoch has begun
  for (const int64_t ranks : {2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47, 53, 59}) {
    std::vector<StreamPosition> divided;
    for (int64_t rank = 0; rank < ranks; ++rank)
      divided.push_back(divided_position(saved, options(rank, ranks)));
    saved = divided;
    std::multiset<int64_t> examples;
    for (const StreamPosition& position : saved) {
      EXPECT_EQ(StreamPosition::from_values(position.values()), position);
      for (const StreamRemainder& left : position.left.at(0)) {
        ASSERT_GE(left.stride, 1);
        for (int64_t example = left.next; example < 500; example += left.stride)
          examples.insert(example);
      }
    }
    EXPECT_EQ(examples.size(), 500U) << ranks;
    EXPECT_EQ(std::set<int64_t>(examples.begin(), examples.end()).size(), 500U) << ranks;
  }
}

TEST(StreamLoader, WithNothingReadOtherRanksHaveTheirOwnParts) {
  StreamLoader saved(Counting(20), {.batch_size = 2, .seed = 3});
  const StreamLoaderOptions options{.batch_size = 2, .seed = 3, .rank = 1, .ranks = 2};
  StreamLoader whole(Counting(20), options), resumed(Counting(20), options);
  resumed.restore(std::vector{saved.position()});
  EXPECT_EQ(resumed.position(), whole.position());
}

TEST(StreamLoader, CountsTheExamplesOfAnEpochOverAllRanks) {
  StreamLoader saved(Counting(20, {1}), {.batch_size = 2, .skip_bad = true});
  batches_from(saved.steps(3));  // 0 2, 3 4, 5 6; 1 is bad
  int64_t examples = 0;
  for (int64_t rank = 0; rank < 3; ++rank) {
    StreamLoader loader(Counting(20, {1}),
                        {.batch_size = 2, .skip_bad = true, .rank = rank, .ranks = 3});
    loader.restore(std::vector{saved.position()});
    EXPECT_EQ(loader.position().step, 3);
    examples += loader.position().examples;
  }
  EXPECT_EQ(examples, 7);
}

TEST(StreamLoader, RefusesPositionsThatAreNotOfOneGroup) {
  const StreamLoaderOptions options{.batch_size = 2, .seed = 3, .rank = 1, .ranks = 2};
  StreamLoader loader(Counting(20), options);
  const StreamPosition mine = loader.position();
  EXPECT_THAT(message_of([&] { loader.restore(std::vector{mine, mine}); }),
              HasSubstr("got that of rank 1 of 2 as number 0 of 2"));
  EXPECT_THAT(message_of([&] { loader.restore(std::vector<StreamPosition>{}); }),
              HasSubstr("got none"));
  auto far = std::vector{mine, mine};
  far[0].rank = 0;
  far[1].epoch = 5000;
  StreamLoader alone(Counting(20), {.batch_size = 2, .seed = 3});
  EXPECT_THAT(message_of([&] { alone.restore(far); }),
              HasSubstr("got epoch 0 of rank 0 and 5000 of rank 1"));
  StreamPosition other = StreamLoader(Counting(20), {.batch_size = 2, .seed = 4}).position();
  EXPECT_THAT(message_of([&] { loader.restore(std::vector{other}); }),
              HasSubstr("the seed of the saved position, 4, got 3"));
}

TEST(StreamLoader, NamesPartAndPlaceOfAnError) {
  StreamLoader loader(Counting(20, {5}), {.batch_size = 2, .workers = 2});
  EXPECT_THAT(message_of([&] { batches_from(loader); }),
              AllOf(HasSubstr("part 1 of 2, at example 2"), HasSubstr("number 5 is bad")));
}

TEST(StreamLoader, CountsWhatItLeavesOut) {
  StreamLoader loader(Counting(8, {1, 2, 5}), {.batch_size = 2, .skip_bad = true});
  EXPECT_THAT(batches_from(loader),
              ElementsAre(ElementsAre(0, 3), ElementsAre(4, 6), ElementsAre(7)));
  EXPECT_EQ(loader.stats().bad_samples, 3);
  std::set<int64_t> all_bad;
  for (int64_t i = 0; i < 5000; ++i)
    all_bad.insert(i);
  StreamLoader hopeless(Counting(5000, all_bad), {.skip_bad = true});
  EXPECT_THAT(message_of([&] { batches_from(hopeless); }), HasSubstr("number 1000 is bad"));
}

TEST(StreamLoader, OutOfMemoryIsNoBadExample) {
  struct Greedy : Stream<int64_t> {
    struct Reader : StreamReader<int64_t> {
      std::optional<int64_t> next() override {
        if (std::exchange(is_full, false))
          throw std::bad_alloc();
        return std::nullopt;
      }
      bool is_full = true;
    };
    std::unique_ptr<StreamReader<int64_t>> open(const StreamPart& /*part*/) const override {
      return std::make_unique<Reader>();
    }
  };
  StreamLoader loader(Greedy(), {.skip_bad = true});
  EXPECT_THAT(message_of([&] { loader.begin(); }), HasSubstr("out of memory"));
}

TEST(StreamLoader, TellsOfTheSamplesThatAreTrainedOn) {
  const test::TempFolder folder;
  Activity activity(folder.path() + "/activity", {});
  Activity::set(&activity);
  StreamLoader loader(Counting(11), {.batch_size = 4});
  batches_from(loader);
  {
    const torch::NoGradGuard evaluates;
    batches_from(loader);
  }
  Activity::set(nullptr);
  EXPECT_EQ(read_activity(activity.path()).samples, 11);
}

TEST(StreamLoader, RefusesOptionsOutOfRange) {
  const auto refusal = [](const StreamLoaderOptions& options) {
    return message_of([&] { StreamLoader(Counting(8), options); });
  };
  EXPECT_THAT(refusal({.batch_size = 0}), HasSubstr("batch size of at least 1"));
  EXPECT_THAT(refusal({.accumulate = 0}), HasSubstr("batches a step"));
  EXPECT_THAT(refusal({.workers = -1}), HasSubstr("workers"));
  EXPECT_THAT(refusal({.rank = 2, .ranks = 2}), HasSubstr("a rank below 2"));
}

}  // namespace
}  // namespace muster
