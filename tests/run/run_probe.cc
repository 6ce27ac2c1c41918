// Does, on every rank, what its first argument says; for programs_test.py.
#include <muster/muster.h>
#include <signal.h>
#include <torch/torch.h>
#include <unistd.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <iostream>
#include <stdexcept>

namespace {

void probe(const std::string& what, muster::Context& ctx) {
  if (what == "place") {
    std::cout << "rank " << ctx.rank() << " local " << ctx.local_rank() << " of " << ctx.world_size()
              << " on " << ctx.device().str() << " reason '" << ctx.assignment().reason << "' seed "
              << ctx.seed(100) << std::endl;
  } else if (what == "throw") {
    ctx.process_group().barrier();
    if (ctx.rank() == 1) throw std::runtime_error("the reactor is too hot");
    ctx.process_group().barrier();
  } else if (what == "models") {
    muster::DistributedDataParallel model(torch::nn::Linear(4, 4 + ctx.rank()), ctx.process_group());
  } else if (what == "shapes") {
    ctx.process_group().all_reduce(torch::ones({4 + ctx.rank()}));
  } else if (what == "samplers") {
    auto sampler = ctx.sampler(100 + ctx.rank());
    sampler.indices();
  } else if (what == "alone") {
    if (ctx.rank() == 0) ctx.process_group().barrier();  // rank 1 leaves
  } else if (what == "reduce") {                         // until somebody ends it
    for (int i = 0;; ++i) {
      auto sum = torch::ones({1 << 18});
      ctx.process_group().all_reduce(sum);
      if (i == 3) std::cout << "rank " << ctx.rank() << " pid " << ::getpid() << " reduces" << std::endl;
    }
  } else if (what == "room") {  // more shared memory than there is
    ctx.process_group().c10d()->getDefaultBackend()->allocateTensor(int64_t{1} << 30, torch::kFloat);
  } else if (what == "hold") {  // 256 MiB of it, until somebody ends it
    const auto held =
        ctx.process_group().c10d()->getDefaultBackend()->allocateTensor(int64_t{1} << 25, torch::kFloat);
    std::cout << "rank " << ctx.rank() << " pid " << ::getpid() << " holds " << held.nbytes() << std::endl;
    for (;;) ::pause();
  } else if (what == "subgroup") {  // rank 1 dies where its sub-group meets first
    auto group = ctx.process_group().new_group({0, 1});
    if (ctx.rank() == 1) ::raise(SIGKILL);
    auto sum = torch::ones({4});
    if (ctx.rank() == 0) group->all_reduce(sum);
    ctx.process_group().barrier();
  } else {
    throw std::invalid_argument("run_probe: unknown '" + what + "'");
  }
}

}  // namespace

int main(int argc, char** argv) {
  return muster::run(argc, argv, [&](muster::Context& ctx) { probe(argc > 1 ? argv[1] : "place", ctx); });
}
