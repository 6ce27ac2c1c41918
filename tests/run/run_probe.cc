// Does, on every rank, what its first argument says: for the Python tests beside it.
#include <dlfcn.h>
#include <muster/muster.h>
#include <signal.h>
#include <torch/torch.h>
#include <unistd.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <filesystem>
#include <iostream>
#include <stdexcept>
#include <thread>

void overheat();  // run_probe_lines.cc
void write_nowhere();

namespace {

// Deeper than the stack that there is.
[[gnu::noinline]] int depth_of(int depth) {
  volatile char room[4096] = {};
  room[depth % 4096] = 1;
  return depth < 1'000'000 ? depth_of(depth + 1) + room[0] : depth;
}

// LibTorch is not told to refuse the read: torch::load looks at the memory that it replaces.
void read_between_steps(muster::Context& ctx) {
  torch::nn::Sequential net(torch::nn::Linear(8, 4));
  muster::FullySharded sharded(ctx.process_group());
  auto model = sharded.wrap(net);
  torch::optim::SGD optimizer(sharded.parameters(), 0.1);
  model(torch::ones({2, 8})).sum().backward();
  optimizer.step();
  std::cout << net->parameters()[0].norm() << std::endl;
}

void probe(const std::string& what, muster::Context& ctx) {
  if (what == "place") {
    std::cout << "rank " << ctx.rank() << " local " << ctx.local_rank() << " of "
              << ctx.world_size() << " on " << ctx.device().str() << " reason '"
              << ctx.assignment().reason << "' seed " << ctx.seed(100) << std::endl;
  } else if (what == "throw") {
    ctx.process_group().barrier();
    if (ctx.rank() == 1)
      overheat();
    ctx.process_group().barrier();
  } else if (what == "torch error") {
    torch::ones({2, 3}).mm(torch::ones({2, 3}));
  } else if (what == "number") {
    throw 42;
  } else if (what == "null") {
    if (ctx.rank() == 1)
      write_nowhere();
    ctx.process_group().barrier();
  } else if (what == "abort") {
    if (ctx.rank() == 1)
      std::abort();
    ctx.process_group().barrier();
  } else if (what == "thread") {
    std::thread([] { throw std::runtime_error("the reactor is too cold"); }).join();
  } else if (what == "load") {
    ::dlopen((std::filesystem::read_symlink("/proc/self/exe").parent_path() /
              "libfault_in_constructor.so")
                 .c_str(),
             RTLD_NOW);
  } else if (what == "deep") {
    std::cout << depth_of(1) << std::endl;
  } else if (what == "sharded parameter") {
    read_between_steps(ctx);
  } else if (what == "own handler") {
    ::signal(SIGSEGV, [](int) { ::_exit(23); });
    ::raise(SIGSEGV);
  } else if (what == "early return") {  // of rank 1, where the others sum once more
    auto sum = torch::ones({4});
    for (int i = 0; i < (ctx.rank() == 1 ? 3 : 4); ++i)
      ctx.process_group().all_reduce(sum);
  } else if (what == "early barrier") {
    if (ctx.rank() != 1)
      ctx.process_group().barrier();
  } else if (what == "early exit") {
    auto sum = torch::ones({4});
    ctx.process_group().all_reduce(sum);
    if (ctx.rank() == 1)
      ::_exit(0);
    ctx.process_group().all_reduce(sum);
  } else if (what == "late") {  // rank 1 comes not at all
    auto sum = torch::ones({4});
    ctx.process_group().all_reduce(sum);
    if (ctx.rank() == 1)
      for (;;)
        ::pause();
    ctx.process_group().all_reduce(sum);
  } else if (what == "late gradients") {  // rank 1 takes no second step
    muster::DistributedDataParallel model(torch::nn::Linear(4, 4), ctx.process_group());
    for (int step = 0; step < 2; ++step) {
      auto loss = model(torch::ones({2, 4})).sum();
      if (ctx.rank() == 1 && step == 1)
        for (;;)
          ::pause();
      loss.backward();
    }
  } else if (what == "models") {
    muster::DistributedDataParallel model(torch::nn::Linear(4, 4 + ctx.rank()),
                                          ctx.process_group());
  } else if (what == "shapes") {
    ctx.process_group().all_reduce(torch::ones({4 + ctx.rank()}));
  } else if (what == "samplers") {
    auto sampler = ctx.sampler(100 + ctx.rank());
    sampler.indices();
  } else if (what == "alone") {
    if (ctx.rank() == 0)
      ctx.process_group().barrier();  // rank 1 leaves
  } else if (what == "reduce") {      // until somebody ends it
    for (int i = 0;; ++i) {
      auto sum = torch::ones({1 << 18});
      ctx.process_group().all_reduce(sum);
      if (i == 3)
        std::cout << "rank " << ctx.rank() << " pid " << ::getpid() << " reduces" << std::endl;
    }
  } else if (what == "room") {  // more shared memory than there is
    ctx.process_group().c10d()->getDefaultBackend()->allocateTensor(int64_t{1} << 30,
                                                                    torch::kFloat);
  } else if (what == "hold") {  // 256 MiB of it, until somebody ends it
    const auto held = ctx.process_group().c10d()->getDefaultBackend()->allocateTensor(
        int64_t{1} << 25, torch::kFloat);
    std::cout << "rank " << ctx.rank() << " pid " << ::getpid() << " holds " << held.nbytes()
              << std::endl;
    for (;;)
      ::pause();
  } else if (what == "subgroup") {  // rank 1 dies where its sub-group meets first
    auto group = ctx.process_group().new_group({0, 1});
    if (ctx.rank() == 1)
      ::raise(SIGKILL);
    auto sum = torch::ones({4});
    if (ctx.rank() == 0)
      group->all_reduce(sum);
    ctx.process_group().barrier();
  } else {
    throw std::invalid_argument("run_probe: unknown '" + what + "'");
  }
}

}  // namespace

int main(int argc, char** argv) {
  return muster::run(
      argc, argv, [&](muster::Context& ctx) { probe(argc > 1 ? argv[1] : "place", ctx); });
}
