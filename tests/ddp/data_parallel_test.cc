// Several replicas in one process have the outputs and gradients of one device.
#include "muster/ddp/data_parallel.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <sstream>
#include <thread>

#include "muster/base/error.h"
#include "tests/support/times.h"

namespace muster::testing {
namespace {

using ::testing::HasSubstr;

const std::vector<c10::Device> kThreeSlots{torch::kCPU, torch::kCPU, torch::kCPU};

torch::nn::Sequential replicated_net() {
  torch::manual_seed(5);
  return torch::nn::Sequential(torch::nn::Linear(4, 6), torch::nn::Tanh(), torch::nn::Linear(6, 3));
}

TEST(DataParallel, TrainsAsOneDevice) {
  auto one = replicated_net(), several = replicated_net();
  DataParallel model(several, kThreeSlots);
  torch::optim::SGD a(one->parameters(), 0.1), b(several->parameters(), 0.1);
  for (int step = 0; step < 5; ++step) {
    const auto x = torch::randn({step == 4 ? 2 : 8, 4})
                       .requires_grad_();  // the last batch is for two of three
    auto same = x.detach().clone().requires_grad_();
    a.zero_grad();
    b.zero_grad();
    const auto expected = one->forward(x), got = model(same);
    EXPECT_TRUE(got.allclose(expected, 1e-5, 1e-6));
    expected.square().sum().backward();
    got.square().sum().backward();
    EXPECT_TRUE(same.grad().allclose(x.grad(), 1e-5, 1e-6));
    for (size_t i = 0; i < one->parameters().size(); ++i)
      EXPECT_TRUE(several->parameters()[i].grad().allclose(one->parameters()[i].grad(), 1e-5, 1e-6))
          << i;
    a.step();
    b.step();
  }
  EXPECT_TRUE(several->parameters()[0].is_leaf());
}

TEST(DataParallel, TrainsValuesOfTorchLoadAsOneDevice) {
  auto one = replicated_net(), several = replicated_net();
  DataParallel model(several, kThreeSlots);
  torch::optim::Adam a(one->parameters(), 0.1), b(several->parameters(), 0.1);
  const auto load_other = [](torch::nn::Sequential& net, double scale) {
    auto other = replicated_net();
    const torch::NoGradGuard no_grad;
    for (auto& parameter : other->parameters())
      parameter.mul_(scale);
    std::stringstream file;
    torch::save(other, file);
    torch::load(net, file);
  };
  for (int step = 0; step < 5; ++step) {
    if (step == 0 || step == 2) {
      load_other(one, 0.5 + step);
      load_other(several, 0.5 + step);
    }
    const auto x = torch::randn({8, 4});
    a.zero_grad();
    b.zero_grad();
    const auto expected = one->forward(x).square().mean(), got = model(x).square().mean();
    EXPECT_TRUE(got.allclose(expected, 1e-5, 1e-6)) << step;
    expected.backward();
    got.backward();
    a.step();
    b.step();
  }
  for (size_t i = 0; i < one->parameters().size(); ++i)
    EXPECT_TRUE(several->parameters()[i].allclose(one->parameters()[i], 1e-4, 1e-5)) << i;
}

TEST(DataParallel, FollowsFrozenParametersModesAndNoGrad) {
  auto net = replicated_net();
  DataParallel model(net, kThreeSlots);
  const auto x = torch::randn({6, 4});
  model(x).sum().backward();
  for (auto& parameter : net->parameters())
    parameter.mutable_grad().reset();
  net->parameters()[0].set_requires_grad(false);
  model(x).sum().backward();
  EXPECT_FALSE(net->parameters()[0].grad().defined());
  EXPECT_TRUE(net->parameters()[1].grad().defined());
  net->parameters()[0].set_requires_grad(true);
  model(x).sum().backward();
  EXPECT_TRUE(net->parameters()[0].grad().defined());
  const torch::NoGradGuard no_grad;
  EXPECT_FALSE(model(x).requires_grad());
}

struct TwoResultsImpl : torch::nn::Cloneable<TwoResultsImpl> {
  void reset() override {
    norm = register_module("norm", torch::nn::BatchNorm1d(4));
    drop = register_module("drop", torch::nn::Dropout(0.5));
  }
  TwoResultsImpl() { TwoResultsImpl::reset(); }
  std::pair<at::Tensor, std::vector<at::Tensor>> forward(const at::Tensor& x, double scale) {
    if (x.size(1) != 4)
      throw std::runtime_error("four columns");
    return {drop(norm(x)) * scale, {x.sum(), x.sum(1)}};
  }
  torch::nn::BatchNorm1d norm{nullptr};
  torch::nn::Dropout drop{nullptr};
};
TORCH_MODULE(TwoResults);

TEST(DataParallel, JoinsNestedResultsAndKeepsTheFirstPartsStatistics) {
  TwoResults net;
  DataParallel model(net, kThreeSlots);
  const auto x = torch::randn({6, 4});
  const auto [y, sums] = model(x, 2.0);
  EXPECT_EQ(y.sizes(), at::IntArrayRef({6, 4}));
  EXPECT_EQ(sums[0].numel(), 3);
  EXPECT_TRUE(sums[1].allclose(x.sum(1)));
  EXPECT_TRUE(net->norm->running_mean.allclose(x.slice(0, 0, 2).mean(0) * 0.1, 1e-5, 1e-6));
  net->eval();
  EXPECT_TRUE(model(x, 2.0).first.allclose(net->forward(x, 2.0).first));
}

struct WarmedImpl : torch::nn::Cloneable<WarmedImpl> {
  void reset() override {
    fc = register_module("fc", torch::nn::Linear(4, 4));
    drop = register_module("drop", torch::nn::Dropout(0.0));
  }
  WarmedImpl() { WarmedImpl::reset(); }
  at::Tensor forward(const at::Tensor& x) { return drop(fc(x)) * temperature; }
  torch::nn::Linear fc{nullptr};
  torch::nn::Dropout drop{nullptr};
  double temperature = 1;
};
TORCH_MODULE(Warmed);

// What a program changes beside parameters counts for all parts of the batch.
TEST(DataParallel, FollowsMembersAndOptionsOfTheModel) {
  Warmed net;
  DataParallel model(net, kThreeSlots);
  const auto x = torch::randn({6, 4});
  model(x);
  net->temperature = 3;
  EXPECT_TRUE(model(x).allclose(net(x)));
  net->drop->options.p(1.0);
  EXPECT_EQ(model(x).count_nonzero().item<int64_t>(), 0);
  DataParallel once(net, kThreeSlots, {.copies_once = true});
  once(x);
  net->drop->options.p(0.0);
  EXPECT_EQ(once(x).slice(0, 2).count_nonzero().item<int64_t>(), 0);
}

// The new module has as many tensors as the old one: none.
TEST(DataParallel, CopiesThatAreKeptFollowAReplacedModule) {
  Warmed net;
  DataParallel model(net, kThreeSlots, {.copies_once = true});
  const auto x = torch::randn({6, 4});
  EXPECT_NE(model(x).count_nonzero().item<int64_t>(), 0);
  net->drop = net->replace_module("drop", torch::nn::Dropout(1.0));
  EXPECT_EQ(model(x).count_nonzero().item<int64_t>(), 0);
}

TEST(DataParallel, DrawsNoRandomNumbers) {
  Warmed net;
  DataParallel model(net, kThreeSlots);
  const auto x = torch::randn({6, 4});
  torch::manual_seed(3);
  const auto expected = torch::rand({4});
  torch::manual_seed(3);
  model(x);
  EXPECT_TRUE(torch::rand({4}).equal(expected));
}

// While the replicas are made, another thread of the program draws: its numbers come once, and are
// those that it draws alone.
struct DrawnBesideImpl : torch::nn::Cloneable<DrawnBesideImpl> {
  void reset() override {
    fc = register_module("fc", torch::nn::Linear(4, 4));
    if (beside)
      std::thread([this] { drawn->push_back(torch::rand({4})); }).join();
    torch::randperm(3);
    torch::bernoulli(torch::rand({4}));
  }
  explicit DrawnBesideImpl(std::vector<at::Tensor>* with) : drawn(with) {
    DrawnBesideImpl::reset();
    beside = true;
  }
  at::Tensor forward(const at::Tensor& x) { return fc(x); }
  torch::nn::Linear fc{nullptr};
  std::vector<at::Tensor>* drawn;
  bool beside = false;
};
TORCH_MODULE(DrawnBeside);

TEST(DataParallel, TakesNoNumbersOfOtherThreads) {
  std::vector<at::Tensor> drawn;
  DrawnBeside net(&drawn);
  DataParallel model(net, kThreeSlots);
  const auto x = torch::randn({6, 4});
  torch::manual_seed(3);
  const auto expected = torch::rand({3, 4});
  torch::manual_seed(3);
  EXPECT_TRUE(model(x).allclose(net(x)));
  drawn.push_back(torch::rand({4}));
  EXPECT_TRUE(torch::stack(drawn).equal(expected));
}

struct MoreThanATensor : at::Tensor {
  explicit MoreThanATensor(at::Tensor tensor) : at::Tensor(std::move(tensor)) {}
  int64_t samples = 6;
};

// As a Batch of tensors is one.
TEST(DataParallel, DividesWhatDerivesFromATensor) {
  Warmed net;
  DataParallel model(net, kThreeSlots);
  const MoreThanATensor x(torch::randn({6, 4}));
  EXPECT_TRUE(model(x).allclose(net(x)));
}

struct ShiftedTwiceImpl : torch::nn::Cloneable<ShiftedTwiceImpl> {
  void reset() override {}
  at::Tensor forward(const at::Tensor& x, const std::vector<at::Tensor>& shifts) {
    return x + shifts[0] + shifts[1];
  }
};
TORCH_MODULE(ShiftedTwice);

TEST(DataParallel, GivesEachReplicaAWholeVector) {
  ShiftedTwice net;
  DataParallel model(net, kThreeSlots);
  const auto x = torch::randn({6, 4});
  const std::vector<at::Tensor> shifts{torch::randn({4}), torch::randn({4})};
  EXPECT_TRUE(model(x, shifts).equal(net(x, shifts)));
}

// A weight that the last layer has from the first by assignment, and a bias that nothing has
// registered.
struct TiedByMemberImpl : torch::nn::Cloneable<TiedByMemberImpl> {
  void reset() override {
    embed = register_module("embed", torch::nn::Embedding(6, 4));
    head = register_module("head", torch::nn::Linear(4, 6));
  }
  TiedByMemberImpl() { TiedByMemberImpl::reset(); }
  at::Tensor forward(const at::Tensor& x) { return head(embed(x)); }
  torch::nn::Embedding embed{nullptr};
  torch::nn::Linear head{nullptr};
};
TORCH_MODULE(TiedByMember);

TiedByMember tied_by_member() {
  torch::manual_seed(4);
  TiedByMember net;
  net->head->weight = net->embed->weight;
  net->head->bias = torch::linspace(-1, 1, 6).requires_grad_();
  return net;
}

TEST(DataParallel, KeepsTiesByAssignmentOfMembers) {
  for (const bool once : {false, true}) {
    auto one = tied_by_member(), several = tied_by_member();
    DataParallel model(several, kThreeSlots, {.copies_once = once});
    torch::optim::SGD a({one->embed->weight, one->head->bias}, 0.1);
    torch::optim::SGD b({several->embed->weight, several->head->bias}, 0.1);
    for (int step = 0; step < 3; ++step) {
      const auto x = torch::arange(6);
      a.zero_grad();
      b.zero_grad();
      const auto expected = one(x), got = model(x);
      EXPECT_TRUE(got.allclose(expected, 1e-5, 1e-6));
      expected.square().mean().backward();
      got.square().mean().backward();
      EXPECT_TRUE(several->embed->weight.grad().allclose(one->embed->weight.grad(), 1e-5, 1e-6));
      EXPECT_TRUE(several->head->bias.grad().allclose(one->head->bias.grad(), 1e-5, 1e-6));
      EXPECT_FALSE(several->named_parameters()["head.weight"].grad().defined());
      a.step();
      b.step();
    }
  }
}

// Cells of a kind with one recurrent weight.
template <class Cell>
struct TiedCells : torch::nn::Cloneable<TiedCells<Cell>> {
  void reset() override {
    one = this->register_module("one", Cell(4, 4));
    other = this->register_module("other", Cell(4, 4));
  }
  TiedCells() { TiedCells::reset(); }
  static at::Tensor state_of(const at::Tensor& output) { return output; }
  static at::Tensor state_of(const std::tuple<at::Tensor, at::Tensor>& output) {
    return std::get<0>(output);
  }
  at::Tensor forward(const at::Tensor& x) {
    return state_of(other->forward(x)) + state_of(one->forward(x));
  }
  Cell one{nullptr}, other{nullptr};
};

template <class Cell>
void expect_tied_cells() {
  torch::manual_seed(5);
  torch::nn::ModuleHolder<TiedCells<Cell>> net;
  net->other->weight_ih = net->one->weight_ih;
  DataParallel model(net, kThreeSlots);
  const auto x = torch::randn({6, 4});
  EXPECT_TRUE(model(x).allclose(net->forward(x), 1e-5, 1e-6));
}

TEST(DataParallel, KeepsTiesOfRecurrentCells) {
  expect_tied_cells<torch::nn::RNNCell>();
  expect_tied_cells<torch::nn::LSTMCell>();
  expect_tied_cells<torch::nn::GRUCell>();
}

// A class of one's own, whose members nobody knows but itself.
struct OwnHeadImpl : torch::nn::Cloneable<OwnHeadImpl> {
  void reset() override { weight = register_parameter("weight", torch::ones({6, 4})); }
  OwnHeadImpl() { OwnHeadImpl::reset(); }
  at::Tensor forward(const at::Tensor& x) { return torch::linear(x, weight); }
  at::Tensor weight;
};
TORCH_MODULE(OwnHead);

struct OwnHeadedImpl : torch::nn::Cloneable<OwnHeadedImpl> {
  void reset() override {
    embed = register_module("embed", torch::nn::Embedding(6, 4));
    head = register_module("head", OwnHead());
  }
  OwnHeadedImpl() { OwnHeadedImpl::reset(); }
  at::Tensor forward(const at::Tensor& x) { return head(embed(x)); }
  torch::nn::Embedding embed{nullptr};
  OwnHead head{nullptr};
};
TORCH_MODULE(OwnHeaded);

TEST(DataParallel, WarnsOnceOfATieThatCopiesLose) {
  for (const bool is_tied : {true, false}) {
    OwnHeaded net;
    if (is_tied)
      net->head->weight = net->embed->weight;
    DataParallel model(net, kThreeSlots);
    ::testing::internal::CaptureStderr();
    for (int i = 0; i < 2; ++i)
      model(torch::arange(6)).sum().backward();
    const std::string printed = ::testing::internal::GetCapturedStderr();
    EXPECT_EQ(times(printed, "got 'head.weight' in the place of 'embed.weight' on every device"),
              is_tied ? 1U : 0U)
        << printed;
  }
}

// Samples that take other ways use other experts: no tie is lost.
struct OwnExpertsImpl : torch::nn::Cloneable<OwnExpertsImpl> {
  void reset() override {
    one = register_module("one", torch::nn::Linear(4, 4));
    other = register_module("other", torch::nn::Linear(4, 4));
  }
  OwnExpertsImpl() { OwnExpertsImpl::reset(); }
  at::Tensor forward(const at::Tensor& x) { return x.sum().item<double>() > 0 ? one(x) : other(x); }
  torch::nn::Linear one{nullptr}, other{nullptr};
};
TORCH_MODULE(OwnExperts);

TEST(DataParallel, SaysNothingOfPartsThatUseOtherParameters) {
  OwnExperts net;
  DataParallel model(net, {torch::kCPU, torch::kCPU});
  const auto x = torch::cat({torch::ones({2, 4}), -torch::ones({2, 4})});
  ::testing::internal::CaptureStderr();
  model(x).sum().backward();
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
}

TEST(DataParallel, NamesTheReplicaThatFails) {
  TwoResults net;
  DataParallel model(net, kThreeSlots);
  try {
    model(torch::randn({6, 3}), 1.0);
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_THAT(error.message(), HasSubstr("replica 0 on cpu: four columns"));
  }
  EXPECT_THROW(DataParallel(net, {}), Error);
  EXPECT_THROW(DataParallel(net, {torch::kMeta}), Error);
}

}  // namespace
}  // namespace muster::testing
