// Trainings whose state is divided over the ranks; sharded_losses.py does the same by PyTorch's
// own.
#include <torch/torch.h>

#include <cstdio>

#include "muster/base/strings.h"
#include "muster/ddp/distributed_data_parallel.h"
#include "muster/parallel/sharded/fully_sharded.h"
#include "muster/parallel/sharded/sharded_optimizer.h"
#include "muster/run/run.h"
#include "tests/support/twin.h"

namespace {

using namespace torch::optim;
using Layer = std::shared_ptr<torch::nn::LinearImpl>;
using Loss = std::function<torch::Tensor(const torch::Tensor&)>;

constexpr int64_t kSteps = 20, kBatch = 8;

torch::nn::Sequential make_net() {
  torch::manual_seed(11);
  torch::nn::Sequential net;  // one after the other: the generator is asked in this order
  net->push_back(torch::nn::Linear(13, 37));
  net->push_back(torch::nn::Tanh());
  net->push_back(torch::nn::Linear(37, 29));
  net->push_back(torch::nn::Tanh());
  net->push_back(torch::nn::Linear(29, 7));
  return net;
}

struct Training {
  muster::ProcessGroup& group;
  torch::Tensor features, labels;
  FILE* file;

  void run(const std::string& name,
           const Loss& model,
           Optimizer& optimizer,
           const std::function<void()>& clip = {}) {
    std::fprintf(file, "%s:", name.c_str());
    for (int64_t step = 0; step < kSteps; ++step) {
      const int64_t begin = (step * group.size() + group.rank()) * kBatch % 192;
      optimizer.zero_grad();
      const auto output = model(features.narrow(0, begin, kBatch)).to(at::kFloat);
      const auto loss = torch::cross_entropy_loss(output, labels.narrow(0, begin, kBatch));
      loss.backward();
      if (clip)
        clip();
      optimizer.step();
      std::fprintf(file, " %.9g", loss.item<float>());
    }
    std::fprintf(file, "\n");
  }

  template <class Kind>
  void zero(const std::string& name,
            const typename muster::detail::OptionsOfOptimizer<Kind>::type& options) {
    auto net = make_net();
    muster::DistributedDataParallel model(net, group);
    muster::ShardedOptimizer<Kind> optimizer(net->parameters(), options, group);
    run("zero " + name, [&](const auto& x) { return model(x); }, optimizer);
    // The same with divided gradients, which Python's has not: compared with the same line.
    auto other = make_net();
    muster::ShardedOptimizer<Kind> second(other->parameters(), options, group, {.gradients = true});
    run("zero " + name, [&](const auto& x) { return other->forward(x); }, second);
  }

  template <class Options>
  void full(const std::string& name,
            const std::function<std::unique_ptr<Optimizer>(std::vector<torch::Tensor>,
                                                           const Options&)>& make,
            const Options& options,
            double clip = 0,
            const muster::FullyShardedOptions& sharding = {}) {
    muster::FullySharded sharded(group, sharding);
    auto net = make_net();
    std::vector<muster::FullyShardedModule<Layer>> layers;
    for (const size_t i : {0, 2, 4})
      layers.push_back(sharded.wrap(std::dynamic_pointer_cast<torch::nn::LinearImpl>(net->ptr(i))));
    const auto optimizer = make(sharded.parameters(), options);
    const auto type = sharding.compute_dtype.value_or(at::kFloat);
    run(
        "full " + name,
        [&](const auto& x) {
          return layers[2](torch::tanh(layers[1](torch::tanh(layers[0](x.to(type))))));
        },
        *optimizer,
        clip > 0 ? std::function<void()>([&] { sharded.clip_grad_norm(clip); }) : nullptr);
  }

  template <class Kind>
  void both(const std::string& name,
            const typename muster::detail::OptionsOfOptimizer<Kind>::type& options) {
    zero<Kind>(name, options);
    fully<Kind>(name, options);
  }

  template <class Kind>
  void fully(const std::string& name,
             const typename muster::detail::OptionsOfOptimizer<Kind>::type& options,
             double clip = 0,
             const muster::FullyShardedOptions& sharding = {}) {
    using Options = typename muster::detail::OptionsOfOptimizer<Kind>::type;
    full<Options>(
        name,
        [](std::vector<torch::Tensor> parameters, const Options& o) {
          return std::make_unique<Kind>(std::move(parameters), o);
        },
        options,
        clip,
        sharding);
  }
};

}  // namespace

int main(int argc, char** argv) {
  return muster::run(argc, argv, [](muster::Context& ctx) {
    at::set_num_threads(1);
    torch::manual_seed(3);
    const auto features = torch::randn({200, 13});
    const auto labels = torch::randint(7, {200});
    const std::string path = muster::cat(muster::test::twin_folder(), "/ours-", ctx.rank());
    FILE* file = std::fopen(path.c_str(), "w");
    if (file == nullptr)
      throw std::runtime_error("cannot write " + path);
    Training training{ctx.process_group(), features, labels, file};
    training.both<SGD>("sgd", SGDOptions(0.1).momentum(0.9).weight_decay(0.01));
    training.both<Adam>("adam", AdamOptions(0.01));
    training.both<AdamW>("adamw", AdamWOptions(0.01));
    training.both<Adagrad>("adagrad", AdagradOptions(0.05));
    training.both<RMSprop>("rmsprop", RMSpropOptions(0.01));
    training.fully<SGD>("clipped", SGDOptions(0.1), 0.1);
    training.fully<SGD>(
        "bf16", SGDOptions(0.1), 0, {.compute_dtype = at::kBFloat16, .reduce_dtype = at::kFloat});
    std::fclose(file);
  });
}
