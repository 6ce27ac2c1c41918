#include "muster/train/metrics.h"
#include "muster/train/metrics_lines.h"
#include "muster/train/tensorboard.h"

#include <gmock/gmock.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <ctime>
#include <filesystem>
#include <fstream>

#include "muster/base/folder_lock.h"
#include "muster/base/strings.h"
#include "muster/checkpoint/training/checkpoints.h"
#include "muster/trace/activity.h"
#include "muster/trace/span.h"
#include "tests/device/scratch.h"
#include "tests/support/ranks.h"
#include "tests/support/small_disk.h"
#include "tests/train/oracle.h"

namespace muster::testing {
namespace {

using ::testing::HasSubstr;

std::string folder_for_metrics() {
  std::string folder = ::testing::TempDir() + "muster-train-metrics-XXXXXX";
  if (::mkdtemp(folder.data()) == nullptr)
    throw std::runtime_error("mkdtemp failed");
  return folder;
}

TEST(TrainMetrics, RanksWithDifferentNumbersOfSamplesCountByTheirSamples) {
  const std::string folder = folder_for_metrics();
  run_ranks(3, [&](ProcessGroup& group) {
    const double rank = group.rank();
    Metrics metrics(group, {.folder = folder});
    for (int64_t step = 1; step <= 4; ++step) {
      metrics.mean("loss", torch::tensor(rank + static_cast<double>(step)), rank + 1);
      metrics.mean("each", torch::tensor({rank, rank + 2}), 1);
      metrics.mean("number", 2 * rank, 1);
      metrics.sum("tokens", torch::full({5}, group.rank() + 1));
      metrics.max("norm", torch::tensor({rank, -rank}));
      metrics.min("norm_least", -rank);
      metrics.accuracy("top1",
                       torch::tensor({{0.1, 0.9}, {0.8, 0.2}}),
                       torch::tensor({group.rank() > 0, false}).to(torch::kLong));
      const auto values = metrics.write_every(2, step, {{"lr", 0.25}});
      ASSERT_EQ(values.has_value(), step % 2 == 0);
      if (!values)
        continue;
      const auto last = static_cast<double>(step);
      EXPECT_DOUBLE_EQ((*values)["loss"], (0 * 1 + 1 * 2 + 2 * 3) / 6.0 + last - 0.5);
      EXPECT_DOUBLE_EQ((*values)["each"], 2);
      EXPECT_DOUBLE_EQ((*values)["number"], 2);
      EXPECT_EQ((*values)["tokens"], 2 * 5 * (1 + 2 + 3));
      EXPECT_EQ((*values)["norm"], 2);
      EXPECT_EQ((*values)["norm_least"], -2);
      EXPECT_DOUBLE_EQ((*values)["top1"], 5.0 / 6);
    }
  });
  EXPECT_EQ(read_file(folder + "/metrics.jsonl"),
            "{\"step\":2,\"lr\":0.25,\"loss\":2.8333333333333335,\"each\":2,\"number\":2,"
            "\"tokens\":60,\"norm\":2,"
            "\"norm_least\":-2,\"top1\":0.8333333333333334}\n"
            "{\"step\":4,\"lr\":0.25,\"loss\":4.833333333333333,\"each\":2,\"number\":2,\"tokens\":"
            "60,\"norm\":2,"
            "\"norm_least\":-2,\"top1\":0.8333333333333334}\n");
}

// A program that forgets `if (!batch.last) continue;`. Folds that begin their steps anew, and a
// step whose numbers are written at two places, have lines of one step too.
TEST(TrainMetrics, ASecondLineOfAStepIsSaidOnce) {
  const auto said = [](const std::vector<int64_t>& steps, bool other_names) {
    const std::string folder = folder_for_metrics();
    ::testing::internal::CaptureStderr();
    run_ranks(2, [&](ProcessGroup& group) {
      Metrics metrics(group, {.folder = folder});
      for (const int64_t step : steps) {
        metrics.mean("loss", 1, 1);
        metrics.write_every(2, step);
        if (!other_names)
          continue;
        metrics.mean("penalty", 1, 1);
        metrics.write_every(2, step);
      }
    });
    return ::testing::internal::GetCapturedStderr();
  };
  const std::string warning = "expected write_every once a step, got step 2 again";
  const std::string forgotten = said({0, 1, 1, 2, 2, 3, 3, 4, 4}, false);
  ASSERT_THAT(forgotten, HasSubstr(warning));
  EXPECT_EQ(forgotten.find("once a step", forgotten.find(warning) + warning.size()),
            std::string::npos);
  EXPECT_THAT(said({1, 2, 1, 2, 1, 2}, false), Not(HasSubstr("once a step")));
  EXPECT_THAT(said({1, 2, 3, 4}, true), Not(HasSubstr("once a step")));
}

TEST(TrainMetrics, AccuracyOfTheFirstK) {
  run_ranks(1, [](ProcessGroup& group) {
    Metrics metrics(group, {});
    const auto logits = torch::tensor({{{3., 2., 1.}, {1., 2., 3.}}, {{2., 3., 1.}, {3., 1., 2.}}});
    const auto labels = torch::tensor({{1, 0}, {0, 2}});
    metrics.accuracy("top1", logits, labels);
    metrics.accuracy("top2", logits, labels, 2);
    metrics.accuracy("top3", logits, labels, 3);
    const auto values = metrics.write(1);
    EXPECT_EQ(values["top1"], 0);
    EXPECT_EQ(values["top2"], 0.75);
    EXPECT_EQ(values["top3"], 1);
    EXPECT_THAT(message_of_error([&] { metrics.accuracy("top9", logits, labels, 9); }),
                HasSubstr("got [2, 2, 3], [2, 2] and 9"));
  });
}

TEST(TrainMetrics, LabelsMayBeIgnored) {
  run_ranks(2, [](ProcessGroup& group) {
    Metrics metrics(group, {});
    const auto logits = torch::tensor({{3., 2., 1.}, {1., 2., 3.}, {2., 3., 1.}, {3., 1., 2.}});
    const auto labels = group.rank() == 0 ? torch::tensor({0, -100, -100, 2})
                                          : torch::tensor({-100, -100, -100, -100});
    metrics.accuracy("top1", logits, labels, 1, -100);
    metrics.accuracy("all", logits, labels);
    const auto values = metrics.write(1);
    EXPECT_EQ(values["top1"], 0.5);
    EXPECT_EQ(values["all"], 0.125);
  });
}

TEST(TrainMetrics, NamesThatDifferAreAnErrorOnEveryRank) {
  const auto failures = failures_of_ranks(3, [](ProcessGroup& group) {
    Metrics metrics(group, {});
    metrics.mean("loss", 1.0, 1);
    if (group.rank() == 2)
      metrics.max("extra", 1.0);
    metrics.write(1);
  });
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(message_of(failures[static_cast<size_t>(rank)]),
              cat("metrics: expected the same names on all ranks, got 'mean loss' on rank 0 and "
                  "'max extra, "
                  "mean loss' "
                  "on rank 2 (rank ",
                  rank,
                  "); add to the same metrics on every rank before they are written"));
  }
}

TEST(TrainMetrics, RanksAtDifferentStepsAreToldOnce) {
  ::testing::internal::CaptureStderr();
  run_ranks(3, [](ProcessGroup& group) {
    Metrics metrics(group, {});
    for (int64_t step = 1; step <= 2; ++step) {
      metrics.mean("loss", 1.0, 1);
      metrics.write(group.rank() == 2 ? 10 * step : step);
    }
  });
  const std::string told = ::testing::internal::GetCapturedStderr();
  EXPECT_THAT(told, ::testing::HasSubstr("one step, got 1 on rank 0 and 10 on rank 2"));
  EXPECT_EQ(told.find("one step, got"), told.rfind("one step, got"));
}

TEST(TrainMetrics, WhatIsNotANumberIsSeen) {
  run_ranks(2, [](ProcessGroup& group) {
    Metrics metrics(group, {});
    metrics.mean("loss", torch::tensor(group.rank() == 1 ? NAN : 1.0), 1);
    metrics.max("largest",
                torch::tensor({1.0, group.rank() == 0 ? static_cast<double>(NAN) : 2.0}));
    const auto values = metrics.write(1);
    EXPECT_TRUE(std::isnan(values["loss"]));
    EXPECT_TRUE(std::isnan(values["largest"]));
    if (group.rank() == 0)
      metrics.mean("loss", 3.0, 1);  // nothing from the other rank in this time
    const auto later = metrics.write(2);
    EXPECT_EQ(later["loss"], 3);
    EXPECT_FALSE(later.contains("largest"));
    EXPECT_THAT(message_of_error([&] { later["lss"]; }),
                HasSubstr("expected one of loss, got 'lss'"));
    EXPECT_THAT(message_of_error([&] { metrics.sum("loss", 1.0); }),
                HasSubstr("expected 'loss' to be a mean as before, got a sum"));
    EXPECT_THAT(message_of_error([&] { metrics.sum("step", 1.0); }),
                HasSubstr("that is not 'step'"));
  });
}

TEST(TrainMetrics, TakesTheGroupAndFolderOfAContext) {
  struct SomeContext {
    ProcessGroup group;
    std::string folder;
    ProcessGroup& process_group() { return group; }
    const std::string& run_dir() const { return folder; }
  };
  const std::string folder = folder_for_metrics();
  run_ranks(1, [&](ProcessGroup& group) {
    SomeContext ctx{group, folder};
    Metrics metrics(ctx);
    metrics.mean("loss", 0.5, 1);
    metrics.write(7);
  });
  EXPECT_EQ(read_file(folder + "/metrics.jsonl"), "{\"step\":7,\"loss\":0.5}\n");
}

TEST(TrainMetrics, RankZeroMakesTheFolder) {
  const std::string folder = folder_for_metrics();
  run_ranks(2, [&](ProcessGroup& group) {
    Metrics metrics(group, {.folder = folder + "/runs/a", .tensorboard = true});
    metrics.write(1, {{"lr", 0.5}});
  });
  EXPECT_EQ(read_file(folder + "/runs/a/metrics.jsonl"), "{\"step\":1,\"lr\":0.5}\n");

  std::ofstream(folder + "/file") << "no folder";
  run_ranks(1, [&](ProcessGroup& group) {
    EXPECT_THAT([&] { Metrics(group, {.folder = folder + "/file/a"}); },
                ::testing::ThrowsMessage<Error>(HasSubstr("cannot make the folder '" + folder)));
  });
  std::filesystem::remove_all(folder);
}

// A lock that is not in this process's list is another job's.
TEST(TrainMetrics, TheFolderOfAnotherJobIsRefused) {
  const std::string folder = folder_for_metrics();
  const ScopedEnv launch("MUSTER_LAUNCH", "mine");
  const ScopedEnv attempt("MUSTER_ATTEMPT", "1");
  struct SomeContext {
    ProcessGroup group;
    std::string folder;
    ProcessGroup& process_group() { return group; }
    const std::string& run_dir() const { return folder; }
  };
  const auto lock_of = [&](const char* launch) {
    FolderLock lock(
        {.folder = folder, .file = ".metrics.jsonl.lock", .start = launch, .attempt = "0"});
    lock.share();
    return lock;
  };
  run_ranks(1, [&](ProcessGroup& group) {
    SomeContext ctx{group, folder};
    {
      const FolderLock other = lock_of("another");
      EXPECT_THAT([&] { Metrics metrics(ctx); },
                  ::testing::ThrowsMessage<Error>(
                      HasSubstr("expected no job that still writes there, got one (process ")));
      EXPECT_FALSE(std::filesystem::exists(folder + "/metrics.jsonl")) << "it was refused";
    }
    const FolderLock before = lock_of("mine");
    EXPECT_NO_THROW(Metrics metrics(ctx)) << "an earlier attempt of this launch is at its end";
  });
  std::filesystem::remove_all(folder);
}

TEST(TrainMetrics, EachLineHasWhereItsTimeWent) {
  const std::string folder = folder_for_metrics();
  Activity activity(folder + "/activity", {});
  Activity::set(&activity);
  run_ranks(1, [&](ProcessGroup& group) {
    Metrics metrics(group, {.folder = folder});
    metrics.mean("loss", 1.0, 1);
    {
      const Span span("step", Category::compute);
    }
    EXPECT_EQ(metrics.write(1).size(), 1U) << "the program's own numbers alone";
  });
  Activity::set(nullptr);
  EXPECT_THAT(read_file(folder + "/metrics.jsonl"),
              ::testing::MatchesRegex(
                  "\\{\"step\":1,\"loss\":1,\"time/other\":.*,\"time/compute\":.*,\"time/"
                  "communication\":.*,\"time/data\":0,\"time/checkpoint\":0\\}\n"));
}

TEST(TrainMetrics, WhatIsNotWrittenYetIsSavedAndComesBackOnAnyNumberOfRanks) {
  const auto add = [](Metrics& metrics, double rank, double step) {
    metrics.mean("loss", rank + step, rank + 1);
    metrics.max("largest", rank);
    metrics.sum("tokens", torch::tensor(2.0));
    metrics.min("least", step);
  };
  SavedState saved;
  run_ranks(2, [&](ProcessGroup& group) {
    Metrics metrics(group, {});
    add(metrics, group.rank(), 1);
    metrics.write(1);  // is no part of it
    add(metrics, group.rank(), 2);
    const SavedState state = metrics.state();
    EXPECT_EQ(metrics.write(2)["loss"], (2 * 1 + 3 * 2) / 3.0) << "saving takes nothing away";
    if (group.rank() == 0)
      saved = state;
  });
  run_ranks(3, [&](ProcessGroup& group) {
    Metrics metrics(group, {});
    metrics.mean("loss", 1e9, 1);  // of a training that is not gone on with
    metrics.load_state(saved);
    add(metrics, group.rank(), 3);
    const auto values = metrics.write(3);
    EXPECT_DOUBLE_EQ(values["loss"], (2 * 1 + 3 * 2 + 3 * 1 + 4 * 2 + 5 * 3) / (3.0 + 6.0));
    EXPECT_EQ(values["largest"], 2);
    EXPECT_EQ(values["tokens"], 2 * 2 + 3 * 2);
    EXPECT_EQ(values["least"], 2);
  });
  saved.texts["kind 0"] = "median";
  run_ranks(1, [&](ProcessGroup& group) {
    Metrics metrics(group, {});
    EXPECT_THAT(message_of_error([&] { metrics.load_state(saved); }), HasSubstr("got a 'median'"));
  });
}

// Steps 1 to 4 of a training that saves after step 2, with lines numbered in another unit than the
// checkpoints.
void train_with_metrics(ProcessGroup& group,
                        const std::string& folder,
                        CheckpointsOptions options,
                        int64_t line_a_step,
                        double value,
                        bool adds = true) {
  torch::nn::Linear net(1, 1);
  Metrics metrics(group, {.folder = folder});
  options.folder = folder + "/checkpoints";
  Checkpoints checkpoints(group, options);
  checkpoints.add("model", net);
  if (adds)
    checkpoints.add("metrics", metrics);
  checkpoints.restore();
  for (int64_t step = checkpoints.step() + 1; step <= 4; ++step) {
    metrics.max("run", value);
    metrics.write(step * line_a_step);
    if (step == 2)
      checkpoints.save(step);
  }
}

std::string lines_of(const std::vector<std::pair<int64_t, int>>& lines) {
  std::string text;
  for (const auto& [step, run] : lines)
    text += cat("{\"step\":", step, ",\"run\":", run, "}\n");
  return text;
}

// In another job, and in the next attempt of the same one.
TEST(TrainMetrics, ARestoredTrainingMakesRoomForItsSteps) {
  for (const int64_t unit : {1, 640}) {  // steps; samples
    for (const bool restarts : {false, true}) {
      for (const bool adds : {false, true}) {
        const std::string folder = folder_for_metrics();
        CheckpointsOptions first{.launch = "this"}, second{.resume = !restarts, .launch = "this"};
        second.attempt = restarts ? 1 : 0;
        run_ranks(2, [&](ProcessGroup& group) {
          train_with_metrics(group, folder, first, unit, 1, adds);
          train_with_metrics(group, folder, second, unit, 2, adds);
        });
        EXPECT_EQ(read_file(folder + "/metrics.jsonl"),
                  lines_of({{unit, 1}, {2 * unit, 1}, {3 * unit, 2}, {4 * unit, 2}}));
        EXPECT_EQ(read_file(folder + "/metrics.jsonl.replaced"),
                  lines_of({{3 * unit, 1}, {4 * unit, 1}}));
      }
    }
  }
}

// Lines that were written at other steps than those of the run that goes on.
TEST(TrainMetrics, WhatWasWrittenLastBeforeTheSaveIsWhereARestoredTrainingGoesOn) {
  const std::string folder = folder_for_metrics();
  ::testing::internal::CaptureStderr();
  run_ranks(1, [&](ProcessGroup& group) {
    train_with_metrics(group, folder, {}, 100, 1);
    train_with_metrics(group, folder, {.resume = true}, 130, 2);
  });
  EXPECT_THAT(::testing::internal::GetCapturedStderr(),
              HasSubstr("metrics: 2 lines after 200 moved to '"));
  EXPECT_EQ(read_file(folder + "/metrics.jsonl"),
            lines_of({{100, 1}, {200, 1}, {390, 2}, {520, 2}}));
}

TEST(TrainMetrics, TwoTrainingsInOneProcessGoOnEachForItself) {
  const std::string one = folder_for_metrics(), other = folder_for_metrics(),
                    old = folder_for_metrics();
  run_ranks(2, [&](ProcessGroup& group) {
    train_with_metrics(group, one, {}, 1, 1);
    train_with_metrics(group, other, {}, 1000, 1);
    train_with_metrics(group, old, {}, 10, 1);
    // The first goes on, the second in another unit, and the third begins again behind its old
    // lines.
    train_with_metrics(group, one, {.resume = true}, 1, 2);
    train_with_metrics(group, other, {.resume = true}, 1000, 2);
    if (group.rank() == 0)
      std::filesystem::remove_all(old + "/checkpoints");
    group.barrier();
    train_with_metrics(group, old, {}, 10, 2);
  });
  EXPECT_EQ(read_file(one + "/metrics.jsonl"), lines_of({{1, 1}, {2, 1}, {3, 2}, {4, 2}}));
  EXPECT_EQ(read_file(other + "/metrics.jsonl"),
            lines_of({{1000, 1}, {2000, 1}, {3000, 2}, {4000, 2}}));
  EXPECT_EQ(read_file(old + "/metrics.jsonl"),
            lines_of({{10, 1}, {20, 1}, {30, 1}, {40, 1}, {10, 2}, {20, 2}, {30, 2}, {40, 2}}));
  EXPECT_FALSE(std::filesystem::exists(old + "/metrics.jsonl.replaced"));
}

TEST(TrainMetrics, AMeanOverNoSamplesCountsAsNothing) {
  run_ranks(2, [](ProcessGroup& group) {
    Metrics metrics(group, {});
    const bool is_empty = group.rank() == 1;
    metrics.mean("loss", torch::tensor(is_empty ? NAN : 3.0), is_empty ? 0 : 5);
    metrics.mean("number", is_empty ? NAN : 3.0, is_empty ? 0 : 5);
    metrics.mean("each", torch::ones({is_empty ? 0 : 2}), 1);
    metrics.max("largest", torch::ones({is_empty ? 0 : 2}));
    metrics.min("least", torch::ones({is_empty ? 0 : 2}));
    metrics.mean("nowhere", NAN, 0);
    const auto values = metrics.write(1);
    EXPECT_EQ(values["loss"], 3);
    EXPECT_EQ(values["number"], 3);
    for (const char* name : {"each", "largest", "least"})
      EXPECT_EQ(values[name], 1) << name;
    EXPECT_FALSE(values.contains("nowhere"));
    EXPECT_THAT(message_of_error([&] { metrics.mean("loss", 1.0, -1); }),
                HasSubstr("a count of 0 samples or more for 'loss', got -1"));
  });
}

TEST(TrainMetrics, ExtraNumbersHaveNamesOfTheirOwn) {
  const std::string folder = folder_for_metrics();
  run_ranks(1, [&](ProcessGroup& group) {
    Metrics metrics(group, {.folder = folder});
    metrics.mean("loss", 0.5, 1);
    for (const char* name : {"step", "loss", "time/compute"}) {
      EXPECT_THAT(message_of_error([&] { metrics.write(7, {{name, 1.0}}); }),
                  HasSubstr(cat("got '", name, "', which the line has already")));
    }
    EXPECT_THAT(message_of_error([&] { metrics.sum("time/data", 1.0); }),
                HasSubstr("a share of the time"));
    metrics.write(7, {{"time/epoch", 2.0}});
  });
  EXPECT_EQ(read_file(folder + "/metrics.jsonl"), "{\"step\":7,\"time/epoch\":2,\"loss\":0.5}\n");
}

TEST(TrainMetrics, AFullDiskCostsLinesAndNotTheTraining) {
  const std::string folder = folder_for_metrics();
  std::filesystem::create_symlink("/dev/full", folder + "/metrics.jsonl");
  // Not of what other tests have resumed: that device has no end to read.
  note_beginning(folder + "/metrics.jsonl", Beginning::anew, -1);
  run_ranks(1, [&](ProcessGroup& group) {
    Metrics metrics(group, {.folder = folder});
    ::testing::internal::CaptureStderr();
    for (const int64_t step : {1, 2}) {
      metrics.mean("loss", 0.5, 1);
      EXPECT_EQ(metrics.write(step)["loss"], 0.5);
    }
    const std::string said = ::testing::internal::GetCapturedStderr();
    EXPECT_THAT(said, ::testing::HasSubstr("metrics.jsonl'"));
    EXPECT_EQ(said.find("No space left on device"), said.rfind("No space left on device"))
        << "said once: " << said;
  });
}

// A limit on the size of files stands for the disk.
TEST(TrainMetrics, WhenTheDiskHasRoomAgainItSaysHowManyLinesWereLost) {
  const std::string folder = folder_for_metrics();
  const std::string before(1 << 20, '\n');  // so that what is said has room
  std::ofstream(folder + "/metrics.jsonl") << before;
  note_beginning(folder + "/metrics.jsonl", Beginning::anew, -1);
  struct rlimit all = {};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &all), 0);
  const struct rlimit full = {.rlim_cur = (1 << 20) + 5, .rlim_max = all.rlim_max};
  const auto before_signal = std::signal(SIGXFSZ, SIG_IGN);
  run_ranks(1, [&](ProcessGroup& group) {
    Metrics metrics(group, {.folder = folder});
    ::testing::internal::CaptureStderr();
    for (int64_t step = 1; step <= 4; ++step) {
      ::setrlimit(RLIMIT_FSIZE, step < 4 ? &full : &all);
      metrics.sum("n", 1);
      metrics.write(step);
    }
    const std::string said = ::testing::internal::GetCapturedStderr();
    EXPECT_THAT(said, HasSubstr("metrics are lost until they can be written again"));
    EXPECT_THAT(said, HasSubstr("metrics: written again; 3 lines were lost"));
  });
  std::signal(SIGXFSZ, before_signal);
  EXPECT_EQ(read_file(folder + "/metrics.jsonl"), before + "{\"step\":4,\"n\":1}\n");
}

