// The smallest whole program: every rank adds its number, every rank gets the sum.
#include <muster/muster.h>
#include <torch/torch.h>

#include <iostream>

int main(int argc, char** argv) {
  return muster::run(argc, argv, [](muster::Context& ctx) {
    auto sum = torch::tensor({static_cast<float>(ctx.rank())}, ctx.device());
    ctx.process_group().all_reduce(sum);
    std::cout << "rank " << ctx.rank() << " of " << ctx.world_size() << " on " << ctx.device()
              << ": sum " << sum.item<float>() << std::endl;
  });
}
