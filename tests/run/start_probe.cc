// Programs as users write them, for start_test.py: how each begins is what its first argument says.
#include <muster/muster.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <stdexcept>

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
      std::cout << "rank " << ctx.rank() << " of " << ctx.world_size() << " " << what << std::endl;
      if (what == std::string("fails") && ctx.rank() == 0) throw std::runtime_error("as asked");
    };
  };
  const int trained = muster::run({.nproc = 2}, argc, argv, say(argc > 2 ? argv[2] : "trains"));
  return muster::run({.nproc = 1}, argc, argv, say(trained == 0 ? "tests" : "tests what has failed"));
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
  if (std::getenv("RANK") != nullptr) return muster::run(argc, argv, train);
  int failures = 0;
  for (int round = 0; round < 2; ++round) failures += muster::run(argc, argv, train) != 0 ? 1 : 0;
  return failures;
}

int main(int argc, char** argv) {
  const std::string what = argc > 1 ? argv[1] : "";
  if (what == "flags") return train_by_flags(argc, argv);
  if (what == "twice") return train_then_test(argc, argv);
  if (what == "rounds") return train_in_rounds(argc, argv);
  if (what == "replaced") return be_replaced(argc, argv);
  std::cerr << "start_probe: expected flags, twice, rounds or replaced, got '" << what << "'" << std::endl;
  return 2;
}
