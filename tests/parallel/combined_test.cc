// Data, pipeline and tensor parallelism in one mesh: each combination trains as one process does.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <array>
#include <cmath>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "muster/base/error.h"
#include "muster/base/strings.h"
#include "muster/data/dataset.h"
#include "muster/data/distributed_sampler.h"
#include "muster/data/loader.h"
#include "muster/ddp/distributed_data_parallel.h"
#include "muster/parallel/mesh.h"
#include "muster/parallel/pipeline/pipeline.h"
#include "muster/parallel/sharded/fully_sharded.h"
#include "muster/parallel/sharded/sharded_optimizer.h"
#include "muster/parallel/tensor/parallel_parameters.h"
#include "muster/parallel/tensor/tensor_parallel.h"
#include "muster/parallel/tensor/vocabulary_parallel.h"
#include "tests/support/ranks.h"

namespace muster::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int64_t kWidth = 8, kBlocks = 4, kBatch = 16, kMicroBatches = 4, kSteps = 20,
                  kLoadedSteps = 5;
constexpr uint64_t kBegun = 5;
constexpr double kBound = 2e-6;  // sums of other lengths are rounded at other places

struct Layers {
  torch::nn::Linear up{nullptr}, down{nullptr};
};

// The same on every rank, whatever it keeps of them. Ranks are threads, and torch's generator is
// theirs together.
std::vector<Layers> whole_layers(uint64_t seed = kBegun) {
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  torch::manual_seed(seed);
  std::vector<Layers> layers;
  for (int64_t i = 0; i < kBlocks; ++i)
    layers.push_back(
        {torch::nn::Linear(kWidth, 2 * kWidth), torch::nn::Linear(2 * kWidth, kWidth)});
  return layers;
}

struct WholeBlockImpl : torch::nn::Module {
  explicit WholeBlockImpl(const Layers& layers) : up(layers.up), down(layers.down) {
    register_module("up", up);
    register_module("down", down);
  }
  at::Tensor forward(const at::Tensor& x) { return x + down(torch::tanh(up(x))); }
  torch::nn::Linear up, down;
};
TORCH_MODULE(WholeBlock);

struct DividedBlockImpl : torch::nn::Module {
  DividedBlockImpl(const Layers& layers, const ProcessGroup& tp)
      : up(column_parallel(layers.up, tp)), down(row_parallel(layers.down, tp)) {
    register_module("up", up);
    register_module("down", down);
  }
  at::Tensor forward(const at::Tensor& x) { return x + down(torch::tanh(up(x))); }
  ColumnParallelLinear up;
  RowParallelLinear down;
};
TORCH_MODULE(DividedBlock);

// Blocks `first` … `first + count - 1`, divided over `tp`.
torch::nn::Sequential blocks(int64_t first,
                             int64_t count,
                             const ProcessGroup& tp,
                             uint64_t seed = kBegun) {
  const auto layers = whole_layers(seed);
  torch::nn::Sequential stage;
  for (int64_t i = first; i < first + count; ++i)
    stage->push_back(DividedBlock(layers[static_cast<size_t>(i)], tp));
  return stage;
}

at::Tensor batch_of_step(int64_t step, const char* what) {
  const double shift = what[0] == 'x' ? 0.1 : 0.7;
  const auto at = torch::arange(kBatch * kWidth, at::kFloat).view({kBatch, kWidth});
  return (at * (shift + 0.01 * static_cast<double>(step))).sin();
}

torch::nn::Sequential whole_net(uint64_t seed = kBegun) {
  torch::nn::Sequential net;
  for (const Layers& layers : whole_layers(seed))
    net->push_back(WholeBlock(layers));
  return net;
}

std::string saved(const torch::nn::Sequential& net) {
  std::ostringstream file;
  torch::save(net, file);
  return file.str();
}

void load(torch::nn::Sequential& net, const std::string& bytes) {
  std::istringstream file(bytes);
  torch::load(net, file);
}

at::Tensor mean_square(const at::Tensor& y, const at::Tensor& target) {
  return torch::mse_loss(y, target);
}

// The files that a training loads before the steps of these numbers.
using Loads = std::map<int64_t, std::string>;

void load_before(int64_t step, const Loads& loads, torch::nn::Sequential& net) {
  if (const auto found = loads.find(step); found != loads.end())
    load(net, found->second);
}

// Before the first step and after the second, each time the file of another model.
template <class Make>
Loads two_loads(const Make& make) {
  return {{0, saved(make(6))}, {2, saved(make(7))}};
}

