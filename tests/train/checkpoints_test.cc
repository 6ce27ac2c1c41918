#include "muster/checkpoint/training/checkpoints.h"

#include <gmock/gmock.h>
#include <torch/torch.h>

#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <mutex>
#include <set>

#include "muster/base/error.h"
#include "muster/base/folder_lock.h"
#include "muster/base/strings.h"
#include "muster/checkpoint/files/saving_lock.h"
#include "muster/data/loader.h"
#include "muster/data/stream_loader.h"
#include "muster/train/ema.h"
#include "muster/train/schedule.h"
#include "muster/train/step.h"
#include "tests/checkpoint/model.h"
#include "tests/data/files.h"
#include "tests/support/ranks.h"

namespace muster::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Two models with an optimizer each, a schedule, averages, and data.
struct Trained {
  explicit Trained(uint64_t seed)
      : one((torch::manual_seed(seed), torch::nn::Linear(3, 2))),
        other(2, 4),
        adam(one->parameters(), 0.1),
        sgd(other->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9)),
        schedule(adam, rate::exponential(0.9)),
        ema(*one, 0.5),
        loader(
            TensorDataset(torch::arange(60).reshape({20, 3}).to(torch::kFloat), torch::zeros(20)),
            {.batch_size = 3}) {}

  void run(int64_t until) {
    for (const auto& batch : loader.steps(until)) {
      adam.zero_grad();
      sgd.zero_grad();
      other(torch::dropout(one(batch.features / 60), 0.5, true)).square().mean().backward();
      adam.step();
      sgd.step();
      schedule.step();
      ema.update();
    }
  }

  std::vector<torch::Tensor> values() const {
    std::vector<torch::Tensor> all = one->parameters();
    for (const auto& tensor : other->parameters())
      all.push_back(tensor);
    for (const auto& [name, tensor] : ema.averages())
      all.push_back(tensor);
    all.push_back(torch::tensor(schedule.lr()));
    return all;
  }

  void add_to(Checkpoints& checkpoints) {
    checkpoints.add("one", one).add("other", other).add("adam", adam).add("sgd", sgd);
    checkpoints.add("schedule", schedule).add("ema", ema).add("loader", loader);
  }

  torch::nn::Linear one, other;
  torch::optim::Adam adam;
  torch::optim::SGD sgd;
  Schedule schedule;
  Ema ema;
  DataLoader<TensorDataset> loader;
};

TEST(Checkpoints, EverythingGoesOnAsIfItHadNeverStopped) {
  run_ranks(1, [](ProcessGroup& group) {
    test::TempFolder folder;
    Trained whole(1);
    whole.run(9);

    Trained first(1);
    Checkpoints saved(group, {.folder = folder.path(), .every = 5});
    first.add_to(saved);
    EXPECT_FALSE(saved.restore());
    first.run(5);
    EXPECT_EQ(saved.save_when_due(4), "");
    EXPECT_EQ(saved.save_when_due(5), folder / "step-5");
    EXPECT_EQ(
        read_manifest(folder / "step-5").position,
        (TrainingPosition{.step = 5, .epoch_samples = 15, .samples_seen = 15, .dataset_size = 20}));

    Trained second(2);
    Checkpoints resumed(group, {.folder = folder.path(), .resume = true});
    second.add_to(resumed);
    EXPECT_TRUE(resumed.restore());
    EXPECT_EQ(resumed.step(), 5);
    second.run(9);
    const auto expected = whole.values(), got = second.values();
    for (size_t i = 0; i < expected.size(); ++i)
      EXPECT_TRUE(torch::equal(expected[i], got[i])) << i;
    resumed.save(9);
    EXPECT_EQ(
        read_manifest(folder / "step-9").position,
        (TrainingPosition{
            .step = 9, .epoch = 1, .epoch_samples = 6, .samples_seen = 26, .dataset_size = 20}));
  });
}

