#include "muster/data/zip_loaders.h"

#include <gmock/gmock.h>
#include <torch/torch.h>

#include "muster/data/subset.h"
#include "tests/data/divided.h"
#include "tests/data/files.h"

namespace muster {
namespace {

using test::message_of;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

using Numbers = std::vector<int64_t>;

struct Read {
  Numbers first, second;
};

template <class Range>
Read read(Range&& range) {
  const torch::NoGradGuard no_grad;
  Read all;
  for (const auto& [first, second] : range) {
    test::add_numbers(first.labels, &all.first);
    test::add_numbers(second.labels, &all.second);
  }
  return all;
}

void add(Read* to, const Read& more) {
  to->first.insert(to->first.end(), more.first.begin(), more.first.end());
  to->second.insert(to->second.end(), more.second.begin(), more.second.end());
}

TEST(ZipLoaders, GivesABatchOfEachAtItsOwnPace) {
  DataLoader labelled(test::numbered(4), {.batch_size = 2});
  DataLoader unlabelled(test::numbered(6, 100), {.batch_size = 2, .workers = 1});
  ZipLoaders both(labelled, unlabelled);
  const auto all = read(both.steps(4));
  EXPECT_THAT(all.first, ElementsAre(0, 1, 2, 3, 0, 1, 2, 3));
  EXPECT_THAT(all.second, ElementsAre(100, 101, 102, 103, 104, 105, 100, 101));
  EXPECT_EQ(both.step(), 4);
  EXPECT_EQ(unlabelled.position().consumed, 2);
}

// The second one, of another length, is where it was when the first begins anew.
TEST(ZipLoaders, AnEpochIsOneOfTheFirst) {
  DataLoader shorter(test::numbered(4), {.batch_size = 2});
  DataLoader longer(test::numbered(6, 100), {.batch_size = 2});
  ZipLoaders both(shorter, longer);
  ::testing::internal::CaptureStderr();
  EXPECT_THAT(read(both).second, ElementsAre(100, 101, 102, 103));
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), HasSubstr("have 2, 3 batches"));
  EXPECT_THAT(read(both).second, ElementsAre(104, 105, 100, 101));
  DataLoader first(test::numbered(6, 100), {.batch_size = 2}),
      second(test::numbered(4), {.batch_size = 2});
  ZipLoaders other_way(first, second);
  const auto all = read(other_way);
  EXPECT_THAT(all.first, ElementsAre(100, 101, 102, 103, 104, 105));
  EXPECT_THAT(all.second, ElementsAre(0, 1, 2, 3, 0, 1));
}

// One place: what any number of ranks has read, any other number goes on with.
TEST(ZipLoaders, GoesOnAtOnePlaceWithAnyNumberOfRanks) {
  const auto few = test::numbered(24), many = test::numbered(60, 1000);
  const auto read_by = [&](int ranks, int64_t until, auto* position) {
    Read all;
    auto begin = *position;
    for (int rank = 0; rank < ranks; ++rank) {
      const auto loader_of = [&](const TensorDataset& data) {
        return DataLoader<TensorDataset>(
            std::make_shared<const TensorDataset>(data),
            std::make_shared<DistributedSampler>(
                shuffled(data.size()), SamplerOptions{.num_replicas = ranks, .rank = rank}),
            {.batch_size = 12 / ranks});
      };
      auto first = loader_of(few), second = loader_of(many);
      ZipLoaders both(first, second);
      if (begin)
        both.restore(*begin);
      add(&all, read(both.steps(until)));
      *position = both.position();
    }
    return Read{test::sorted(all.first), test::sorted(all.second)};
  };
  for (int ranks = 1; ranks <= 4; ++ranks) {
    std::optional<std::tuple<DataPosition, DataPosition>> position, unused;
    Read all = read_by(ranks, 3, &position);  // one epoch and a half of the first
    EXPECT_EQ(std::get<0>(*position).epoch, 1);
    EXPECT_EQ(std::get<1>(*position).consumed, 36);
    add(&all, read_by(5 - ranks, 10, &position));
    const Read whole = read_by(1, 10, &unused);
    EXPECT_EQ(test::sorted(all.first), whole.first);
    EXPECT_EQ(test::sorted(all.second), whole.second);
    EXPECT_EQ(std::ranges::count(whole.second, 1000), 2);  // each sample twice
  }
}

struct Endless : Stream<at::Tensor> {
  struct Reader : StreamReader<at::Tensor> {
    std::optional<at::Tensor> next() override {
      return at_ < 5 ? std::optional(torch::tensor(at_++)) : std::nullopt;
    }
    int64_t at_ = 0;
  };
  std::unique_ptr<StreamReader<at::Tensor>> open(const StreamPart& /*part*/) const override {
    return std::make_unique<Reader>();
  }
};

TEST(ZipLoaders, TakesStreamsAndMoreThanTwo) {
  DataLoader first(test::numbered(4), {.batch_size = 1}),
      second(test::numbered(4), {.batch_size = 2});
  StreamLoader stream(Endless(), {.batch_size = 2, .drop_last = true});
  ZipLoaders all(first, second, stream);
  Numbers streamed;
  const torch::NoGradGuard no_grad;
  for (const auto& [one, two, three] : all.steps(3)) {
    EXPECT_EQ(one.size() + two.size() + three.size(), 5);
    streamed.push_back(three[0].template item<int64_t>());
  }
  EXPECT_THAT(streamed, ElementsAre(0, 2, 0));
  const auto position = all.position();
  StreamLoader later(Endless(), {.batch_size = 2, .drop_last = true});
  ZipLoaders again(first, second, later);
  again.restore(position);
  for (const auto& [one, two, three] : again.steps(4))
    EXPECT_EQ(three[0].template item<int64_t>(), 2);
}

TEST(ZipLoaders, RefusesStepsOfSeveralBatches) {
  DataLoader first(test::numbered(4), {.batch_size = 1}),
      second(test::numbered(4), {.batch_size = 1, .accumulate = 2});
  EXPECT_THAT(message_of([&] { ZipLoaders(first, second); }),
              HasSubstr("one batch a step, got accumulate 2 for loader 1"));
}

// A loop that forgets a weight is told of it, as in a loader's own loop.
TEST(ZipLoaders, RefusesALoaderThatIsThereTwice) {
  DataLoader one(test::numbered(4), {.batch_size = 2});
  DataLoader other(test::numbered(4), {.batch_size = 2});
  EXPECT_THAT(message_of([&] { ZipLoaders(one, other, one); }),
              HasSubstr("got one as loader 0 and 2: each step would take two of its batches"));
}

TEST(ZipLoaders, WeightsAreChecked) {
  const auto sampler =
      std::make_shared<DistributedSampler>(5, SamplerOptions{.num_replicas = 2, .shares = {2, 1}});
  DataLoader first(
      std::make_shared<const TensorDataset>(test::numbered(5)), sampler, {.batch_size = 2});
  DataLoader second(test::numbered(6), {.batch_size = 2});
  ZipLoaders both(first, second);
  EXPECT_THAT(message_of([&] {
                for (const auto& [one, two] : both.steps(6))
                  (void)static_cast<double>(two.weight);
              }),
              HasSubstr("multiplied with batch.weight"));
}

}  // namespace
}  // namespace muster