// Returns once the disk takes no more.
void fill(const std::string& path) {
  std::ofstream file(path);
  while (file << std::string(512, 'x') << std::flush) {
  }
}

// A suite of its own, which is skipped without the right to mount.
TEST(MetricsOnASmallDisk, LosesLinesUntilThereIsRoomAgain) {
  const std::string folder = folder_for_metrics();
  const test::SmallDisk disk(folder, "64k");
  if (!disk.mounted())
    GTEST_SKIP() << "mounting a tmpfs is not permitted";
  const std::string before(4096, '\n');  // so that the next line needs a page more
  std::ofstream(folder + "/metrics.jsonl") << before;
  note_beginning(folder + "/metrics.jsonl", Beginning::anew, -1);
  run_ranks(1, [&](ProcessGroup& group) {
    Metrics metrics(group, {.folder = folder});
    fill(folder + "/junk");
    ::testing::internal::CaptureStderr();
    for (int64_t step = 1; step <= 5; ++step) {
      if (step == 4)
        std::filesystem::remove(folder + "/junk");
      metrics.sum("n", 1);
      metrics.write(step);
    }
    const std::string said = ::testing::internal::GetCapturedStderr();
    EXPECT_THAT(said, HasSubstr("No space left on device"));
    EXPECT_EQ(said.find("metrics are lost"), said.rfind("metrics are lost")) << "said once";
    EXPECT_THAT(said, HasSubstr("metrics: written again; 3 lines were lost"));
  });
  EXPECT_EQ(read_file(folder + "/metrics.jsonl"),
            before + "{\"step\":4,\"n\":1}\n{\"step\":5,\"n\":1}\n");
}

