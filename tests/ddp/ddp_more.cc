// More training runs, a line each, `name: the losses' bits, and the sum of all parameters at the
// end`: every optimizer, parameters that are ignored, a scripted module, a plain list, and ranks
// with uneven inputs. ddp_more.py has the same in Python; compare_more.py compares.
#include <muster/muster.h>
#include <torch/script.h>
#include <torch/torch.h>

#include <bit>
#include <cstdio>
#include <functional>

#include "tests/support/twin.h"

namespace {

using torch::Tensor;

constexpr int kSteps = 6;
constexpr int64_t kBatch = 8;

struct Data {
  Tensor features, labels;
  Tensor x(int step, const muster::ProcessGroup& group) const {
    return features.slice(0, begin(step, group), begin(step, group) + kBatch);
  }
  Tensor y(int step, const muster::ProcessGroup& group) const {
    return labels.slice(0, begin(step, group), begin(step, group) + kBatch);
  }
  static int64_t begin(int step, const muster::ProcessGroup& group) {
    return (step * group.size() + group.rank()) * kBatch % 192;
  }
};

torch::nn::Sequential runs_net(torch::Device device, bool norm = false) {
  torch::manual_seed(11);
  torch::nn::Sequential net;
  net->push_back(torch::nn::Linear(12, 16));
  if (norm)
    net->push_back(torch::nn::BatchNorm1d(16));
  net->push_back(torch::nn::Tanh());
  net->push_back(torch::nn::Linear(16, 5));
  net->to(device);
  return net;
}

class Line {
 public:
  void add(const Tensor& loss) {
    char bits[16];
    std::snprintf(bits, sizeof bits, "%08x ", std::bit_cast<uint32_t>(loss.item<float>()));
    text_ += bits;
  }
  std::string with(const std::vector<Tensor>& parameters) const {
    double total = 0;
    for (const auto& parameter : parameters)
      total += parameter.detach().to(torch::kDouble).sum().item<double>();
    char text[32];
    std::snprintf(text, sizeof text, "%.9f", total);
    return text_ + text;
  }

