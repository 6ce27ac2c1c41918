// One pass that gives several numbers: programs as people write them, on ranks with different
// numbers of batches, against one process that has all samples at once.
#include <gmock/gmock.h>
#include <torch/torch.h>

#include <functional>
#include <sstream>

#include "muster/base/error.h"
#include "muster/base/strings.h"
#include "muster/ddp/distributed_data_parallel.h"
#include "muster/parallel/sharded/fully_sharded.h"
#include "muster/train/evaluate.h"
#include "tests/train/evaluate_program.h"

namespace muster::testing {
namespace {

using ::testing::HasSubstr;

struct Numbers {
  double loss = 0, top1 = 0, top3 = 0;
  at::Tensor confusion;
};

at::Tensor loss_of(const at::Tensor& logits, const at::Tensor& labels) {
  return torch::nn::functional::cross_entropy(
      logits, labels, torch::nn::functional::CrossEntropyFuncOptions().ignore_index(-100));
}

// What a user writes.
template <class Model, class Loader>
Numbers evaluated_numbers(ProcessGroup& group, Model& model, Loader& loader) {
  Mean loss;
  Accuracy top1({.ignore_index = -100}), top3({.top = 3, .ignore_index = -100});
  ConfusionMatrix confusion(kClasses, -100);
  const auto fill = [&](auto& net, const auto& batch) {
    const auto logits = net(batch.features);
    loss.add(loss_of(logits, batch.labels), batch.labels.ne(-100).sum());
    top1.add(logits, batch.labels);
    top3.add(logits, batch.labels);
    confusion.add(logits, batch.labels);
  };
  evaluate(group, model, loader, fill, loss, top1, top3, confusion);
  return {loss.value(), top1.value(), top3.value(), confusion.value()};
}

// The oracle: all samples in one forward.
Numbers numbers_at_once(int64_t samples) {
  const ScoredNet net = scored_net();
  net.ptr()->eval();
  const torch::NoGradGuard no_grad;
  const TensorDataset data = scored_data(samples);
  const at::Tensor counts = data.labels().ne(-100);
  const at::Tensor labels = data.labels().masked_select(counts);
  const at::Tensor logits = net.ptr()->forward(data.features()).index({counts});
  const at::Tensor ranks = logits.gt(logits.gather(1, labels.unsqueeze(1))).sum(1);
  Numbers numbers{.loss = loss_of(logits, labels).item<double>(),
                  .top1 = ranks.lt(1).to(at::kDouble).mean().item<double>(),
                  .top3 = ranks.lt(3).to(at::kDouble).mean().item<double>(),
                  .confusion = torch::zeros({kClasses, kClasses}, torch::kLong)};
  for (int64_t i = 0; i < labels.numel(); ++i)
    numbers.confusion[labels[i].item<int64_t>()][logits[i].argmax().item<int64_t>()] += 1;
  return numbers;
}

void expect_numbers(const Numbers& got, const Numbers& expected) {
  EXPECT_NEAR(got.loss, expected.loss, 1e-5);
  EXPECT_DOUBLE_EQ(got.top1, expected.top1);
  EXPECT_DOUBLE_EQ(got.top3, expected.top3);
  EXPECT_TRUE(got.confusion.equal(expected.confusion)) << got.confusion << expected.confusion;
}

// 13 samples in batches of 4: the ranks have different numbers of batches. 3 samples on 4 ranks:
// one has none.
const std::pair<int, int64_t> kRanksAndSamples[] = {{1, 13}, {2, 13}, {3, 13}, {4, 3}};

TEST(EvaluateMetrics, OfABareModelAndAWrappedOne) {
  for (const auto& [ranks, samples] : kRanksAndSamples) {
    const Numbers expected = numbers_at_once(samples);
    run_ranks(ranks, [&, samples = samples](ProcessGroup& group) {
      ScoredNet net = scored_net();
      auto loader = loader_of(group, scored_data(samples), {.batch_size = 4});
      for (int pass = 0; pass < 2; ++pass)  // the metrics begin anew
        expect_numbers(evaluated_numbers(group, net, loader), expected);
      DistributedDataParallel<ScoredNet> model(net, group);
      expect_numbers(evaluated_numbers(group, model, loader), expected);
      EXPECT_TRUE(net->drop->is_training());
    });
  }
}

// After a training step the wrapper's first forward broadcasts its buffers, which a rank without
// batches would not come to. Here the program calls the wrapper that it has captured.
TEST(EvaluateMetrics, AWrapperThatTrainsInBetweenKeepsTheRanksTogether) {
  run_ranks(4, [](ProcessGroup& group) {
    ScoredNet net = scored_net();
    DistributedDataParallel<ScoredNet> model(net, group);
    torch::optim::SGD optimizer(model.parameters(), 0.0);
    auto loader = loader_of(group, scored_data(3), {.batch_size = 4});
    for (int step = 0; step < 3; ++step) {
      model(torch::randn({8, 4}) + group.rank()).sum().backward();
      optimizer.step();
      const double by_argument = evaluate(group, model, loader, [](auto& net, const auto& batch) {
        return net(batch.features).sum(1);
      });
      const double captured = evaluate(group, model, loader, [&](auto&, const auto& batch) {
        return model(batch.features).sum(1);
      });
      EXPECT_DOUBLE_EQ(by_argument, captured);
    }
  });
}

torch::jit::Module scripted() {
  torch::jit::Module script("script");
  script.register_parameter("w", torch::ones({2}, torch::requires_grad()), /*is_buffer=*/false);
  script.register_attribute("training", c10::BoolType::get(), true);
  script.define(R"(
def forward(self, x):
    if self.training:
        return x * 0 + self.w
    return x * self.w
)");
  return script;
}

TEST(EvaluateMetrics, OfAScriptedModel) {
  const std::vector<torch::jit::Module> scripts = {scripted(), scripted()};
  run_ranks(2, [&](ProcessGroup& group) {
    DistributedDataParallel<torch::jit::Module> model(scripts[static_cast<size_t>(group.rank())],
                                                      group);
    auto loader = loader_of(group,
                            TensorDataset(torch::arange(10.0).view({5, 2}), torch::zeros({5})),
                            {.batch_size = 2});
    Mean mean;
    evaluate(
        group,
        model,
        loader,
        [&](auto& net, const auto& batch) { mean.add(net(batch.features).toTensor()); },
        mean);
    EXPECT_EQ(mean.value(), 4.5);
    EXPECT_TRUE(model.module().is_training());
  });
}

// Every forward of a divided model is collective: ranks without a batch run along.
TEST(EvaluateMetrics, OfAFullyShardedModel) {
  for (const auto& [ranks, samples] : kRanksAndSamples) {
    const Numbers expected = numbers_at_once(samples);
    run_ranks(ranks, [&, samples = samples](ProcessGroup& group) {
      FullySharded sharded(group);
      auto model = sharded.wrap(scored_net());
      auto loader = loader_of(group, scored_data(samples), {.batch_size = 4});
      for (int pass = 0; pass < 2; ++pass)
        expect_numbers(evaluated_numbers(group, model, loader), expected);
      const double score = evaluate(group, model, loader, [](auto& net, const auto& batch) {
        return net(batch.features).argmax(1).to(at::kDouble);
      });
      const auto whole = sharded.whole_parameters();
      const double by_module =
          evaluate(group, model.module(), loader, [](auto& net, const auto& batch) {
            return net(batch.features).argmax(1).to(at::kDouble);
          });
      EXPECT_DOUBLE_EQ(score, by_module);
    });
  }
}

TEST(EvaluateMetrics, OfAStream) {
  for (const auto& [ranks, samples] : kRanksAndSamples) {
    for (const int workers : {0, 2}) {
      const Numbers expected = numbers_at_once(samples);
      run_ranks(ranks, [&, samples = samples](ProcessGroup& group) {
        ScoredNet net = scored_net();
        StreamLoader loader(
            RowStream(scored_data(samples)),
            {.batch_size = 4, .workers = workers, .rank = group.rank(), .ranks = group.size()});
        for (int pass = 0; pass < 2; ++pass)
          expect_numbers(evaluated_numbers(group, net, loader), expected);
        EXPECT_EQ(evaluate(group,
                           net,
                           loader,
                           [](auto&, const auto& batch) { return batch.features.sum(1).mul(0); }),
                  0);
      });
    }
  }
}

std::vector<std::string> refusals(int ranks, const std::function<void(ProcessGroup&)>& body) {
  std::vector<std::string> said;
  for (const auto& failure : failures_of_ranks(ranks, body))
    said.push_back(message_of(failure));
  return said;
}

void evaluate_stream(ProcessGroup& group, StreamLoaderOptions options, bool begins_anew = true) {
  ScoredNet net = scored_net();
  StreamLoader loader(RowStream(scored_data(13)), options);
  if (!begins_anew)
    for (const auto& batch : loader)
      if (batch.last)
        break;
  evaluate(
      group, net, loader, [](auto& net, const auto& batch) { return net(batch.features).sum(1); });
}

TEST(EvaluateMetrics, AStreamThatDoesNotGiveEachExampleOnceIsRefusedOnEveryRank) {
  for (const std::string& said :
       refusals(2, [](ProcessGroup& group) { evaluate_stream(group, {.batch_size = 4}); }))
    EXPECT_THAT(said, HasSubstr("of 2, got part 0 of 1; make the loader by ctx.loader"));
  const auto of_rank = [](ProcessGroup& group) {
    return StreamLoaderOptions{.batch_size = 2, .rank = group.rank(), .ranks = group.size()};
  };
  for (const std::string& said : refusals(2, [&](ProcessGroup& group) {
         StreamLoaderOptions options = of_rank(group);
         options.drop_last = group.rank() == 1;
         evaluate_stream(group, options);
       }))
    EXPECT_THAT(said, HasSubstr("got one with drop_last"));
  for (const std::string& said : refusals(2, [&](ProcessGroup& group) {
         evaluate_stream(group, of_rank(group), /*begins_anew=*/false);
       }))
    EXPECT_THAT(said, HasSubstr("got one after 2 of its examples"));
}

TEST(EvaluateMetrics, ADividedModelNeedsAnExampleOfAStreamOnEveryRank) {
  for (const std::string& said : refusals(3, [](ProcessGroup& group) {
         FullySharded sharded(group);
         auto model = sharded.wrap(scored_net());
         StreamLoader loader(RowStream(scored_data(2)),
                             {.rank = group.rank(), .ranks = group.size()});
         evaluated_numbers(group, model, loader);
       }))
    EXPECT_THAT(said, HasSubstr("got a rank without any; take whole_parameters()"));
}

}  // namespace
}  // namespace muster::testing
