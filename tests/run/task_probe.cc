// Tasks in child processes and ranks of groups, as its first argument says; for task_sets_test.py.
#include <muster/muster.h>
#include <signal.h>
#include <sys/wait.h>
#include <torch/torch.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <iostream>
#include <stdexcept>

namespace {

using muster::Context;
using muster::TaskContext;
using muster::TaskMode;

void show(const muster::TaskSet& tasks) {
  for (const muster::TaskOutcome& outcome : tasks.outcomes()) {
    const bool done = outcome.state == muster::TaskOutcome::State::done;
    std::cout << outcome.name << " on " << outcome.place << ": " << (done ? "done" : outcome.error)
              << std::endl;
  }
}

void results(muster::TaskSet& tasks) {
  const int parent = ::getpid();
  const auto number = tasks.add<TaskMode::process>(
      "number", {}, [](TaskContext& task) { return 0.5 + static_cast<double>(task.seed(1)); });
  const auto text = tasks.add<TaskMode::process>(
      "text", {}, [](TaskContext&) { return std::string(100'000, 'x') + std::string("\0\n", 2); });
  const auto nothing = tasks.add<TaskMode::process>("nothing", {}, [](TaskContext&) {});
  const auto pid = tasks.add<TaskMode::process>("pid", {}, [](TaskContext&) { return ::getpid(); });
  const auto here = tasks.add("here", {}, [](TaskContext&) { return ::getpid(); });
  tasks.run();
  nothing.result();
  std::cout << "number " << number.result() << " text " << text.result().size() << " apart "
            << (pid.result() != parent) << " here " << (here.result() == parent) << std::endl;
}

void failures(muster::TaskSet& tasks) {
  tasks.add<TaskMode::process>(
      "throws", {}, [](TaskContext&) { throw std::runtime_error("no such file"); });
  tasks.add<TaskMode::process>("crashes", {}, [](TaskContext&) {
    ::signal(SIGSEGV,
             SIG_DFL);  // a sanitizer that the program is built with would end it in its own way
    ::raise(SIGSEGV);
  });
  tasks.add<TaskMode::process>("leaves", {}, [](TaskContext&) { ::_exit(3); });
  const auto good = tasks.add<TaskMode::process>("good", {}, [](TaskContext&) { return 1; });
  try {
    tasks.run();
  } catch (const muster::Error& error) {
    std::cout << error.message() << "\ngood " << good.result() << std::endl;
  }
}

// The child learns of the other's failure through memory that both have.
void stop(muster::TaskSet& tasks) {
  const auto asked = tasks.add<TaskMode::process>("long", {}, [](TaskContext& task) {
    while (!task.stop_requested())
      ::usleep(1000);
    return std::string("was asked to stop");
  });
  tasks.add<TaskMode::process>("bad", {}, [](TaskContext&) { throw std::runtime_error("broken"); });
  try {
    tasks.run();
  } catch (const muster::Error&) {
    std::cout << asked.result() << std::endl;
  }
}

std::string device_of(TaskContext& task) {
  const char* mask = std::getenv("CUDA_VISIBLE_DEVICES");
  return task.device().str() + " of " + (mask == nullptr ? "all" : mask);
}

// A task in a thread and one in a process, each on GPU 1.
void gpus(muster::TaskSet& tasks) {
  const auto here = tasks.add("here", {.device = "1"}, device_of);
  const auto apart = tasks.add<TaskMode::process>("apart", {.device = "1"}, device_of);
  const auto cpu = tasks.add<TaskMode::process>("cpu", {.device = "cpu"}, device_of);
  try {
    tasks.run();
    std::cout << here.result() << "; " << apart.result() << "; " << cpu.result() << std::endl;
  } catch (const muster::Error& error) {
    std::cout << error.message() << std::endl;
  }
}

// Another set than the parent's, in the child.
void other(muster::TaskSet& tasks) {
  const std::string name = std::getenv("MUSTER_TASK_ORDER") == nullptr ? "parent's" : "child's";
  tasks.add<TaskMode::process>(name, {}, [](TaskContext&) { return 1; });
  try {
    tasks.run();
  } catch (const muster::Error& error) {
    std::cout << error.message() << std::endl;
  }
}

double sum_of_ranks(Context& rank) {
  auto sum = torch::full({1}, rank.rank() + 1, torch::kDouble);
  rank.process_group().all_reduce(sum);
  return sum.item<double>();
}

// Groups of two and of three ranks, a thread and a process in one set.
void groups(muster::TaskSet& tasks) {
  const int parent = ::getpid();
  const auto two = tasks.add_group("two", {.ranks = 2}, sum_of_ranks);
  const auto here = tasks.add("here", {}, [](TaskContext&) { return ::getpid(); });
  const auto three = tasks.add_group("three", {.ranks = 3, .devices = "cpu"}, [](Context& rank) {
    const double sum = sum_of_ranks(rank);
    std::cout << "rank " << rank.rank() << " of " << rank.world_size() << " has " << sum
              << std::endl;
    if (rank.is_main())
      std::ofstream("three-ran").put('\n');
    return std::to_string(rank.rank()) + " says " + std::to_string(static_cast<int>(sum));
  });
  // Would fit beside "two", but "three" came first.
  const auto late =
      tasks.add("late", {}, [](TaskContext&) { return ::access("three-ran", F_OK) == 0; });
  const auto apart =
      tasks.add<TaskMode::process>("apart", {}, [](TaskContext&) { return ::getpid(); });
  const auto all = tasks.add_group("all", {}, [](Context& rank) { return rank.world_size(); });
  const auto nothing = tasks.add_group("nothing", {.ranks = 1}, [](Context&) {});
  tasks.run();
  nothing.result();
  std::cout << "two " << two.result() << " three " << three.result() << " all " << all.result()
            << " apart " << (apart.result() != parent) << " here " << (here.result() == parent)
            << " late " << late.result() << std::endl;
}

[[noreturn]] void wait_for_ever() {
  for (;;)
    ::pause();
}

// Rank 1 fails; rank 0, which has started a process of its own in a session of its own, would never
// end.
void group_fails(muster::TaskSet& tasks, const std::string& how) {
  tasks.add_group("bad", {.ranks = 2}, [how](Context& rank) {
    if (rank.rank() == 0 && std::system("setsid sleep 1000 &") != 0)
      std::abort();
    rank.process_group().barrier();
    if (rank.rank() == 0)
      wait_for_ever();
    if (how == "throw")
      throw std::runtime_error("the disk is full");
    if (how == "exit")
      ::_exit(3);
    ::raise(SIGKILL);
  });
  const auto good = tasks.add("good", {}, [](TaskContext&) { return 1; });
  try {
    tasks.run();
  } catch (const muster::Error& error) {
    std::cout << error.message() << "\ngood " << good.result() << std::endl;
  }
}

// Ends only when the set ends it, or somebody this program.
void group_waits(muster::TaskSet& tasks, bool fail) {
  const auto meeting = [](Context& rank) {
    if (rank.rank() == 0 && std::system("setsid sleep 1000 &") != 0)
      std::abort();
    rank.process_group().barrier();
    if (rank.rank() == 0)
      std::ofstream("up").put('\n');
    wait_for_ever();
  };
  tasks.add_group("long", {.ranks = 2}, meeting);
  const auto break_then = [](TaskContext&) {
    while (::access("up", F_OK) != 0)
      ::usleep(1000);
    throw std::runtime_error("broken");
  };
  if (fail)
    tasks.add("bad", {}, break_then);
  try {
    tasks.run();
  } catch (const muster::Error& error) {
    std::cout << error.message() << std::endl;
  }
}

void group_on_gpus(muster::TaskSet& tasks, bool allow_cpu) {
  const auto where =
      tasks.add_group("where",
                      {.ranks = 2, .devices = "1,0", .allow_cpu = allow_cpu, .backend = "gloo"},
                      [](Context& rank) {
                        const char* mask = std::getenv("CUDA_VISIBLE_DEVICES");
                        std::cout << "rank " << rank.rank() << " " << rank.device().str() << " is "
                                  << rank.assignment().device.id() << " of "
                                  << (mask == nullptr ? "all" : mask) << std::endl;
                      });
  try {
    tasks.run();
    where.result();
  } catch (const muster::Error& error) {
    std::cout << error.message() << std::endl;
  }
}

// As a rank of any job trains: by what the Context has.
double train(Context& ctx) {
  torch::nn::Linear net(2, 1);
  {
    const torch::NoGradGuard no_grad;
    for (at::Tensor& parameter : net->parameters())
      parameter.fill_(0.5);
  }
  net->to(ctx.device());
  muster::DistributedDataParallel model(
      net, ctx.process_group(), {.device_ids = {ctx.device().index()}});
  torch::optim::SGD optimizer(model.parameters(), 0.01);
  const auto rows = torch::arange(16, torch::kFloat).reshape({8, 2});
  auto loader = ctx.loader(muster::TensorDataset(rows, rows.sum(1)), {.batch_size = 2});
  muster::Checkpoints checkpoints(ctx, {.folder = "of " + std::to_string(::getpid())});
  checkpoints.add("net", net);
  for (const auto& batch : loader) {
    optimizer.zero_grad();
    (model(batch.features).squeeze(1) - batch.labels).square().mean().backward();
    optimizer.step();
  }
  const auto scored = muster::evaluate(ctx, model, loader, [](auto& net, const auto& batch) {
    return (net(batch.features).squeeze(1) - batch.labels).square();
  });
  return scored + net->weight.sum().item<double>() + 1000 * ctx.gpu().value_or(-1);
}

// The same function as a thread, a process, and a group of one rank.
void contexts(muster::TaskSet& tasks) {
  const auto thread = tasks.add("thread", {.device = "1"}, train);
  const auto process = tasks.add<TaskMode::process>("process", {.device = "1"}, train);
  const auto group = tasks.add_group("group", {.ranks = 1, .devices = "1"}, train);
  const auto slot = tasks.add("slot", {.device = "cpu"}, [](TaskContext& task) {
    Context& ctx = task.context();
    return !task.gpu() && !ctx.gpu() && &ctx == &task.context() && ctx.world_size() == 1 &&
           ctx.is_main() && ctx.run_dir().empty();
  });
  tasks.run();
  std::cout << std::hexfloat << "thread " << thread.result() << " process " << process.result()
            << " group " << group.result() << " slot " << slot.result() << std::endl;
}

// What the command says to a thread, to a process and to a rank, each on GPU 0.
void command(muster::TaskSet& tasks, const std::string& text) {
  const auto ask = [text](auto&) {
    return WEXITSTATUS(std::system(text.c_str()));
  };
  const muster::TaskOptions first{.device = "0"};
  const auto thread = tasks.add("thread", first, ask);
  const auto process = tasks.add<TaskMode::process>("process", first, ask);
  const auto rank = tasks.add_group("rank", {.ranks = 1, .devices = "0", .backend = "gloo"}, ask);
  try {
    tasks.run();
    std::cout << "thread " << thread.result() << " process " << process.result() << " rank "
              << rank.result() << std::endl;
  } catch (const muster::Error& error) {
    std::cout << error.message() << std::endl;
  }
}

// A task for any GPU, and one that takes the CPU instead of GPU 0.
void any(muster::TaskSet& tasks) {
  tasks.add("any", {}, [](TaskContext&) {});
  tasks.add("first", {.device = "0", .allow_cpu = true}, [](TaskContext&) {});
  tasks.run();
}

muster::TaskSetOptions options_for(const std::string& what) {
  muster::TaskSetOptions options;
  options.fail_fast = what == "stop" || what == "group-stop";
  if (what == "groups" || what == "group-stop")
    options.cpu_slots = 3;
  if (what == "share")
    options.lease = false;
  if (what == "wait")
    options.wait = std::chrono::minutes(2);
  return options;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string what = argc > 1 ? argv[1] : "";
  const std::string how = argc > 2 ? argv[2] : "";
  muster::TaskSet tasks(argc, argv, options_for(what));
  if (what == "results")
    results(tasks);
  if (what == "failures")
    failures(tasks);
  if (what == "stop")
    stop(tasks);
  if (what == "gpus")
    gpus(tasks);
  if (what == "other")
    other(tasks);
  if (what == "contexts")
    contexts(tasks);
  if (what == "groups")
    groups(tasks);
  if (what == "group-fails")
    group_fails(tasks, how);
  if (what == "group-waits" || what == "group-stop")
    group_waits(tasks, what == "group-stop");
  if (what == "group-gpus")
    group_on_gpus(tasks, how == "or-cpu");
  if (what == "command" || what == "share" || what == "wait")
    command(tasks, how);
  if (what == "any")
    any(tasks);
  show(tasks);
  return 0;
}
