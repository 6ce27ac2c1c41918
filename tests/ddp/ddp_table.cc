// A table of training runs, model × option, each of a few steps: what DistributedDataParallel does
// with each. A line each, `row column: the losses' bits, and the sum of all parameters at the end`.
// ddp_table.py has the same rows and columns in Python; compare_table.py compares.
#include <muster/muster.h>
#include <torch/torch.h>

#include <bit>
#include <cstdio>
#include <map>
#include <numeric>
#include <optional>

#include "tests/support/twin.h"

namespace {

using torch::Tensor;
using torch::nn::Linear;

constexpr int kTableSteps = 6;
constexpr int64_t kTableBatch = 8;

struct Mlp : torch::nn::Module {
  Mlp() {
    register_module("a", a);
    register_module("b", b);
  }
  Tensor forward(const Tensor& x, int /*pick*/) { return b(torch::tanh(a(x))); }
  Tensor loss(const Tensor& output, const Tensor& /*x*/, const Tensor& y) {
    return torch::cross_entropy_loss(output, y);
  }
  void before(int /*step*/) {}
  void wrapped(const muster::ProcessGroup& /*group*/, const muster::DdpOptions& /*options*/) {}
  static int pick(int /*step*/, int /*rank*/) { return 0; }
  void set_requires_grad(bool on) {
    for (auto& parameter : parameters())
      parameter.set_requires_grad(on);
  }
  Linear a{12, 16}, b{16, 5};
};

// One of two branches, the same on all ranks.
struct Branches : Mlp {
  Branches() { register_module("c", c); }
  Tensor forward(const Tensor& x, int pick) { return (pick != 0 ? c : b)(torch::tanh(a(x))); }
  static int pick(int step, int /*rank*/) {
    return std::array{0, 0, 1, 0, 1, 1}.at(static_cast<size_t>(step));
  }
  Linear c{16, 5};
};

// Each rank another one; in the last steps both the same.
struct Experts : Branches {
  static int pick(int step, int rank) { return step < 4 ? (step + rank) % 2 : 1; }
};

// A layer that is used twice, and one weight that two layers have.
struct Shared : torch::nn::Module {
  Shared() {
    register_module("a", a);
    register_module("b", b);
    register_module("c", c);
    c->share(b->weight);
  }
  Tensor forward(const Tensor& x, int /*pick*/) {
    const auto hidden = torch::tanh(a(torch::tanh(a(x))));
    return b(hidden) + c(hidden);
  }
  Tensor loss(const Tensor& output, const Tensor& /*x*/, const Tensor& y) {
    return torch::cross_entropy_loss(output, y);
  }
  void before(int /*step*/) {}
  void wrapped(const muster::ProcessGroup& /*group*/, const muster::DdpOptions& /*options*/) {}
  static int pick(int /*step*/, int /*rank*/) { return 0; }
  Linear a{12, 12}, b{12, 5};
  struct TiedImpl : torch::nn::LinearImpl {
    using LinearImpl::LinearImpl;
    void share(const Tensor& other) { parameters_["weight"] = weight = other; }
  };
  TORCH_MODULE(Tied);
  Tied c{12, 5};
};

struct Frozen : Mlp {
  Frozen() {
    for (auto& parameter : a->parameters())
      parameter.set_requires_grad(false);
  }
};

// Frozen after it was wrapped, for two steps.
struct Freezing : Mlp {
  void before(int step) {
    for (auto& parameter : a->parameters())
      parameter.set_requires_grad(step != 2 && step != 3);
  }
};

// Nothing is trained for two steps, but gradients flow through: a discriminator while its generator
// trains.
struct FrozenWhole : Mlp {
  void before(int step) { set_requires_grad(step != 2 && step != 3); }
  Tensor forward(Tensor x, int pick) { return Mlp::forward(x.set_requires_grad(true), pick); }
};

// The loss looks at the first alone.
struct TwoOutputs : Mlp {
  TwoOutputs() { register_module("aux", aux); }
  std::pair<Tensor, Tensor> forward(const Tensor& x, int /*pick*/) {
    const auto hidden = torch::tanh(a(x));
    return {b(hidden), aux(hidden)};
  }
  Tensor loss(const std::pair<Tensor, Tensor>& output, const Tensor& /*x*/, const Tensor& y) {
    return torch::cross_entropy_loss(output.first, y);
  }
  Linear aux{16, 2};
};

struct Nested : TwoOutputs {
  using Output = std::map<std::string, std::pair<Tensor, std::vector<Tensor>>>;
  Output forward(const Tensor& x, int pick) {
    const auto [logits, second] = TwoOutputs::forward(x, pick);
    return {{"logits", {logits, {second}}}};
  }
  Tensor loss(const Output& output, const Tensor& /*x*/, const Tensor& y) {
    const auto& [logits, others] = output.at("logits");
    return torch::cross_entropy_loss(logits, y) + others[0].square().mean();
  }
};

// tanh(layer(input)), computed again in backward in a graph of its own.
struct Recomputed : torch::autograd::Function<Recomputed> {
  static Tensor forward(torch::autograd::AutogradContext* context,
                        const Tensor& input,
                        Linear layer) {
    context->save_for_backward({input});
    context->saved_data["layer"] = reinterpret_cast<int64_t>(layer.get());
    return torch::tanh(layer->forward(input));
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    // NOLINTNEXTLINE(performance-no-int-to-ptr): saved data holds no pointers
    auto* layer = reinterpret_cast<torch::nn::LinearImpl*>(context->saved_data["layer"].toInt());
    const torch::AutoGradMode grad(true);
    auto input = context->get_saved_variables()[0].detach().requires_grad_();
    torch::autograd::backward({torch::tanh(layer->forward(input))}, gradients);
    return {input.grad(), Tensor()};
  }
};

struct Checkpointed : Mlp {
  Tensor forward(Tensor x, int /*pick*/) {
    return b(Recomputed::apply(x.set_requires_grad(true), a));
  }
};

struct CheckpointedTwice : Mlp {
  CheckpointedTwice() { register_module("m", m); }
  Tensor forward(const Tensor& x, int /*pick*/) {
    return b(Recomputed::apply(Recomputed::apply(torch::tanh(a(x)), m), m));
  }
  Linear m{16, 16};
};

// A gradient penalty: torch::autograd::grad with respect to the input, before backward.
struct Penalty : Mlp {
  Tensor forward(Tensor x, int pick) { return Mlp::forward(x.set_requires_grad(true), pick); }
  Tensor loss(const Tensor& output, const Tensor& x, const Tensor& y) {
    const auto slope = torch::autograd::grad({output.sum()}, {x}, {}, {}, /*create_graph=*/true)[0];
    return torch::cross_entropy_loss(output, y) + slope.square().sum(1).mean();
  }
};

struct InPlace : Mlp {
  Tensor loss(Tensor output, const Tensor& /*x*/, const Tensor& y) {
    return torch::cross_entropy_loss(output.mul_(2), y);
  }
};

struct Norm : Mlp {
  Norm() { register_module("n", n); }
  Tensor forward(const Tensor& x, int /*pick*/) { return b(torch::tanh(n(a(x)))); }
  torch::nn::BatchNorm1d n{16};
};

// Rank 0 alone runs a forward without gradients between two steps, on the model itself.
struct Evaluated : Norm {};

// Another wrapped model has the first layer too, and is in the same backward.
struct TwoWrapped : Mlp {
  void wrapped(const muster::ProcessGroup& group, const muster::DdpOptions& options) {
    torch::nn::Sequential second(a, Linear(16, 5));
    second->to(group.device());
    other.emplace(second, group, options);
  }
  Tensor loss(const Tensor& output, const Tensor& x, const Tensor& y) {
    other->module()[1]->zero_grad();
    return torch::cross_entropy_loss(output, y) + torch::cross_entropy_loss((*other)(x), y);
  }
  std::optional<muster::DistributedDataParallel<torch::nn::Sequential>> other;
};

struct TableData {
  Tensor features, labels;
};

struct Case {
  muster::DdpOptions options;
  bool accumulate = false;
};

template <class Net>
std::string train(muster::ProcessGroup& all, const TableData& data, const Case& of) {
  torch::manual_seed(11);
  std::vector<int> ranks(static_cast<size_t>(all.size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  auto group = *all.new_group(ranks);
  const auto net = std::make_shared<Net>();
  net->to(data.features.device());
  muster::DistributedDataParallel model(net, group, of.options);
  net->wrapped(group, of.options);
  torch::optim::SGD optimizer(model.parameters(), 0.1);
  std::string line;
  for (int step = 0; step < kTableSteps; ++step) {
    net->before(step);
    Tensor loss;
    for (int micro = 0; micro < (of.accumulate ? 2 : 1); ++micro) {
      const auto guard = model.no_sync_if(of.accumulate && micro == 0);
      const int64_t begin = ((step + micro) * group.size() + group.rank()) * kTableBatch %
                            (data.features.size(0) - kTableBatch);
      const auto x = data.features.slice(0, begin, begin + kTableBatch).clone();
      loss = net->loss(model(x, Net::pick(step, group.rank())),
                       x,
                       data.labels.slice(0, begin, begin + kTableBatch));
      loss.backward();
    }
    if (std::is_same_v<Net, Evaluated> && group.rank() == 0) {
      const torch::NoGradGuard no_grad;
      net->forward(data.features.slice(0, 0, kTableBatch), 0);
    }
    optimizer.step();
    for (auto& parameter : net->parameters())
      parameter.mutable_grad().reset();
    char bits[16];
    std::snprintf(bits, sizeof bits, "%08x ", std::bit_cast<uint32_t>(loss.item<float>()));
    line += bits;
  }
  double total = 0;
  for (const auto& parameter : model.parameters()) {
    total += parameter.detach().to(torch::kDouble).sum().template item<double>();
  }
  char text[32];
  std::snprintf(text, sizeof text, "%.9f", total);
  return line + text;
}

using Train = std::string (*)(muster::ProcessGroup&, const TableData&, const Case&);

const std::vector<std::pair<const char*, Train>> kRows{
    {"mlp", train<Mlp>},
    {"branches", train<Branches>},
    {"experts", train<Experts>},
    {"shared", train<Shared>},
    {"frozen", train<Frozen>},
    {"freezing", train<Freezing>},
    {"frozen_whole", train<FrozenWhole>},
    {"two_outputs", train<TwoOutputs>},
    {"nested", train<Nested>},
    {"checkpointed", train<Checkpointed>},
    {"checkpointed_twice", train<CheckpointedTwice>},
    {"penalty", train<Penalty>},
    {"in_place", train<InPlace>},
    {"norm", train<Norm>},
    {"evaluated", train<Evaluated>},
    {"two_wrapped", train<TwoWrapped>},
};
const std::vector<std::pair<const char*, Case>> kColumns{
    {"plain", {}},
    {"unused", {{.find_unused_parameters = true}}},
    {"static", {{.static_graph = true}}},
    {"copies", {{.gradient_as_bucket_view = false}}},
    {"buckets", {{.bucket_cap_mb = 0.0005}}},
    {"accumulate", {{}, true}},
    {"unused_accumulate", {{.find_unused_parameters = true}, true}},
};

}  // namespace

int main(int argc, char** argv) {
  return muster::run(argc, argv, [](muster::Context& ctx) {
    torch::manual_seed(3);
    TableData data;
    data.features = torch::randn({200, 12}).to(ctx.device());
    data.labels = torch::randint(5, {200}).to(ctx.device());
    const std::string path = muster::cat(muster::test::twin_folder(), "/ours-", ctx.rank());
    FILE* file = std::fopen(path.c_str(), "w");
    if (file == nullptr)
      throw std::runtime_error("cannot write " + path);
    for (const auto& [row, run] : kRows) {
      for (const auto& [column, options] : kColumns) {
        std::string result;
        try {
          result = run(ctx.process_group(), data, options);
        } catch (const std::exception& error) {
          const std::string text = error.what();
          result = "refused: " + text.substr(0, text.find('\n'));
        }
        std::fprintf(file, "%s %s: %s\n", row, column, result.c_str());
        std::fflush(file);
      }
    }
    std::fclose(file);
  });
}
