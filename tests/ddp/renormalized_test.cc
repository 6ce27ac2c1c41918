// Embeddings whose forward writes to their weight, each rank to the rows that it looks up.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <array>
#include <functional>
#include <string>

#include "muster/ddp/distributed_data_parallel.h"
#include "muster/parallel/mesh.h"
#include "muster/parallel/pipeline/pipeline.h"
#include "muster/parallel/sharded/fully_sharded.h"
#include "tests/support/ranks.h"

namespace muster::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr double kMaxNorm = 0.5;
constexpr int64_t kRows = 6;

struct WordsImpl : torch::nn::Module {
  explicit WordsImpl(bool limited) {
    auto options = torch::nn::EmbeddingOptions(kRows, 3);
    if (limited)
      options.max_norm(kMaxNorm);
    token = register_module("token", torch::nn::Embedding(options));
    const torch::NoGradGuard no_grad;
    token->weight.copy_(torch::arange(kRows * 3).view({kRows, 3}) * 0.1);
  }
  at::Tensor forward(const at::Tensor& words) { return token(words).sum(); }
  torch::nn::Embedding token{nullptr};
  at::Tensor scale;
};
TORCH_MODULE(Words);

bool have_same_values(ProcessGroup& group, const at::Tensor& weight) {
  const at::Tensor mine = weight.detach().contiguous();
  const auto all = group.all_gather_bytes(
      std::string(static_cast<const char*>(mine.const_data_ptr()), mine.nbytes()));
  return all[0] == all[1];
}

std::string said_by_two(const std::function<void(ProcessGroup&)>& body) {
  ::testing::internal::CaptureStderr();
  run_ranks(2, body);
  return ::testing::internal::GetCapturedStderr();
}

TEST(Renormalized, WeightsAreNamedByWhoeverKeepsRanksAlike) {
  const auto names_it = [](const char* owner) {
    return AllOf(HasSubstr(owner), HasSubstr("got the embedding 'token' with max_norm"));
  };
  EXPECT_THAT(
      said_by_two([](ProcessGroup& group) { DistributedDataParallel model(Words(true), group); }),
      names_it("DistributedDataParallel: expected"));
  EXPECT_THAT(
      said_by_two([](ProcessGroup& group) {
        FullySharded sharded(group);
        Words net(true);
        sharded.wrap(net->token);  // an embedding itself
        sharded.wrap(net);         // has no weight of its own
      }),
      AllOf(HasSubstr("fully sharded: expected forwards that leave the weights as they are, got an "
                      "embedding with max_norm"),
            Not(HasSubstr("'token'"))));
  EXPECT_THAT(said_by_two([](ProcessGroup& group) { FullySharded(group).wrap(Words(true)); }),
              names_it("fully sharded: expected"));
  EXPECT_THAT(said_by_two([](ProcessGroup& group) {
                Mesh mesh(group, {{"dp", 2}, {"pp", 1}});
                Pipeline pipeline({Words(true)},
                                  mesh.group("pp"),
                                  {.schedule = one_f_one_b(1, 1),
                                   .loss = [](const auto& y, const auto&) { return y; }});
                pipeline.average_over(mesh.group("dp"));
              }),
              names_it("pipeline: expected"));
}

TEST(Renormalized, WeightsThatAreFrozenOrEachRanksOwnAreMeant) {
  EXPECT_THAT(said_by_two([](ProcessGroup& group) {
                Words net(true);
                net->scale = net->register_parameter("scale", torch::ones({}));
                DistributedDataParallel own(net, group, {.ignored_parameters = {"token.weight"}});
                net->token->weight.set_requires_grad(false);
                DistributedDataParallel frozen(net, group);
              }),
              Not(HasSubstr("max_norm")));
}

// What the warning advises.
TEST(Renormalized, OfAllRowsAfterEachStepRanksStayAlike) {
  const auto are_alike = [](bool limited) {
    std::array<bool, 2> alike = {};
    said_by_two([&](ProcessGroup& group) {
      Words net(limited);
      DistributedDataParallel model(net, group);
      torch::optim::SGD optimizer(model.parameters(), 0.1);
      for (int step = 0; step < 3; ++step) {
        optimizer.zero_grad();
        model(torch::arange(2) + 2 * group.rank() + step % 2).backward();
        optimizer.step();
        const torch::NoGradGuard no_grad;
        if (!limited)
          torch::embedding_renorm_(net->token->weight, torch::arange(kRows), kMaxNorm, 2);
      }
      alike[static_cast<size_t>(group.rank())] = have_same_values(group, net->token->weight);
    });
    return alike[0];
  };
  EXPECT_FALSE(are_alike(true));
  EXPECT_TRUE(are_alike(false));
}

}  // namespace
}  // namespace muster::testing