std::string content_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// What training does meanwhile is not in it.
TEST(Checkpoints, BackgroundSavesAreThoseOfTheirStep) {
  run_ranks(1, [](ProcessGroup& group) {
    const test::TempFolder folder;
    Trained trained(1);
    Checkpoints here(group, {.folder = folder / "here"});
    Checkpoints behind(group, {.folder = folder / "behind", .keep_last = 2, .background = true});
    trained.add_to(here);
    trained.add_to(behind);
    for (int64_t step = 1; step <= 4; ++step) {
      trained.run(step);
      here.save(step);
      EXPECT_EQ(behind.save(step), folder / cat("behind/step-", step));
    }
    trained.run(9);
    behind.finish();
    for (const char* file : {"model.safetensors", "parts.safetensors"})
      EXPECT_EQ(content_of(folder / cat("behind/step-4/", file)),
                content_of(folder / cat("here/step-4/", file)));
    EXPECT_FALSE(std::filesystem::exists(folder / "behind/step-2"));
    EXPECT_TRUE(std::filesystem::exists(folder / "behind/step-3"));
  });
}

TEST(Checkpoints, ABackgroundSaveThatFailsIsAnErrorOfTheNextOnAllRanks) {
  const test::TempFolder folder;
  run_ranks(2, [&](ProcessGroup& group) {
    Trained trained(1);
    Checkpoints nowhere(group, {.folder = "/proc/no/such/folder", .background = true});
    trained.add_to(nowhere);
    EXPECT_THROW(nowhere.save(1), Error) << "a folder that cannot be made is seen at once";
    Checkpoints behind(group, {.folder = folder / "checkpoints", .background = true});
    trained.add_to(behind);
    behind.save(0);
    behind.finish();
    if (group.rank() == 0) {
      std::filesystem::remove_all(folder / "checkpoints");
      test::put_file(folder / "checkpoints", "a file in its place");
    }
    behind.save(1);
    EXPECT_THROW(behind.save(2), Error);
    behind.save(3);
    EXPECT_THROW(behind.finish(), Error);
    behind.finish();
  });
}

TEST(Checkpoints, RanksThatStartAgainGoOnFromTheirOwnJobsAlone) {
  run_ranks(1, [](ProcessGroup& group) {
    test::TempFolder folder;
    const auto step_of = [&](const CheckpointsOptions& options) {
      Trained trained(1);
      Checkpoints checkpoints(group, options);
      trained.add_to(checkpoints);
      checkpoints.restore();
      return checkpoints.step();
    };
    Trained trained(1);
    Checkpoints mine(group, {.folder = folder.path(), .run_id = "mine"});
    trained.add_to(mine);
    mine.save(3);
    Checkpoints others(group, {.folder = folder.path(), .run_id = "another"});
    trained.add_to(others);
    others.save(8);
    EXPECT_EQ(step_of({.folder = folder.path(), .run_id = "mine"}), 0);
    EXPECT_EQ(step_of({.folder = folder.path(), .run_id = "mine", .attempt = 1}), 3);
    EXPECT_EQ(step_of({.folder = folder.path(), .run_id = "new", .attempt = 1}), 0);
    EXPECT_EQ(step_of({.folder = folder.path(), .resume = true, .run_id = "mine"}), 8);
  });
}

// A lock that is not in this process's list is another job's.
TEST(Checkpoints, AFolderOfAnotherJobIsRefusedOnAllRanks) {
  const test::TempFolder folder;
  const FolderLock other({.folder = folder.path(), .file = kSavingLock, .start = "another"});
  const auto refused = HasSubstr("expected no job that still writes there, got one (process ");
  run_ranks(2, [&](ProcessGroup& group) {
    Trained trained(1);
    Checkpoints saves(group, {.folder = folder.path(), .every = 3});
    trained.add_to(saves);
    EXPECT_THAT(test::message_of([&] { saves.restore(); }), refused) << "before it trains";
    Checkpoints loads(group, {.folder = folder.path(), .resume = true});
    trained.add_to(loads);
    EXPECT_FALSE(loads.restore()) << "it may only load";
    EXPECT_THAT(test::message_of([&] { loads.save_or_stop(1); }), refused);
  });
  EXPECT_THAT(test::names_in(folder.path()), ElementsAre(kSavingLock));
}