// TensorBoard reads event files by their names, which have times.
TEST(TrainMetrics, AnEventFileComesAfterOneOfTheFuture) {
  const std::string folder = folder_for_metrics();
  const std::string before = cat("events.out.tfevents.", std::time(nullptr) + 3600, ".host.1.0");
  std::ofstream(folder + "/" + before).put('x');
  EXPECT_GT(EventFile(folder).path(), folder + "/" + before) << "the clock was set back";
}

TEST(TrainMetrics, EventFilesHoldWhatWasWritten) {
  const std::string folder = folder_for_metrics();
  std::vector<double> losses, rates;
  run_ranks(1, [&](ProcessGroup& group) {
    for (const int64_t begin :
         {0, 20}) {  // the first run goes to step 40, the second goes on after 20
      Metrics metrics(group, {.folder = folder, .tensorboard = true});
      if (begin > 0)
        metrics.continue_after(begin);
      for (int64_t step = begin + 1; step <= 40; ++step) {
        metrics.mean("train/loss", 1.0 / static_cast<double>(step + begin), 1);
        metrics.write(step, {{"lr", 0.001 * static_cast<double>(step)}});
        if (begin == 0 && step > 20)
          continue;
        losses.push_back(static_cast<float>(1.0 / static_cast<double>(step + begin)));
        rates.push_back(static_cast<float>(0.001 * static_cast<double>(step)));
      }
    }
  });
  const auto oracle = ask_python("read_events.py", "'" + folder + "'");
  if (!oracle)
    GTEST_SKIP() << "no Python with PyTorch in .deps";
  std::cout << "  read by "
            << (oracle->contains("tensorboard") ? "TensorBoard's own reader"
                                                : "a parser of this test's")
            << "\n";
  expect_as_python(*oracle, "train/loss", losses);
  expect_as_python(*oracle, "lr", rates);
}

}  // namespace
}  // namespace muster::testing
