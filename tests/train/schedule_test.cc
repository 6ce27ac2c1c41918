#include "muster/train/schedule.h"

#include <gmock/gmock.h>
#include <torch/torch.h>

#include <cmath>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "muster/base/strings.h"
#include "tests/train/oracle.h"

namespace muster::testing {
namespace {

using ::testing::HasSubstr;

std::unique_ptr<torch::optim::SGD> two_groups() {
  std::vector<torch::optim::OptimizerParamGroup> groups;
  for (const double lr : {0.1, 0.003}) {
    groups.emplace_back(std::vector<at::Tensor>{torch::zeros({1}, torch::requires_grad())},
                        std::make_unique<torch::optim::SGDOptions>(lr));
  }
  return std::make_unique<torch::optim::SGD>(groups, torch::optim::SGDOptions(1.0));
}

std::vector<double> rates_of(const Rate& rate, int resumed_at = -1) {
  auto optimizer = two_groups();
  auto schedule = std::make_unique<Schedule>(*optimizer, rate);
  std::vector<double> found;
  for (int step = 0; step < 40; ++step) {
    if (step == resumed_at) {  // another process, whose optimizer has the rates of the checkpoint
      const auto saved = schedule->state();
      schedule.reset();
      schedule = std::make_unique<Schedule>(*optimizer, rate);
      schedule->load_state(saved);
    }
    found.insert(found.end(), {schedule->lr(0), schedule->lr(1)});
    optimizer->step();
    schedule->step();
  }
  return found;
}

const std::optional<Oracle>& schedules_of_python() {
  static const auto oracle = ask_python("pytorch_schedule.py");
  return oracle;
}

// Rates by closed forms on both sides are the same bits, where std::pow and Python's ** are; what
// Python multiplies step by step drifts from its own closed forms.
constexpr double kRounding = 1e-12;

TEST(Schedule, RatesArePythons) {
  const auto& oracle = schedules_of_python();
  if (!oracle)
    GTEST_SKIP() << "no Python with PyTorch in .deps";
  const std::vector<std::pair<std::string, Rate>> rates{
      {"constant", rate::constant(0.3, 9)},
      {"linear", rate::linear({.steps = 11, .from = 0.2, .to = 0.7})},
      {"cosine", rate::cosine({.steps = 40})},
      {"polynomial", rate::polynomial({.steps = 25, .power = 1.7})},
      {"step", rate::step(7, 0.3)},
      {"multi_step", rate::multi_step({3, 3, 20}, 0.2)},
      {"exponential", rate::exponential(0.93)}};
  for (const auto& [name, rate] : rates) {
    expect_as_python(*oracle, name + "_closed", rates_of(rate));
    expect_as_python(*oracle, name + "_recursive", rates_of(rate), kRounding);
  }
  for (const bool linear : {false, true}) {
    for (const bool three : {false, true}) {
      const auto rate = rate::one_cycle({.steps = 41,
                                         .rising = 0.4,
                                         .div_factor = 20,
                                         .final_div_factor = 500,
                                         .linear = linear,
                                         .three_phases = three});
      expect_as_python(*oracle,
                       cat("one_cycle_", linear ? "linear" : "cos", "_", three ? 3 : 2),
                       rates_of(rate));
    }
  }
  expect_as_python(*oracle, "lambda", rates_of(rate::lambda([](int64_t step) {
    return 1 / std::pow(static_cast<double>(1 + step), 0.5);
  })));
  expect_as_python(
      *oracle, "warmup_cosine", rates_of(rate::cosine({.steps = 40, .warmup = 8})), kRounding);
  expect_as_python(*oracle,
                   "sequential",
                   rates_of(rate::sequential(
                       {rate::constant(0.5), rate::exponential(0.9), rate::step(4, 0.3)}, {7, 20})),
                   kRounding);
  expect_as_python(
      *oracle,
      "chained",
      rates_of(rate::chained(
          {rate::constant(0.1, 5), rate::exponential(0.9), rate::multi_step({6, 30}, 0.5)})),
      kRounding);
}

TEST(Schedule, PlateausArePythons) {
  const auto& oracle = schedules_of_python();
  if (!oracle)
    GTEST_SKIP() << "no Python with PyTorch in .deps";
  const std::vector<double> metrics{5, 4, 3,   3,   3,   2.9999, 3,   3,   2,   2,
                                    2, 2, 2,   2,   1,   1,      1,   1.5, 1,   1,
                                    1, 1, 0.5, 0.5, 0.5, 0.5,    0.5, 0.5, 0.5, 0.5};
  for (const bool larger : {false, true}) {
    for (const bool absolute : {false, true}) {
      const PlateauOptions options{.larger_is_better = larger,
                                   .factor = 0.3,
                                   .patience = 2,
                                   .threshold = 0.01,
                                   .absolute_threshold = absolute,
                                   .cooldown = 1,
                                   .min_lr = 0.0005};
      auto optimizer = two_groups();
      auto plateau = std::make_unique<Plateau>(*optimizer, options);
      std::vector<double> found;
      for (size_t i = 0; i < metrics.size(); ++i) {
        if (i == 11) {  // resumed, with an optimizer that has its first rates
          const auto saved = plateau->state();
          optimizer = two_groups();
          plateau = std::make_unique<Plateau>(*optimizer, options);
          plateau->load_state(saved);
        }
        plateau->step(larger ? 1 - metrics[i] : metrics[i]);
        found.insert(found.end(), {plateau->lr(0), plateau->lr(1)});
      }
      expect_as_python(
          *oracle, cat("plateau_", larger ? "max" : "min", "_", absolute ? "abs" : "rel"), found);
    }
  }
}

TEST(Schedule, APlateauSaysWhetherItHasLoweredARate) {
  auto optimizer = two_groups();
  Plateau plateau(*optimizer, {.patience = 0, .min_lr = 0.01});
  EXPECT_FALSE(plateau.step(1));
  EXPECT_TRUE(plateau.step(1));
  EXPECT_FALSE(plateau.step(1)) << "no rate may be lower";
  EXPECT_DOUBLE_EQ(plateau.lr(), 0.01);
}

TEST(Schedule, AResumedRunHasTheSameBits) {
  for (const Rate& rate : {rate::cosine({.steps = 30, .warmup = 5, .final_fraction = 0.1}),
                           rate::exponential(0.93),
                           rate::one_cycle({.steps = 40})}) {
    for (const int at : {0, 3, 17})
      EXPECT_EQ(rates_of(rate, at), rates_of(rate)) << rate.text << " at " << at;
  }
}

TEST(Schedule, ARateCanBePrintedAndStaysAtItsEnd) {
  const Rate rate = rate::cosine({.steps = 10000, .warmup = 500, .final_fraction = 0.1});
  EXPECT_EQ(rate.text, "cosine to 0.1 in 10000 steps, the first 500 rising from 0.01");
  EXPECT_EQ(rate(2.0, 500), 2.0);
  EXPECT_EQ(rate(2.0, 10000), rate(2.0, 1000000));
  EXPECT_NEAR(rate(2.0, 10000), 0.2, 1e-15);
  EXPECT_EQ(rate::multi_step({30, 60}, 0.5).text, "times 0.5 at steps 30, 60");
  EXPECT_EQ(rate::sequential({rate::constant(), rate::exponential(0.5)}, {3}).text,
            "constant 1, then times 0.5 every step");
}

// A second one would begin with the first step of the warm-up.
TEST(Schedule, AnOptimizerHasOne) {
  auto optimizer = two_groups(), other = two_groups();
  const Rate rising = rate::cosine({.steps = 10, .warmup = 5});
  std::optional<Schedule> schedule(std::in_place, *optimizer, rising);
  const std::string error =
      "schedule: expected an optimizer whose rates nobody else sets, got one that has a Schedule "
      "(learning rate now 0.001); destroy that one first and set the optimizer's rates, or join "
      "the rates by rate::sequential or rate::chained";
  EXPECT_EQ(message_of_error([&] { Schedule(*optimizer, rising); }), error);
  EXPECT_THAT(message_of_error([&] { Plateau second(*optimizer); }),
              HasSubstr("plateau: expected an optimizer whose rates nobody else sets"));
  Schedule of_the_other(*other, rising);
  schedule->step();
  EXPECT_THAT(message_of_error([&] { Schedule(*optimizer, rising); }), HasSubstr("has a Schedule"));
  const auto saved = schedule->state();
  {
    const Schedule copy = *schedule;
    schedule.reset();
    EXPECT_THAT(message_of_error([&] { Schedule(*optimizer, rising); }), HasSubstr("has a Sched"));
  }
  schedule.emplace(*optimizer, rising);
  schedule->load_state(saved);
  EXPECT_THAT(message_of_error([&] { Schedule(*optimizer, rising); }), HasSubstr("has a Schedule"));
  schedule.reset();
  Plateau plateau(*optimizer);
  EXPECT_THAT(message_of_error([&] { Schedule(*optimizer, rising); }), HasSubstr("has a Plateau"));
}

// Each network of a GAN has an optimizer with its own, and each of several trainings begins anew.
TEST(Schedule, AnOptimizerAtTheAddressOfOneThatIsGoneIsAnother) {
  const Rate falling = rate::exponential(0.5);
  std::vector<Schedule> of_those_that_are_gone;
  for (int i = 0; i < 50; ++i) {
    const auto optimizer = two_groups();
    Schedule schedule(*optimizer, falling);
    EXPECT_EQ(schedule.initial_lrs(), (std::vector<double>{0.1, 0.003}));
    schedule.step();
    of_those_that_are_gone.push_back(schedule);
  }
}

TEST(Schedule, WrongUseIsNamed) {
  EXPECT_EQ(message_of_error([] { rate::cosine({.steps = 5, .warmup = 5}); }),
            "rate::cosine: expected more steps than those of the warm-up, got 5; look at the "
            "option of that name");
  EXPECT_THAT(
      message_of_error([] { rate::sequential({rate::constant()}, {3}); }),
      HasSubstr("expected a milestone between every two of its parts, got 1 part and 1 milestone"));
  auto optimizer = two_groups();
  EXPECT_THAT(message_of_error([&] { Plateau(*optimizer, {.factor = 1}); }),
              HasSubstr("below 1, got 1"));
  Schedule schedule(*optimizer, rate::constant());
  auto saved = schedule.state();
  saved.numbers.erase("initial_lr.1");
  EXPECT_THAT(message_of_error([&] { schedule.load_state(saved); }),
              HasSubstr("expected a saved state of 2 parameter groups, got 1"));
  auto other = two_groups();
  Plateau plateau(*other);
  saved = plateau.state();
  saved.numbers["lr.2"] = 0.5;
  EXPECT_THAT(message_of_error([&] { plateau.load_state(saved); }),
              HasSubstr("plateau: expected a saved state of 2 parameter groups, got 3"));
}

}  // namespace
}  // namespace muster::testing
