// The `muster-bench` program: measurements that need LibTorch. `muster bench` executes it. To add one: write
// add_<name>(CLI::App&, int*) and call it here.
#include <CLI/CLI.hpp>
#include <exception>
#include <memory>

#include "muster/base/error.h"
#include "muster/base/log.h"
#include "muster/bench/device_bench.h"

namespace {

constexpr const char* kExamples = R"(Examples:
  muster bench device                       every GPU (none: a CPU slot); scores are remembered
  muster bench device --gpus 0,2 --again    these two anew
  muster bench device --json > scores.json  for --scores
  muster plan --policy fastest              uses what was remembered
)";

void add_device(CLI::App& app, int* exit_code) {
  CLI::App* const command = app.add_subcommand("device", "How fast each device trains: scores for `fastest`");
  command->footer(kExamples);
  const auto options = std::make_shared<muster::DeviceBenchOptions>();
  auto* const gpus = command->add_option("--gpus", options->gpus, "Which GPUs [all]")->type_name("SEL");
  command->add_flag("--cpu", options->cpu, "Measure a CPU slot, not the GPUs")->excludes(gpus);
  command
      ->add_option("--cpu-slots", options->cpu_slots,
                   "How many slots share the cores [MUSTER_CPU_SLOTS, or 2]")
      ->check(CLI::PositiveNumber)
      ->type_name("N");
  command->add_flag("--again", options->again, "Measure also what was measured before");
  command->add_option("--dtype", options->dtype, "float32, bfloat16 or float16 [float32]")->type_name("TYPE");
  command->add_option("--seconds", options->seconds, "Time for each batch size [0.5]")
      ->check(CLI::Range(0.01, 600.0))
      ->type_name("SECONDS");
  command->add_option("--cache", options->cache, "Where scores are remembered [~/.cache/muster/scores.json]")
      ->type_name("FILE");
  command->add_flag("--json", options->json, "Print the scores as --scores takes them");
  command->callback([options, exit_code] { *exit_code = muster::bench_devices(*options); });
}

}  // namespace

int main(int argc, char** argv) {
  muster::set_log_name("bench");
  CLI::App app("Measurements of devices", "muster bench");
  app.require_subcommand(1);
  int exit_code = 0;
  add_device(app, &exit_code);
  try {
    app.parse(argc, argv);
    return exit_code;
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  } catch (const muster::Error& error) {
    muster::log(muster::LogLevel::error, error.message());
    return error.code() == muster::ErrorCode::invalid_argument ? 2 : 1;
  } catch (const std::exception& error) {
    muster::log(muster::LogLevel::error, error.what());
    return 1;
  }
}
