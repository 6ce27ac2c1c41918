#include "muster/checkpoint/optimizer_state.h"

#include <gmock/gmock.h>

#include "muster/base/error.h"
#include "tests/checkpoint/model.h"
#include "tests/data/files.h"

namespace muster {
namespace {

using test::message_of;
using test::SmallModel;
using ::testing::AllOf;
using ::testing::HasSubstr;
using Maker = std::function<std::unique_ptr<torch::optim::Optimizer>(SmallModel&)>;

// Two groups, the second with another learning rate.
template <class Optimizer, class Options>
Maker maker(const Options& options) {
  return [options](SmallModel& model) -> std::unique_ptr<torch::optim::Optimizer> {
    auto second = options;
    second.lr(options.lr() / 2);
    std::vector<torch::optim::OptimizerParamGroup> groups;
    groups.emplace_back(model->first->parameters(), std::make_unique<Options>(options));
    auto rest = model->last->parameters();
    for (const auto& parameter : model->norm->parameters())
      rest.push_back(parameter);
    rest.push_back(model->unused);
    groups.emplace_back(rest, std::make_unique<Options>(second));
    return std::make_unique<Optimizer>(groups, options);
  };
}

struct Case {
  std::string name;
  Maker make;
};
std::ostream& operator<<(std::ostream& out, const Case& c) {
  return out << c.name;
}

std::vector<Case> cases() {
  using namespace torch::optim;
  return {
      {"Sgd", maker<SGD>(SGDOptions(0.1))},
      {"SgdMomentum", maker<SGD>(SGDOptions(0.1).momentum(0.9).weight_decay(1e-3).nesterov(true))},
      {"Adam", maker<Adam>(AdamOptions(0.01).betas({0.8, 0.99}))},
      {"AdamAmsgrad", maker<Adam>(AdamOptions(0.01).amsgrad(true))},
      {"AdamW", maker<AdamW>(AdamWOptions(0.01).weight_decay(0.05))},
      {"Rmsprop", maker<RMSprop>(RMSpropOptions(0.01))},
      {"RmspropAll", maker<RMSprop>(RMSpropOptions(0.01).momentum(0.5).centered(true).alpha(0.9))},
      {"Adagrad",
       maker<Adagrad>(AdagradOptions(0.05).lr_decay(0.01).initial_accumulator_value(0.1))},
  };
}

class EachOptimizer : public ::testing::TestWithParam<Case> {};

// Saved in the middle and gone on with from the files, training ends with the same bits as in one
// go.
TEST_P(EachOptimizer, ResumedEqualsUninterruptedBitForBit) {
  const test::TempFolder folder;
  torch::manual_seed(1);
  SmallModel model;
  const auto optimizer = GetParam().make(model);
  test::train(model, *optimizer, 1, 5);
  save_checkpoint({.directory = folder.path()}, {*model, optimizer.get()}, {.step = 5});
  test::train(model, *optimizer, 6, 10);

  SmallModel other;
  const auto resumed = GetParam().make(other);
  for (auto& group : resumed->param_groups())
    group.options().set_lr(123);  // the saved one comes back
  test::train(other, *resumed, 90, 92);
  ASSERT_TRUE(load_latest_checkpoint(folder.path(), {*other, resumed.get()}));
  EXPECT_EQ(resumed->param_groups()[1].options().get_lr(),
            optimizer->param_groups()[1].options().get_lr());
  test::train(other, *resumed, 6, 10);
  EXPECT_TRUE(test::same(test::copies(*model), test::copies(*other)));
}

// Before the first step there is little or no state; that is a state too.
TEST_P(EachOptimizer, ASavedBeginningIsABeginning) {
  torch::manual_seed(2);
  SmallModel model;
  const auto optimizer = GetParam().make(model);
  const auto snapshot = snapshot_optimizer(*model, *optimizer);
  auto saved = snapshot;
  for (auto& [name, tensor] : saved.tensors)
    tensor = tensor.clone();
  const auto start = test::copies(*model);
  test::train(model, *optimizer, 1, 3);
  const auto expected = test::copies(*model);

  restore_optimizer(*model, *optimizer, saved);
  const auto tensors = model_tensors(*model);
  {
    const torch::NoGradGuard no_grad;
    for (size_t i = 0; i < tensors.size(); ++i)
      tensors[i].second.copy_(start[i]);
  }
  test::train(model, *optimizer, 1, 3);
  EXPECT_TRUE(test::same(test::copies(*model), expected));
}

INSTANTIATE_TEST_SUITE_P(All, EachOptimizer, ::testing::ValuesIn(cases()), [](const auto& info) {
  return info.param.name;
});

class OptimizerState : public ::testing::Test {
 protected:
  void SetUp() override {
    test::train(model_, adam_, 1, 2);
    snapshot_ = snapshot_optimizer(*model_, adam_);
  }
  std::string refusal(torch::optim::Optimizer& optimizer) {
    return message_of([&] { restore_optimizer(*model_, optimizer, snapshot_); });
  }

