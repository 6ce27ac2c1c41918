// Checks before the first step. Every rank looks at its own part, and tells the others what is
// wrong, so that all throw: a rank alone would leave the others waiting for its messages.
#include "muster/parallel/pipeline/checks.h"

#include <ATen/Functions.h>

#include <algorithm>
#include <bit>
#include <functional>

#include "muster/base/contains.h"
#include "muster/base/error.h"
#include "muster/base/strings.h"
#include "muster/base/tensor_text.h"
#include "muster/base/torch_names.h"
#include "muster/comm/capabilities.h"
#include "muster/ddp/replica_check.h"
#include "muster/parallel/pipeline/message_order.h"
#include "muster/parallel/pipeline/messages.h"
#include "muster/parallel/pipeline/simulation.h"

namespace muster {

namespace {

// Returns the first line in which two texts differ, as "'…' and '…'".
std::string first_difference(const std::string& ours, const std::string& theirs) {
  const auto our_lines = split(ours, '\n');
  const auto their_lines = split(theirs, '\n');
  size_t i = 0;
  while (i + 1 < std::min(our_lines.size(), their_lines.size()) && our_lines[i] == their_lines[i])
    ++i;
  constexpr size_t kMostShown = 120;  // bytes of a line
  const auto shortened = [](const std::string& line) {
    return line.size() > kMostShown ? line.substr(0, kMostShown) + "…" : line;
  };
  return cat("'", shortened(our_lines[i]), "' and '", shortened(their_lines[i]), "'");
}

// LibTorch compares the elements of these types on every device.
bool has_comparable_type(const Tensor& tensor) {
  constexpr ScalarType kComparable[] = {
      kBool, kByte, kChar, kShort, kInt, kLong, kHalf, kBFloat16, kFloat, kDouble};
  return contains(kComparable, tensor.scalar_type());
}

// What a program gives a rank that does not read it is undefined, or filled with one value.
bool may_be_read(const Tensor& tensor) {
  if (!tensor.defined() || tensor.layout() != kStrided || tensor.numel() == 0 ||
      !has_comparable_type(tensor))
    return false;
  return !tensor.eq(tensor.flatten()[0]).all().item<bool>();
}

}  // namespace

BatchMark mark_of_batch(const Tensor& input, const Tensor& target) {
  if (!may_be_read(input) || !may_be_read(target))
    return {};
  // Hashes of two kinds of devices are of two kinds.
  const std::string forms =
      cat(tensor_text(input), input.is_cpu(), tensor_text(target), target.is_cpu());
  return {.forms = std::bit_cast<int64_t>(std::hash<std::string>()(forms)),
          .input = hash_of_bits(input),
          .target = hash_of_bits(target)};
}

// Inputs alone may differ, as where each rank augments them; so may a target that is drawn.
bool are_other_batches(const BatchMark& one, const BatchMark& other) {
  const bool both_read = one.forms != 0 && one.forms == other.forms;
  return both_read && one.input != other.input && one.target != other.target;
}

// All ranks call it together. Those without a problem give an empty text, and throw with the
// others.
void refuse_on_all_stages(ProcessGroup& group, const std::string& problem) {
  Strings all = group.all_gather_bytes(problem, "problems of a pipeline");
  std::erase(all, "");
  if (all.empty())
    return;
  constexpr size_t kMostProblems = 4;
  throw invalid_argument("pipeline: ", join_first(all, "; ", kMostProblems));
}

// Asks no other rank: the caller hands its text to refuse_on_all_stages().
std::string problem_of_pipeline(const PipelineStages& stages,
                                const ProcessGroup& group,
                                const PipelineOptions& options) {
  const PipelineSchedule& schedule = options.schedule;
  if (schedule.ranks != group.size()) {
    return cat("expected a schedule of the group's ",
               plural(group.size(), "rank"),
               ", got one of ",
               schedule.ranks,
               " (rank ",
               group.job_rank(),
               "); make it for the group's size");
  }
  try {
    check(schedule);
    if (capabilities_of(group.backend()).matches_by_order)
      check_over_nccl(schedule);
  } catch (const Error& error) {
    return cat(error.what(), " (rank ", group.job_rank(), ")");
  }
  if (std::ssize(stages) != schedule.stages_per_rank()) {
    return cat("expected ",
               plural(schedule.stages_per_rank(), "stage"),
               " on every rank, as ",
               schedule.name,
               " says, got ",
               stages.size(),
               " (rank ",
               group.job_rank(),
               "); cut the model into ",
               schedule.stages);
  }
  if (group.rank() == schedule.rank_of(schedule.stages - 1) && !options.loss) {
    return cat("expected a loss on the rank of the last stage, got none (rank ",
               group.job_rank(),
               "); set PipelineOptions::loss");
  }
  return {};
}

// All ranks call it together. A schedule's text names every action, so one comparison covers it.
void check_same_schedules(ProcessGroup& group, const PipelineOptions& options) {
  std::string mine = to_text(options.schedule);
  mine += options.recompute ? "recompute" : "no recompute";
  if (options.share_loss)
    mine += ", shared loss";
  if (!options.broadcast_buffers)
    mine += ", buffers of each replica's own";
  const Strings all = group.all_gather_bytes(mine, "schedules of a pipeline");
  for (int rank = 1; rank < std::ssize(all); ++rank) {
    if (all[rank] == all[0])
      continue;
    throw invalid_argument("pipeline: expected one schedule on all ranks, got ",
                           first_difference(all[0], all[rank]),
                           " (ranks ",
                           group.job_rank(0),
                           " and ",
                           group.job_rank(rank),
                           "); give all ranks the same options");
  }
}

}  // namespace muster