TEST(Checkpoints, ATrainingRemovesItsOwnAlone) {
  run_ranks(1, [](ProcessGroup& group) {
    test::TempFolder folder;
    const auto save = [&](const char* run, bool resume, const std::vector<int64_t>& steps) {
      torch::nn::Linear net(1, 1);
      Checkpoints checkpoints(
          group, {.folder = folder.path(), .keep_last = 2, .resume = resume, .run_id = run});
      checkpoints.add("model", net);
      checkpoints.restore();
      for (const int64_t step : steps)
        checkpoints.save(step);
      std::vector<std::string> names = test::names_in(folder.path());
      std::erase(names, ".saving");
      return names;
    };
    EXPECT_THAT(save("b", false, {1, 2, 3, 4}), ElementsAre("step-3", "step-4"));
    EXPECT_THAT(save("a", false, {10, 20, 30}),
                ElementsAre("step-20", "step-3", "step-30", "step-4"));
    EXPECT_THAT(save("c", true, {40}), ElementsAre("step-3", "step-30", "step-4", "step-40"))
        << "a goes on";
    EXPECT_THAT(save("d", true, {50, 60}), ElementsAre("step-3", "step-4", "step-50", "step-60"));
  });
}

TEST(Checkpoints, APartThatWasNotSavedIsNamedAndNothingChanges) {
  run_ranks(1, [](ProcessGroup& group) {
    test::TempFolder folder;
    torch::nn::Linear net(2, 2), other(2, 2);
    Checkpoints saved(group, {.folder = folder.path()});
    saved.add("model", net).save(1);
    torch::optim::SGD optimizer(other->parameters(), 0.1);
    Schedule schedule(optimizer, rate::constant());
    Checkpoints more(group, {.folder = folder.path(), .resume = true});
    more.add("model", other).add("schedule", schedule);
    const auto before = other->weight.clone();
    EXPECT_THAT(test::message_of([&] { more.restore(); }),
                HasSubstr("with the parts generators, schedule, got one with generators;"));
    EXPECT_TRUE(torch::equal(before, other->weight));
  });
}

TEST(Checkpoints, ANewPartKeepsItsState) {
  for (const int ranks : {1, 2}) {
    test::TempFolder folder;
    run_ranks(ranks, [&](ProcessGroup& group) {
      torch::nn::Linear net(2, 2), other(2, 2);
      torch::nn::init::constant_(net->weight, 1);
      torch::nn::init::constant_(other->weight, 2);
      SavedState epochs{.numbers = {{"epochs", 3}}};
      Checkpoints saved(group, {.folder = folder.path()});
      saved.add("model", net).add("epochs", epochs).save(1);
      Ema ema(*other, 0.9);
      const auto average = ema.averages().front().second.clone();
      SavedState old_epochs;
      Checkpoints more(group,
                       {.folder = folder.path(), .resume = true, .new_parts = {"ema", "epochs"}});
      more.add("model", other).add("ema", ema).add("epochs", old_epochs);
      EXPECT_TRUE(more.restore());
      EXPECT_TRUE(torch::equal(other->weight, net->weight));
      EXPECT_TRUE(torch::equal(ema.averages().front().second, average));
      EXPECT_EQ(old_epochs.numbers.at("epochs"), 3) << "it is in the checkpoint";
      more.save(2);
      SavedState epochs_again;
      Checkpoints again(group, {.folder = folder.path(), .resume = true, .new_parts = {"ema"}});
      ema.update();
      again.add("model", other).add("ema", ema).add("epochs", epochs_again);
      EXPECT_TRUE(again.restore());
      EXPECT_TRUE(torch::equal(ema.averages().front().second, average)) << "now it is there";
    });
  }
}

TEST(Checkpoints, NewPartsAreParts) {
  run_ranks(1, [](ProcessGroup& group) {
    test::TempFolder folder;
    torch::nn::Linear net(2, 2);
    Checkpoints checkpoints(group,
                            {.folder = folder.path(), .resume = true, .new_parts = {"model"}});
    checkpoints.add("model", net);
    EXPECT_THAT(test::message_of([&] { checkpoints.restore(); }),
                HasSubstr("not models or optimizers, got 'model'"));
  });
}

