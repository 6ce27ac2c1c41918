// What a pipeline's stages have together, against the same model in one process: the norm of their
// gradients, and their parameters.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <string>

#include "examples/02_gpt/stage.h"
#include "muster/base/error.h"
#include "muster/base/strings.h"
#include "muster/parallel/mesh.h"
#include "muster/parallel/pipeline/pipeline.h"
#include "muster/train/clip.h"
#include "tests/parallel/pipeline/models.h"
#include "tests/support/ranks.h"

namespace muster::testing {
namespace {

using ::testing::HasSubstr;

constexpr double kMaxNorm = 0.1;
constexpr int kClipMicroBatches = 4;

// The gradients after clipping, and the norm before.
struct Clipped {
  std::vector<at::Tensor> gradients;
  double norm;
};

Clipped clipped_by_one(bool tied) {
  Gpt gpt = make_gpt(tied);
  const Batch batch = text_batches(1, 8)[0];
  for (int i = 0; i < kClipMicroBatches; ++i) {
    const auto part = [&](const at::Tensor& t) {
      return t.chunk(kClipMicroBatches)[static_cast<size_t>(i)];
    };
    (next_token_loss(gpt(part(batch.x)), part(batch.y)) / kClipMicroBatches).backward();
  }
  const double norm = clip_grad_norm(gpt->parameters(), kMaxNorm).item<double>();
  std::vector<at::Tensor> gradients;
  for (const at::Tensor& parameter : gpt->parameters())
    gradients.push_back(parameter.grad());
  return {std::move(gradients), norm};
}

TEST(PipelineParameters, ClippedGradientsAreThoseOfOneProcess) {
  at::set_num_threads(1);
  for (const bool tied : {false, true}) {
    const Clipped expected = clipped_by_one(tied);
    EXPECT_GT(expected.norm, 2 * kMaxNorm);
    const Batch batch = text_batches(1, 8)[0];
    for (const auto& schedule : {one_f_one_b(4, kClipMicroBatches),
                                 interleaved(2, kClipMicroBatches, 2),
                                 zero_bubble(2, 4)}) {
      SCOPED_TRACE(schedule.name);
      std::vector<Gpt> gpts;
      for (int rank = 0; rank < schedule.ranks; ++rank)
        gpts.push_back(make_gpt(tied));
      run_ranks(schedule.ranks, [&](ProcessGroup& group) {
        const Gpt& gpt = gpts[static_cast<size_t>(group.rank())];
        Pipeline pipeline(stages_of(gpt_pieces(gpt), group.rank(), schedule.ranks, schedule.stages),
                          group,
                          {.schedule = schedule, .loss = next_token_loss});
        const bool has_end = group.rank() == 0 || group.rank() + 1 == schedule.ranks;
        if (tied)
          pipeline.tie(has_end ? gpt->token->weight : at::Tensor());
        pipeline.step(batch.x, batch.y);
        const at::Tensor norm = pipeline.clip_grad_norm(kMaxNorm);
        EXPECT_NEAR(norm.item<double>(), expected.norm, 1e-6 * expected.norm);
        const auto parameters = gpt->parameters();
        size_t own = 0;
        for (size_t i = 0; i < parameters.size(); ++i) {
          if (!parameters[i].grad().defined())
            continue;
          ++own;
          EXPECT_TRUE(torch::allclose(parameters[i].grad(), expected.gradients[i], 1e-4, 1e-8))
              << i;
        }
        EXPECT_EQ(own, pipeline.parameters().size());
      });
    }
  }
}

TEST(PipelineParameters, OfStagesWithDividedLayersAreThoseOfOneProcess) {
  at::set_num_threads(1);
  for (const bool tied : {false, true}) {
    const Clipped expected = clipped_by_one(tied);
    const Batch batch = text_batches(1, 8)[0];
    const Gpt begun = make_gpt(tied);
    run_ranks(4, [&](ProcessGroup& group) {
      Mesh mesh(group, {{"pp", 2}, {"tp", 2}});
      ParallelGpt model(begun, mesh.group("tp"));
      GptStage stage(model, mesh.rank("pp"), 2);
      Pipeline pipeline({stage},
                        mesh.group("pp"),
                        {.schedule = one_f_one_b(2, kClipMicroBatches),
                         .loss = [&](const auto& logits, const auto& targets) {
                           return model->loss(logits, targets);
                         }});
      if (tied)
        pipeline.tie(stage->tied_weight());
      const auto gathered = pipeline.gather_parameters();
      EXPECT_EQ(gathered.size(), begun->named_parameters().size());
      for (const auto& item : begun->named_parameters())
        EXPECT_TRUE(torch::equal(gathered.at(item.key()), item.value())) << item.key();
      pipeline.step(batch.x, batch.y);
      const auto refusal_of = [&](const std::optional<ProcessGroup>& over,
                                  double max_norm = kMaxNorm) -> std::string {
        try {
          pipeline.clip_grad_norm(max_norm, over);
        } catch (const Error& error) {
          return error.what();
        }
        return "";
      };
      const int first = group.rank() / 2 * 2;
      const std::string expected_ranks = cat("that of ranks ", first, ", ", first + 1, ", got ");
      EXPECT_THAT(refusal_of(std::nullopt), HasSubstr(expected_ranks + "none (rank "));
      EXPECT_THAT(refusal_of(mesh.group("pp")), HasSubstr(expected_ranks + "that of ranks "));
      EXPECT_THAT(refusal_of(mesh.group("tp"), -1), HasSubstr(cat("(rank ", group.rank(), ")")));
      const at::Tensor norm = pipeline.clip_grad_norm(kMaxNorm, mesh.group("tp"));
      EXPECT_NEAR(norm.item<double>(), expected.norm, 1e-6 * expected.norm);
      EXPECT_NEAR(
          pipeline.clip_grad_norm(kMaxNorm, mesh.group("tp")).item<double>(), kMaxNorm, 1e-5);
      mesh.shutdown();
    });
  }
}

TEST(PipelineParameters, OneNameOfTwoParametersIsRefusedOnEachRank) {
  at::set_num_threads(1);
  const auto mlp = make_mlp();
  const auto failures = failures_of_ranks(2, [&](ProcessGroup& group) {
    Pipeline pipeline(stages_of(mlp_pieces(mlp), group.rank(), 2, 2),
                      group,
                      {.schedule = one_f_one_b(2, 2), .loss = squared_error});
    pipeline.gather_parameters();
  });
  for (const auto& failure : failures)
    EXPECT_THAT(message_of(failure),
                HasSubstr("a different name for each parameter of a pipeline, got '0.bias' "
                          "on ranks 0 and 1; register"));
}

TEST(PipelineParameters, OneNameOfTwoStagesOfARankIsRefusedToo) {
  at::set_num_threads(1);
  const auto mlp = make_mlp();
  run_ranks(1, [&](ProcessGroup& group) {
    Pipeline pipeline(stages_of(mlp_pieces(mlp), 0, 1, 2),
                      group,
                      {.schedule = interleaved(1, 2, 2), .loss = squared_error});
    const auto message_from = [](const auto& call) -> std::string {
      try {
        call();
      } catch (const Error& error) {
        return error.what();
      }
      return "";
    };
    EXPECT_THAT(message_from([&] { pipeline.gather_parameters(); }),
                HasSubstr("got '0.bias' on ranks 0 and 0"));
    EXPECT_THAT(message_from([&] { pipeline.pieces(); }),
                HasSubstr("got '0.bias' in two stages of this rank"));
  });
}

TEST(PipelineParameters, AMaxNormBelowZeroIsRefused) {
  at::set_num_threads(1);
  const auto mlp = make_mlp();
  run_ranks(2, [&](ProcessGroup& group) {
    Pipeline pipeline(stages_of(mlp_pieces(mlp), group.rank(), 2, 2),
                      group,
                      {.schedule = one_f_one_b(2, 2), .loss = squared_error});
    EXPECT_THROW(pipeline.clip_grad_norm(-1), Error);
    EXPECT_EQ(pipeline.clip_grad_norm(1).item<double>(), 0);  // before any step
  });
}

}  // namespace
}  // namespace muster::testing
