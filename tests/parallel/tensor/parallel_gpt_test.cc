// The GPT of examples/02_gpt divided over ranks against the same GPT in one process.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "examples/02_gpt/parallel.h"
#include "muster/ddp/distributed_data_parallel.h"
#include "muster/parallel/mesh.h"
#include "muster/parallel/tensor/parallel_parameters.h"
#include "muster/train/clip.h"
#include "tests/parallel/tensor/models.h"
#include "tests/support/ranks.h"

namespace muster::testing {
namespace {

constexpr int kGptSteps = 25;
constexpr int64_t kGptBatch = 4, kGptLength = 8;

GptOptions small_gpt(bool tied) {
  // No number of ranks divides the vocabulary.
  return {.vocabulary = 61,
          .layers = 2,
          .heads = 4,
          .width = 32,
          .context = 16,
          .tied = tied,
          .gelu = "tanh"};
}

// From one seed. Ranks are threads, and torch's default generator is theirs together.
Gpt seeded_gpt(const GptOptions& options, at::ScalarType type) {
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  torch::manual_seed(1);
  Gpt gpt(options);
  gpt->to(type);
  return gpt;
}

// Each next token is one of two that the last one decides, so there is something to learn.
at::Tensor gpt_tokens(uint64_t step) {
  const at::Tensor steps =
      (tensor_numbers({kGptBatch, kGptLength + 1}, step) > 0).to(at::kLong) * 3 + 1;
  return steps.cumsum(1) % 61;
}

at::Tensor gpt_inputs(const at::Tensor& tokens) {
  return tokens.narrow(1, 0, kGptLength);
}
at::Tensor gpt_targets(const at::Tensor& tokens) {
  return tokens.narrow(1, 1, kGptLength).contiguous();
}

std::vector<double> gpt_losses_of_one(Gpt& model) {
  torch::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(3e-3));
  std::vector<double> losses;
  for (int step = 0; step < kGptSteps; ++step) {
    const at::Tensor tokens = gpt_tokens(static_cast<uint64_t>(step));
    optimizer.zero_grad();
    const at::Tensor loss = next_token_loss(model(gpt_inputs(tokens)), gpt_targets(tokens));
    loss.backward();
    clip_grad_norm(model->parameters(), 0.5);
    optimizer.step();
    losses.push_back(loss.item<double>());
  }
  return losses;
}

// `forward` is the model's, or DistributedDataParallel's around it; `rows` of each batch are this
// rank's.
std::vector<double> gpt_losses_of_ranks(ParallelGpt& model,
                                        const std::function<at::Tensor(const at::Tensor&)>& forward,
                                        const std::function<at::Tensor(const at::Tensor&)>& rows) {
  torch::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(3e-3));
  const ParallelParameters parameters = parallel_parameters(*model);
  std::vector<double> losses;
  for (int step = 0; step < kGptSteps; ++step) {
    const at::Tensor tokens = rows(gpt_tokens(static_cast<uint64_t>(step)));
    optimizer.zero_grad();
    const at::Tensor loss = model->loss(forward(gpt_inputs(tokens)), gpt_targets(tokens));
    loss.backward();
    const at::Tensor norm =
        parallel_grad_norm(parameters.divided, parameters.replicated, model->group);
    clip_grads_with_norm(model->parameters(), 0.5, norm);
    optimizer.step();
    losses.push_back(loss.item<double>());
  }
  return losses;
}

double gpt_worst_parameter(ParallelGpt& model, Gpt& whole) {
  const WholeParameters gathered = gather_parameters(*model);
  double worst = 0;
  EXPECT_EQ(gathered.size(), whole->named_parameters().size());
  for (const auto& item : whole->named_parameters())
    worst = std::max(worst, tensor_difference(gathered.at(item.key()), item.value()));
  return worst;
}

struct GptCase {
  const char* backend;
  int ranks;
  bool sequence;
  bool tied;
};

class ParallelGptTest : public ::testing::TestWithParam<GptCase> {};
INSTANTIATE_TEST_SUITE_P(Groups,
                         ParallelGptTest,
                         ::testing::Values(GptCase{"shm", 2, false, false},
                                           GptCase{"shm", 2, true, true},
                                           GptCase{"shm", 4, false, true},
                                           GptCase{"shm", 4, true, false},
                                           GptCase{"gloo", 2, true, false}),
                         [](const auto& info) {
                           const GptCase& c = info.param;
                           return cat(c.backend,
                                      c.ranks,
                                      c.sequence ? "Sequence" : "",
                                      c.tied ? "Tied" : "");
                         });