TEST(Checkpoints, APartThatIsNotAddedIsNamed) {
  run_ranks(1, [](ProcessGroup& group) {
    test::TempFolder folder;
    torch::nn::Linear net(2, 2), late(2, 2);
    torch::optim::SGD optimizer(net->parameters(), 0.1);
    Checkpoints saved(group, {.folder = folder.path()});
    saved.add("model", net).add("optimizer", optimizer).save(1);
    Checkpoints fewer(group, {.folder = folder.path(), .resume = true});
    fewer.add("model", net);
    EXPECT_THAT(test::message_of([&] { fewer.restore(); }),
                HasSubstr("with the parts generators, got one with generators, optimizer;"));
    saved.add("late", late).save(2);
    EXPECT_THAT(test::message_of([&] { fewer.restore(); }), HasSubstr("got no tensor of that name"))
        << "a model that is added later is saved: there are two now";
  });
}

// Part p of n gives p, p + n, p + 2n, … below 41, plus 1000 × epoch.
struct CountingStream : Stream<int64_t> {
  struct Reader : StreamReader<int64_t> {
    explicit Reader(const StreamPart& part) : part(part), at(part.part) {}
    std::optional<int64_t> next() override {
      if (at >= 41)
        return std::nullopt;
      return std::exchange(at, at + part.parts) + 1000 * part.epoch;
    }
    StreamPart part;
    int64_t at;
  };
  std::unique_ptr<StreamReader<int64_t>> open(const StreamPart& part) const override {
    return std::make_unique<Reader>(part);
  }
};

// A rank's stream, and what it has seen of it.
struct Streamed {
  Streamed(ProcessGroup& group, const std::string& folder, bool resume, int workers)
      : loader(CountingStream(),
               {.batch_size = 2, .workers = workers, .rank = group.rank(), .ranks = group.size()}),
        checkpoints(group, {.folder = folder, .resume = resume}) {
    checkpoints.add("model", net).add("data", loader);
    checkpoints.restore();
  }

  std::vector<int64_t> run(int64_t until) {
    std::vector<int64_t> seen;
    for (const auto& batch : loader.steps(until)) {
      (void)static_cast<double>(batch.weight);
      for (int64_t i = 0; i < batch.numel(); ++i)
        seen.push_back(batch[i].template item<int64_t>());
    }
    return seen;
  }

  torch::nn::Linear net{1, 1};
  StreamLoader<CountingStream> loader;
  Checkpoints checkpoints;
};

TEST(Checkpoints, EveryRanksPlaceInAStreamIsSaved) {
  for (const int workers : {0, 1, 2}) {
    for (const int64_t stop : {3, 14, 25}) {
      const test::TempFolder folder;
      run_ranks(3, [&](ProcessGroup& group) {
        const auto all = Streamed(group, folder.path(), false, workers).run(30);
        Streamed first(group, folder.path(), false, workers);
        auto seen = first.run(stop);
        const auto path = first.checkpoints.save(stop);
        EXPECT_EQ(read_manifest(path).position.epoch, first.loader.position().epoch);
        Streamed second(group, folder.path(), true, workers);
        EXPECT_EQ(second.checkpoints.step(), stop);
        EXPECT_EQ(second.loader.position(), first.loader.position());
        for (const int64_t number : second.run(30))
          seen.push_back(number);
        EXPECT_EQ(seen, all) << workers << " workers, stopped after " << stop;
      });
    }
  }
}

// 4 ranks, then 2, 3 and 1: together they read every example of the first epoch once.
TEST(Checkpoints, OtherRanksReadWhatIsLeftOfAStream) {
  const test::TempFolder folder;
  std::mutex mutex;
  std::multiset<int64_t> seen;
  int64_t step = 0, epoch = 0;
  const auto train = [&](int ranks, int workers, int64_t steps) {
    run_ranks(ranks, [&](ProcessGroup& group) {
      Streamed streamed(group, folder.path(), true, workers);
      EXPECT_EQ(streamed.loader.position().step, step);
      const auto read = streamed.run(step + steps);
      streamed.checkpoints.save(step + steps);
      const std::lock_guard lock(mutex);
      seen.insert(read.begin(), read.end());
      epoch = std::max(epoch, streamed.loader.position().epoch);
    });
    step += steps;
  };
  train(4, 1, 2);
  train(2, 2, 3);
  train(3, 0, 1);
  train(1, 0, 20);  // past the end of the first epoch
  ASSERT_EQ(epoch, 1);
  for (int64_t number = 0; number < 41; ++number)
    EXPECT_EQ(seen.count(number), 1) << number;
}

