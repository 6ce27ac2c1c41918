// Each rank counts its reduced backwards and its forwards that had none since the last one. After
// every reduced backward the ranks exchange the counts: a difference is an error on all of them.
#include "muster/ddp/step_check.h"

#include "muster/base/contains.h"
#include "muster/base/mapped.h"
#include "muster/base/strings.h"
#include "muster/comm/rows.h"

namespace muster {

namespace {

constexpr int64_t kShadows = -1;  // in place of RankStep::skipped: the rank has no more inputs

constexpr const char* kAlike =
    "load and freeze parameters, run forwards, and run or skip backwards, alike on all ranks";
constexpr const char* kEvaluateOnSome =
    "; to evaluate on some ranks only, call the forward of module(), not the wrapper's";

std::string counts_of_all(const RankSteps& steps) {
  const auto counts_of = [](const RankStep& step) {
    return cat(step.backwards,
               " backwards and ",
               step.skipped,
               " forwards without one on rank ",
               step.rank);
  };
  return join(mapped(steps, counts_of), ", ");
}

}  // namespace

std::shared_ptr<StepCheck::Forward> StepCheck::add_forward() {
  // Many forwards and no backward: those whose outputs are gone will not be reached any more.
  constexpr size_t kMany = 64;
  if (forwards_.size() >= kMany) {
    skipped_ += std::erase_if(forwards_, [](const auto& forward) {
      return forward->visible && forward.use_count() == 1 && !forward->reached;
    });
  }
  return forwards_.emplace_back(std::make_shared<Forward>());
}

// Among forwards whose outputs cannot be watched, the last is taken for the one that backward was
// of.
void StepCheck::count_skipped() {
  bool last = true;
  for (auto forward = forwards_.rbegin(); forward != forwards_.rend(); ++forward) {
    const bool reached =
        (*forward)->visible ? (*forward)->reached.load() : std::exchange(last, false);
    if (!reached)
      ++skipped_;
  }
  forwards_.clear();
}

RankSteps StepCheck::exchange(const RankStep& mine) {
  RankSteps steps;
  meet("at the end of a backward", [&] { steps = all_gather_rows(group_, mine); });
  return steps;
}

// A rank that shadows says so in place of its count, and differs from nobody.
RankSteps StepCheck::compare(const StepSamples& samples) {
  ++backwards_;
  count_skipped();
  if (!active_ || group_.size() == 1)
    return {};
  auto steps = exchange({.rank = group_.job_rank(),
                         .backwards = backwards_,
                         .skipped = skipped_,
                         .samples = samples});
  const bool are_alike = all_of(steps, [&](const RankStep& step) {
    return step.skipped == kShadows || step.skipped == skipped_;
  });
  if (are_alike)
    return steps;
  skipped_ = 0;  // on all of them: whoever goes on begins alike
  throw failed_precondition(
      "DistributedDataParallel: expected the same steps on every rank, got ",
      counts_of_all(steps),
      ", so gradients of different steps may have been averaged (rank ",
      group_.job_rank(),
      "); let all ranks skip a backward or none, evaluate on module() or without "
      "gradients, or set check_steps = false");
}

void StepCheck::shadow() {
  forwards_.clear();
  if (active_ && group_.size() > 1)
    exchange({.rank = group_.job_rank(), .backwards = backwards_, .skipped = kShadows});
}

// A backward that fails reaches other outputs on each rank, so that the counts before it say
// nothing.
void StepCheck::compare_after_failure() {
  ++failures_;
  if (group_.size() > 1) {
    meet("after a backward that has failed", [&] {
      group_.all_gather_bytes("", cat("of ranks after ", failures_, " backwards that have failed"));
    });
  }
  forwards_.clear();
  skipped_ = 0;
}

void StepCheck::meet(const char* where, const Callback& call) {
  try {
    call();
  } catch (const Error& error) {
    if (error.code() != ErrorCode::invalid_argument)
      throw;
    rethrow(error, where, kAlike);
  }
}

// The other ranks may have run their last step, and left, or do something else.
void StepCheck::meet_in_forward(const char* where, const Callback& call) {
  try {
    call();
  } catch (const Error& error) {
    const bool others_elsewhere = error.code() == ErrorCode::invalid_argument;
    const bool others_away = is_one_of(error.code(), ErrorCode::peer_failed, ErrorCode::timeout);
    if (!others_elsewhere && !others_away)
      throw;
    rethrow(error,
            where,
            cat(others_elsewhere ? kAlike : "forward is collective here", kEvaluateOnSome));
  }
}

void StepCheck::rethrow(const Error& error, const char* where, const std::string& next) const {
  throw Error(error.code(),
              "DistributedDataParallel: expected every rank ",
              where,
              " (rank ",
              group_.job_rank(),
              "); ",
              next,
              ": ",
              error.message());
}

}  // namespace muster
