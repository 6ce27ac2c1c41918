// Both commands take the same flags for devices. The program and its arguments are cut off the
// command line first, because CLI11 would take the program's flags for muster's. What the flags
// mean is in run_options.h.
#include "muster/cli/commands.h"

#include <CLI/CLI.hpp>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "muster/base/env.h"
#include "muster/base/log.h"
#include "muster/base/strings.h"
#include "muster/cli/cluster_flags.h"
#include "muster/cli/command_line.h"
#include "muster/cli/config_file.h"
#include "muster/cli/plan_hosts.h"
#include "muster/cli/plan_model.h"
#include "muster/cli/run_flags.h"
#include "muster/cli/run_options.h"
#include "muster/cluster/host_agent.h"
#include "muster/launch/given_gpus.h"
#include "muster/launch/launch.h"
#include "muster/report/host_samples.h"

namespace muster {

namespace {

constexpr auto kRunExamples = R"(Examples:
  muster run ./train --epochs 3          one rank per GPU (no GPU: per CPU slot)
  muster run --gpus 2,4,7 train.py       a Python script, on these GPUs
  muster run -n 4 --max-restarts 3 -m package.train
  muster run -n 4 --on-failure replace ./train    a rank that dies is replaced, the others keep their processes
  muster run --dry-run                   only show which rank would get which device
  muster run -n 2 --tee 3 ./train        output on the console and in the run's folder
  muster run --hosts a:4,b:8 ./train     on several hosts, over ssh
  muster run --nnodes 2 --node-rank 0 --rdzv-endpoint a:29400 --secret-file s ./train    on each by itself
  muster run -n 1 --role ps ./server : -n 4 ./worker    different programs, one job
torchrun's flags are accepted with hyphens or underscores, and as PET_<FLAG> variables. [Brackets] have the default.
Exit codes: 0 every rank ended well; else the first failing rank's own, or 128 + its signal; 75 all ranks have saved and
stopped; 124 --timeout; 128 + the signal that ended muster; 1 it could not be started; 2 wrong usage; 126 and 127 PROGRAM
cannot be executed, is not there.
)";

constexpr auto kPlanExamples = R"(Examples:
  muster plan                            this machine, one rank per device
  muster plan --gpus 0-3 --json          these GPUs, as JSON (schema muster.plan/1)
  muster plan --inventory box.json -n 8  another machine (from: muster devices --json > box.json)
  muster plan --hosts a:4,b:8            these hosts, asked over ssh
  muster plan --model layers=24,width=2048,heads=16,context=1024,vocabulary=50304,batch=8    what fits there
)";

// CLI11 cannot know PROGRAM, so --help has a line of usage that was written by hand.
class RunFormatter : public CLI::Formatter {
 public:
  explicit RunFormatter(std::string usage) : usage_(std::move(usage)) {}
  std::string make_usage(const CLI::App* /*app*/, std::string /*name*/) const override {
    return usage_;
  }

 private:
  std::string usage_;
};

// A flag that is given twice has its last value, so that typed flags win over --config.
CLI::App* add_command(
    CLI::App& app, const char* name, const char* summary, const char* usage, const char* examples) {
  app.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  auto* const command = app.add_subcommand(name, summary)->footer(examples);
  command->formatter(std::make_shared<RunFormatter>(usage));
  return command;
}

// Splits the arguments at each ":", as mpirun does. Returns at least one list.
std::vector<Strings> split_programs(const Strings& args) {
  std::vector<Strings> lists(1);
  for (const auto& arg : args) {
    if (arg == ":") {
      lists.emplace_back();
    } else {
      lists.back().push_back(arg);
    }
  }
  return lists;
}

// Reads what follows a ":": "-n 4 --role worker ./worker ARGS...".
MoreProgram parse_more_program(Strings args) {
  MoreProgram more;
  CLI::App part("", "run");
  part.add_option("-n,--nproc-per-node", more.nproc);
  part.add_option("--role", more.role);
  more.program = cut_program(part, args);
  if (more.program.empty()) {
    throw invalid_argument("':': expected -n N PROGRAM after it, got no program");
  }
  part.parse(Strings(args.rbegin(), args.rend()));
  return more;
}

// The first list is the program that the command's own flags are for.
MorePrograms parse_more_programs(const std::vector<Strings>& programs) {
  MorePrograms more;
  for (size_t i = 1; i < programs.size(); ++i)
    more.push_back(parse_more_program(programs[i]));
  return more;
}