// What rank 0 says where the loader of another number of ranks resumes.
template <class MakeLoader>
std::string said_of_the_global_batch(int ranks_then, int ranks, MakeLoader make_loader) {
  const test::TempFolder folder;
  const auto run = [&](bool resume) {
    run_ranks(resume ? ranks : ranks_then, [&](ProcessGroup& group) {
      torch::nn::Linear net(1, 1);
      auto loader = make_loader(group, ranks_then);
      Checkpoints checkpoints(group, {.folder = folder.path(), .resume = resume});
      checkpoints.add("model", net).add("data", loader);
      if (resume)
        checkpoints.restore();
      else
        checkpoints.save(1);
    });
  };
  run(false);
  ::testing::internal::CaptureStderr();
  run(true);
  return ::testing::internal::GetCapturedStderr();
}

TEST(Checkpoints, OtherRanksAreToldOfAnotherGlobalBatch) {
  const auto loader_of = [](ProcessGroup& group, int64_t batch_size, int64_t accumulate) {
    const TensorDataset data(torch::zeros({48, 3}), torch::zeros(48));
    return DataLoader(std::make_shared<const TensorDataset>(data),
                      std::make_shared<DistributedSampler>(
                          48, SamplerOptions{.num_replicas = group.size(), .rank = group.rank()}),
                      {.batch_size = batch_size, .accumulate = accumulate});
  };
  const auto of_samples = [&](ProcessGroup& group, int) {
    return loader_of(group, 4, 2);
  };
  const auto kept = [&](ProcessGroup& group, int ranks_then) {
    return loader_of(group, 4 * ranks_then / group.size(), 1);
  };
  const auto of_a_stream = [](ProcessGroup& group, int) {
    return StreamLoader(
        CountingStream(),
        {.batch_size = 4, .accumulate = 2, .rank = group.rank(), .ranks = group.size()});
  };
  const auto fewer =
      HasSubstr("the global batch of 'data' was 32 samples (4 ranks) and is 16 samples (2 ranks)");
  EXPECT_THAT(said_of_the_global_batch(4, 2, of_samples), fewer);
  EXPECT_THAT(said_of_the_global_batch(4, 2, of_a_stream), fewer);
  EXPECT_THAT(said_of_the_global_batch(1, 3, of_samples),
              HasSubstr("was 8 samples (1 rank) and is 24 samples (3 ranks) now"));
  EXPECT_THAT(said_of_the_global_batch(2, 2, of_samples), Not(HasSubstr("global batch")));
  EXPECT_THAT(said_of_the_global_batch(4, 2, kept), Not(HasSubstr("global batch")));
}

// A program that forgets `if (!batch.last) continue;`.
TEST(Checkpoints, ASaveWithinAStepIsSaidOnce) {
  const auto said = [](int64_t accumulate, bool only_after_last) {
    const test::TempFolder folder;
    ::testing::internal::CaptureStderr();
    run_ranks(2, [&](ProcessGroup& group) {
      torch::nn::Linear net(3, 1);
      DataLoader loader(TensorDataset(torch::zeros({48, 3}), torch::zeros(48)),
                        {.batch_size = 4, .accumulate = accumulate, .check_weight = false});
      Checkpoints checkpoints(group, {.folder = folder.path(), .every = 2});
      checkpoints.add("model", net).add("data", loader);
      for (const auto& batch : loader.steps(6))
        if (batch.last || !only_after_last)
          checkpoints.save_or_stop(loader.position().step);
    });
    return ::testing::internal::GetCapturedStderr();
  };
  const std::string warning = "got a save within the one after step 2, whose first batches";
  const std::string forgotten = said(2, false);
  ASSERT_THAT(forgotten, HasSubstr(warning));
  EXPECT_EQ(forgotten.find("a save within", forgotten.find(warning) + warning.size()),
            std::string::npos);
  EXPECT_THAT(said(2, true), Not(HasSubstr("a save within")));
  EXPECT_THAT(said(1, false), Not(HasSubstr("a save within")));
}

