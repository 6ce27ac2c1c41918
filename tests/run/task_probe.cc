// Tasks in child processes, as its first argument says; for programs_test.py.
#include <muster/muster.h>
#include <signal.h>
#include <unistd.h>

#include <cstdlib>
#include <iostream>
#include <stdexcept>

namespace {

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
  tasks.add<TaskMode::process>("throws", {}, [](TaskContext&) { throw std::runtime_error("no such file"); });
  tasks.add<TaskMode::process>("crashes", {}, [](TaskContext&) { ::raise(SIGSEGV); });
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
    while (!task.stop_requested()) ::usleep(1000);
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
  const std::string name = std::getenv("MUSTER_TASK") == nullptr ? "parent's" : "child's";
  tasks.add<TaskMode::process>(name, {}, [](TaskContext&) { return 1; });
  try {
    tasks.run();
  } catch (const muster::Error& error) {
    std::cout << error.message() << std::endl;
  }
}

}  // namespace

int main(int argc, char** argv) {
  const std::string what = argc > 1 ? argv[1] : "";
  muster::TaskSet tasks(argc, argv, {.fail_fast = what == "stop"});
  if (what == "results") results(tasks);
  if (what == "failures") failures(tasks);
  if (what == "stop") stop(tasks);
  if (what == "gpus") gpus(tasks);
  if (what == "other") other(tasks);
  show(tasks);
  return 0;
}
