// Loaders that move and share: what a program may do with them as values.
#include <gmock/gmock.h>
#include <torch/torch.h>

#include "muster/data/loader.h"
#include "muster/data/stream_loader.h"
#include "tests/data/divided.h"
#include "tests/data/files.h"

namespace muster {
namespace {

using test::message_of;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

static_assert(!std::is_copy_constructible_v<DataLoader<TensorDataset>>);

DataLoader<TensorDataset> loader_of(int64_t size) {
  DataLoader loader(test::numbered(size), {.batch_size = 2});
  return loader;
}

TEST(OwnPlaces, LoadersFitInAVector) {
  std::vector<DataLoader<TensorDataset>> loaders;
  for (int64_t size = 1; size < 6; ++size)
    loaders.push_back(loader_of(size));
  for (size_t i = 0; i < loaders.size(); ++i)
    EXPECT_EQ(test::numbers_of(loaders[i]), test::range(0, static_cast<int64_t>(i) + 1));
}

// The loop goes on, and so does the position.
TEST(OwnPlaces, ALoaderMovesWhileALoopRuns) {
  auto loader = loader_of(10);
  const torch::NoGradGuard no_grad;
  std::vector<int64_t> numbers;
  std::optional<DataLoader<TensorDataset>> elsewhere;
  for (const auto& batch : loader.steps(4)) {
    test::add_numbers(batch.labels, &numbers);
    if (!elsewhere)
      elsewhere.emplace(std::move(loader));
  }
  EXPECT_EQ(numbers, test::range(0, 8));
  EXPECT_EQ(elsewhere->position().step, 4);
  EXPECT_THAT(test::numbers_of(*elsewhere), ElementsAre(8, 9));
}

TEST(OwnPlaces, LoadersShareADataset) {
  const auto squares = std::make_shared<const test::Squares>();
  DataLoader train(squares, {.batch_size = 50}), test(squares, {.batch_size = 100});
  DistributedSampler sampler(100);
  DataLoader sampled(squares, sampler, {.batch_size = 10});
  EXPECT_EQ(&train.dataset(), squares.get());
  EXPECT_EQ(&test.dataset(), squares.get());
  EXPECT_EQ(&sampled.dataset(), squares.get());
  const std::shared_ptr<Dataset<at::Tensor>> any = std::make_shared<test::Squares>();
  DataLoader of_any(any, {.batch_size = 100});
  for (const auto& batch : of_any)
    EXPECT_EQ(batch.numel(), 100);
  EXPECT_THAT(message_of([] { DataLoader(std::shared_ptr<test::Squares>(), {}); }),
              HasSubstr("null pointer"));
}

struct Three : Stream<int64_t> {
  struct Reader : StreamReader<int64_t> {
    std::optional<int64_t> next() override { return at_ < 3 ? std::optional(at_++) : std::nullopt; }
    int64_t at_ = 0;
  };
  std::unique_ptr<StreamReader<int64_t>> open(const StreamPart& /*part*/) const override {
    return std::make_unique<Reader>();
  }
};

TEST(OwnPlaces, StreamLoadersMoveAndShare) {
  const auto stream = std::make_shared<const Three>();
  std::vector<StreamLoader<Three>> loaders;
  for (int i = 0; i < 3; ++i)
    loaders.emplace_back(stream, StreamLoaderOptions{.batch_size = 1});
  for ([[maybe_unused]] const auto& batch : loaders[1].steps(2))
    continue;
  const auto moved = std::move(loaders[1]);
  EXPECT_EQ(moved.position().step, 2);
  EXPECT_EQ(&moved.stream(), stream.get());
}

// One set of options for a map-style loader and for a stream's.
TEST(OwnPlaces, BothKindsOfLoadersTakeTheSameOptions) {
  const DataLoaderOptions options{.batch_size = 2,
                                  .accumulate = 3,
                                  .drop_last = true,
                                  .pin_memory = false,
                                  .workers = 2,
                                  .ahead = 5,
                                  .timeout = std::chrono::milliseconds(60000),
                                  .skip_bad = true,
                                  .check_weight = false,
                                  .undivided = true};
  const StreamLoaderOptions same = stream_options(options);
  EXPECT_EQ(same.batch_size, 2);
  EXPECT_EQ(same.accumulate, 3);
  EXPECT_TRUE(same.drop_last && same.skip_bad && same.undivided);
  EXPECT_FALSE(same.pin_memory || same.check_weight);
  EXPECT_EQ(same.workers, 2);
  EXPECT_EQ(same.ahead, 5);
  EXPECT_EQ(same.timeout, options.timeout);
  DataLoader map_style(test::numbered(8), options);
  StreamLoader stream(Three(), options);
  EXPECT_EQ(stream.accumulate(), map_style.accumulate());
}

}  // namespace
}  // namespace muster
