// Gradients that a program keeps over zero_grad(), as PCGrad and GradNorm do, stay as they were,
// although they came in the memory of the Reducer's buckets.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>

#include "muster/ddp/distributed_data_parallel.h"
#include "tests/ddp/small_models.h"
#include "tests/support/ranks.h"

namespace muster::testing {
namespace {

// What a program may keep of a gradient.
struct Keeping {
  const char* name;
  std::function<at::Tensor(const at::Tensor&)> keep;
};

const std::vector<Keeping>& keepings() {
  static const std::vector<Keeping> all = {
      {"a reference", [](const at::Tensor& gradient) { return gradient; }},
      {"detach()", [](const at::Tensor& gradient) { return gradient.detach(); }},
      {"flatten()", [](const at::Tensor& gradient) { return gradient.flatten(); }},
      {"a part", [](const at::Tensor& gradient) { return gradient.slice(0, 1); }},
      {"a transposed view", [](const at::Tensor& gradient) { return gradient.t(); }},
  };
  return all;
}

std::vector<at::Tensor> kept_of(const torch::nn::Module& net, const Keeping& keeping) {
  std::vector<at::Tensor> kept;
  for (const at::Tensor& parameter : net.parameters())
    kept.push_back(keeping.keep(parameter.grad()));
  return kept;
}

std::vector<at::Tensor> copies_of(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> copies;
  for (const at::Tensor& tensor : tensors)
    copies.push_back(tensor.clone());
  return copies;
}

void expect_same(const std::vector<at::Tensor>& kept,
                 const std::vector<at::Tensor>& copies,
                 const std::string& what) {
  for (size_t i = 0; i < kept.size(); ++i)
    EXPECT_TRUE(kept[i].equal(copies[i])) << what << ", parameter " << i;
}

const std::vector<DdpOptions>& all_options() {
  static const std::vector<DdpOptions> all = {{},
                                              {.find_unused_parameters = true},
                                              {.static_graph = true},
                                              {.gradient_as_bucket_view = false},
                                              {.bucket_cap_mb = 0.00001},
                                              {.hook = bf16_compression()}};
  return all;
}

class KeptGradients : public ::testing::TestWithParam<const char*> {
 protected:
  InitOptions over() const { return {.backend = GetParam()}; }
};

TEST_P(KeptGradients, StayAsTheyWere) {
  for (const DdpOptions& options : all_options()) {
    for (const Keeping& keeping : keepings()) {
      run_ranks(
          2,
          [&](ProcessGroup& group) {
            auto net = two_layers();
            DistributedDataParallel model(net, group, options);
            std::vector<at::Tensor> kept, copies;
            for (int step = 0; step < 6; ++step) {
              const auto loss = square_loss(model(batch_of(group.rank(), step)));
              drop_gradients(*net);  // where many programs have zero_grad()
              loss.backward();
              EXPECT_TRUE(same_everywhere(group, net->parameters()))
                  << keeping.name << ", step " << step;
              const auto now = kept_of(*net, keeping);
              const auto copied = copies_of(now);
              kept.insert(kept.end(), now.begin(), now.end());
              copies.insert(copies.end(), copied.begin(), copied.end());
            }
            expect_same(kept, copies, keeping.name);
          },
          over());
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Over,
                         KeptGradients,
                         ::testing::Values("shm", "gloo"),
                         [](const auto& info) { return std::string(info.param); });

// Adds up without zero_grad(): what is kept follows, as it does in one process.
TEST(KeptGradients, OfParametersThatStillHaveThemFollow) {
  auto alone = two_layers();
  for (int step = 0; step < 4; ++step)
    square_loss(alone->forward(torch::cat({batch_of(0, step), batch_of(1, step)}))).backward();
  std::vector<at::Tensor> expected;
  for (const at::Tensor& parameter : alone->parameters())
    expected.push_back(parameter.grad());
  run_ranks(2, [&](ProcessGroup& group) {
    auto net = two_layers();
    DistributedDataParallel model(net, group);
    std::vector<at::Tensor> kept;
    for (int step = 0; step < 4; ++step) {
      square_loss(model(batch_of(group.rank(), step))).backward();
      if (step == 1)
        kept = kept_of(*net, keepings()[1]);  // in the buckets that stay
    }
    expect_gradients(net->parameters(), expected);
    for (size_t i = 0; i < kept.size(); ++i)
      EXPECT_TRUE(kept[i].allclose(expected[i], 1e-5, 1e-6)) << i;
  });
}

// zero_grad(false) writes zeros to what is kept, as it does in one process.
TEST(KeptGradients, AreZeroedInPlaceAsInOneProcess) {
  run_ranks(2, [](ProcessGroup& group) {
    auto net = two_layers();
    DistributedDataParallel model(net, group);
    for (int step = 0; step < 3; ++step) {
      net->zero_grad(/*set_to_none=*/false);
      square_loss(model(batch_of(group.rank(), step))).backward();
    }
    const auto kept = kept_of(*net, keepings()[0]);
    net->zero_grad(/*set_to_none=*/false);
    for (const at::Tensor& gradient : kept)
      EXPECT_EQ(gradient.abs().sum().item<float>(), 0);
  });
}

// Two tasks whose gradients are projected onto each other's normal plane where they conflict.
void project(const torch::nn::Module& net, const std::function<void(int task)>& backward_of) {
  std::vector<std::vector<at::Tensor>> of_tasks;
  for (const int task : {0, 1}) {
    drop_gradients(net);
    backward_of(task);
    of_tasks.push_back(kept_of(net, keepings()[0]));
  }
  const auto parameters = net.parameters();
  for (size_t i = 0; i < parameters.size(); ++i) {
    const auto &a = of_tasks[0][i], &b = of_tasks[1][i];
    const auto product = (a * b).sum();
    const auto conflict = product.clamp_max(0);
    parameters[i].mutable_grad() =
        a - conflict / b.square().sum() * b + b - conflict / a.square().sum() * a;
  }
}

at::Tensor loss_of_task(const at::Tensor& output, int task) {
  return (output.select(1, task) - 3 * task).square().mean();
}

TEST(KeptGradients, OfTwoTasksAreProjectedAsInOneProcess) {
  const auto train = [](torch::nn::Sequential& net,
                        auto& model,
                        const std::function<at::Tensor(int)>& batch) {
    torch::optim::SGD optimizer(net->parameters(), 0.01);
    for (int step = 0; step < 4; ++step) {
      project(*net, [&](int task) { loss_of_task(model->forward(batch(step)), task).backward(); });
      optimizer.step();
    }
  };
  const auto start = [] {
    auto net = two_layers();
    const torch::NoGradGuard no_grad;
    for (auto& parameter : net->parameters())
      parameter.copy_(torch::sin(torch::arange(parameter.numel())).view_as(parameter));
    return net;
  };
  const auto share = [](int rank, int step) {
    return torch::cos(batch_of(rank, step));
  };
  auto alone = start();
  train(alone, alone, [&](int step) { return torch::cat({share(0, step), share(1, step)}); });
  run_ranks(2, [&](ProcessGroup& group) {
    auto net = start();
    DistributedDataParallel model(net, group);
    auto* wrapped = &model;
    train(net, wrapped, [&](int step) { return share(group.rank(), step); });
    const auto expected = alone->parameters(), got = net->parameters();
    for (size_t i = 0; i < got.size(); ++i)
      EXPECT_TRUE(got[i].allclose(expected[i], 1e-5, 1e-6)) << i;
  });
}

}  // namespace
}  // namespace muster::testing