std::vector<double> losses_of_one_process(const Loads& loads = {}) {
  auto net = whole_net();
  torch::optim::AdamW optimizer(net->parameters(), 1e-2);
  std::vector<double> losses;
  for (int64_t step = 0; step < kSteps; ++step) {
    load_before(step, loads, net);
    optimizer.zero_grad();
    const auto loss =
        torch::mse_loss(net->forward(batch_of_step(step, "x")), batch_of_step(step, "y"));
    loss.backward();
    optimizer.step();
    losses.push_back(loss.item<double>());
  }
  return losses;
}

// This rank's samples of a step.
at::Tensor own(const at::Tensor& batch, Mesh& mesh) {
  return batch.chunk(mesh.size("dp"))[static_cast<size_t>(mesh.rank("dp"))];
}

double mean_over(ProcessGroup& group, const at::Tensor& loss) {
  at::Tensor sum = loss.detach().to(at::kDouble).clone();
  group.all_reduce(sum);
  return sum.item<double>() / group.size();
}

struct Shape {
  int dp, pp, tp;
};
class MeshOf : public ::testing::TestWithParam<Shape> {};
INSTANTIATE_TEST_SUITE_P(All,
                         MeshOf,
                         ::testing::Values(Shape{2, 1, 2},
                                           Shape{2, 2, 1},
                                           Shape{1, 2, 2},
                                           Shape{2, 2, 2},
                                           Shape{1, 4, 2}),
                         [](const auto& shape) {
                           return "dp" + std::to_string(shape.param.dp) + "pp" +
                                  std::to_string(shape.param.pp) + "tp" +
                                  std::to_string(shape.param.tp);
                         });

TEST_P(MeshOf, PipelinesOfDividedLayersTrainAsOneProcess) {
  const auto [dp, pp, tp] = GetParam();
  const auto expected = losses_of_one_process();
  run_ranks(dp * pp * tp, [&, dp = dp, pp = pp, tp = tp](ProcessGroup& group) {
    at::set_num_threads(1);
    Mesh mesh(group, {{"dp", dp}, {"pp", pp}, {"tp", tp}});
    const int64_t count = kBlocks / pp;
    Pipeline pipeline(
        {blocks(mesh.rank("pp") * count, count, mesh.group("tp"))},
        mesh.group("pp"),
        {.schedule = one_f_one_b(pp, kMicroBatches), .loss = mean_square, .share_loss = true});
    pipeline.average_over(mesh.group("dp"));
    torch::optim::AdamW optimizer(pipeline.parameters(), 1e-2);
    for (int64_t step = 0; step < kSteps; ++step) {
      optimizer.zero_grad();
      const auto loss =
          pipeline.step(own(batch_of_step(step, "x"), mesh), own(batch_of_step(step, "y"), mesh));
      optimizer.step();
      EXPECT_NEAR(mean_over(mesh.group("dp"), loss), expected[static_cast<size_t>(step)], kBound)
          << step;
    }
  });
}

// Trains this rank's stage, which loads two files where `loads_here`, and compares the losses.
void train_and_load(Mesh& mesh,
                    const PipelineSchedule& schedule,
                    bool loads_here,
                    const std::vector<double>& expected) {
  const int64_t count = kBlocks / mesh.size("pp");
  const auto stage_of = [&](uint64_t seed) {
    return blocks(mesh.rank("pp") * count, count, mesh.group("tp"), seed);
  };
  const Loads loads = two_loads(stage_of);
  auto stage = stage_of(kBegun);
  Pipeline pipeline(
      {stage}, mesh.group("pp"), {.schedule = schedule, .loss = mean_square, .share_loss = true});
  pipeline.average_over(mesh.group("dp"));
  torch::optim::AdamW optimizer(pipeline.parameters(), 1e-2);
  for (int64_t step = 0; step < kLoadedSteps; ++step) {
    if (loads_here)
      load_before(step, loads, stage);
    optimizer.zero_grad();
    const auto loss =
        pipeline.step(own(batch_of_step(step, "x"), mesh), own(batch_of_step(step, "y"), mesh));
    optimizer.step();
    EXPECT_NEAR(mean_over(mesh.group("dp"), loss), expected[static_cast<size_t>(step)], kBound)
        << step;
  }
}

