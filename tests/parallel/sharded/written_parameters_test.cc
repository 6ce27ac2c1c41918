// Values that a program writes where other ranks do not get them. A forward that changes parameters
// of its own fully sharded module, as one that moves a teacher towards its student, writes to
// gathered memory, which goes. Parts of a sharded optimizer are this rank's alone until a step.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <string>
#include <vector>

#include "muster/parallel/sharded/fully_sharded.h"
#include "muster/parallel/sharded/sharded_optimizer.h"
#include "tests/parallel/sharded/models.h"
#include "tests/support/ranks.h"

namespace muster::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using torch::optim::SGD;

struct WithTeacherImpl : torch::nn::Module {
  explicit WithTeacherImpl(bool moves_) : moves(moves_) {
    register_module("student", student);
    register_module("teacher", teacher);
    teacher->weight.requires_grad_(false);
  }
  void move_teacher() {
    const torch::NoGradGuard no_grad;
    teacher->weight.lerp_(student->weight, 0.5);
  }
  at::Tensor forward(const at::Tensor& x) {
    if (moves)
      move_teacher();
    return student(x) - teacher(x);
  }
  bool moves;
  torch::nn::Linear student{torch::nn::LinearOptions(13, 5).bias(false)},
      teacher{torch::nn::LinearOptions(13, 5).bias(false)};
};
TORCH_MODULE(WithTeacher);

WithTeacher with_teacher(bool moves) {
  const std::lock_guard lock(generator_mutex());
  torch::manual_seed(3);
  return WithTeacher(moves);
}

TEST(WrittenInForward, AParameterIsRefused) {
  const auto failures = failures_of_ranks(2, [](ProcessGroup& group) {
    FullySharded sharded(group);
    auto model = sharded.wrap(with_teacher(true));
    model(torch::ones({2, 13}));
  });
  for (const auto& failure : failures)
    EXPECT_THAT(
        message_of(failure),
        AllOf(HasSubstr("got a change of 'teacher.weight'"), HasSubstr("whole_parameters()")));
}

TEST(WrittenInForward, OneThatIsMovedWhileWholeTrainsAsOneProcess) {
  auto expected = with_teacher(true);
  SGD plain(expected->student->parameters(), 0.1);
  for (int64_t step = 0; step < 3; ++step) {
    plain.zero_grad();
    expected(mlp_batch(step).x).square().mean().backward();
    plain.step();
  }
  run_ranks(2, [&](ProcessGroup& group) {
    auto net = with_teacher(false);
    FullySharded sharded(group);
    auto model = sharded.wrap(net);
    SGD optimizer(sharded.parameters(), 0.1);
    for (int64_t step = 0; step < 3; ++step) {
      {
        const auto whole = sharded.whole_parameters();
        net->move_teacher();
      }
      optimizer.zero_grad();
      model(mlp_batch(step).of(group.rank(), 2).x).square().mean().backward();
      optimizer.step();
    }
    const auto whole = sharded.whole_parameters();
    EXPECT_TRUE(torch::allclose(net->teacher->weight, expected->teacher->weight, 1e-5, 1e-6));
  });
}

struct RowsImpl : torch::nn::Module {
  RowsImpl() { register_module("rows", rows); }
  at::Tensor forward(const at::Tensor& x) { return rows(x); }
  torch::nn::Embedding rows{torch::nn::EmbeddingOptions(7, 3).max_norm(0.5)};
};
TORCH_MODULE(Rows);

TEST(WrittenInForward, AnEmbeddingWithMaxNormOnlyIsWarnedOf) {
  run_ranks(2, [](ProcessGroup& group) {
    const auto rows = [] {
      const std::lock_guard lock(generator_mutex());
      torch::manual_seed(4);
      return Rows();
    };
    FullySharded sharded(group);
    auto model = sharded.wrap(rows());
    model(torch::arange(7)).sum().backward();
  });
}

// As sharpness-aware training does: `move` changes weights between a step and a backward.
std::vector<std::string> said_of_moved(
    const std::function<void(torch::nn::Sequential&, torch::optim::Optimizer&)>& move) {
  const auto failures = failures_of_ranks(2, [&](ProcessGroup& group) {
    auto net = sharded_mlp();
    ShardedOptimizer<SGD> optimizer(net->parameters(), 0.1, group, {.gradients = true});
    for (int64_t step = 0; step < 2; ++step) {
      const ShardedBatch batch = mlp_batch(step).of(group.rank(), 2);
      optimizer.zero_grad();
      sharded_loss(net->forward(batch.x), batch.y).backward();
      optimizer.step();
      const torch::NoGradGuard no_grad;
      move(net, optimizer);
    }
  });
  return {message_of(failures[0]), message_of(failures[1])};
}

TEST(WrittenParts, BeforeABackwardAreRefused) {
  const auto said = said_of_moved([](torch::nn::Sequential&, torch::optim::Optimizer& optimizer) {
    for (at::Tensor& part : optimizer.param_groups()[0].params())
      part.mul_(0.5);
  });
  for (const std::string& text : said)
    EXPECT_THAT(text, HasSubstr("got ones that were changed since"));
}

TEST(WrittenParts, OfTheNetOnAllRanksAreNot) {
  const auto said = said_of_moved([](torch::nn::Sequential& net, torch::optim::Optimizer&) {
    for (at::Tensor& parameter : net->parameters())
      parameter.mul_(0.5);
  });
  for (const std::string& text : said)
    EXPECT_EQ(text, "");
}

}  // namespace
}  // namespace muster::testing
