// A sweep is a file of tasks that nobody has written: each value of the grid becomes a task, and
// the flags say what a file's [defaults] would.
#include "muster/cli/tasks_sweep.h"

#include <cmath>
#include <cstdint>
#include <exception>
#include <stdexcept>
#include <utility>

#include "muster/base/error.h"
#include "muster/base/given.h"
#include "muster/base/lookup.h"
#include "muster/base/strings.h"
#include "muster/base/units.h"
#include "muster/base/usage.h"

namespace muster {

namespace {

// Each of the next three reads the flag of the same name.
double parse_need_gpus(const std::string& text) {
  double gpus = 0;
  try {
    size_t used = 0;
    gpus = std::stod(text, &used);
    if (used != text.size() || std::isnan(gpus))
      throw std::invalid_argument("");
  } catch (const std::exception&) {
    fail_usage("--need-gpus: expected a number as 2 or 0.5, got '", printable(text), "'");
  }
  // Several tasks may share one GPU, but a task does not get parts of two.
  const bool is_whole = gpus == std::floor(gpus) && gpus >= 0 && gpus <= kMaxTaskGpus;
  const bool is_share = gpus >= kLeastGpuShare && gpus < 1;
  if (!is_whole && !is_share) {
    fail_usage("--need-gpus: expected a whole number up to ",
               kMaxTaskGpus,
               ", or a share from ",
               kLeastGpuShare,
               " to below 1, got ",
               text);
  }
  return gpus;
}

uint64_t parse_need_memory(const std::string& text) {
  try {
    return parse_bytes(text);
  } catch (const Error&) {
    fail_usage("--need-memory: expected a size such as 20GiB, got '", printable(text), "'");
  }
}

int parse_need_cpus(const std::string& text) {
  const auto cpus = parse_number(text, 1, kMaxTaskCpus);
  if (!cpus)
    fail_usage("--need-cpus: expected a number from 1, got '", printable(text), "'");
  return *cpus;
}

// Returns what a sweep's tasks have in common. A need for memory is one for a GPU.
Task common_of(const TasksFlags& flags) {
  Task common{.retries = flags.retries.value_or(0)};
  if (flags.need_gpus.empty() && flags.need_memory.empty() && flags.need_cpus.empty())
    return common;
  TaskNeed need;
  need.gpus = given(flags.need_gpus, parse_need_gpus).value_or(need.gpus);
  need.memory_bytes = given(flags.need_memory, parse_need_memory).value_or(need.memory_bytes);
  const bool needs_one = need.memory_bytes > 0 && need.gpus == 0;
  if (needs_one && !flags.need_gpus.empty())
    fail_usage("--need-gpus: expected a GPU at least beside --need-memory, got 0");
  if (needs_one)
    need.gpus = 1;
  need.cpus = given(flags.need_cpus, parse_need_cpus).value_or(need.cpus);
  common.needs = {need};
  return common;
}

}  // namespace

// The error says how a spec file would say the same.
void check_sweep_flags(const TasksFlags& flags) {
  if (!flags.sweeps.empty())
    return;
  struct SweepFlag {
    const char* name;
    bool given;
    const char* key;
  };
  const SweepFlag all[] = {
      {"--retries", flags.retries.has_value(), "retries = N"},
      {"--need-gpus", !flags.need_gpus.empty(), "needs = { gpus = N }"},
      {"--need-memory", !flags.need_memory.empty(), "needs = { gpus = 1, memory = \"20GiB\" }"},
      {"--need-cpus", !flags.need_cpus.empty(), "needs = { cpus = N }"},
  };
  const SweepFlag* const flag = element_where(all, &SweepFlag::given);
  if (flag == nullptr)
    return;
  if (!flags.resume.empty() && flags.spec.empty())
    fail_usage(
        flag->name,
        " and --resume: expected one of them, got both; a run goes on with the tasks that it "
        "began with");
  fail_usage(flag->name,
             ": expected --sweep beside it, got ",
             flags.spec.empty() ? "none" : cat("the file ", printable(flags.spec)),
             "; a file says it in [[task]] or [defaults]: ",
             flag->key);
}

// The values of --sweep themselves are read by tasks/spec.
SweepOptions sweep_of(const TasksFlags& flags) {
  return {.sweeps = flags.sweeps, .command = flags.command, .common = common_of(flags)};
}

// The text is for errors: it has the needs as they were typed.
std::string need_flags_text(const TasksFlags& flags) {
  Strings given;
  for (const auto& [flag, value] : {std::pair("--need-gpus ", flags.need_gpus),
                                    std::pair("--need-memory ", flags.need_memory),
                                    std::pair("--need-cpus ", flags.need_cpus)}) {
    if (!value.empty())
      given.push_back(cat(flag, printable(value)));
  }
  return join(given, " ");
}

}  // namespace muster