TEST_P(ParallelGptTest, HasTheLossesOfOneProcess) {
  at::set_num_threads(1);
  const GptCase c = GetParam();
  for (const auto& [type, bound] : {std::pair(at::kDouble, 1e-11), std::pair(at::kFloat, 2e-5)}) {
    Gpt whole = seeded_gpt(small_gpt(c.tied), type);
    const std::vector<double> single = gpt_losses_of_one(whole);
    EXPECT_LT(single.back(), 0.8 * single.front());
    run_ranks(c.ranks,
              [&, type = type, bound = bound](ProcessGroup& group) {
                Gpt begun = seeded_gpt(small_gpt(c.tied), type);
                ParallelGpt model(begun, group, ParallelGptOptions{.sequence = c.sequence});
                EXPECT_EQ(gpt_worst_parameter(model, begun), 0);
                const auto ours = gpt_losses_of_ranks(
                    model,
                    [&](const at::Tensor& tokens) { return model(tokens); },
                    [](const at::Tensor& tokens) { return tokens; });
                EXPECT_LT(worst_difference(ours, single), bound);
                const double parameters = gpt_worst_parameter(model, whole);
                EXPECT_LT(parameters, 100 * bound);
                if (group.rank() == 0)
                  std::printf("%s: losses differ by %.1e, parameters by %.1e\n",
                              c10::toString(type),
                              worst_difference(ours, single),
                              parameters);
              },
              {.backend = c.backend});
  }
}

// Sums of the whole model's numbers, in the formulas of docs/parallel/tensor.md.
TEST_P(ParallelGptTest, MemoryAndTrafficAreTheFormulas) {
  at::set_num_threads(1);
  const GptCase c = GetParam();
  run_ranks(c.ranks,
            [&](ProcessGroup& group) {
              const GptOptions o = small_gpt(c.tied);
              const int64_t w = o.width, n = group.size();
              ParallelGpt model(
                  seeded_gpt(o, at::kDouble), group, ParallelGptOptions{.sequence = c.sequence});
              const int64_t vocabulary = (c.tied ? 1 : 2) * o.vocabulary * w;
              const int64_t divided = vocabulary + o.layers * (12 * w * w + 7 * w);
              const int64_t common = o.context * w + o.layers * 6 * w + 2 * w;
              const double formula = 8.0 * (static_cast<double>(divided) / static_cast<double>(n) +
                                            static_cast<double>(common));
              const double ratio = static_cast<double>(bytes_of(model->parameters())) / formula;
              EXPECT_LT(ratio, 1.1);
              EXPECT_GT(ratio, 0.9);

              const at::Tensor tokens = gpt_tokens(1);
              const auto bytes_of_step = [&] {
                const int64_t before = group.traffic().bytes;
                model->loss(model(gpt_inputs(tokens)), gpt_targets(tokens)).backward();
                return group.traffic().bytes - before;
              };
              bytes_of_step();  // in two steps the layers compare their inputs
              bytes_of_step();
              const int64_t given = bytes_of_step();
              const int64_t activations = 8 * kGptBatch * kGptLength * w,
                            loss = 8 * 3 * kGptBatch * kGptLength;
              const int64_t moves = 4 * o.layers + 2;
              int64_t expected = moves * activations + loss;
              if (c.sequence)
                expected +=
                    moves * activations / n + 8 * (o.layers * 6 * w + 2 * w + kGptLength * w / n);
              EXPECT_EQ(given, expected);
              if (group.rank() == 0)
                std::printf("parameters %.3f of the formula, %ld bytes given a step\n",
                            ratio,
                            static_cast<long>(given));
            },
            {.backend = c.backend});
}

TEST(ParallelGptMesh, DataAndTensorParallelHaveTheLossesOfOneProcess) {
  at::set_num_threads(1);
  Gpt whole = seeded_gpt(small_gpt(true), at::kDouble);
  const std::vector<double> single = gpt_losses_of_one(whole);
  for (const bool sequence : {false, true}) {
    run_ranks(4, [&](ProcessGroup& group) {
      Mesh mesh(group, {{"dp", 2}, {"tp", 2}});
      ParallelGpt model(seeded_gpt(small_gpt(true), at::kDouble),
                        mesh.group("tp"),
                        ParallelGptOptions{.sequence = sequence});
      {
        DistributedDataParallel<ParallelGpt> replicated(model, mesh.group("dp"));
        std::vector<double> ours = gpt_losses_of_ranks(
            model,
            [&](const at::Tensor& tokens) { return replicated(tokens); },
            [&](const at::Tensor& tokens) { return tokens.narrow(0, mesh.rank("dp") * 2, 2); });
        at::Tensor means = torch::tensor(ours, at::kDouble);
        mesh.group("dp").all_reduce(means, ReduceOp::avg);
        const double worst = tensor_difference(means, torch::tensor(single, at::kDouble));
        EXPECT_LT(worst, 1e-11);
        EXPECT_LT(gpt_worst_parameter(model, whole), 1e-9);
        if (group.rank() == 0)
          std::printf("dp 2, tp 2: losses differ by %.1e\n", worst);
      }
      mesh.shutdown();
    });
  }
}

TEST(ParallelGptMesh, HeadsThatTheRanksDoNotDivideAreRefusedOnEachRank) {
  const auto failures = failures_of_ranks(3, [](ProcessGroup& group) {
    ParallelGpt model(seeded_gpt(small_gpt(false), at::kFloat), group);
  });
  for (const auto& failure : failures)
    EXPECT_THAT(message_of(failure),
                ::testing::HasSubstr("heads that the 3 ranks of the group divide, got 4"));
}

}  // namespace
}  // namespace muster::testing