TEST(Checkpoints, StreamsWithDifferentWorkersAreNotSaved) {
  const test::TempFolder folder;
  const auto failures = failures_of_ranks(2, [&](ProcessGroup& group) {
    Streamed(group, folder.path(), false, 1 + group.rank()).checkpoints.save(1);
  });
  for (const auto& failure : failures)
    EXPECT_THAT(message_of(failure), HasSubstr("got others on rank 0 and rank 1"));
}

// A training goes back to an older step: what it saves then wins over the later steps that it has
// left, and these go first.
TEST(Checkpoints, TheBranchThatLivesWins) {
  const test::TempFolder folder;
  run_ranks(2, [&](ProcessGroup& group) {
    torch::nn::Linear net(1, 1);
    const auto save = [&](Checkpoints& checkpoints, int64_t step) {
      const torch::NoGradGuard no_grad;
      net->weight.fill_(static_cast<double>(step));
      checkpoints.save(step);
    };
    const auto restored = [&](const CheckpointsOptions& options) {
      Checkpoints checkpoints(group, options);
      checkpoints.add("model", net);
      EXPECT_TRUE(checkpoints.restore());
      EXPECT_EQ(net->weight.item<double>(), static_cast<double>(checkpoints.step()));
      return checkpoints.step();
    };
    {
      Checkpoints first(group, {.folder = folder.path(), .run_id = "first"});
      first.add("model", net);
      for (const int64_t step : {10, 20, 30})
        save(first, step);
    }
    {
      Checkpoints second(group,
                         {.folder = folder.path(), .resume_from = "step-10", .run_id = "second"});
      second.add("model", net);
      EXPECT_TRUE(second.restore());
      EXPECT_EQ(second.step(), 10);
      save(second, 15);
    }
    EXPECT_EQ(restored({.folder = folder.path(), .resume = true}), 15);
    EXPECT_EQ(restored({.folder = folder.path(), .resume_from = "step-30"}), 30);
    // Started again: its own, and before it has one where it was to begin.
    EXPECT_EQ(
        restored(
            {.folder = folder.path(), .resume_from = "step-10", .run_id = "second", .attempt = 1}),
        15);
    EXPECT_EQ(
        restored(
            {.folder = folder.path(), .resume_from = "step-30", .run_id = "third", .attempt = 1}),
        30);
    {
      Checkpoints second(
          group, {.folder = folder.path(), .keep_last = 2, .resume = true, .run_id = "second"});
      second.add("model", net);
      second.restore();
      save(second, 25);
    }
    EXPECT_THAT(
        test::message_of([&] { restored({.folder = folder.path(), .resume_from = "step-10"}); }),
        HasSubstr("expected one of step-25, step-15 in"));
  });
  EXPECT_EQ(read_manifest_alone(folder / "step-25").parent, "step-15");
}