 private:
  std::string text_;
};

using Optimizer = std::function<std::unique_ptr<torch::optim::Optimizer>(std::vector<Tensor>)>;

std::string with_optimizer(muster::ProcessGroup& group, const Data& data, const Optimizer& make) {
  muster::DistributedDataParallel model(runs_net(group.device()), group);
  const auto optimizer = make(model.parameters());
  const bool decides_by_loss = dynamic_cast<torch::optim::LBFGS*>(optimizer.get()) != nullptr;
  Line line;
  for (int step = 0; step < kSteps; ++step) {
    line.add(optimizer->step([&] {
      optimizer->zero_grad();
      auto loss = torch::cross_entropy_loss(model(data.x(step, group)), data.y(step, group));
      loss.backward();
      return decides_by_loss ? muster::mean_over_ranks(loss, group) : loss;
    }));
  }
  return line.with(model.parameters());
}

// The first layer's weight is each rank's own.
std::string ignoring(muster::ProcessGroup& group, const Data& data) {
  auto net = runs_net(group.device(), /*norm=*/true);
  {
    const torch::NoGradGuard no_grad;
    net->parameters()[0].mul_(1 + group.rank());
  }
  muster::DistributedDataParallel model(
      net, group, {.ignored_parameters = {"0.weight", net->parameters()[1], "1.running_mean"}});
  torch::optim::SGD optimizer(model.parameters(), 0.1);
  Line line;
  for (int step = 0; step < kSteps; ++step) {
    optimizer.zero_grad();
    const auto loss = torch::cross_entropy_loss(model(data.x(step, group)), data.y(step, group));
    loss.backward();
    optimizer.step();
    line.add(loss);
  }
  return line.with(model.parameters());
}

std::string scripted(muster::ProcessGroup& group,
                     const Data& data,
                     const muster::DdpOptions& options) {
  auto script = torch::jit::load(muster::cat(muster::test::twin_folder(), "/script.pt"));
  script.to(group.device());
  muster::DistributedDataParallel model(script, group, options);
  torch::optim::SGD optimizer(model.parameters(), 0.1);
  Line line;
  for (int step = 0; step < kSteps; ++step) {
    optimizer.zero_grad();
    const auto output = model(data.x(step, group)).toTuple();
    const auto loss =
        torch::cross_entropy_loss(output->elements()[0].toTensor(), data.y(step, group));
    loss.backward();
    optimizer.step();
    line.add(loss);
  }
  return line.with(model.parameters());
}

std::string plain_list(muster::ProcessGroup& group, const Data& data) {
  torch::manual_seed(11);
  auto a = (torch::randn({12, 16}) * 0.3).to(group.device()).requires_grad_(),
       b = (torch::randn({16, 5}) * 0.3).to(group.device()).requires_grad_();
  muster::GradientReducer reducer({{"a", a}, {"b", b}}, group);
  torch::optim::SGD optimizer(std::vector<Tensor>{a, b}, 0.1);
  Line line;
  for (int step = 0; step < kSteps; ++step) {
    optimizer.zero_grad();
    const auto output =
        reducer.forward([&] { return torch::tanh(data.x(step, group).mm(a)).mm(b); });
    const auto loss = torch::cross_entropy_loss(output, data.y(step, group));
    loss.backward();
    optimizer.step();
    line.add(loss);
  }
  return line.with({a, b});
}

struct Uneven {
  muster::JoinOptions join = {};
  muster::DdpOptions options = {};
  bool norm = false;
  bool first_ends_first = true;
  bool accumulates = false;
};

// Rank r has 2 + r inputs, or rank 0 the most.
std::string uneven(muster::ProcessGroup& group, const Data& data, const Uneven& of) {
  muster::DistributedDataParallel model(runs_net(group.device(), of.norm), group, of.options);
  torch::optim::SGD optimizer(model.parameters(), 0.1);
  const int inputs = 2 + 2 * (of.first_ends_first ? group.rank() : group.size() - 1 - group.rank());
  Line line;
  model.join(
      [&] {
        for (int step = 0; step < inputs; ++step) {
          const bool local = of.accumulates && step % 2 == 0;
          const auto guard = model.no_sync_if(local);
          const auto loss =
              torch::cross_entropy_loss(model(data.x(step, group)), data.y(step, group));
          loss.backward();
          line.add(loss);
          if (local)
            continue;
          optimizer.step();
          optimizer.zero_grad();
        }
      },
      of.join);
  return line.with(model.parameters());
}

using Run = std::function<std::string(muster::ProcessGroup&, const Data&)>;

template <class Kind, class Options>
Run optimizer_run(Options options) {
  return [options](auto& group, const auto& data) {
    return with_optimizer(group, data, [&](std::vector<Tensor> parameters) {
      return std::make_unique<Kind>(std::move(parameters), options);
    });
  };
}

Run uneven_run(Uneven of) {
  return [of](auto& group, const auto& data) {
    return uneven(group, data, of);
  };
}

std::vector<std::pair<std::string, Run>> runs() {
  using namespace torch::optim;
  return {
      {"sgd", optimizer_run<SGD>(SGDOptions(0.1).momentum(0.9).weight_decay(0.01))},
      {"sgd nesterov", optimizer_run<SGD>(SGDOptions(0.1).momentum(0.9).nesterov(true))},
      {"rmsprop", optimizer_run<RMSprop>(RMSpropOptions(0.01))},
      {"adagrad", optimizer_run<Adagrad>(AdagradOptions(0.1))},
      {"adam", optimizer_run<Adam>(AdamOptions(0.01))},
      {"adamw", optimizer_run<AdamW>(AdamWOptions(0.01))},
      {"lbfgs", optimizer_run<LBFGS>(LBFGSOptions(0.1).max_iter(4))},
      {"ignored", ignoring},
      {"script", [](auto& group, const auto& data) { return scripted(group, data, {}); }},
      {"script unused",
       [](auto& group, const auto& data) {
         return scripted(group, data, {.find_unused_parameters = true});
       }},
      {"script static",
       [](auto& group, const auto& data) { return scripted(group, data, {.static_graph = true}); }},
      {"list", plain_list},
      {"join", uneven_run({})},
      {"join remaining", uneven_run({.join = {.divide_by_initial_world_size = false}})},
      {"join rank 0 last", uneven_run({.first_ends_first = false})},
      {"join remaining rank 0 last",
       uneven_run({.join = {.divide_by_initial_world_size = false}, .first_ends_first = false})},
      {"join buffers", uneven_run({.norm = true})},
      {"join buffers rank 0 last", uneven_run({.norm = true, .first_ends_first = false})},
      {"join unused", uneven_run({.options = {.find_unused_parameters = true}})},
      {"join buckets", uneven_run({.options = {.bucket_cap_mb = 0.0005}})},
      {"join fp16", uneven_run({.options = {.hook = muster::fp16_compression()}})},
      {"join accumulate", uneven_run({.accumulates = true})},
  };
}

}  // namespace

int main(int argc, char** argv) {
  return muster::run(argc, argv, [](muster::Context& ctx) {
    torch::manual_seed(3);
    Data data;
    data.features = torch::randn({200, 12}).to(ctx.device());
    data.labels = torch::randint(5, {200}).to(ctx.device());
    const std::string path = muster::cat(muster::test::twin_folder(), "/ours-", ctx.rank());
    FILE* file = std::fopen(path.c_str(), "w");
    if (file == nullptr)
      throw std::runtime_error("cannot write " + path);
    for (const auto& [name, run] : runs()) {
      std::fprintf(file, "%s: %s\n", name.c_str(), run(ctx.process_group(), data).c_str());
      std::fflush(file);
    }
    std::fclose(file);
  });
}
