// The `muster-bench` program: measurements that need LibTorch. `muster bench` executes it. To add
// one: write add_<name>(CLI::App&, int*) and call it here.
#include <CLI/CLI.hpp>
#include <cstdint>
#include <exception>
#include <limits>
#include <memory>
#include <string>

#include "muster/base/error.h"
#include "muster/base/log.h"
#include "muster/base/nearest.h"
#include "muster/base/strings.h"
#include "muster/bench/collectives_bench.h"
#include "muster/bench/ddp_bench.h"
#include "muster/bench/device_bench.h"

namespace muster {
namespace {

// CLI11's own range takes NaN, and puts its description into help, where muster names what a value
// is. So this one has none, and only an error shows the range.
template <class T>
CLI::Validator in_range(T least, T most) {
  const auto check = [=](const std::string& text) {
    T value = 0;
    const bool is_in = CLI::detail::lexical_cast(text, value) && least <= value && value <= most;
    return is_in ? "" : cat("Value ", printable(text), " not in range [", least, " - ", most, "]");
  };
  return {check, "", ""};
}

// CLI::PositiveNumber would show all digits of the largest double in its errors.
const CLI::Validator kAnyCount = in_range(1, std::numeric_limits<int>::max());
const CLI::Validator kAnySize = in_range(int64_t{1}, std::numeric_limits<int64_t>::max());

constexpr auto kDeviceExamples = R"(Examples:
  muster bench device                       every GPU (none: a CPU slot); scores are remembered
  muster bench device --gpus 0,2 --again    these two anew
  muster bench device --json > scores.json  for --scores
  muster plan --policy fastest              uses what was remembered
Exit codes: 0 done, 1 it could not be done, 2 wrong usage.
)";

// Each of these three adds a subcommand whose callback runs the measurement.
void add_device(CLI::App& app, int* exit_code) {
  auto* const command =
      app.add_subcommand("device", "How fast each device trains: scores for `fastest`")
          ->footer(kDeviceExamples);
  const auto options = std::make_shared<DeviceBenchOptions>();
  auto* const gpus =
      command->add_option("--gpus", options->gpus, "GPUs to measure: 0,2-5, idle, … [all]")
          ->type_name("SEL");
  command->add_flag("--cpu", options->cpu, "Measure a CPU slot, not the GPUs")->excludes(gpus);
  command
      ->add_option("--cpu-slots",
                   options->cpu_slots,
                   "Number of CPU slots that share the cores [MUSTER_CPU_SLOTS, or 2]")
      ->check(kAnyCount)
      ->type_name("N");
  command->add_flag("--again", options->again, "Measure again what was measured before");
  command
      ->add_option(
          "--dtype", options->dtype, "Type to train in: float32, bfloat16 or float16 [float32]")
      ->type_name("TYPE");
  command->add_option("--seconds", options->seconds, "Seconds for each batch size [0.5]")
      ->check(in_range(0.01, 600.0))
      ->type_name("SECONDS");
  command
      ->add_option(
          "--cache", options->cache, "File that remembers the scores [~/.cache/muster/scores.json]")
      ->type_name("FILE");
  command->add_flag("--json", options->json, "Print the scores as --scores takes them");
  command->callback([options, exit_code] { *exit_code = bench_devices(*options); });
}

constexpr auto kCollectivesExamples = R"(Examples:
  muster bench collectives                               all_reduce over Gloo and shared memory, 2 ranks
  muster bench collectives -n 4 --op all_gather --max 16M
  muster bench collectives --backends shm,gloo --json > times.json
  muster bench collectives --svg times.svg
Exit codes: 0 done, 1 it could not be done, 2 wrong usage; a failed rank's own.
)";

void ranks_flag(CLI::App* command, int& ranks) {
  command->add_option("-n,--nproc", ranks, "Number of ranks [2]")
      ->check(in_range(1, 256))
      ->type_name("N");
}

void add_collectives(CLI::App& app, int* exit_code, int argc, char** argv) {
  auto* const command =
      app.add_subcommand("collectives", "How long collectives take, by size and backend")
          ->footer(kCollectivesExamples);
  const auto options = std::make_shared<CollectivesBenchOptions>();
  ranks_flag(command, options->ranks);
  command
      ->add_option(
          "--op",
          options->op,
          "Operation: all_reduce, reduce_scatter, all_gather, broadcast or all_to_all [all_reduce]")
      ->type_name("OP");
  command
      ->add_option(
          "--backends",
          options->backends,
          "Backends: gloo, shm, shm-in-place (tensors that lie in shared memory), nccl, mpi [all "
          "that there are]")
      ->delimiter(',')
      ->type_name("LIST");
  command
      ->add_option(
          "--dtype",
          options->dtype,
          "Type of the elements: float32, float64, bfloat16, float16, int32 or int64 [float32]")
      ->type_name("TYPE");
  const CLI::Validator bytes = CLI::AsSizeValue(false).description("");
  command->add_option("--min", options->min_bytes, "Smallest size of a rank's part, in bytes [4]")
      ->transform(bytes)
      ->check(kAnySize)
      ->type_name("SIZE");
  command
      ->add_option("--max",
                   options->max_bytes,
                   "Largest size of a rank's part, in bytes or as 64K, 16M (MiB) [64M]")
      ->transform(bytes)
      ->check(kAnySize)
      ->type_name("SIZE");
  command->add_option("--factor", options->factor, "Factor from one size to the next [4]")
      ->check(in_range(2, 1024))
      ->type_name("N");
  command
      ->add_option("--seconds", options->seconds, "Least seconds for each size and backend [0.2]")
      ->check(in_range(0.001, 600.0))
      ->type_name("SECONDS");
  command->add_flag("--json", options->json, "Print the table as JSON");
  command
      ->add_option("--svg", options->svg, "Draw the times as a picture into this file (SVG) [none]")
      ->type_name("FILE");
  command->callback([=] { *exit_code = bench_collectives(*options, argc, argv); });
}

