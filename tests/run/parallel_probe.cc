// A training with models divided over four ranks, of which failures_test.py has one killed in
// mid-step.
//
//   parallel_probe pipeline|stages|sharded|tensor VICTIM
//       the victim kills itself in the forward of step 3; the others say what they were told:
//       "rank <n> told: <error>"
#include <signal.h>
#include <torch/torch.h>

#include <cstdlib>
#include <iostream>
#include <string>
#include <vector>

#include "muster/base/error.h"
#include "muster/base/strings.h"
#include "muster/ddp/distributed_data_parallel.h"
#include "muster/parallel/mesh.h"
#include "muster/parallel/pipeline/pipeline.h"
#include "muster/parallel/sharded/fully_sharded.h"
#include "muster/parallel/tensor/tensor_parallel.h"
#include "muster/run/run.h"

namespace {

constexpr int64_t kProbeWidth = 16;

// Ends the process where it is, in the third forward.
struct MortalImpl : torch::nn::Module {
  MortalImpl(bool victim, int forwards) : left(victim ? forwards : -1) {}
  at::Tensor forward(const at::Tensor& x) {
    if (left > 0 && --left == 0)
      ::raise(SIGKILL);
    return x;
  }
  int left;
};
TORCH_MODULE(Mortal);

torch::nn::Sequential layers(bool victim, int forwards_a_step) {
  torch::manual_seed(3);
  torch::nn::Sequential net;
  net->push_back(torch::nn::Linear(kProbeWidth, kProbeWidth));
  net->push_back(Mortal(victim, 2 * forwards_a_step + 1));
  net->push_back(torch::nn::Linear(kProbeWidth, kProbeWidth));
  return net;
}

void step_of_a_pipeline(muster::Mesh& mesh, bool victim) {
  const int stages = mesh.size("pp");
  muster::Pipeline pipeline({layers(victim, 4)},
                            mesh.group("pp"),
                            {.schedule = muster::one_f_one_b(stages, 4),
                             .loss = [](const at::Tensor& y, const at::Tensor& target) {
                               return torch::mse_loss(y, target);
                             }});
  pipeline.average_over(mesh.group("dp"));
  const auto x = torch::ones({8, kProbeWidth});
  for (;;)
    pipeline.step(x, x);
}

void step_of_shards(muster::ProcessGroup& group, bool victim) {
  muster::FullySharded sharded(group);
  std::vector<muster::FullyShardedModule<torch::nn::Sequential>> blocks;
  blocks.push_back(sharded.wrap(layers(victim, 1)));
  blocks.push_back(sharded.wrap(layers(false, 1)));
  for (;;)
    blocks[1](blocks[0](torch::ones({4, kProbeWidth}))).sum().backward();
}

void step_of_divided_layers(muster::Mesh& mesh, bool victim) {
  const torch::nn::Linear up(kProbeWidth, 2 * kProbeWidth), down(2 * kProbeWidth, kProbeWidth);
  torch::nn::Sequential net;
  net->push_back(muster::column_parallel(up, mesh.group("tp")));
  net->push_back(Mortal(victim, 3));
  net->push_back(muster::row_parallel(down, mesh.group("tp")));
  muster::DistributedDataParallel model(net, mesh.group("dp"));
  for (;;)
    model(torch::ones({4, kProbeWidth})).sum().backward();
}

void train_divided(muster::Context& ctx, const std::string& piece, bool victim) {
  at::set_num_threads(1);
  torch::manual_seed(3);
  if (piece == "sharded")
    return step_of_shards(ctx.process_group(), victim);
  muster::Mesh mesh = piece == "stages"     ? ctx.mesh({{"dp", 1}, {"pp", 4}})
                      : piece == "pipeline" ? ctx.mesh({{"dp", 2}, {"pp", 2}})
                                            : ctx.mesh({{"dp", 2}, {"tp", 2}});
  if (piece == "tensor")
    return step_of_divided_layers(mesh, victim);
  step_of_a_pipeline(mesh, victim);
}

}  // namespace

int main(int argc, char** argv) {
  return muster::run(argc, argv, [&](muster::Context& ctx) {
    try {
      train_divided(ctx, argv[1], ctx.rank() == std::atoi(argv[2]));
    } catch (const muster::Error& error) {
      std::cout << muster::cat("rank ", ctx.rank(), " told: ", error.message(), "\n") << std::flush;
      throw;
    }
  });
}