// The arguments after PROGRAM are the program's, as under `muster run`. A plan does not run the
// program, so a flag of muster there was probably meant for the plan.
void warn_of_flags_of_program(const CLI::App& command, const Strings& program) {
  Strings flags;
  for (size_t i = 1; i < program.size(); ++i) {
    const auto name = program[i].substr(0, program[i].find('='));
    if (name.size() > 1 && name[0] == '-' && command.get_option_no_throw(name) != nullptr)
      flags.push_back(name);
  }
  if (flags.empty())
    return;
  log_warning(printable(cat("plan: ",
                            join(flags, ", "),
                            " after '",
                            program[0],
                            "' is taken for the program's own; flags of muster stand before it")));
}

// Programs that start themselves take these variables, and this command takes flags. A task has
// some of its runner.
void warn_of_variables_of_programs(const RunFlags& flags) {
  struct Variable {
    const char* name;
    const char* flag;
    bool is_given;
  };
  const Variable variables[] = {{"MUSTER_NPROC", "--nproc-per-node", !flags.nproc_per_node.empty()},
                                {"MUSTER_GPUS", "--gpus", !flags.gpus.empty()},
                                {"MUSTER_POLICY", "--policy", !flags.policy.empty()},
                                {"MUSTER_SURPLUS", "--surplus", flags.surplus != "error"},
                                {"MUSTER_INVENTORY", "--inventory", !flags.inventory.empty()}};
  if (get_env("MUSTER_TASK"))
    return;
  Strings unused;
  for (const Variable& variable : variables) {
    const auto value = get_env(variable.name);
    if (value && !variable.is_given)
      unused.push_back(cat(variable.name, "=", *value, " (", variable.flag, ")"));
  }
  if (unused.empty())
    return;
  log_warning(printable(cat("not used here, but by programs that start themselves: ",
                            join(unused, ", "),
                            "; give the flag instead")));
}

}  // namespace

// A dry run plans on the hosts; otherwise one host starts here, agents start over ssh, or this is
// one host's agent.
void add_run(CLI::App& app, Strings& args, int* exit_code) {
  const auto flags = std::make_shared<RunFlags>();
  auto* const command = add_command(
      app,
      "run",
      "Start a program's ranks, one per device, and guard them",
      "Usage: muster run [FLAGS] PROGRAM [ARGS...] [: -n N [--role NAME] PROGRAM [ARGS...]]...\n",
      kRunExamples);
  add_run_flags(command, *flags);
  const auto programs = split_programs(cut_program(*command, args));
  flags->config_files = use_config_file(*command, args);
  command->callback([flags, programs, exit_code] {
    const MorePrograms more = parse_more_programs(programs);
    warn_of_variables_of_programs(*flags);
    read_topology(*flags);
    const auto remote = to_remote_options(*flags);
    if (!remote && flags->inventory.empty())
      keep_to_given_gpus();
    const LaunchOptions options = to_launch_options(*flags, programs[0], more);
    const auto cluster = to_cluster_options(*flags);
    if (cluster) {
      warn_of_unknown_conf(*flags);
    } else {
      warn_of_flags_for_several_hosts(*flags);
    }
    // The plan of several programs is for one host.
    if (cluster && !more.empty()) {
      throw invalid_argument(
          "':': expected one program where several hosts take part, got more; start them as jobs "
          "of their own, or let the program choose by its rank");
    }
    if (flags->dry_run && remote) {
      *exit_code = plan_on_hosts(options, *remote);
    } else if (flags->dry_run || !cluster) {
      *exit_code = launch(options);
    } else if (remote) {
      *exit_code = run_on_hosts(options, *cluster, *remote);
    } else {
      *exit_code = run_host_agent(options, *cluster, own_rank_sampler());
    }
  });
}

// A plan is a dry run: the same options, and nothing is started.
void add_plan(CLI::App& app, Strings& args, int* exit_code) {
  const auto flags = std::make_shared<RunFlags>();
  auto* const command =
      add_command(app,
                  "plan",
                  "Show which rank would get which device, and why",
                  "Usage: muster plan [FLAGS] [PROGRAM [ARGS...] [: -n N PROGRAM [ARGS...]]...]\n",
                  kPlanExamples);
  add_plan_flags(command, *flags);
  const auto model = std::make_shared<PlanModelFlags>();
  add_model_options(command, *model);
  flags->dry_run = true;
  const auto programs = split_programs(cut_program(*command, args));
  flags->config_files = use_config_file(*command, args);
  command->callback([flags, model, programs, exit_code, command] {
    warn_of_flags_of_program(*command, programs[0]);
    warn_of_variables_of_programs(*flags);
    read_topology(*flags);
    const auto about_model = to_about_model(*model, flags->json);
    const auto remote = to_remote_options(*flags);
    if (!remote && flags->inventory.empty())
      keep_to_given_gpus();
    LaunchOptions options = to_launch_options(*flags, {}, parse_more_programs(programs));
    options.about_model = about_model;
    *exit_code = remote ? plan_on_hosts(options, *remote) : launch(options);
  });
}

}  // namespace muster