constexpr auto kDdpExamples = R"(Examples:
  muster bench ddp                          a step of an MLP: alone, over Gloo, over shared memory; 2 ranks
  muster bench ddp -n 4 --model gpt --batch 8
  muster bench ddp --model cnn --kinds shm --steps 100 --json
  muster bench ddp --model cnn --python python3   with PyTorch's own DDP beside
Exit codes: 0 done, 1 it could not be done, 2 wrong usage; a failed rank's own.
)";

void add_ddp(CLI::App& app, int* exit_code, int argc, char** argv) {
  auto* const command =
      app.add_subcommand("ddp", "What data-parallel training adds to a step, by backend")
          ->footer(kDdpExamples);
  const auto options = std::make_shared<DdpBenchOptions>();
  ranks_flag(command, options->ranks);
  command
      ->add_option("--model",
                   options->model,
                   "Model: mlp (23 million parameters), cnn (ResNet-18, 11 million) or gpt (11 "
                   "million) [mlp]")
      ->type_name("NAME");
  command->add_option("--batch", options->batch, "Samples in a step of each rank [64; cnn, gpt: 4]")
      ->check(kAnySize)
      ->type_name("N");
  command
      ->add_option(
          "--kinds",
          options->kinds,
          "Kinds, each measured beside a step without communication: gloo, gloo-copied, shm, "
          "shm-copied, nccl, "
          "nccl-copied; shm:4 has buckets of 4 MiB, shm:auto the best [all that there are]")
      ->delimiter(',')
      ->type_name("LIST");
  command
      ->add_option(
          "--steps", options->steps, "Steps of each kind in each round; the kinds take turns [10]")
      ->check(in_range(1, 1'000'000))
      ->type_name("N");
  command->add_option("--rounds", options->rounds, "Rounds; each starts its processes anew [3]")
      ->check(in_range(1, 1'000))
      ->type_name("N");
  command
      ->add_option("--python",
                   options->python,
                   "Also time PyTorch's own DDP, with this Python's torch [not timed]")
      ->type_name("PROGRAM");
  command->add_flag("--json", options->json, "Print the times as JSON");
  command->callback([=] { *exit_code = bench_ddp(*options, argc, argv); });
}

// Returns what is wrong with the first flag that the parser left over, and the flag that was
// probably meant; "" if no flag is left over.
std::string unknown_flag(const CLI::App& app) {
  const auto chosen = app.get_subcommands();
  const auto* const command = chosen.empty() ? &app : chosen.front();
  Strings names;
  for (const CLI::Option* option : command->get_options()) {
    for (const auto& name : option->get_lnames())
      names.push_back("--" + name);
  }
  for (const auto& word : command->remaining()) {
    if (!word.starts_with('-'))
      continue;
    const auto flag = word.substr(0, word.find('='));
    const auto next = did_you_mean(flag, {names.begin(), names.end()});
    return cat("expected a flag of muster bench ",
               command->get_name(),
               ", got '",
               printable(flag),
               "'",
               next.empty() ? "; see --help" : next);
  }
  return "";
}

// Returns what is wrong with the word that is to name the measurement.
std::string unknown_measurement(const CLI::App& app) {
  Strings words = app.remaining();
  std::erase_if(words, [](const auto& word) { return word.starts_with('-'); });
  if (words.empty())
    return "expected device, collectives or ddp, got none; see muster bench --help";
  const auto next = did_you_mean(words.front(), {"device", "collectives", "ddp"});
  return cat("expected device, collectives or ddp, got '",
             printable(words.front()),
             "'",
             next.empty() ? "; see muster bench --help" : next);
}

// Returns the message for a command line that CLI11 refused, if muster has a better one.
std::string own_message(const CLI::App& app, const CLI::ParseError& error) {
  const bool lacks_measurement =
      dynamic_cast<const CLI::RequiredError*>(&error) != nullptr && app.get_subcommands().empty();
  if (lacks_measurement)
    return unknown_measurement(app);
  if (dynamic_cast<const CLI::ExtrasError*>(&error) != nullptr)
    return unknown_flag(app);
  return "";
}

}  // namespace

}  // namespace muster

int main(int argc, char** argv) {
  muster::set_log_name("bench");
  CLI::App app("Measurements of devices, collectives and training steps", "muster bench");
  app.require_subcommand(1);
  int exit_code = 0;
  muster::add_device(app, &exit_code);
  muster::add_collectives(app, &exit_code, argc, argv);
  muster::add_ddp(app, &exit_code, argc, argv);
  try {
    app.parse(argc, argv);
    return exit_code;
  } catch (const CLI::ParseError& error) {
    const auto message = muster::own_message(app, error);
    if (message.empty())
      return app.exit(error) == 0 ? 0 : 2;
    muster::log_error(message);
    return 2;
  } catch (const muster::Error& error) {
    muster::log_error(error.message());
    return error.code() == muster::ErrorCode::invalid_argument ? 2 : 1;
  } catch (const std::exception& error) {
    muster::log_error(error.what());
    return 1;
  }
}
