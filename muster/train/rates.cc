// The rates are closed forms of torch.optim.lr_scheduler, written in its order of operations: a
// rate is a function of the first rate and the step, never of the rate before. So a training may go
// on at any step, and the bits are PyTorch's.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <numbers>
#include <string>
#include <utility>
#include <vector>

#include "muster/base/error.h"
#include "muster/base/lists.h"
#include "muster/base/mapped.h"
#include "muster/base/strings.h"
#include "muster/train/schedule.h"

namespace muster::rate {

namespace {

// Rates are computed in double, steps are whole.
double real(int64_t steps) {
  return static_cast<double>(steps);
}

// Throws: invalid_argument with the rule that an option of a rate breaks, unless it holds. No rule
// holds of what is no finite number.
void expect_of_rate(bool holds, const char* rate, const char* rule, double value) {
  if (holds && std::isfinite(value))
    return;
  throw invalid_argument(
      "rate::", rate, ": expected ", rule, ", got ", value, "; look at the option of that name");
}

// Both go from `start`, where `part` is 0, to `end`, where it is 1.
double cosine_between(double start, double end, double part) {
  return end + (start - end) / 2.0 * (std::cos(std::numbers::pi * part) + 1);
}

double line_between(double start, double end, double part) {
  return (end - start) * part + start;
}

// The rates that one_cycle goes between.
enum CycleRate { kFirst, kHighest, kLast };

// A stretch of one_cycle, up to the step `end`.
struct CyclePhase {
  double end;
  CycleRate from;
  CycleRate to;
};

// The ends are those of PyTorch's OneCycleLR, which counts steps from 0.
std::vector<CyclePhase> phases_of(const OneCycleOptions& options) {
  const double rising = options.rising * real(options.steps);
  const double last = real(options.steps - 1);
  if (options.three_phases)
    return {
        {rising - 1, kFirst, kHighest}, {2 * rising - 2, kHighest, kFirst}, {last, kFirst, kLast}};
  return {{rising - 1, kFirst, kHighest}, {last, kHighest, kLast}};
}

// After the last step the rate stays what it is there.
double one_cycle_rate(const OneCycleOptions& options,
                      const std::vector<CyclePhase>& phases,
                      double highest,
                      int64_t step) {
  const double first = highest / options.div_factor;
  const double rates[] = {first, highest, first / options.final_div_factor};
  const double now = real(std::min(step, options.steps - 1));
  double begin = 0;
  size_t phase = 0;
  for (; phase + 1 < phases.size() && now > phases[phase].end; ++phase)
    begin = phases[phase].end;
  const auto& [end, from, to] = phases[phase];
  const double part = (now - begin) / (end - begin);
  const auto between = options.linear ? line_between : cosine_between;
  return between(rates[from], rates[to], part);
}

// How many of the sorted milestones have come by `step`.
int64_t milestones_passed(const Int64s& milestones, int64_t step) {
  return std::ranges::upper_bound(milestones, step) - milestones.begin();
}

// Joins the descriptions of several rates.
std::string texts_of(const std::vector<Rate>& parts, const char* between) {
  Strings texts = mapped(parts, &Rate::text);
  return join(texts, between);
}

}  // namespace

// 0 steps stand for ever.
Rate constant(double factor, int64_t steps) {
  expect_of_rate(factor >= 0, "constant", "a factor of 0 or more", factor);
  expect_of_rate(steps >= 0, "constant", "0 steps (for ever) or more", real(steps));
  auto text = cat("constant ", factor);
  if (steps > 0)
    text += cat(" for ", steps, " steps");
  const auto rate = [=](double initial, int64_t step) {
    const bool is_over = steps > 0 && step >= steps;
    return is_over ? initial : initial * factor;
  };
  return {rate, text};
}

Rate linear(const LinearOptions& options) {
  expect_of_rate(options.steps >= 1, "linear", "at least 1 step", real(options.steps));
  expect_of_rate(options.from >= 0, "linear", "a first factor of 0 or more", options.from);
  expect_of_rate(options.to >= 0, "linear", "a last factor of 0 or more", options.to);
  return {[options](double initial, int64_t step) {
            const double done = real(std::min(options.steps, step));
            const double risen = (options.to - options.from) * done / real(options.steps);
            return initial * (options.from + risen);
          },
          cat("linear from ", options.from, " to ", options.to, " in ", options.steps, " steps")};
}

// The warm-up is a linear rate of its own, before the fall.
Rate cosine(const CosineOptions& options) {
  expect_of_rate(
      options.warmup >= 0, "cosine", "a warmup of 0 steps or more", real(options.warmup));
  expect_of_rate(options.steps > options.warmup,
                 "cosine",
                 "more steps than those of the warm-up",
                 real(options.steps));
  expect_of_rate(options.final_fraction >= 0,
                 "cosine",
                 "a final_fraction of 0 or more",
                 options.final_fraction);
  const auto falling = [options](double initial, int64_t step) {
    const int64_t length = options.steps - options.warmup;
    const double done = real(std::min(step, length));
    const double last = initial * options.final_fraction;
    const double wave = 1 + std::cos(std::numbers::pi * done / real(length));
    return last + (initial - last) * wave / 2;
  };
  Rate fall{falling, cat("cosine to ", options.final_fraction, " in ", options.steps, " steps")};
  expect_of_rate(
      options.warmup_from >= 0, "cosine", "a warmup_from of 0 or more", options.warmup_from);
  if (options.warmup == 0)
    return fall;
  Rate whole = sequential({linear({.steps = options.warmup, .from = options.warmup_from}), fall},
                          {options.warmup});
  whole.text = cat(fall.text, ", the first ", options.warmup, " rising from ", options.warmup_from);
  return whole;
}

Rate one_cycle(const OneCycleOptions& options) {
  expect_of_rate(options.steps >= 2, "one_cycle", "at least 2 steps", real(options.steps));
  expect_of_rate(options.rising > 0 && options.rising < 1,
                 "one_cycle",
                 "a rising part between 0 and 1",
                 options.rising);
  expect_of_rate(options.rising * real(options.steps) != 1,
                 "one_cycle",
                 "a rising part that ends after the first step",
                 options.rising);
  expect_of_rate(!options.three_phases || options.rising <= 0.5,
                 "one_cycle",
                 "a rising part of half the steps or less with three_phases",
                 options.rising);
  expect_of_rate(options.div_factor > 0, "one_cycle", "a div_factor above 0", options.div_factor);
  expect_of_rate(options.final_div_factor > 0,
                 "one_cycle",
                 "a final_div_factor above 0",
                 options.final_div_factor);
  return {[options, phases = phases_of(options)](double highest, int64_t step) {
            return one_cycle_rate(options, phases, highest, step);
          },
          cat("one cycle of ", options.steps, " steps, rising for ", options.rising, " of them")};
}

Rate polynomial(const PolynomialOptions& options) {
  expect_of_rate(options.steps >= 1, "polynomial", "at least 1 step", real(options.steps));
  expect_of_rate(options.power >= 0, "polynomial", "a power of 0 or more", options.power);
  return {[options](double initial, int64_t step) {
            const double done = real(std::min(options.steps, step));
            return initial * std::pow(1.0 - done / real(options.steps), options.power);
          },
          cat("polynomial of power ", options.power, " to 0 in ", options.steps, " steps")};
}

Rate step(int64_t every, double gamma) {
  expect_of_rate(every >= 1, "step", "at least 1 step", real(every));
  expect_of_rate(gamma > 0, "step", "a gamma above 0", gamma);
  return {[=](double initial, int64_t step) {
            const int64_t passed = step / every;
            return initial * std::pow(gamma, real(passed));
          },
          cat("times ", gamma, " every ", every, " steps")};
}

Rate multi_step(Int64s milestones, double gamma) {
  expect_of_rate(gamma > 0, "multi_step", "a gamma above 0", gamma);
  std::ranges::sort(milestones);
  auto text = cat("times ", gamma, " at steps ", join(milestones, ", "));
  return {[milestones = std::move(milestones), gamma](double initial, int64_t step) {
            return initial * std::pow(gamma, real(milestones_passed(milestones, step)));
          },
          std::move(text)};
}

Rate exponential(double gamma) {
  expect_of_rate(gamma > 0, "exponential", "a gamma above 0", gamma);
  return {[=](double initial, int64_t step) { return initial * std::pow(gamma, real(step)); },
          cat("times ", gamma, " every step")};
}

// The function must depend on the step alone, or a resumed training would differ.
Rate lambda(std::function<double(int64_t)> factor, std::string text) {
  return {
      [factor = std::move(factor)](double initial, int64_t step) { return initial * factor(step); },
      std::move(text)};
}

// Each part counts its steps from where it begins.
Rate sequential(std::vector<Rate> parts, Int64s milestones) {
  if (parts.empty() || milestones.size() + 1 != parts.size()) {
    throw invalid_argument(
        "rate::sequential: expected a milestone between every two of its parts, got ",
        plural(parts.size(), "part"),
        " and ",
        plural(milestones.size(), "milestone"),
        "; say at which step each part but the first begins");
  }
  const bool begin_before_0 = !milestones.empty() && milestones[0] < 0;
  if (begin_before_0 || !std::ranges::is_sorted(milestones)) {
    throw invalid_argument("rate::sequential: expected rising milestones, got ",
                           join(milestones, ", "),
                           "; sort them with their parts");
  }
  std::string text = texts_of(parts, ", then ");
  return {
      [parts = std::move(parts), milestones = std::move(milestones)](double initial, int64_t step) {
        const int64_t now = milestones_passed(milestones, step);
        const int64_t begin = now == 0 ? 0 : milestones[now - 1];
        return parts[now](initial, step - begin);
      },
      std::move(text)};
}

// Each part is asked for a rate of 1, which is its factor.
Rate chained(std::vector<Rate> parts) {
  std::string text = texts_of(parts, ", and ");
  return {[parts = std::move(parts)](double initial, int64_t step) {
            double rate = initial;
            for (const Rate& part : parts)
              rate *= part(1, step);
            return rate;
          },
          std::move(text)};
}

}  // namespace muster::rate