// A batch that spoils the model: the state before comes back, and that batch does not.
TEST(Checkpoints, GoesBackAfterAStepThatIsNotFinite) {
  const test::TempFolder folder;
  run_ranks(2, [&](ProcessGroup& group) {
    torch::nn::Linear net(3, 1);
    test::fill(*net, 0.5);
    torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.01).momentum(0.9));
    Schedule schedule(optimizer, rate::exponential(0.9));
    auto features = torch::ones({24, 3});
    features[14].fill_(std::numeric_limits<float>::infinity());  // the eighth batch
    DataLoader<TensorDataset> loader(TensorDataset(features, torch::zeros(24)), {.batch_size = 2});
    Checkpoints checkpoints(group, {.folder = folder.path(), .every = 2});
    checkpoints.add("model", net)
        .add("optimizer", optimizer)
        .add("schedule", schedule)
        .add("loader", loader);
    int64_t returned_to = -1;
    std::map<int64_t, torch::Tensor> weights;
    std::map<int64_t, double> rates;
    TrainStep step(net,
                   optimizer,
                   {.schedule = &schedule,
                    .on_nonfinite = OnNonfinite::go_back,
                    .go_back = [&] { returned_to = checkpoints.go_back(3); },
                    .group = group,
                    .unreduced = true});
    for (const auto& batch : loader.steps(12)) {
      step(batch, [&] { return net(batch.features).square().mean(); });
      const int64_t done = loader.position().step;
      if (done == 8) {  // the spoilt one: saved were 2, 4 and 6, and 7 was the last step
        EXPECT_EQ(returned_to, 4);
        EXPECT_TRUE(torch::equal(net->weight, weights.at(4)));
        EXPECT_EQ(schedule.lr(), rates.at(4));
      }
      rates[done] = schedule.lr();
      weights[done] = net->weight.detach().clone();
      checkpoints.save_when_due(done);
    }
    EXPECT_EQ(loader.position().step, 12) << "the data went on";
    EXPECT_TRUE(net->weight.isfinite().all().item<bool>());
    EXPECT_EQ(step.steps(), 11);
    EXPECT_EQ(step.skipped(), 1);
    Checkpoints again(group, {.folder = folder.path(), .resume = true});
    again.add("model", net)
        .add("optimizer", optimizer)
        .add("schedule", schedule)
        .add("loader", loader);
    EXPECT_TRUE(again.restore());
    EXPECT_EQ(again.step(), 12);
    EXPECT_EQ(again.go_back(2), 10) << "also before it has saved anything";
    EXPECT_THAT(test::message_of([&] { checkpoints.go_back(12); }),
                HasSubstr("expected one of step 0 or before"));
    EXPECT_THAT(test::message_of([&] { checkpoints.go_back(0); }), HasSubstr("1 step or more"));
  });
}

TEST(Checkpoints, GoingBackAgainAndAgainIsAnError) {
  run_ranks(1, [&](ProcessGroup& group) {
    torch::nn::Linear net(3, 1);
    torch::optim::SGD optimizer(net->parameters(), 0.01);
    int returns = 0;
    TrainStep step(
        net,
        optimizer,
        {.on_nonfinite = OnNonfinite::go_back, .go_back = [&] { ++returns; }, .group = group});
    const auto bad = [&] {
      step.run(1, true, [&] { return (net(torch::ones({1, 3})) / 0).sum(); });
    };
    const auto good = [&] {
      step.run(1, true, [&] { return net(torch::ones({1, 3})).sum(); });
    };
    bad();
    bad();
    good();
    bad();
    bad();
    EXPECT_THAT(test::message_of(bad), HasSubstr("expected finite gradients"));
    EXPECT_EQ(returns, 4);
    EXPECT_THAT(test::message_of(
                    [&] { TrainStep(net, optimizer, {.on_nonfinite = OnNonfinite::go_back}); }),
                HasSubstr("expected .go_back beside OnNonfinite::go_back"));
  });
}

TEST(Checkpoints, RefusesBadNamesAndOptions) {
  run_ranks(1, [](ProcessGroup& group) {
    torch::nn::Linear net(2, 2);
    EXPECT_THAT(test::message_of([&] { Checkpoints(group, {}); }),
                HasSubstr("expected a folder, got none"));
    EXPECT_THAT(test::message_of([&] { Checkpoints(group, {.folder = "x", .every = -1}); }),
                HasSubstr("got -1 and 3"));
    EXPECT_THAT(test::message_of([&] { Checkpoints(group, {.folder = "x", .in_memory = -1}); }),
                HasSubstr("expected in_memory of 0 or more, got -1"));
    Checkpoints checkpoints(group, {.folder = "x"});
    EXPECT_THAT(test::message_of([&] { checkpoints.save(1); }), HasSubstr("expected a model"));
    checkpoints.add("model", net);
    EXPECT_THAT(test::message_of([&] { checkpoints.add("model", net); }),
                HasSubstr("'model', which another part has"));
    EXPECT_THAT(test::message_of([&] { checkpoints.add("a/b", net); }),
                HasSubstr("without '/' and '.'"));
  });
}

}  // namespace
}  // namespace muster::testing