TEST_P(MeshOf, PipelinesThatLoadFilesOfTorchSaveTrainAsOneProcess) {
  const auto [dp, pp, tp] = GetParam();
  const auto expected = losses_of_one_process(two_loads(whole_net));
  for (const auto& schedule : {one_f_one_b(pp, kMicroBatches), zero_bubble(pp, kMicroBatches)}) {
    SCOPED_TRACE(schedule.name);
    run_ranks(dp * pp * tp, [&, dp = dp, pp = pp, tp = tp](ProcessGroup& group) {
      at::set_num_threads(1);
      Mesh mesh(group, {{"dp", dp}, {"pp", pp}, {"tp", tp}});
      train_and_load(mesh, schedule, true, expected);
    });
  }
}

TEST(Combined, ReplicasOfAPipelineTakeWhatTheFirstLoads) {
  const auto expected = losses_of_one_process(two_loads(whole_net));
  run_ranks(4, [&](ProcessGroup& group) {
    at::set_num_threads(1);
    Mesh mesh(group, {{"dp", 2}, {"pp", 2}, {"tp", 1}});
    train_and_load(mesh, one_f_one_b(2, kMicroBatches), mesh.rank("dp") == 0, expected);
  });
}

// Its values would be lost.
TEST(Combined, AnotherReplicasLoadIsAnErrorOnAllOfThem) {
  const auto expected = losses_of_one_process(two_loads(whole_net));
  const auto failures = failures_of_ranks(4, [&](ProcessGroup& group) {
    at::set_num_threads(1);
    Mesh mesh(group, {{"dp", 2}, {"pp", 2}, {"tp", 1}});
    train_and_load(mesh, one_f_one_b(2, kMicroBatches), mesh.rank("dp") == 1, expected);
  });
  for (const int rank : {0, 1, 2, 3})
    EXPECT_THAT(
        message_of(failures[static_cast<size_t>(rank)]),
        HasSubstr(cat("on the first of its replicas, whose values all take, got them on rank ",
                      2 + rank % 2,
                      " and none on rank ",
                      rank % 2)));
}

// What two replicas of a pipeline of two stages print that do this.
std::string printed_by_replicas(const std::function<void(ProcessGroup&, Mesh&, Pipeline&)>& body) {
  ::testing::internal::CaptureStderr();
  run_ranks(4, [&](ProcessGroup& group) {
    at::set_num_threads(1);
    Mesh mesh(group, {{"dp", 2}, {"pp", 2}, {"tp", 1}});
    auto stage = blocks(mesh.rank("pp") * kBlocks / 2, kBlocks / 2, mesh.group("tp"), kBegun);
    Pipeline pipeline({stage},
                      mesh.group("pp"),
                      {.schedule = one_f_one_b(2, kMicroBatches), .loss = mean_square});
    pipeline.average_over(mesh.group("dp"));
    body(group, mesh, pipeline);
  });
  return ::testing::internal::GetCapturedStderr();
}

// Two micro-batches a step of the optimizer. What `reduces` says of the first and the second.
std::string printed_by_steps(const std::array<bool, 2>& reduces) {
  return printed_by_replicas([&](ProcessGroup&, Mesh& mesh, Pipeline& pipeline) {
    torch::optim::SGD optimizer(pipeline.parameters(), 0.1);
    for (int64_t step = 0; step < 3; ++step) {
      for (const bool reduce : reduces)
        pipeline.step(own(batch_of_step(step, "x"), mesh),
                      own(batch_of_step(step, "y"), mesh),
                      {.scale = 0.5, .reduce = reduce});
      optimizer.step();
      optimizer.zero_grad();
    }
  });
}

TEST(Combined, AnOptimizersStepOnGradientsThatWereNotReducedIsSaid) {
  const auto said = HasSubstr("has changed after a step with .reduce = false");
  EXPECT_THAT(printed_by_steps({true, false}), said);
  EXPECT_THAT(printed_by_steps({false, true}), ::testing::Not(said));
}

// What a pipeline of two stages and two replicas prints whose loaders share the data out so.
std::string said_of_batches(const std::function<DistributedSampler(const Mesh&, int rank)>& sampler,
                            bool each_reads_its_own = false) {
  return printed_by_replicas([&](ProcessGroup& group, Mesh& mesh, Pipeline& pipeline) {
    const at::Tensor data = torch::arange(64 * kWidth, at::kFloat).view({64, kWidth}) * 0.01;
    DistributedSampler own_samples = sampler(mesh, group.rank());
    DataLoader loader(TensorDataset{data, data.flip(1)}, own_samples, {.batch_size = 8});
    for (const auto& batch : loader) {
      const bool is_first = mesh.rank("pp") == 0;
      const at::Tensor x = !each_reads_its_own || is_first ? batch.features : at::Tensor();
      const at::Tensor y =
          !each_reads_its_own || !is_first ? batch.labels : torch::zeros_like(batch.labels);
      pipeline.step(x, y);
    }
  });
}

