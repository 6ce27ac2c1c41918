// The table and the note with which every launcher begins: of a job on one host, and of
// each host of a job on several.
#include "muster/launch/job_start.h"

#include <unistd.h>

#include <ctime>
#include <utility>

#include "muster/base/contains.h"
#include "muster/base/error.h"
#include "muster/base/fd.h"
#include "muster/base/lists.h"
#include "muster/base/log.h"
#include "muster/base/lookup.h"
#include "muster/base/mapped.h"
#include "muster/base/named_file.h"
#include "muster/base/patient_write.h"
#include "muster/base/strings.h"
#include "muster/placement/picture/draw_svg.h"
#include "muster/placement/plan_json.h"
#include "muster/placement/plan_part.h"
#include "muster/placement/plan_table.h"

namespace muster {

namespace {

// The local ranks that a text such as "0:1,5:3" names. "3" names none.
Ints ranks_with_streams(const std::string& text) {
  Ints ranks;
  if (!contains(text, ':'))
    return ranks;
  for (const auto& piece : split(text, ','))
    ranks.push_back(parse_count(split(piece, ':').at(0)).value_or(0));
  return ranks;
}

constexpr auto kIsSimulated = " is simulated: its ranks run on this one's CPU";

// The warnings stand in the table too; a quiet job has no table.
void tell_warnings(const Plan& plan) {
  for (const auto& warning : plan.warnings)
    log_warning(printable(warning));
  if (plan.simulated)
    log_warning("the machine of the plan", kIsSimulated);
}

}  // namespace

// A flag that names a local rank which no host has would silently do nothing.
std::string unknown_local_ranks(const Plan& plan, const LaunchOptions& options) {
  const int most = max_of<int>(plan.ranks, &RankPlan::local_rank);
  for (const auto& [flag, ranks] : {std::pair("--local-ranks-filter", options.local_ranks_filter),
                                    {"--redirects", ranks_with_streams(options.redirects)},
                                    {"--tee", ranks_with_streams(options.tee)}}) {
    if (const int* const unknown = element_where(ranks, [&](int rank) { return rank > most; }))
      return cat(flag,
                 ": expected local ranks from 0 to ",
                 most,
                 ", got ",
                 *unknown,
                 ", which this job has not");
  }
  return "";
}

void show_plan(const Plan& plan, const LaunchOptions& options, int fd) {
  if (options.quiet)
    return tell_warnings(plan);
  std::string text = options.json ? plan_to_json(plan) : plan_table(plan);
  if (plan.simulated && !options.json)
    text += cat("the machine above", kIsSimulated, "\n");
  // A reader that does not read must not keep the ranks from starting.
  write_within(fd, text, kReaderPatience);
}

void show_dry_run(const Inventory& inventory, const Plan& plan, const LaunchOptions& options) {
  if (!options.svg.empty())
    check_named_file("--svg", options.svg);
  const std::string model = options.about_model ? options.about_model(inventory, plan) : "";
  write_all(STDOUT_FILENO, options.json ? plan_to_json(plan, model) : plan_table(plan) + model);
  if (!options.svg.empty())
    write_named_file(options.svg, draw_svg(inventory, &plan));
}

// Each device is in the note once, though several ranks may share it.
JobNote job_note(const LaunchOptions& options, const Plan& plan, const JobFacts& job) {
  // "none" is the name of many jobs; their folders have names of their own.
  const std::string id =
      job.run_id == "none" ? job.run_dir.substr(job.run_dir.rfind('/') + 1) : job.run_id;
  JobNote note{.id = id,
               .pid = ::getpid(),
               .program = join(options.argv, " "),
               .run_dir = job.run_dir,
               .num_ranks = world_size(plan),
               .since_seconds = std::time(nullptr)};
  for (const RankPlan& rank : plan.ranks) {
    if (rank.host_index != job.host_index && !plan.simulated)
      continue;
    if (rank.rank == 0)
      note.master_port = job.master_port;
    note.devices.push_back(rank.device.id());
    append_mapped(note.devices, rank.more_devices, &DeviceAssignment::id);
  }
  note.devices = distinct(note.devices);
  return note;
}

}  // namespace muster
