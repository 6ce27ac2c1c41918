// Normalisation over all ranks is BatchNorm's over the joined batch: outputs, running statistics,
// gradients.
#include "muster/ddp/sync_batch_norm.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "muster/base/error.h"
#include "muster/base/strings.h"
#include "muster/ddp/distributed_data_parallel.h"
#include "tests/ddp/small_models.h"
#include "tests/support/ranks.h"

namespace muster::testing {
namespace {

using ::testing::HasSubstr;

struct NormCase {
  std::vector<int64_t> shape;    // but the samples
  std::vector<int64_t> samples;  // of each rank
  torch::nn::BatchNormOptions options;
  at::ScalarType type = at::kDouble;
};

at::Tensor joined_input(const NormCase& of) {
  torch::manual_seed(4);
  std::vector<int64_t> sizes{0};
  for (const auto count : of.samples)
    sizes[0] += count;
  sizes.insert(sizes.end(), of.shape.begin(), of.shape.end());
  return (torch::randn(sizes, torch::kDouble) * 3 + 5).to(of.type);
}

at::Tensor part_of(const at::Tensor& all, const NormCase& of, int rank) {
  int64_t begin = 0;
  for (int i = 0; i < rank; ++i)
    begin += of.samples[static_cast<size_t>(i)];
  return all.slice(0, begin, begin + of.samples[static_cast<size_t>(rank)]).clone();
}

// The batch norm of one process, of any number of dimensions.
struct AnyNormImpl : torch::nn::BatchNormImplBase<2, AnyNormImpl> {
  using BatchNormImplBase::BatchNormImplBase;
  void _check_input_dim(const at::Tensor& /*input*/) override {}
};
TORCH_MODULE(AnyNorm);

template <class Norm>
void set_parameters(Norm& norm, at::ScalarType type) {
  norm->to(type);
  if (!norm->weight.defined())
    return;
  const torch::NoGradGuard no_grad;
  norm->weight.copy_(torch::linspace(0.5, 2, norm->weight.numel()));
  norm->bias.copy_(torch::linspace(-1, 1, norm->bias.numel()));
}

void expect_near(const at::Tensor& ours,
                 const at::Tensor& expected,
                 at::ScalarType type,
                 const std::string& what) {
  const double bound = type == at::kDouble ? 1e-11 : 2e-5;
  ASSERT_EQ(ours.sizes(), expected.sizes()) << what;
  EXPECT_TRUE(ours.allclose(expected, bound, bound))
      << what << ": " << (ours - expected).abs().max();
}

void expect_as_joined(const NormCase& of, const std::string& name) {
  const auto all = joined_input(of);
  const auto slopes = torch::rand_like(all) - 0.3;
  AnyNorm expected(of.options);
  set_parameters(expected, of.type);
  run_ranks(static_cast<int>(of.samples.size()), [&](ProcessGroup& group) {
    AnyNorm one(of.options);  // each rank its own: they are changed
    set_parameters(one, of.type);
    SyncBatchNorm norm(of.options, group);
    set_parameters(norm, of.type);
    for (int step = 0; step < 3; ++step) {
      auto whole = (all * (step + 1)).requires_grad_();
      auto mine = part_of(whole.detach(), of, group.rank()).requires_grad_();
      const auto wanted = one(whole);
      const auto got = norm(mine);
      wanted.backward(slopes);
      got.backward(part_of(slopes, of, group.rank()));
      expect_near(got, part_of(wanted, of, group.rank()), of.type, name + " output");
      expect_near(mine.grad(),
                  part_of(whole.grad(), of, group.rank()),
                  of.type,
                  name + " input's gradient");
    }
    if (norm->running_mean.defined()) {
      expect_near(norm->running_mean, one->running_mean, of.type, name + " running mean");
      expect_near(norm->running_var, one->running_var, of.type, name + " running variance");
    }
    if (norm->weight.defined()) {
      auto weight = norm->weight.grad().clone(), bias = norm->bias.grad().clone();
      group.all_reduce(weight);
      group.all_reduce(bias);
      expect_near(weight, one->weight.grad(), of.type, name + " weight's gradient");
      expect_near(bias, one->bias.grad(), of.type, name + " bias's gradient");
    }
    norm->eval();
    one->eval();
    expect_near(norm(part_of(all, of, group.rank())),
                part_of(one(all), of, group.rank()),
                of.type,
                name + " eval");
  });
}

TEST(SyncBatchNorm, IsBatchNormOverTheJoinedBatch) {
  using Options = torch::nn::BatchNormOptions;
  for (const auto type : {at::kDouble, at::kFloat}) {
    const auto name = std::string(c10::toString(type));
    expect_as_joined({{4}, {3, 3}, Options(4), type}, name + " 1d");
    expect_as_joined({{4, 5}, {2, 2}, Options(4), type}, name + " 1d sequence");
    expect_as_joined({{3, 4, 5}, {2, 5, 1}, Options(3), type}, name + " 2d uneven");
    expect_as_joined({{3, 2, 2, 2}, {2, 1}, Options(3), type}, name + " 3d");
    expect_as_joined({{4}, {3, 0, 2}, Options(4), type}, name + " no samples on rank 1");
    expect_as_joined({{4}, {1, 1}, Options(4), type}, name + " one sample a rank");
    expect_as_joined({{4}, {3, 2}, Options(4).momentum(std::nullopt), type}, name + " cumulative");
    expect_as_joined({{4}, {3, 2}, Options(4).momentum(0.7).eps(0.1), type},
                     name + " momentum and eps");
    expect_as_joined({{4}, {3, 2}, Options(4).affine(false), type}, name + " not affine");
    expect_as_joined({{4}, {3}, Options(4), type}, name + " one rank");
  }
}

// As a norm whose weight or bias is left out calls the operator.
TEST(SyncBatchNorm, NeedsNeitherAWeightNorABias) {
  const auto all = torch::randn({6, 4, 3}, torch::kDouble);
  const auto slopes = torch::rand_like(all);
  const auto share = [](const at::Tensor& of, int rank) {
    return of.slice(0, rank * 3, rank * 3 + 3);
  };
  for (const bool has_weight : {false, true}) {
    for (const bool has_bias : {false, true}) {
      const auto values = [](bool has) {
        return has ? torch::linspace(0.5, 2, 4, torch::kDouble).requires_grad_() : at::Tensor();
      };
      const auto whole = all.clone().requires_grad_();
      const auto weight = values(has_weight), bias = values(has_bias);
      torch::batch_norm(whole, weight, bias, {}, {}, true, 0.1, 1e-5, false).backward(slopes);
      run_ranks(2, [&](ProcessGroup& group) {
        auto mine = share(all, group.rank()).clone().requires_grad_();
        const SyncBatchNormTensors tensors{.weight = values(has_weight), .bias = values(has_bias)};
        sync_batch_norm(mine, tensors, 0.1, 1e-5, group).backward(share(slopes, group.rank()));
        expect_near(mine.grad(), share(whole.grad(), group.rank()), at::kDouble, "input");
        for (const auto& [own, expected] :
             {std::pair(tensors.weight, weight), {tensors.bias, bias}}) {
          if (!own.defined())
            continue;
          auto sum = own.grad().clone();
          group.all_reduce(sum);
          expect_near(sum, expected.grad(), at::kDouble, "weight or bias");
        }
      });
    }
  }
}

TEST(SyncBatchNorm, AConvertedNormNeedsNeitherAWeightNorABias) {
  const auto all = torch::randn({6, 4, 3}, torch::kDouble);
  const auto make = [](bool affine) {
    torch::nn::BatchNorm1d norm(torch::nn::BatchNormOptions(4).affine(affine));
    norm->to(torch::kDouble);
    norm->bias = at::Tensor();  // affine: a weight alone
    return norm;
  };
  for (const bool affine : {false, true}) {
    auto one = make(affine);
    const auto whole = all.clone().requires_grad_();
    one(whole).pow(3).sum().backward();
    run_ranks(2, [&](ProcessGroup& group) {
      auto norm = make(affine);
      convert_sync_batch_norm(*norm, group);
      auto mine = all.slice(0, group.rank() * 3, group.rank() * 3 + 3).clone().requires_grad_();
      norm(mine).pow(3).sum().backward();
      expect_near(mine.grad(),
                  whole.grad().slice(0, group.rank() * 3, group.rank() * 3 + 3),
                  at::kDouble,
                  "input");
      if (!affine)
        return;
      auto sum = norm->weight.grad().clone();
      group.all_reduce(sum);
      expect_near(sum, one->weight.grad(), at::kDouble, "weight");
    });
  }
}

// Samples in the order in which a channels_last convolution leaves them.
TEST(SyncBatchNorm, KeepsChannelsLast) {
  const auto both = torch::randn({2, 3, 4, 5}).contiguous(at::MemoryFormat::ChannelsLast);
  run_ranks(2, [&](ProcessGroup& group) {
    SyncBatchNorm norm(torch::nn::BatchNormOptions(3), group);
    auto x = both.detach().clone().requires_grad_();
    auto y = norm(x);
    EXPECT_TRUE(y.is_contiguous(at::MemoryFormat::ChannelsLast));
    (y * y).sum().backward();
    torch::nn::BatchNorm2d one(3);
    EXPECT_TRUE(y.allclose(one(x), 1e-5, 1e-5));  // both ranks have the same
  });
}

// Statistics are floats, and the output is rounded once.
TEST(SyncBatchNorm, TakesHalves) {
  for (const auto type : {at::kHalf, at::kBFloat16}) {
    const auto both = (torch::randn({6, 3, 5}) + 4).to(type);
    torch::nn::BatchNorm1d one(3);
    const auto expected = one(both.to(torch::kFloat));
    run_ranks(2, [&](ProcessGroup& group) {
      SyncBatchNorm norm(torch::nn::BatchNormOptions(3), group);
      auto x =
          both.slice(0, group.rank() * 3, group.rank() * 3 + 3).detach().clone().requires_grad_();
      const auto y = norm(x);
      EXPECT_EQ(y.scalar_type(), type);
      const auto wanted = expected.slice(0, group.rank() * 3, group.rank() * 3 + 3);
      EXPECT_TRUE(y.to(torch::kFloat).allclose(wanted, 1e-2, 1e-3));
      EXPECT_TRUE(norm->running_var.allclose(one->running_var, 1e-5, 1e-5));
      y.square().sum().backward();
      EXPECT_EQ(x.grad().scalar_type(), type);
    });
  }
}

struct BlockImpl : torch::nn::Module {
  explicit BlockImpl(int64_t channels)
      : conv(torch::nn::Conv2dOptions(1, channels, 3)), norm(channels) {
    register_module("conv", conv);
    register_module("norm", norm);
  }
  at::Tensor forward(const at::Tensor& x) { return torch::relu(norm(conv(x))); }
  torch::nn::Conv2d conv;
  torch::nn::BatchNorm2d norm;
};
TORCH_MODULE(Block);

struct NestedNormsImpl : torch::nn::Module {
  NestedNormsImpl() : block(3), head(torch::nn::BatchNorm1d(12), torch::nn::Linear(12, 5)) {
    register_module("block", block);
    register_module("head", head);
  }
  at::Tensor forward(const at::Tensor& x) { return head->forward(block(x).flatten(1)); }
  Block block;
  torch::nn::Sequential head;
};
TORCH_MODULE(NestedNorms);

NestedNorms seeded_nested_norms() {
  torch::manual_seed(6);
  return {};
}

TEST(ConvertSyncBatchNorm, TypedMembersAndSequentialsTrainAsOneProcessOnTheJoinedBatch) {
  torch::manual_seed(8);
  const auto x = torch::randn({12, 1, 4, 4}), y = torch::randint(5, {12});
  auto one = seeded_nested_norms();
  std::vector<NestedNorms> nets{
      seeded_nested_norms(), seeded_nested_norms(), seeded_nested_norms()};
  torch::optim::SGD optimizer(one->parameters(), 0.1);
  for (int step = 0; step < 4; ++step) {
    optimizer.zero_grad();
    torch::cross_entropy_loss(one(x * (1 + step)), y).backward();
    optimizer.step();
  }
  run_ranks(3, [&](ProcessGroup& group) {
    auto& net = nets[static_cast<size_t>(group.rank())];
    EXPECT_EQ(convert_sync_batch_norm(*net, group), 2);
    DistributedDataParallel model(net, group);
    torch::optim::SGD mine(model.parameters(), 0.1);
    for (int step = 0; step < 4; ++step) {
      mine.zero_grad();
      const int64_t begin = 4 * group.rank();
      torch::cross_entropy_loss(model(x.slice(0, begin, begin + 4) * (1 + step)),
                                y.slice(0, begin, begin + 4))
          .backward();
      mine.step();
    }
    EXPECT_TRUE(net->block->norm->running_var.allclose(one->block->norm->running_var, 1e-4, 1e-5));
    for (size_t i = 0; i < net->parameters().size(); ++i)
      EXPECT_TRUE(net->parameters()[i].allclose(one->parameters()[i], 1e-3, 1e-4)) << i;
  });
}

TEST(ConvertSyncBatchNorm, LeavesOthersEvalAndCopiesAlone) {
  run_ranks(2, [](ProcessGroup& group) {
    auto net = torch::nn::BatchNorm1d(3);
    EXPECT_EQ(convert_sync_batch_norm(*net, group), 1);
    const auto x = torch::randn({4, 3}) + group.rank();
    const auto is_local = [&](torch::nn::BatchNorm1dImpl& module) {
      torch::nn::BatchNorm1d plain(3);
      if (!module.is_training())
        plain->eval();
      return module.forward(x).allclose(plain(x), 1e-6, 1e-6);
    };
    auto copy = std::dynamic_pointer_cast<torch::nn::BatchNorm1dImpl>(net->clone());
    EXPECT_TRUE(is_local(*copy));
    torch::nn::BatchNorm1d other(3);
    EXPECT_TRUE(is_local(*other));
    net->eval();
    EXPECT_TRUE(is_local(*net));  // no collective: a rank alone may evaluate
    net->train();
    EXPECT_FALSE(is_local(*net));
    net->to(torch::kDouble);  // other memory, the same module
    EXPECT_NO_THROW(net(x.to(torch::kDouble)));
  });
}

// Statistics are collected anew by forwards in training mode, after weights were averaged.
TEST(ConvertSyncBatchNorm, CollectsTheStatisticsOfAllRanksInInferenceMode) {
  const auto x = torch::arange(24, torch::kFloat).reshape({8, 3}).square();
  torch::nn::BatchNorm1d one(3);
  const auto whole = one(x);
  run_ranks(2, [&](ProcessGroup& group) {
    torch::nn::BatchNorm1d net(3);
    convert_sync_batch_norm(*net, group);
    const c10::InferenceMode inference;
    const int64_t begin = 4 * group.rank();
    const auto output = net(x.slice(0, begin, begin + 4));
    EXPECT_TRUE(output.allclose(whole.slice(0, begin, begin + 4), 1e-4, 1e-5));
    EXPECT_TRUE(net->running_mean.allclose(one->running_mean, 1e-5, 1e-6));
    EXPECT_TRUE(net->running_var.allclose(one->running_var, 1e-5, 1e-6));
  });
}

TEST(ConvertSyncBatchNorm, NamesWhatItCannotKnow) {
  run_ranks(1, [](ProcessGroup& group) {
    torch::nn::Sequential net(torch::nn::BatchNorm1d(
        torch::nn::BatchNormOptions(3).affine(false).track_running_stats(false)));
    try {
      convert_sync_batch_norm(*net, group);
      ADD_FAILURE() << "no error";
    } catch (const Error& error) {
      EXPECT_THAT(error.message(), HasSubstr("got '0' with neither"));
    }
    torch::nn::Sequential none(torch::nn::Linear(2, 2));
    EXPECT_EQ(convert_sync_batch_norm(*none, group), 0);
  });
}

TEST(SyncBatchNorm, RefusesOnAllRanksWhatHasNoVariance) {
  const auto failures = failures_of_ranks(2, [](ProcessGroup& group) {
    SyncBatchNorm norm(torch::nn::BatchNormOptions(3), group);
    norm(torch::ones({group.rank(), 3}));
  });
  for (const auto& failure : failures)
    EXPECT_THAT(message_of(failure), HasSubstr("two values of a channel"));
  run_ranks(1, [](ProcessGroup& group) {
    SyncBatchNorm norm(torch::nn::BatchNormOptions(3), group);
    EXPECT_THROW(norm(torch::ones({3})), Error);
    auto x = torch::randn({4, 3}).requires_grad_();
    EXPECT_THROW(
        torch::autograd::grad({norm(x).square().sum()}, {x}, {}, {}, /*create_graph=*/true), Error);
  });
}

}  // namespace
}  // namespace muster::testing
