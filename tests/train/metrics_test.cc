#include "muster/train/metrics.h"

#include <gmock/gmock.h>
#include <stdlib.h>
#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "muster/base/strings.h"
#include "muster/trace/activity.h"
#include "muster/trace/span.h"
#include "muster/train/resumed_step.h"
#include "tests/support/ranks.h"
#include "tests/train/oracle.h"

namespace muster::testing {
namespace {

using ::testing::HasSubstr;

std::string folder_for_metrics() {
  std::string folder = ::testing::TempDir() + "muster-train-metrics-XXXXXX";
  if (::mkdtemp(folder.data()) == nullptr) throw std::runtime_error("mkdtemp failed");
  return folder;
}

TEST(TrainMetrics, RanksWithDifferentNumbersOfSamplesCountByTheirSamples) {
  const std::string folder = folder_for_metrics();
  run_ranks(3, [&](ProcessGroup& group) {
    const double rank = group.rank();
    Metrics metrics(group, {.folder = folder});
    for (int64_t step = 1; step <= 4; ++step) {
      metrics.mean("loss", torch::tensor(rank + static_cast<double>(step)), rank + 1);
      metrics.mean("each", torch::tensor({rank, rank + 2}));
      metrics.mean("number", 2 * rank, 1);
      metrics.sum("tokens", torch::full({5}, group.rank() + 1));
      metrics.max("norm", torch::tensor({rank, -rank}));
      metrics.min("norm_least", -rank);
      metrics.accuracy("top1", torch::tensor({{0.1, 0.9}, {0.8, 0.2}}),
                       torch::tensor({group.rank() > 0, false}).to(torch::kLong));
      const auto values = metrics.write_every(2, step, {{"lr", 0.25}});
      ASSERT_EQ(values.has_value(), step % 2 == 0);
      if (!values) continue;
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
  EXPECT_EQ(
      read_file(folder + "/metrics.jsonl"),
      "{\"step\":2,\"lr\":0.25,\"loss\":2.8333333333333335,\"each\":2,\"number\":2,\"tokens\":60,\"norm\":2,"
      "\"norm_least\":-2,\"top1\":0.8333333333333334}\n"
      "{\"step\":4,\"lr\":0.25,\"loss\":4.833333333333333,\"each\":2,\"number\":2,\"tokens\":60,\"norm\":2,"
      "\"norm_least\":-2,\"top1\":0.8333333333333334}\n");
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

TEST(TrainMetrics, NamesThatDifferAreAnErrorOnEveryRank) {
  const auto failures = failures_of_ranks(3, [](ProcessGroup& group) {
    Metrics metrics(group, {});
    metrics.mean("loss", 1.0);
    if (group.rank() == 2) metrics.max("extra", 1.0);
    metrics.write(1);
  });
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(message_of(failures[static_cast<size_t>(rank)]),
              cat("metrics: expected the same names on all ranks, got 'mean loss' on rank 0 and 'max extra, "
                  "mean loss' "
                  "on rank 2 (rank ",
                  rank, "); add to the same metrics on every rank before they are written"));
  }
}

TEST(TrainMetrics, WhatIsNotANumberIsSeen) {
  run_ranks(2, [](ProcessGroup& group) {
    Metrics metrics(group, {});
    metrics.mean("loss", torch::tensor(group.rank() == 1 ? NAN : 1.0));
    metrics.max("largest", torch::tensor({1.0, group.rank() == 0 ? static_cast<double>(NAN) : 2.0}));
    const auto values = metrics.write(1);
    EXPECT_TRUE(std::isnan(values["loss"]));
    EXPECT_TRUE(std::isnan(values["largest"]));
    if (group.rank() == 0) metrics.mean("loss", 3.0);  // nothing from the other rank in this time
    const auto later = metrics.write(2);
    EXPECT_EQ(later["loss"], 3);
    EXPECT_FALSE(later.contains("largest"));
    EXPECT_THAT(message_of_error([&] { later["lss"]; }), HasSubstr("expected one of loss, got 'lss'"));
    EXPECT_THAT(message_of_error([&] { metrics.sum("loss", 1.0); }),
                HasSubstr("expected 'loss' to be a mean as before, got a sum"));
    EXPECT_THAT(message_of_error([&] { metrics.sum("step", 1.0); }), HasSubstr("that is not 'step'"));
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
    metrics.mean("loss", 0.5);
    metrics.write(7);
  });
  EXPECT_EQ(read_file(folder + "/metrics.jsonl"), "{\"step\":7,\"loss\":0.5}\n");
}

TEST(TrainMetrics, EachLineHasWhereItsTimeWent) {
  const std::string folder = folder_for_metrics();
  Activity activity(folder + "/activity", {});
  Activity::set(&activity);
  run_ranks(1, [&](ProcessGroup& group) {
    Metrics metrics(group, {.folder = folder});
    metrics.mean("loss", 1.0);
    {
      const Span span("step", Category::compute);
    }
    EXPECT_EQ(metrics.write(1).size(), 1U) << "the program's own numbers alone";
  });
  Activity::set(nullptr);
  EXPECT_THAT(read_file(folder + "/metrics.jsonl"),
              ::testing::MatchesRegex("\\{\"step\":1,\"loss\":1,\"time/other\":.*,\"time/compute\":.*,\"time/"
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
    if (group.rank() == 0) saved = state;
  });
  run_ranks(3, [&](ProcessGroup& group) {
    Metrics metrics(group, {});
    metrics.mean("loss", 1e9);  // of a training that is not gone on with
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

// A restarted attempt that went back to step 20 writes steps 21 to 40 again.
TEST(TrainMetrics, ARestoredTrainingMakesRoomForItsSteps) {
  const std::string folder = folder_for_metrics();
  run_ranks(2, [&](ProcessGroup& group) {
    for (const int attempt : {0, 1}) {
      if (group.rank() == 0 && attempt > 0) note_resumed(20, attempt);
      Metrics metrics(group, {.folder = folder});
      for (int64_t step = attempt == 0 ? 10 : 30; step <= 40; step += 10) {
        metrics.sum("attempt", attempt);
        metrics.write(step);
      }
    }
  });
  EXPECT_EQ(read_file(folder + "/metrics.jsonl"),
            "{\"step\":10,\"attempt\":0}\n{\"step\":20,\"attempt\":0}\n"
            "{\"step\":30,\"attempt\":2}\n{\"step\":40,\"attempt\":2}\n");
  EXPECT_EQ(read_file(folder + "/metrics.jsonl.replaced"),
            "{\"step\":30,\"attempt\":0}\n{\"step\":40,\"attempt\":0}\n");
}

TEST(TrainMetrics, AFullDiskCostsLinesAndNotTheTraining) {
  const std::string folder = folder_for_metrics();
  std::filesystem::create_symlink("/dev/full", folder + "/metrics.jsonl");
  note_made_ready(folder +
                  "/metrics.jsonl");  // for what other tests have noted: that device has no end to read
  run_ranks(1, [&](ProcessGroup& group) {
    Metrics metrics(group, {.folder = folder});
    ::testing::internal::CaptureStderr();
    for (const int64_t step : {1, 2}) {
      metrics.mean("loss", 0.5);
      EXPECT_EQ(metrics.write(step)["loss"], 0.5);
    }
    const std::string said = ::testing::internal::GetCapturedStderr();
    EXPECT_THAT(said, ::testing::HasSubstr("metrics.jsonl'"));
    EXPECT_EQ(said.find("No space left on device"), said.rfind("No space left on device"))
        << "said once: " << said;
  });
}

TEST(TrainMetrics, EventFilesHoldWhatWasWritten) {
  const std::string folder = folder_for_metrics();
  std::vector<double> losses, rates;
  run_ranks(1, [&](ProcessGroup& group) {
    for (const int64_t begin : {0, 20}) {  // the first run goes to step 40, the second goes on after 20
      Metrics metrics(group, {.folder = folder, .tensorboard = true});
      if (begin > 0) metrics.continue_after(begin);
      for (int64_t step = begin + 1; step <= 40; ++step) {
        metrics.mean("train/loss", 1.0 / static_cast<double>(step + begin));
        metrics.write(step, {{"lr", 0.001 * static_cast<double>(step)}});
        if (begin == 0 && step > 20) continue;
        losses.push_back(static_cast<float>(1.0 / static_cast<double>(step + begin)));
        rates.push_back(static_cast<float>(0.001 * static_cast<double>(step)));
      }
    }
  });
  const auto oracle = ask_python("read_events.py", "'" + folder + "'");
  if (!oracle) GTEST_SKIP() << "no Python with PyTorch in .deps";
  std::cout << "  read by "
            << (oracle->contains("tensorboard") ? "TensorBoard's own reader" : "a parser of this test's")
            << "\n";
  expect_as_python(*oracle, "train/loss", losses);
  expect_as_python(*oracle, "lr", rates);
}

}  // namespace
}  // namespace muster::testing
