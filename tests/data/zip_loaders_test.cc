#include "muster/data/zip_loaders.h"

#include <gmock/gmock.h>
#include <torch/torch.h>

#include <type_traits>
#include <utility>

#include "muster/data/subset.h"
#include "tests/data/divided.h"
#include "tests/data/files.h"

namespace muster {
namespace {

using test::message_of;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

using Labels = std::vector<int64_t>;

struct Read {
  Labels first, second;
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

// Loaders that are gone at the end of the line do not compile, nor does a range over such a zip.
using Rows = DataLoader<TensorDataset>;
template <class Zip>
concept ZipGivesSteps = requires(Zip&& zip) { std::forward<Zip>(zip).steps(1); } ||
                        requires(Zip&& zip) { std::forward<Zip>(zip).begin(); };
static_assert(std::is_constructible_v<ZipLoaders<Rows, Rows>, Rows&, Rows&>);
static_assert(!std::is_constructible_v<ZipLoaders<Rows, Rows>, Rows&, Rows>);
static_assert(ZipGivesSteps<ZipLoaders<Rows, Rows>&>);
static_assert(!ZipGivesSteps<ZipLoaders<Rows, Rows>>);

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

// One place: what any number of ranks has read, any other number goes on with. Reads 10 batches of
// each loader, and stops after `stop` steps of them.
void expect_one_place(int64_t accumulate, int64_t stop) {
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
            {.batch_size = 12 / ranks, .accumulate = accumulate});
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
    Read all = read_by(ranks, stop, &position);
    EXPECT_EQ(std::get<0>(*position).consumed, 12);  // half an epoch
    EXPECT_EQ(std::get<1>(*position).samples, 12 * accumulate * stop);
    add(&all, read_by(5 - ranks, 10 / accumulate, &position));
    const Read whole = read_by(1, 10 / accumulate, &unused);
    EXPECT_EQ(test::sorted(all.first), whole.first);
    EXPECT_EQ(test::sorted(all.second), whole.second);
    EXPECT_EQ(std::ranges::count(whole.second, 1000), 2);  // each sample twice
  }
}

TEST(ZipLoaders, GoesOnAtOnePlaceWithAnyNumberOfRanks) {
  expect_one_place(1, 3);
  expect_one_place(5, 1);
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

struct Labelled {
  at::Tensor labels;
};

// 0 to 4 an epoch.
struct Counted : Stream<Labelled> {
  struct Reader : StreamReader<Labelled> {
    std::optional<Labelled> next() override {
      if (at_ == 5)
        return std::nullopt;
      return Labelled{torch::tensor(at_++)};
    }
    int64_t at_ = 0;
  };
  std::unique_ptr<StreamReader<Labelled>> open(const StreamPart& /*part*/) const override {
    return std::make_unique<Reader>();
  }
};

TEST(ZipLoaders, TakesStreamsAndMoreThanTwo) {
  DataLoader first(test::numbered(4), {.batch_size = 1}),
      second(test::numbered(4), {.batch_size = 2});
  StreamLoader stream(Endless(), {.batch_size = 2, .drop_last = true});
  ZipLoaders all(first, second, stream);
  Labels streamed;
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

TEST(ZipLoaders, RefusesStepsOfDifferentNumbersOfBatches) {
  DataLoader first(test::numbered(4), {.batch_size = 1, .accumulate = 3}),
      second(test::numbered(4), {.batch_size = 1, .accumulate = 2});
  EXPECT_THAT(message_of([&] { ZipLoaders(first, second); }),
              HasSubstr("as many batches a step from each loader, got accumulate 3, 2"));
}

// What a step of several batches has: which samples, whether it is the last, and the weights.
struct ZippedStep {
  Read samples;
  std::vector<bool> last;
  double first_weight = 0, second_weight = 0;
};

template <class Range>
std::vector<ZippedStep> groups_of(Range&& range) {
  const torch::NoGradGuard no_grad;
  std::vector<ZippedStep> groups(1);
  for (const auto& [first, second] : range) {
    ZippedStep& group = groups.back();
    test::add_numbers(first.labels, &group.samples.first);
    test::add_numbers(second.labels, &group.samples.second);
    group.first_weight += first.weight;
    group.second_weight += second.weight;
    group.last.push_back(first.last);
    EXPECT_EQ(first.last, second.last);
    if (first.last)
      groups.emplace_back();
  }
  return groups;
}

// Epochs of 5 and 3 batches in steps of 2: no sample is left out, and a step of batches of
// different sizes weighs each by its samples.
TEST(ZipLoaders, AStepHasSeveralBatchesOfAllOverTheEndsOfEpochs) {
  for (const int workers : {0, 2}) {
    DataLoader longer(test::numbered(9), {.batch_size = 2, .accumulate = 2, .workers = workers});
    DataLoader shorter(test::numbered(3, 100),
                       {.batch_size = 1, .accumulate = 2, .workers = workers});
    ZipLoaders both(longer, shorter);
    const auto groups = groups_of(both.steps(5));
    ASSERT_EQ(groups.size(), 6U);
    EXPECT_TRUE(groups.back().last.empty());
    EXPECT_THAT(groups[2].samples.first, ElementsAre(8, 0, 1));
    EXPECT_THAT(groups[3].samples.first, ElementsAre(2, 3, 4, 5));
    EXPECT_THAT(groups[1].samples.second, ElementsAre(102, 100));
    for (int i = 0; i < 5; ++i) {
      EXPECT_THAT(groups[i].last, ElementsAre(false, true));
      EXPECT_DOUBLE_EQ(groups[i].first_weight, 1);
      EXPECT_DOUBLE_EQ(groups[i].second_weight, 1);
    }
    EXPECT_EQ(both.step(), 5);
    EXPECT_EQ(longer.position().epoch, 2);
    EXPECT_EQ(longer.position().samples, 18);
    EXPECT_EQ(shorter.position().consumed, 1);
    DataLoader again(test::numbered(9), {.batch_size = 2, .accumulate = 2, .workers = workers});
    const torch::NoGradGuard no_grad;
    std::vector<double> weights;
    for (const auto& batch : again.whole_steps(3))
      weights.push_back(batch.weight);
    EXPECT_THAT(weights, ElementsAre(0.5, 0.5, 0.5, 0.5, 1.0 / 3, 2.0 / 3));
  }
}

// Epochs of 5 batches, so that the new shares come at a step's end, or within a step with an
// epoch's.
TEST(ZipLoaders, WholeStepsTakeNewShares) {
  const torch::NoGradGuard no_grad;
  for (int64_t stop = 1; stop <= 8; ++stop) {
    std::vector<Labels> steps(7);
    std::vector<double> weights(7);
    for (int rank = 0; rank < 2; ++rank) {
      const SamplerOptions options{.num_replicas = 2, .rank = rank, .shares = {2, 2}};
      DataLoader loader(std::make_shared<const TensorDataset>(test::numbered(20)),
                        std::make_shared<DistributedSampler>(20, options),
                        {.batch_size = 2, .accumulate = 2, .workers = 1});
      int64_t batches = 0;
      for (const auto& batch : loader.whole_steps(7)) {
        const int64_t step = loader.position().step - (batch.last ? 1 : 0);
        test::add_numbers(batch.labels, &steps[step]);
        weights[step] += batch.weight / 2;
        if (++batches == stop)
          loader.set_shares({3, 1});
      }
      EXPECT_EQ(batches, 14);
    }
    Labels all;
    for (int64_t step = 0; step < 7; ++step) {
      EXPECT_EQ(std::ssize(steps[step]), 8) << stop;
      EXPECT_DOUBLE_EQ(weights[step], 1) << stop;
      all.insert(all.end(), steps[step].begin(), steps[step].end());
    }
    for (int64_t sample = 0; sample < 20; ++sample)
      EXPECT_GE(std::ranges::count(all, sample), 2) << stop;
  }
}

// The last step of a loop over one epoch takes what it lacks from the next, which the next loop
// goes on with.
TEST(ZipLoaders, AnEpochOfStepsOfSeveralBatchesLosesNoSample) {
  DataLoader first(test::numbered(5), {.batch_size = 1, .accumulate = 2}),
      second(test::numbered(7, 100), {.batch_size = 1, .accumulate = 2});
  first.set_epoch(3);
  ZipLoaders both(first, second);
  EXPECT_THAT(read(both).first, ElementsAre(0, 1, 2, 3, 4, 0));
  EXPECT_EQ(first.position().epoch, 4);
  const auto next = read(both);
  EXPECT_THAT(next.first, ElementsAre(1, 2, 3, 4));
  EXPECT_THAT(next.second, ElementsAre(106, 100, 101, 102));
  EXPECT_THAT(read(both).first, ElementsAre(0, 1, 2, 3, 4, 0));
}

// The last step of an epoch has led to the middle of the next, which is set then.
TEST(ZipLoaders, EpochsThatAreSetLoseAndRepeatNoSample) {
  for (const bool sets_sampler : {false, true}) {
    const auto sampler = std::make_shared<DistributedSampler>(in_order(5));
    DataLoader first(std::make_shared<const TensorDataset>(test::numbered(5)),
                     sampler,
                     {.batch_size = 1, .accumulate = 2});
    DataLoader second(test::numbered(7, 100), {.batch_size = 1, .accumulate = 2});
    ZipLoaders both(first, second);
    Read all;
    for (int64_t epoch = 0; epoch < 4; ++epoch) {
      if (sets_sampler)
        sampler->set_epoch(epoch);
      else
        first.set_epoch(epoch);
      EXPECT_EQ(first.epoch(), epoch);
      add(&all, read(both));
    }
    EXPECT_THAT(all.first, ElementsAre(0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 0, 1, 2, 3, 4));
    first.set_epoch(9);
    EXPECT_THAT(read(both).first, ElementsAre(0, 1, 2, 3, 4, 0)) << "another epoch is begun";
  }
}

// Epochs of 3 batches.
TEST(ZipLoaders, AStreamWhoseEpochsEndWithAStepReadsNoBatchMore) {
  StreamLoader stream(Counted(), {.batch_size = 2, .accumulate = 3});
  DataLoader data(test::numbered(7, 100), {.batch_size = 1, .accumulate = 3});
  ZipLoaders both(stream, data);
  for (int64_t epoch = 0; epoch < 3; ++epoch) {
    EXPECT_EQ(read(both).first, (Labels{0, 1, 2, 3, 4}));
    EXPECT_EQ(stream.position().epoch, epoch + 1);
    EXPECT_EQ(stream.batches_of_last_epoch(), 3);
    EXPECT_EQ(stream.stats().batches, 3 * (epoch + 1));
    EXPECT_EQ(data.stats().batches, 3 * (epoch + 1));
  }
}

// As often as the training stops in the middle of a step, the next one begins with that step.
TEST(ZipLoaders, ResumesInTheMiddleOfAStep) {
  const auto loader_of = [](int64_t size, int64_t first) {
    return DataLoader(test::numbered(size, first), {.batch_size = 1, .accumulate = 3});
  };
  auto few = loader_of(4, 0), many = loader_of(7, 100);
  ZipLoaders whole(few, many);
  const auto expected = read(whole.steps(9));
  for (int64_t stop = 1; stop < 27; ++stop) {
    Read all;
    const torch::NoGradGuard no_grad;
    auto one = loader_of(4, 0), other = loader_of(7, 100);
    ZipLoaders both(one, other);
    auto position = both.position();
    int64_t left = stop;
    for (const auto& [first, second] : both.steps(9)) {
      if (left-- == 0)
        break;
      if (first.last)
        position = both.position();
    }
    auto later_one = loader_of(4, 0), later_other = loader_of(7, 100);
    ZipLoaders later(later_one, later_other);
    later.restore(position);
    EXPECT_EQ(later.step(), stop / 3);
    const auto rest = read(later.steps(9));
    const auto from = stop / 3 * 3;
    EXPECT_EQ(rest.first, Labels(expected.first.begin() + from, expected.first.end())) << stop;
    EXPECT_EQ(rest.second, Labels(expected.second.begin() + from, expected.second.end())) << stop;
    if (stop % 3 != 2) {  // the batch that was left did not end a step
      EXPECT_EQ(read(both.steps(9)).first, rest.first) << stop;
    }
  }
}

TEST(ZipLoaders, AStepHasSeveralBatchesOfStreams) {
  const torch::NoGradGuard no_grad;
  const auto numbers_of = [](const std::vector<ZippedStep>& groups) {
    Read all;
    for (const ZippedStep& group : groups)
      add(&all, group.samples);
    return all;
  };
  StreamLoader stream(Counted(), {.batch_size = 2, .accumulate = 2});
  DataLoader data(test::numbered(7, 100), {.batch_size = 1, .accumulate = 2});
  ZipLoaders both(stream, data);
  const auto expected = numbers_of(groups_of(both.steps(6)));
  EXPECT_THAT(expected.first,
              ElementsAre(0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 0, 1, 2, 3, 4));
  for (int64_t stop = 1; stop < 12; ++stop) {
    StreamLoader of_stream(Counted(), {.batch_size = 2, .accumulate = 2});
    DataLoader of_data(test::numbered(7, 100), {.batch_size = 1, .accumulate = 2});
    ZipLoaders begun(of_stream, of_data);
    int64_t left = stop;
    Read seen, step;
    for (const auto& [first, second] : begun.steps(6)) {
      test::add_numbers(first.labels, &step.first);
      test::add_numbers(second.labels, &step.second);
      if (first.last)
        add(&seen, std::exchange(step, {}));
      if (--left == 0)
        break;
    }
    StreamLoader later_stream(Counted(), {.batch_size = 2, .accumulate = 2});
    DataLoader later_data(test::numbered(7, 100), {.batch_size = 1, .accumulate = 2});
    ZipLoaders later(later_stream, later_data);
    later.restore(begun.position());
    add(&seen, numbers_of(groups_of(later.steps(6))));
    EXPECT_EQ(seen.first, expected.first) << stop;
    EXPECT_EQ(seen.second, expected.second) << stop;
  }
  StreamLoader first(Counted(), {.batch_size = 2, .accumulate = 2});  // 3 batches an epoch
  ZipLoaders epochs(first, data);
  EXPECT_EQ(read(epochs).first, (Labels{0, 1, 2, 3, 4, 0, 1}));
  EXPECT_EQ(read(epochs).first, (Labels{2, 3, 4}));  // its end is that of a step
  EXPECT_EQ(read(epochs).first, (Labels{0, 1, 2, 3, 4, 0, 1}));
}

TEST(ZipLoaders, RefusesALoaderThatIsThereTwice) {
  DataLoader one(test::numbered(4), {.batch_size = 2});
  DataLoader other(test::numbered(4), {.batch_size = 2});
  EXPECT_THAT(message_of([&] { ZipLoaders(one, other, one); }),
              HasSubstr("got one as loader 0 and 2: each step would take two of its batches"));
}

// A loop that forgets a weight is told of it, as in a loader's own loop.
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
