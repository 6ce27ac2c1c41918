// A program that starts its own ranks, with the RunOptions that its arguments say: name=value, as
// many as there are, and then what each rank does. For options_test.py, which compares it with
// `muster run` and the same flags.
#include <muster/muster.h>
#include <signal.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <functional>
#include <iostream>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

#include "muster/base/units.h"

namespace {

using muster::RunOptions;
using Setter = std::function<void(RunOptions&, const std::string&)>;

std::vector<int> numbers(const std::string& text) {
  std::vector<int> found;
  for (const std::string& piece : muster::split(text, ','))
    found.push_back(std::stoi(piece));
  return found;
}

std::vector<uint64_t> sizes(const std::string& text) {
  std::vector<uint64_t> found;
  for (const std::string& piece : muster::split(text, ','))
    found.push_back(muster::parse_bytes(piece));
  return found;
}

std::chrono::milliseconds time(const std::string& text) {
  if (text == "forever")
    return std::chrono::milliseconds::max();
  return std::chrono::milliseconds(std::stoi(text));
}

// The last GPUs of the host first; or as few, or as wrong, as is asked for.
auto choice(const std::string& kind) {
  return [kind](const muster::Host& host, int num_ranks) {
    if (kind == "throws")
      throw std::runtime_error("no GPU is good enough");
    std::vector<int> chosen;
    for (int rank = 0; rank < num_ranks; ++rank)
      chosen.push_back(host.gpus.at(host.gpus.size() - 1 - rank).index.value);
    if (kind == "short")
      chosen.pop_back();
    return chosen;
  };
}

muster::FailurePolicy on_failure(const std::string& word) {
  return muster::failure_policy_of(word).value();
}

void add_variable(RunOptions& options, const std::string& text) {
  const size_t equals = text.find('=');
  options.env[text.substr(0, equals)] = text.substr(equals + 1);
}

const std::map<std::string, Setter>& setters() {
  using S = const std::string&;
  static const std::map<std::string, Setter> all = {
      {"nproc_per_node", [](RunOptions& o, S text) { o.nproc_per_node = std::stoi(text); }},
      {"cpu_only", [](RunOptions& o, S) { o.cpu_only = true; }},
      {"gpu_only", [](RunOptions& o, S) { o.gpu_only = true; }},
      {"gpus", [](RunOptions& o, S text) { o.gpus = text; }},
      {"gpus_per_rank", [](RunOptions& o, S text) { o.gpus_per_rank = std::stoi(text); }},
      {"policy", [](RunOptions& o, S text) { o.policy = text; }},
      {"map", [](RunOptions& o, S text) { o.map = numbers(text); }},
      {"choose", [](RunOptions& o, S text) { o.choose = choice(text); }},
      {"scores", [](RunOptions& o, S text) { o.scores = muster::read_scores(text); }},
      {"rank_memory", [](RunOptions& o, S text) { o.rank_memory = sizes(text); }},
      {"global_batch", [](RunOptions& o, S text) { o.global_batch = std::stoll(text); }},
      {"mesh", [](RunOptions& o, S text) { o.mesh = muster::parse_axes(text); }},
      {"surplus", [](RunOptions& o, S text) { o.surplus = muster::parse_surplus(text); }},
      {"visibility", [](RunOptions& o, S text) { o.visibility = muster::parse_visibility(text); }},
      {"numa_binding",
       [](RunOptions& o, S text) { o.numa_binding = muster::parse_numa_binding(text); }},
      {"cpu_slots", [](RunOptions& o, S text) { o.cpu_slots = std::stoi(text); }},
      {"inventory", [](RunOptions& o, S text) { o.inventory = text; }},
      {"plan", [](RunOptions& o, S text) { o.plan = text; }},
      {"wait", [](RunOptions& o, S text) { o.wait = time(text); }},
      {"no_lease", [](RunOptions& o, S) { o.no_lease = true; }},
      {"no_gpu_check", [](RunOptions& o, S) { o.no_gpu_check = true; }},
      {"env", add_variable},
      {"workdir", [](RunOptions& o, S text) { o.workdir = text; }},
      {"run_dir", [](RunOptions& o, S text) { o.run_dir = text; }},
      {"timeout", [](RunOptions& o, S text) { o.timeout = text; }},
      {"max_restarts", [](RunOptions& o, S text) { o.max_restarts = std::stoi(text); }},
      {"on_failure", [](RunOptions& o, S text) { o.on_failure = on_failure(text); }},
      {"collective_timeout", [](RunOptions& o, S text) { o.collective_timeout = time(text); }},
      {"stopped_timeout", [](RunOptions& o, S text) { o.stopped_timeout = time(text); }},
      {"shutdown_timeout", [](RunOptions& o, S text) { o.shutdown_timeout = time(text); }},
      {"signals_to_handle", [](RunOptions& o, S text) { o.signals_to_handle = numbers(text); }},
      {"dry_run", [](RunOptions& o, S) { o.dry_run = true; }},
      {"json", [](RunOptions& o, S) { o.json = true; }},
      {"quiet", [](RunOptions& o, S) { o.quiet = true; }},
      {"no_collapse", [](RunOptions& o, S) { o.no_collapse = true; }},
      {"trace", [](RunOptions& o, S text) { o.trace = text; }},
      {"redirects", [](RunOptions& o, S text) { o.redirects = text; }},
      {"tee", [](RunOptions& o, S text) { o.tee = text; }},
      {"log_dir", [](RunOptions& o, S text) { o.log_dir = text; }},
      {"local_ranks_filter", [](RunOptions& o, S text) { o.local_ranks_filter = numbers(text); }},
      {"log_line_prefix_template",
       [](RunOptions& o, S text) { o.log_line_prefix_template = text; }},
      {"backend", [](RunOptions& o, S text) { o.backend = text; }},
      {"nccl", [](RunOptions& o, S) { o.nccl.high_priority_stream = true; }},
      {"backtrace", [](RunOptions& o, S) { o.backtrace = false; }},
  };
  return all;
}

std::string variable(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "-" : value;
}

// What the options have come to in this rank.
void tell(muster::Context& ctx) {
  const std::string gpu = ctx.gpu() ? std::to_string(*ctx.gpu()) : "none";
  const bool has_mesh = ctx.assignment().rank == ctx.rank() && variable("PROBE_MESH") == "1";
  const std::string mesh =
      has_mesh ? muster::coordinates_text(ctx.mesh().shape(), ctx.rank()) : "none";
  std::cout << "rank " << ctx.rank() << " of " << ctx.world_size() << " gpu " << gpu << " batch "
            << ctx.batch_size(0) << " mesh " << mesh << " variable " << variable("PROBE_VARIABLE")
            << " signals " << variable("TORCHELASTIC_SIGNALS_TO_HANDLE") << " backend "
            << ctx.process_group().backend() << " in " << std::filesystem::current_path().string()
            << " writes " << ctx.run_dir() << " reason '" << ctx.assignment().reason << "'"
            << std::endl;
}

void act(const std::string& what, muster::Context& ctx) {
  if (what == "tell")
    return tell(ctx);
  if (what == "fail once") {
    ctx.process_group().barrier();
    if (ctx.rank() == 1 && ctx.env().attempt == 0)
      throw std::runtime_error("as asked");
    ctx.process_group().barrier();
    std::cout << "rank " << ctx.rank() << " ends in attempt " << ctx.env().attempt << std::endl;
    return;
  }
  if (what == "lose one") {
    if (ctx.rank() == 1)
      throw std::runtime_error("as asked");
    std::cout << "rank " << ctx.rank() << " goes on" << std::endl;
    return;
  }
  if (ctx.rank() == 1) {
    if (what == "freeze")
      ::raise(SIGSTOP);
    for (;;)
      ::pause();
  }
  ctx.process_group().barrier();  // to which rank 1 does not come
}

}  // namespace

int main(int argc, char** argv) {
  RunOptions options;
  std::string what = "tell";
  for (int i = 1; i < argc; ++i) {
    const std::string text = argv[i];
    const size_t equals = text.find('=');
    if (text == "names") {
      for (const auto& [name, setter] : setters())
        std::cout << name << std::endl;
      return 0;
    }
    if (equals == std::string::npos) {
      what = text;
    } else {
      setters().at(text.substr(0, equals))(options, text.substr(equals + 1));
    }
  }
  return muster::run(options, argc, argv, [&](muster::Context& ctx) { act(what, ctx); });
}