TEST(Combined, StagesThatReadDifferentBatchesAreSaid) {
  const auto over_all_ranks = [](const Mesh&, int rank) {
    return DistributedSampler(64, {.num_replicas = 4, .rank = rank});
  };
  const auto over_replicas = [](const Mesh& mesh, int) {
    return DistributedSampler(64, {.num_replicas = mesh.size("dp"), .rank = mesh.rank("dp")});
  };
  const auto said = HasSubstr("the last stage's to read the same batch");
  EXPECT_THAT(said_of_batches(over_all_ranks),
              AllOf(said, HasSubstr("got another input and another target on rank 1 in step 0")));
  EXPECT_THAT(said_of_batches(over_replicas), ::testing::Not(said));
  EXPECT_THAT(said_of_batches(over_all_ranks, true), ::testing::Not(said));  // it cannot be known
}

TEST(Combined, DividedLayersThatLoadFilesOfTorchSaveTrainAsOneProcess) {
  const auto expected = losses_of_one_process(two_loads(whole_net));
  for (const int dp : {1, 2}) {
    SCOPED_TRACE(dp);
    run_ranks(2 * dp, [&](ProcessGroup& group) {
      at::set_num_threads(1);
      Mesh mesh(group, {{"dp", dp}, {"tp", 2}});
      const auto net_of = [&](uint64_t seed) {
        return blocks(0, kBlocks, mesh.group("tp"), seed);
      };
      const Loads loads = two_loads(net_of);
      auto net = net_of(kBegun);
      std::optional<DistributedDataParallel<torch::nn::Sequential>> wrapped;
      if (dp > 1)
        wrapped.emplace(net, mesh.group("dp"));
      torch::optim::AdamW optimizer(net->parameters(), 1e-2);
      for (int64_t step = 0; step < kLoadedSteps; ++step) {
        load_before(step, loads, net);
        optimizer.zero_grad();
        const auto x = own(batch_of_step(step, "x"), mesh);
        const auto loss = torch::mse_loss(wrapped ? (*wrapped)(x) : net->forward(x),
                                          own(batch_of_step(step, "y"), mesh));
        loss.backward();
        optimizer.step();
        EXPECT_NEAR(mean_over(mesh.group("dp"), loss), expected[static_cast<size_t>(step)], kBound)
            << step;
      }
    });
  }
}

// Its own part is right, and the whole layer is of two files.
TEST(Combined, ALoadOfDividedLayersOnOneRankIsAnErrorOnEachRank) {
  for (const char* backend : {"shm", "gloo"}) {
    for (const int rank_that_loads : {0, 1}) {
      const auto failures =
          failures_of_ranks(2,
                            [&](ProcessGroup& group) {
                              at::set_num_threads(1);
                              auto net = blocks(0, kBlocks, group);
                              const std::string file = saved(blocks(0, kBlocks, group, 6));
                              for (int64_t step = 0; step < 3; ++step) {
                                if (step == 2 && group.rank() == rank_that_loads)
                                  load(net, file);
                                net->forward(batch_of_step(step, "x")).square().mean().backward();
                              }
                            },
                            {.backend = backend});
      EXPECT_THAT(message_of(failures[static_cast<size_t>(rank_that_loads)]),
                  HasSubstr("column_parallel: expected every rank of the group to load its part"));
      EXPECT_THAT(message_of(failures[static_cast<size_t>(1 - rank_that_loads)]),
                  HasSubstr("expected the same call on every rank"))
          << backend;
    }
  }
}

// LibTorch gives a parameter the file's shape, so that whole layers would compute, and be summed.
TEST(Combined, AFileOfTheUndividedModelIsAnErrorOnEachRank) {
  const auto x = batch_of_step(0, "x");
  const std::string whole = saved(whole_net(6));
  const std::vector<std::function<void(torch::nn::Sequential&)>> uses = {
      [&](torch::nn::Sequential& net) { net->forward(x); },
      [](torch::nn::Sequential& net) { gather_parameters(*net); },
      [](torch::nn::Sequential& net) { parallel_pieces(*net); }};
  for (const auto& use : uses) {
    const auto failures = failures_of_ranks(2, [&](ProcessGroup& group) {
      auto net = blocks(0, kBlocks, group);
      load(net, whole);
      use(net);
    });
    for (int rank = 0; rank < 2; ++rank) {
      EXPECT_THAT(message_of(failures[static_cast<size_t>(rank)]),
                  AllOf(HasSubstr("column_parallel: expected this rank's part of 'weight', "
                                  "8 along dimension 0, got [16, 8]"),
                        HasSubstr("(rank " + std::to_string(rank) + ")"),
                        HasSubstr("before the layers are divided")));
    }
  }
}

