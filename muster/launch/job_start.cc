#include "muster/launch/job_start.h"

#include <unistd.h>

#include <algorithm>
#include <ctime>

#include "muster/base/error.h"
#include "muster/base/fd.h"
#include "muster/base/patient_write.h"
#include "muster/base/strings.h"
#include "muster/placement/picture/draw_svg.h"
#include "muster/placement/plan_json.h"
#include "muster/placement/plan_table.h"

namespace muster {

void check_launch(const LaunchOptions& options) {
  if (options.max_restarts < 0) {
    throw Error(ErrorCode::invalid_argument,
                cat("--max-restarts: expected 0 or more, got ", options.max_restarts));
  }
  stream_bits(options.redirects, 0, "--redirects");
  stream_bits(options.tee, 0, "--tee");
  if (!options.dry_run && options.argv.empty()) {
    throw Error(ErrorCode::invalid_argument, "launch: expected a program to run, got none");
  }
}

void show_plan(const Plan& plan, const LaunchOptions& options, int fd) {
  if (options.quiet) return;
  std::string text = options.json ? plan_to_json(plan) : plan_table(plan);
  if (plan.simulated && !options.json) {
    text += "the machine above is simulated: its ranks run on this one's CPU\n";
  }
  write_within(fd, text, kReaderPatience);  // who does not read it must not keep the ranks from starting
}

void show_dry_run(const Inventory& inventory, const Plan& plan, const LaunchOptions& options) {
  const std::string model = options.about_model ? options.about_model(inventory, plan) : "";
  write_all(STDOUT_FILENO, options.json ? plan_to_json(plan, model) : plan_table(plan) + model);
  if (!options.svg.empty()) write_file(options.svg, draw_svg(inventory, &plan));
}

JobNote job_note(const LaunchOptions& options, const Plan& plan, const JobFacts& job) {
  // "none" is the name of many jobs; their folders have names of their own.
  JobNote note{.id = job.run_id == "none" ? job.run_dir.substr(job.run_dir.rfind('/') + 1) : job.run_id,
               .pid = ::getpid(),
               .program = join(options.argv, " "),
               .run_dir = job.run_dir,
               .num_ranks = static_cast<int>(plan.ranks.size()),
               .since_seconds = std::time(nullptr)};
  for (const RankPlan& rank : plan.ranks) {
    if (rank.host_index != job.host_index && !plan.simulated) continue;
    const std::string device = rank.device.id();
    if (std::find(note.devices.begin(), note.devices.end(), device) == note.devices.end())
      note.devices.push_back(device);
  }
  return note;
}

}  // namespace muster
