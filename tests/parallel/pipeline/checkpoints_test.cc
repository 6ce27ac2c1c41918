// A tied weight of a pipeline, whose stages have two names for it, in checkpoints: plain models go
// on from them, be it there under one name or two; and back.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <mutex>

#include "muster/checkpoint/training/checkpoints.h"
#include "muster/parallel/pipeline/pipeline.h"
#include "tests/data/files.h"
#include "tests/support/ranks.h"

namespace muster::testing {
namespace {

using torch::optim::AdamW;

struct WordHeadImpl : torch::nn::Module {
  explicit WordHeadImpl(const torch::Tensor& of) : weight(register_parameter("weight", of)) {}
  torch::Tensor forward(const torch::Tensor& x) { return torch::linear(x, weight); }
  torch::Tensor weight;
};
TORCH_MODULE(WordHead);

// The head's weight is the words' vectors.
struct TiedWordsImpl : torch::nn::Module {
  explicit TiedWordsImpl(bool names_head)
      : token(register_module("token", torch::nn::Embedding(7, 4))),
        mid(register_module("mid", torch::nn::Linear(4, 4))),
        head(token->weight) {
    if (names_head)
      register_module("head", head);
  }
  torch::Tensor forward(const torch::Tensor& words) { return head(torch::tanh(mid(token(words)))); }
  std::vector<torch::Tensor> trained() { return {token->weight, mid->weight, mid->bias}; }
  torch::nn::Embedding token;
  torch::nn::Linear mid;
  WordHead head;
};
TORCH_MODULE(TiedWords);

struct WordsStageImpl : torch::nn::Module {
  explicit WordsStageImpl(const torch::nn::Embedding& words)
      : token(register_module("token", words)),
        mid(register_module("mid", torch::nn::Linear(4, 4))) {}
  torch::Tensor forward(const torch::Tensor& words) { return torch::tanh(mid(token(words))); }
  torch::nn::Embedding token;
  torch::nn::Linear mid;
};
TORCH_MODULE(WordsStage);

struct HeadStageImpl : torch::nn::Module {
  explicit HeadStageImpl(const torch::Tensor& weight)
      : head(register_module("head", WordHead(weight))) {}
  torch::Tensor forward(const torch::Tensor& x) { return head(x); }
  WordHead head;
};
TORCH_MODULE(HeadStage);

torch::Tensor words_loss(const torch::Tensor& logits, const torch::Tensor& targets) {
  return torch::cross_entropy_loss(logits, targets);
}

const torch::Tensor kWords = torch::arange(8).remainder(7),
                    kNextWords = torch::arange(8).mul(3).remainder(7);

CheckpointsOptions words_options(const std::string& folder) {
  return {.folder = folder, .keep_last = 0, .resume = true};
}

// Ranks are threads, and torch's generator is theirs together. Every way begins with weights of its
// own.
template <class Make>
auto seeded(uint64_t seed, Make make) {
  static std::mutex mutex;
  at::set_num_threads(1);
  const std::lock_guard lock(mutex);
  torch::manual_seed(seed);
  return make();
}

// Each of these goes on from what is newest in the folder, takes a step, and saves it as `step`.
using TakesStep = std::function<void(const std::string& folder, int64_t step)>;

void step_plain(const std::string& folder, int64_t step, bool names_head) {
  run_ranks(1, [&](ProcessGroup& group) {
    TiedWords net = seeded(names_head ? 2 : 1, [&] { return TiedWords(names_head); });
    AdamW optimizer(net->trained(), 0.1);
    Checkpoints checkpoints(group, words_options(folder));
    checkpoints.add("model", net).add("optimizer", optimizer);
    EXPECT_EQ(checkpoints.restore(), step > 1);
    words_loss(net(kWords), kNextWords).backward();
    optimizer.step();
    checkpoints.save(step);
  });
}

const TakesStep kOneName = [](const auto& folder, int64_t step) {
  step_plain(folder, step, false);
};
const TakesStep kTwoNames = [](const auto& folder, int64_t step) {
  step_plain(folder, step, true);
};

// The words on the first rank; the head, a copy of their weight, on the last.
const TakesStep kInStages = [](const std::string& folder, int64_t step) {
  run_ranks(2, [&](ProcessGroup& group) {
    WordsStage words = seeded(3, [] { return WordsStage(torch::nn::Embedding(7, 4)); });
    HeadStage head(words->token->weight.detach().clone());
    const bool is_first = group.rank() == 0;
    Pipeline pipeline({is_first ? PipelineStage(words) : PipelineStage(head)},
                      group,
                      {.schedule = one_f_one_b(2, 2), .loss = words_loss});
    pipeline.tie(is_first ? words->token->weight : head->head->weight);
    AdamW optimizer(pipeline.parameters(), 0.1);
    Checkpoints checkpoints(group, words_options(folder));
    checkpoints.add("model", pipeline.pieces()).add("optimizer", optimizer, pipeline.pieces());
    EXPECT_EQ(checkpoints.restore(), step > 1);
    pipeline.step(kWords, kNextWords);
    optimizer.step();
    checkpoints.save(step);
  });
};

// What is trained, after the last of the steps.
std::vector<torch::Tensor> after_steps(const std::vector<TakesStep>& ways) {
  const test::TempFolder folder;
  int64_t step = 0;
  for (const TakesStep& way : ways)
    way(folder.path(), ++step);
  std::vector<torch::Tensor> trained;
  run_ranks(1, [&](ProcessGroup& group) {
    TiedWords net(false);
    AdamW optimizer(net->trained(), 0.1);
    Checkpoints checkpoints(group, words_options(folder.path()));
    checkpoints.add("model", net).add("optimizer", optimizer);
    EXPECT_TRUE(checkpoints.restore());
    trained = net->trained();
  });
  return trained;
}

TEST(PipelineCheckpoints, ATiedWeightWithTwoNamesGoesOnInPlainModelsAndBack) {
  const auto expected = after_steps({kOneName, kOneName, kOneName, kOneName});
  for (const auto& ways : {std::vector{kOneName, kInStages, kInStages, kOneName},
                           std::vector{kOneName, kInStages, kTwoNames, kInStages, kOneName},
                           std::vector{kOneName, kInStages, kInStages, kTwoNames, kInStages}}) {
    const auto own = after_steps(ways);
    const auto& reference =
        ways.size() == 4 ? expected : after_steps(std::vector(ways.size(), kOneName));
    for (size_t i = 0; i < own.size(); ++i)
      EXPECT_LT((own[i] - reference[i]).abs().max().item<double>(), 1e-5) << i;
  }
}

}  // namespace
}  // namespace muster::testing