TEST(Combined, AFileOfOneUndividedLayerIsAnErrorToo) {
  const auto of_file = [](auto& to, const auto& from) {
    std::stringstream file;
    torch::save(from, file);
    torch::load(to, file);
  };
  const auto refused = [](const auto& use) {
    for (const auto& failure : failures_of_ranks(2, use))
      EXPECT_THAT(message_of(failure), HasSubstr("expected this rank's part of 'weight', "));
  };
  const torch::nn::Linear linear = whole_layers()[0].down;
  const torch::nn::Embedding embedding(6, 4);
  refused([&](ProcessGroup& group) {
    auto row = row_parallel(linear, group);
    of_file(row, linear);
    row(torch::ones({1, 2 * kWidth}));
  });
  refused([&](ProcessGroup& group) {
    auto tokens = parallel_embedding(embedding, group);
    of_file(tokens, embedding);
    tokens(torch::arange(6));
  });
}

// Each rank's line search would be of its own part.
TEST(Combined, LbfgsOverPartsIsRefusedInItsFirstStep) {
  const auto step_by_lbfgs = [](const std::vector<at::Tensor>& parameters, const auto& loss_of) {
    torch::optim::LBFGS optimizer(parameters, torch::optim::LBFGSOptions(0.1).max_iter(2));
    optimizer.step([&] {
      optimizer.zero_grad();
      return loss_of();
    });
  };
  const std::vector<std::function<void(ProcessGroup&)>> programs = {
      [&](ProcessGroup& group) {
        auto net = blocks(0, kBlocks, group);
        step_by_lbfgs(net->parameters(), [&] {
          auto loss = torch::mse_loss(net->forward(batch_of_step(0, "x")), batch_of_step(0, "y"));
          loss.backward();
          return loss;
        });
      },
      [&](ProcessGroup& group) {
        torch::nn::Sequential stage(WholeBlock(whole_layers()[static_cast<size_t>(group.rank())]));
        Pipeline pipeline(
            {stage},
            group,
            {.schedule = one_f_one_b(2, kMicroBatches), .loss = mean_square, .share_loss = true});
        step_by_lbfgs(pipeline.parameters(),
                      [&] { return pipeline.step(batch_of_step(0, "x"), batch_of_step(0, "y")); });
      },
      [&](ProcessGroup& group) {
        FullySharded sharded(group);
        auto model = sharded.wrap(whole_net());
        step_by_lbfgs(sharded.parameters(), [&] {
          auto loss = torch::mse_loss(model(batch_of_step(0, "x")), batch_of_step(0, "y"));
          loss.backward();
          return loss;
        });
      }};
  for (const auto& program : programs)
    for (const auto& failure : failures_of_ranks(2, program))
      EXPECT_THAT(message_of(failure), HasSubstr("that looks at each number alone, got LBFGS"));
}

// Frozen divided layers have a whole gradient of their input, alike on all ranks.
TEST(Combined, LbfgsMayTrainAnInputOfFrozenDividedLayers) {
  const auto trained = [](auto& net) {
    for (auto& parameter : net->parameters())
      parameter.requires_grad_(false);
    auto x = batch_of_step(0, "x").clone().requires_grad_();
    torch::optim::LBFGS optimizer({x}, torch::optim::LBFGSOptions(0.1).max_iter(4));
    optimizer.step([&] {
      optimizer.zero_grad();
      auto loss = torch::mse_loss(net->forward(x), batch_of_step(0, "y"));
      loss.backward();
      return loss;
    });
    return x.detach();
  };
  auto whole = whole_net();
  const at::Tensor expected = trained(whole);
  run_ranks(2, [&](ProcessGroup& group) {
    at::set_num_threads(1);
    auto net = blocks(0, kBlocks, group);
    const at::Tensor apart = (trained(net) - expected).abs().max();
    EXPECT_LE(apart.item<double>(), 1e-3) << "of a change by 1.1";
  });
}