  SmallModel model_{8};
  torch::optim::Adam adam_{model_->parameters(), torch::optim::AdamOptions(0.01)};
  OptimizerSnapshot snapshot_;
};

// One that nobody but its user knows.
struct OwnOptimizer : torch::optim::Optimizer {
  explicit OwnOptimizer(const std::vector<torch::Tensor>& parameters)
      : Optimizer({torch::optim::OptimizerParamGroup(parameters)},
                  std::make_unique<torch::optim::SGDOptions>(0.1)) {}
  torch::Tensor step(LossClosure) override { return {}; }
};

// Of a curved loss, so that the history counts.
double lbfgs_step(torch::nn::Linear& net, torch::optim::LBFGS& optimizer, int step) {
  const auto x = torch::linspace(-1, 1, 12).reshape({4, 3}) * (1 + 0.1 * step);
  const auto closure = [&] {
    optimizer.zero_grad();
    auto loss = (net(x).exp() - x.slice(1, 0, 2)).square().mean();
    loss.backward();
    return loss;
  };
  return optimizer.step(closure).item<double>();
}

TEST(LbfgsState, ResumedEqualsUninterruptedBitForBit) {
  for (const bool searches : {false, true}) {
    for (const int before : {0, 1, 3}) {
      torch::optim::LBFGSOptions options(0.3);
      options.max_iter(4).history_size(3);
      if (searches)
        options.line_search_fn("strong_wolfe");
      torch::nn::Linear net(3, 2), other(3, 2);
      test::fill(*net, 0.1);
      torch::optim::LBFGS optimizer(net->parameters(), options), resumed(other->parameters(), 1);
      for (int step = 0; step < before; ++step)
        lbfgs_step(net, optimizer, step);
      const test::TempFolder folder;
      save_checkpoint({.directory = folder.path()}, {*net, &optimizer}, {.step = before});
      load_latest_checkpoint(folder.path(), {*other, &resumed});
      for (int step = before; step < before + 4; ++step)
        EXPECT_EQ(lbfgs_step(net, optimizer, step), lbfgs_step(other, resumed, step))
            << before << ' ' << step;
      EXPECT_TRUE(torch::equal(net->weight, other->weight));
    }
  }
}

TEST(LbfgsState, RefusesWhatDoesNotFitAndChangesNothing) {
  torch::nn::Linear net(3, 2), larger(4, 2);
  torch::optim::LBFGS optimizer(net->parameters(), 0.3);
  lbfgs_step(net, optimizer, 0);
  OptimizerSnapshot snapshot = snapshot_optimizer(*net, optimizer);
  torch::optim::LBFGS other(larger->parameters(), 1);
  EXPECT_THAT(test::message_of([&] { restore_optimizer(*larger, other, snapshot); }),
              HasSubstr("of shape [10]"));
  torch::optim::Adam adam(net->parameters(), 1);
  EXPECT_THAT(test::message_of([&] { restore_optimizer(*net, adam, snapshot); }),
              HasSubstr("the state of Adam"));
  snapshot.tensors.erase("lbfgs.ro.0");
  torch::optim::LBFGS same(net->parameters(), 1);
  EXPECT_THAT(test::message_of([&] { restore_optimizer(*net, same, snapshot); }),
              HasSubstr("only a whole state"));
  EXPECT_TRUE(same.state().empty());
}

TEST_F(OptimizerState, IsNamedByParameter) {
  EXPECT_TRUE(snapshot_.tensors.contains("first.weight.exp_avg"));
  EXPECT_EQ(snapshot_.tensors.at("last.bias.step").item<int64_t>(), 2);
  EXPECT_FALSE(snapshot_.tensors.contains("unused.exp_avg"));
  EXPECT_THAT(snapshot_.description,
              AllOf(HasSubstr(R"("kind":"Adam")"), HasSubstr(R"("lr":0.01)")));
}

TEST_F(OptimizerState, RefusesAnotherKind) {
  torch::optim::SGD sgd(model_->parameters(), 0.1);
  EXPECT_THAT(refusal(sgd), AllOf(HasSubstr("the state of SGD"), HasSubstr("\"Adam\"")));
  torch::optim::AdamW adamw(model_->parameters());
  EXPECT_THAT(refusal(adamw), HasSubstr("the state of AdamW"));
  OwnOptimizer own(model_->parameters());
  EXPECT_THAT(message_of([&] { snapshot_optimizer(*model_, own); }),
              HasSubstr("got muster::(anonymous namespace)::OwnOptimizer"));
}

TEST_F(OptimizerState, RefusesAWrongShapeNamingBoth) {
  snapshot_.tensors["first.weight.exp_avg"] = torch::zeros({16, 4});
  EXPECT_THAT(refusal(adam_),
              AllOf(HasSubstr("F32[8, 4] 'first.weight.exp_avg'"), HasSubstr("got F32[16, 4]")));
  snapshot_.tensors["first.weight.exp_avg"] = torch::zeros({8, 4}, torch::kFloat64);
  EXPECT_THAT(refusal(adam_), HasSubstr("got F64[8, 4]"));
  snapshot_.tensors.erase("first.weight.exp_avg");
  EXPECT_THAT(refusal(adam_),
              AllOf(HasSubstr("'first.weight.exp_avg'"), HasSubstr("no such tensor")));
}

TEST_F(OptimizerState, RefusesWhatDoesNotBelong) {
  snapshot_.tensors["first.weight.momentum_buffer"] = torch::zeros({8, 4});
  EXPECT_THAT(refusal(adam_), HasSubstr("'first.weight.momentum_buffer' as well"));
}

TEST_F(OptimizerState, RefusesOtherGroups) {
  auto parameters = model_->parameters();
  std::reverse(parameters.begin(), parameters.end());
  torch::optim::Adam reversed(parameters);
  EXPECT_THAT(refusal(reversed), HasSubstr("at place 0 of group 0"));
  torch::optim::Adam fewer(model_->first->parameters());
  EXPECT_THAT(refusal(fewer), HasSubstr("place"));
  torch::optim::Adam two(std::vector<torch::optim::OptimizerParamGroup>{
      torch::optim::OptimizerParamGroup(model_->first->parameters()),
      torch::optim::OptimizerParamGroup(model_->last->parameters())});
  EXPECT_THAT(refusal(two), HasSubstr("2 parameter groups, got 1"));
  torch::optim::Adam foreign(SmallModel()->parameters());
  EXPECT_THAT(message_of([&] { snapshot_optimizer(*model_, foreign); }),
              HasSubstr("does not name"));
}

TEST_F(OptimizerState, RefusesADamagedDescription) {
  for (const char* text :
       {"", "[]", "{}", R"({"kind":"Adam"})", R"({"kind":"Adam","groups":[3]})"}) {
    snapshot_.description = text;
    EXPECT_THROW(restore_optimizer(*model_, adam_, snapshot_), Error) << text;
  }
}

TEST_F(OptimizerState, ChangesNothingWhenItRefuses) {
  adam_.param_groups()[0].options().set_lr(0.5);
  test::train(model_, adam_, 3, 3);
  snapshot_.tensors["last.bias.exp_avg"] = torch::zeros({99});
  EXPECT_THROW(restore_optimizer(*model_, adam_, snapshot_), Error);
  EXPECT_EQ(adam_.param_groups()[0].options().get_lr(), 0.5);
  EXPECT_EQ(snapshot_optimizer(*model_, adam_).tensors.at("first.bias.step").item<int64_t>(), 3);
}

}  // namespace
}  // namespace muster
