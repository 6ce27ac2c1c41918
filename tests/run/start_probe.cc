// Programs as users write them, for start_test.py: how each begins is what its first argument says.
#include <muster/muster.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <map>
#include <stdexcept>
#include <vector>

namespace {

// As gflags, MPI_Init and others do: takes "--epochs=N" out of argv.
int take_epochs(int& argc, char** argv) {
  int epochs = 1;
  int kept = 0;
  for (int i = 0; i < argc; ++i) {
    const std::string text = argv[i];
    if (text.rfind("--epochs=", 0) == 0) {
      epochs = std::stoi(text.substr(9));
    } else {
      argv[kept++] = argv[i];
    }
  }
  argc = kept;
  argv[argc] = nullptr;
  return epochs;
}

int train_by_flags(int argc, char** argv) {
  const int epochs = take_epochs(argc, argv);
  return muster::run(argc, argv, [&](muster::Context& ctx) {
    std::cout << "rank " << ctx.rank() << " epochs " << epochs << std::endl;
  });
}

int train_then_test(int argc, char** argv) {
  const auto say = [](const char* what) {
    return [what](muster::Context& ctx) {
      if (what == std::string("exits"))
        std::exit(3);
      std::cout << "rank " << ctx.rank() << " of " << ctx.world_size() << " " << what << std::endl;
      if (what == std::string("fails") && ctx.rank() == 0)
        throw std::runtime_error("as asked");
    };
  };
  const int trained =
      muster::run({.nproc_per_node = 2}, argc, argv, say(argc > 2 ? argv[2] : "trains"));
  if (argc > 3)
    return muster::run({.nproc_per_node = 1}, argc, argv, say(argv[3]));
  return muster::run(
      {.nproc_per_node = 1}, argc, argv, say(trained == 0 ? "tests" : "tests what has failed"));
}

int train_then_tasks(int argc, char** argv) {
  const int trained = muster::run({.nproc_per_node = 2}, argc, argv, [](muster::Context&) {});
  muster::TaskSet tasks(argc, argv);
  const auto alone =
      tasks.add<muster::TaskMode::process>("alone", {}, [](muster::TaskContext&) { return 1; });
  const auto ranks =
      tasks.add_group("ranks", {.ranks = 2}, [](muster::Context& ctx) { return ctx.world_size(); });
  tasks.run();
  std::cout << "tasks gave " << alone.result() << " and " << ranks.result() << std::endl;
  return trained;
}

// As setproctitle does: a title over the arguments' memory, and argv elsewhere.
int train_under_a_title(int argc, char** argv) {
  std::vector<std::string> kept(argv, argv + argc);
  std::vector<char*> moved;
  for (std::string& argument : kept)
    moved.push_back(argument.data());
  moved.push_back(nullptr);
  std::memset(
      argv[0], 't', static_cast<size_t>(argv[argc - 1] + std::strlen(argv[argc - 1]) - argv[0]));
  return muster::run(argc, moved.data(), [&](muster::Context& ctx) {
    std::cout << "rank " << ctx.rank() << " has " << kept.size() << " arguments" << std::endl;
  });
}

// Another program takes this one's place, as a build does while a job begins.
int be_replaced(int argc, char** argv) {
  if (std::getenv("RANK") == nullptr) {
    const std::string self = std::filesystem::absolute(argv[0]);
    std::filesystem::copy_file("/bin/false", self + ".new");
    std::filesystem::rename(self + ".new", self);
  }
  return muster::run(argc, argv, [](muster::Context& ctx) {
    std::string name;
    std::getline(std::ifstream("/proc/self/comm"), name);
    std::cout << "rank " << ctx.rank() << " is called " << name << std::endl;
  });
}

}  // namespace

// Its ranks make one call, whatever they were started for.
int train_in_rounds(int argc, char** argv) {
  const auto train = [](muster::Context& ctx) {
    std::cout << "rank " << ctx.rank() << " trains" << std::endl;
  };
  if (std::getenv("RANK") != nullptr)
    return muster::run(argc, argv, train);
  int failures = 0;
  for (int round = 0; round < 2; ++round)
    failures += muster::run(argc, argv, train) != 0 ? 1 : 0;
  return failures;
}

int main(int argc, char** argv) {
  const std::map<std::string, int (*)(int, char**)> programs = {{"flags", train_by_flags},
                                                                {"twice", train_then_test},
                                                                {"tasks", train_then_tasks},
                                                                {"title", train_under_a_title},
                                                                {"rounds", train_in_rounds},
                                                                {"replaced", be_replaced}};
  const auto found = programs.find(argc > 1 ? argv[1] : "");
  if (found != programs.end())
    return found->second(argc, argv);
  std::cerr << "start_probe: no program '" << (argc > 1 ? argv[1] : "") << "'" << std::endl;
  return 2;
}