// The norm over the ranks of dp would be that of one part, and another on each rank of tp.
TEST(Combined, ANormOfShardedPartsOfDividedLayersIsRefused) {
  run_ranks(4, [&](ProcessGroup& group) {
    at::set_num_threads(1);
    Mesh mesh(group, {{"dp", 2}, {"tp", 2}});
    auto zero2_net = blocks(0, kBlocks, mesh.group("tp"));
    auto net = blocks(0, kBlocks, mesh.group("tp"));
    ShardedOptimizer<torch::optim::SGD> zero2(
        zero2_net->parameters(), 0.1, mesh.group("dp"), {.gradients = true});
    FullySharded sharded(mesh.group("dp"));
    auto model = sharded.wrap(net);
    const auto x = own(batch_of_step(0, "x"), mesh);
    zero2_net->forward(x).square().mean().backward();
    model(x).square().mean().backward();
    const int first = group.rank() / 2 * 2;
    const auto refused = [&](const auto& clip) {
      std::string said;
      try {
        clip();
      } catch (const Error& error) {
        said = error.what();
      }
      EXPECT_THAT(said, HasSubstr(cat("divided over ranks ", first, ", ", first + 1, " too")));
    };
    refused([&] { zero2.clip_grad_norm(1.0); });
    refused([&] { sharded.clip_grad_norm(1.0); });
  });
}

TEST(Combined, DistributedDataParallelOverDividedLayersTrainsAsOneProcess) {
  const auto expected = losses_of_one_process();
  run_ranks(4, [&](ProcessGroup& group) {
    at::set_num_threads(1);
    Mesh mesh(group, {{"dp", 2}, {"tp", 2}});
    auto net = blocks(0, kBlocks, mesh.group("tp"));
    DistributedDataParallel model(net, mesh.group("dp"));
    torch::optim::AdamW optimizer(net->parameters(), 1e-2);
    for (int64_t step = 0; step < kSteps; ++step) {
      optimizer.zero_grad();
      const auto loss = torch::mse_loss(model(own(batch_of_step(step, "x"), mesh)),
                                        own(batch_of_step(step, "y"), mesh));
      loss.backward();
      optimizer.step();
      EXPECT_NEAR(mean_over(mesh.group("dp"), loss), expected[static_cast<size_t>(step)], kBound)
          << step;
    }
  });
}

// With the names and shapes of a divided layer's part, and nothing besides, as files had before.
struct PlainPartImpl : torch::nn::Module {
  explicit PlainPartImpl(const at::Tensor& of) {
    register_parameter("weight", torch::full_like(of, 0.25));
  }
};

TEST(Combined, DividedLayersRefuseTheFileOfAnotherRank) {
  run_ranks(2, [&](ProcessGroup& group) {
    const auto saved_and_loaded = [&](auto layer, const char* name) {
      std::ostringstream mine;
      torch::save(layer, mine);
      const auto files = group.all_gather_bytes(mine.str());
      const auto load_of = [&](const std::string& bytes) {
        std::istringstream file(bytes);
        torch::load(layer, file);
      };
      const at::Tensor before = layer->weight.detach().clone();
      std::string said;
      try {
        load_of(files[static_cast<size_t>(1 - group.rank())]);
      } catch (const Error& error) {
        said = error.what();
      }
      EXPECT_THAT(said,
                  HasSubstr(cat(name,
                                ": expected a file of part ",
                                group.rank(),
                                " of 2, got one of part ",
                                1 - group.rank(),
                                " of 2")));
      EXPECT_TRUE(layer->weight.equal(before)) << name;
      load_of(files[static_cast<size_t>(group.rank())]);
      EXPECT_TRUE(layer->weight.equal(before)) << name;
      std::ostringstream old;
      torch::save(std::make_shared<PlainPartImpl>(layer->weight), old);
      load_of(old.str());
      EXPECT_TRUE(layer->weight.eq(0.25).all().template item<bool>()) << name;
    };
    torch::nn::Linear linear(torch::nn::LinearOptions(4, 6).bias(false));
    torch::nn::Embedding embedding(8, 4);
    {
      const torch::NoGradGuard no_grad;
      linear->weight.copy_(torch::arange(24).view({6, 4}));
      embedding->weight.copy_(torch::arange(32).view({8, 4}));
    }
    saved_and_loaded(column_parallel(linear, group), "column_parallel");
    saved_and_loaded(row_parallel(linear, group), "row_parallel");
    saved_and_loaded(parallel_embedding(embedding, group), "parallel_embedding");
  });
}

}  // namespace
}  // namespace muster::testing
