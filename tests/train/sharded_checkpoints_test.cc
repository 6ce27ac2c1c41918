// Checkpoints of models that are divided over ranks: each way of dividing loads what another has
// saved, bit for bit, on another number of ranks.
#include <gmock/gmock.h>
#include <torch/torch.h>

#include <algorithm>
#include <filesystem>
#include <mutex>

#include "muster/base/error.h"
#include "muster/checkpoint/checkpoint.h"
#include "muster/checkpoint/files/tensor_source.h"
#include "muster/checkpoint/load_weights.h"
#include "muster/checkpoint/training/checkpoints.h"
#include "muster/checkpoint/training/trained_models.h"
#include "muster/ddp/gradient_reducer.h"
#include "muster/parallel/sharded/fully_sharded.h"
#include "muster/parallel/sharded/sharded_optimizer.h"
#include "muster/parallel/tensor/parallel_parameters.h"
#include "muster/train/ema.h"
#include "tests/data/files.h"
#include "tests/support/ranks.h"

namespace muster::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using torch::optim::Adam;
using torch::optim::AdamOptions;

struct UpDownImpl : torch::nn::Module {
  UpDownImpl()
      : up(register_module("up", torch::nn::Linear(6, 8))),
        down(register_module("down", torch::nn::Linear(8, 3))),
        seen(register_buffer("seen", torch::zeros(2))) {}
  torch::Tensor forward(const torch::Tensor& x) { return down(torch::tanh(up(x))); }
  torch::nn::Linear up, down;
  torch::Tensor seen;
};
TORCH_MODULE(UpDown);

struct DividedUpDownImpl : torch::nn::Module {
  DividedUpDownImpl(UpDown whole, const ProcessGroup& group)
      : up(register_module("up", column_parallel(whole->up, group))),
        down(register_module("down", row_parallel(whole->down, group))),
        seen(register_buffer("seen", whole->seen)) {}
  ColumnParallelLinear up;
  RowParallelLinear down;
  torch::Tensor seen;
};
TORCH_MODULE(DividedUpDown);

// Ranks are threads, and torch's generator is theirs together.
UpDown up_down(uint64_t seed) {
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  torch::manual_seed(seed);
  return UpDown();
}

const CheckpointsOptions in_folder(const std::string& folder) {
  return {.folder = folder, .keep_last = 0, .resume = true};
}

// Loads what is newest in the folder, if anything, and saves it as step `step`: as plain model, as
// model divided over the ranks, as part of the layers.
void pass_on_plain(ProcessGroup& group, const std::string& folder, int64_t step) {
  UpDown net = up_down(9);
  Adam optimizer(net->parameters(), 0.5);
  Checkpoints checkpoints(group, in_folder(folder));
  checkpoints.add("model", net).add("optimizer", optimizer);
  ASSERT_TRUE(checkpoints.restore());
  checkpoints.save(step);
}

// No forward follows.
void wrap_layers(FullySharded& sharded, const UpDown& net) {
  sharded.wrap(net->up);
  sharded.wrap(net);
}

void pass_on_fully_sharded(ProcessGroup& group, const std::string& folder, int64_t step) {
  UpDown net = up_down(9);
  FullySharded sharded(group);
  wrap_layers(sharded, net);
  Adam optimizer(sharded.parameters(), 0.5);
  Checkpoints checkpoints(group, in_folder(folder));
  checkpoints.add("model", sharded.pieces(*net)).add("optimizer", optimizer, sharded.pieces(*net));
  ASSERT_TRUE(checkpoints.restore());
  checkpoints.save(step);
}

void pass_on_sharded_optimizer(ProcessGroup& group,
                               const std::string& folder,
                               int64_t step,
                               bool gradients) {
  UpDown net = up_down(9);
  ShardedOptimizer<Adam> optimizer(
      net->parameters(), AdamOptions(0.5), group, {.gradients = gradients});
  Checkpoints checkpoints(group, in_folder(folder));
  checkpoints.add("model", net).add("optimizer", optimizer, optimizer.pieces(*net));
  ASSERT_TRUE(checkpoints.restore());
  EXPECT_EQ(static_cast<AdamOptions&>(optimizer.param_groups()[0].options()).lr(), 0.125);
  checkpoints.save(step);
}

void pass_on_divided_layers(ProcessGroup& group, const std::string& folder, int64_t step) {
  DividedUpDown net(up_down(9), group);
  Adam optimizer(net->parameters(), 0.5);
  Checkpoints checkpoints(group, in_folder(folder));
  checkpoints.add("model", parallel_pieces(*net))
      .add("optimizer", optimizer, parallel_pieces(*net));
  ASSERT_TRUE(checkpoints.restore());
  checkpoints.save(step);
}

// Steps of plain training, saved as step 1.
void begin(const std::string& folder) {
  run_ranks(1, [&](ProcessGroup& group) {
    UpDown net = up_down(1);
    Adam optimizer(net->parameters(), 0.125);
    for (int i = 0; i < 3; ++i) {
      optimizer.zero_grad();
      net(torch::arange(12).reshape({2, 6}).to(torch::kFloat)).square().mean().backward();
      optimizer.step();
    }
    net->seen.fill_(7);
    Checkpoints checkpoints(group, in_folder(folder));
    checkpoints.add("model", net).add("optimizer", optimizer);
    checkpoints.save(1);
  });
}

std::map<std::string, std::string> tensors_in(const std::string& step_folder,
                                              const std::string& kind) {
  std::vector<std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(step_folder))
    if (entry.path().filename().string().starts_with(kind))
      files.push_back(entry.path());
  const TensorSource source(files);
  EXPECT_TRUE(source.incomplete().empty()) << step_folder;
  std::map<std::string, std::string> tensors;
  for (const auto& [name, tensor] : source.tensors()) {
    std::string& bytes = tensors[name];
    bytes.resize(static_cast<size_t>(element_count(tensor.kind.shape)) *
                 safetensors_element_size(tensor.kind.dtype));
    source.read(name, all_elements(tensor.kind.shape), bytes.data());
  }
  return tensors;
}

TEST(ShardedCheckpoints, EachWayGoesOnFromEveryOtherBitForBit) {
  const test::TempFolder folder;
  begin(folder.path());
  struct Way {
    int ranks;
    std::function<void(ProcessGroup&, const std::string&, int64_t)> pass_on;
  };
  const auto zero1 = [](auto& g, const auto& f, int64_t s) {
    pass_on_sharded_optimizer(g, f, s, false);
  };
  const auto zero2 = [](auto& g, const auto& f, int64_t s) {
    pass_on_sharded_optimizer(g, f, s, true);
  };
  const std::vector<Way> ways = {{4, pass_on_fully_sharded},
                                 {2, pass_on_divided_layers},
                                 {3, zero1},
                                 {2, zero2},
                                 {3, pass_on_fully_sharded},
                                 {4, pass_on_divided_layers},
                                 {5, pass_on_fully_sharded},
                                 {1, pass_on_fully_sharded},
                                 {3, pass_on_plain},
                                 {2, zero1},
                                 {1, pass_on_plain}};
  int64_t step = 1;
  for (const Way& way : ways) {
    ++step;
    run_ranks(way.ranks, [&](ProcessGroup& group) { way.pass_on(group, folder.path(), step); });
    const std::string saved = folder / ("step-" + std::to_string(step));
    for (const char* kind : {"model", "optim"})
      EXPECT_EQ(tensors_in(saved, kind), tensors_in(folder / "step-1", kind))
          << kind << " of step " << step;
  }
  EXPECT_TRUE(std::filesystem::exists(folder / "step-12/model.safetensors"));
}

// An Ema as it was when it kept averages in the weights' type.
struct EmaOfTheWeightsType {
  SavedState state() const {
    SavedState saved = ema.state();
    for (auto& [name, tensor] : saved.tensors)
      tensor = tensor.is_floating_point() ? tensor.to(torch::kBFloat16) : tensor;
    return saved;
  }
  void load_state(const SavedState&) {}
  std::map<std::string, at::Tensor> own_tensors() const { return state().tensors; }
  TensorPieces pieces() const {
    TensorPieces all = ema.pieces();
    for (TensorPiece& piece : all)
      if (piece.tensor.is_floating_point())
        piece.tensor = piece.tensor.to(torch::kBFloat16);
    return all;
  }
  Ema& ema;
};

TEST(ShardedCheckpoints, AveragesThatWereSavedInBf16AreRead) {
  const test::TempFolder folder;
  run_ranks(2, [&](ProcessGroup& group) {
    UpDown net = up_down(1);
    net->to(torch::kBFloat16);
    FullySharded sharded(group);
    wrap_layers(sharded, net);
    const TensorPieces pieces = sharded.pieces(*net);
    Ema before(pieces, 0.75), after(pieces, 0.75);
    before.update();
    EmaOfTheWeightsType old{before};
    Checkpoints(group, in_folder(folder.path())).add("model", pieces).add("ema", old).save(1);
    for (const auto& [name, average] : after.averages())
      if (average.is_floating_point())
        average.fill_(9);
    Checkpoints resumed(group, in_folder(folder.path()));
    resumed.add("model", pieces).add("ema", after);
    EXPECT_TRUE(resumed.restore());
    EXPECT_EQ(after.updates(), 1);
    for (size_t i = 0; i < pieces.size(); ++i)
      EXPECT_TRUE(after.averages()[i].second.equal(before.averages()[i].second)) << i;
  });
}

// One update with the weights as they are, then one with others: averages that are neither.
void pass_on_averages(ProcessGroup& group,
                      const std::string& folder,
                      int64_t step,
                      const TensorPieces& pieces,
                      bool is_whole,
                      UpDown net) {
  Ema ema = is_whole ? Ema(*net, 0.75) : Ema(pieces, 0.75);
  Checkpoints checkpoints(group, in_folder(folder));
  if (is_whole) {
    checkpoints.add("model", net).add("ema", ema);
  } else {
    checkpoints.add("model", pieces).add("ema", ema);
  }
  if (step == 1) {
    ema.update();
    const torch::NoGradGuard no_grad;
    for (auto& parameter : net->parameters())
      parameter.mul_(2).add_(1);
    net->seen.fill_(7);
    ema.update();
  } else {
    ASSERT_TRUE(checkpoints.restore());
    EXPECT_EQ(ema.updates(), 2);
  }
  checkpoints.save(step);
}

// Of the eight checkpoints, divided in several ways, whose model is that of `weights`. A program
// without an Ema loads the averages.
void expect_averages_in_each(const std::string& folder, const torch::nn::Module& weights) {
  UpDown first = up_down(9);
  load_weights(*first, folder + "/step-1", {.part = "ema"});
  EXPECT_FALSE(first->up->weight.equal(weights.named_parameters()["up.weight"]));
  EXPECT_EQ(first->seen[0].item<double>(), 7);
  for (int step = 2; step <= 8; ++step) {
    UpDown loaded = up_down(9);
    const std::string path = folder + "/step-" + std::to_string(step);
    EXPECT_EQ(load_weights(*loaded, path, {.part = "ema"}).loaded.size(), 5U);
    for (size_t i = 0; i < loaded->parameters().size(); ++i)
      EXPECT_TRUE(loaded->parameters()[i].equal(first->parameters()[i])) << path;
    EXPECT_TRUE(loaded->seen.equal(first->seen)) << path;
  }
}

TEST(ShardedCheckpoints, AveragesGoOnHoweverTheModelIsDivided) {
  const test::TempFolder folder;
  const auto plain = [&](ProcessGroup& group, int64_t step) {
    pass_on_averages(group, folder.path(), step, {}, true, up_down(step == 1 ? 1 : 9));
  };
  const auto sharded = [&](ProcessGroup& group, int64_t step) {
    UpDown net = up_down(9);
    FullySharded model(group);
    wrap_layers(model, net);
    pass_on_averages(group, folder.path(), step, model.pieces(*net), false, net);
  };
  const auto layers = [&](ProcessGroup& group, int64_t step) {
    DividedUpDown net(up_down(9), group);
    pass_on_averages(group, folder.path(), step, parallel_pieces(*net), false, nullptr);
  };
  struct Way {
    int ranks;
    std::function<void(ProcessGroup&, int64_t)> pass_on;
  };
  int64_t step = 0;
  for (const Way& way : std::vector<Way>{{1, plain},
                                         {3, sharded},
                                         {2, layers},
                                         {4, sharded},
                                         {2, plain},
                                         {2, layers},
                                         {5, sharded},
                                         {1, plain}}) {
    ++step;
    run_ranks(way.ranks, [&](ProcessGroup& group) { way.pass_on(group, step); });
  }
  const auto first = tensors_in(folder / "step-1", "parts");
  EXPECT_NE(first.at("tensors/ema/up.weight"),
            tensors_in(folder / "step-1", "model").at("up.weight"));
  for (; step > 1; --step) {
    const std::string saved = folder / ("step-" + std::to_string(step));
    EXPECT_EQ(tensors_in(saved, "model"), tensors_in(folder / "step-1", "model")) << saved;
    const auto parts = tensors_in(saved, "parts");
    for (const auto& [name, bytes] : first) {
      if (!name.starts_with("tensors/ema/"))
        continue;
      EXPECT_EQ(parts.at(name), bytes) << saved << " " << name;
    }
  }
  EXPECT_TRUE(std::filesystem::exists(folder / "step-2/parts-00002-of-00003.safetensors"));
  EXPECT_FALSE(std::filesystem::exists(folder / "step-8/parts-00000-of-00001.safetensors"));
  UpDown net = up_down(9);
  load_weights(*net, folder / "step-2");  // the averages are no weights of the model
  expect_averages_in_each(folder.path(), *net);
}

TEST(ShardedCheckpoints, AnEmaIsOfTheParts) {
  run_ranks(3, [&](ProcessGroup& group) {
    UpDown net = up_down(1), alone = up_down(1);
    FullySharded sharded(group);
    wrap_layers(sharded, net);
    Ema ema(sharded.pieces(*net), 0.75), expected(*alone, 0.75);
    int64_t elements = 0;
    for (const auto& piece : ema.pieces())
      elements += piece.is_buffer ? 0 : piece.tensor.numel();
    EXPECT_LT(elements, 40) << "a third of 83";
    for (int i = 0; i < 3; ++i) {
      const torch::NoGradGuard no_grad;
      for (const at::Tensor& part : sharded.parameters())
        part.mul_(1.5).add_(i);
      for (const at::Tensor& parameter : alone->parameters())
        parameter.mul_(1.5).add_(i);
      ema.update();
      expected.update();
    }
    const auto averages = ema.swap(), others = expected.swap();
    const auto whole = sharded.whole_parameters();
    for (size_t i = 0; i < net->parameters().size(); ++i)
      EXPECT_TRUE(net->parameters()[i].equal(alone->parameters()[i])) << i;
  });
}

// The same program before it had averages.
TEST(ShardedCheckpoints, ANewEmaMayBeDividedToo) {
  const test::TempFolder folder;
  run_ranks(2, [&](ProcessGroup& group) {
    UpDown net = up_down(1);
    FullySharded sharded(group);
    wrap_layers(sharded, net);
    Checkpoints(group, in_folder(folder.path())).add("model", sharded.pieces(*net)).save(1);
    Ema ema(sharded.pieces(*net), 0.75);
    Checkpoints without(group, in_folder(folder.path()));
    without.add("model", sharded.pieces(*net)).add("ema", ema);
    EXPECT_THAT(test::message_of([&] { without.restore(); }),
                HasSubstr("with the parts ema, generators, got"));
    CheckpointsOptions options = in_folder(folder.path());
    options.new_parts = {"ema"};
    Checkpoints with(group, options);
    with.add("model", sharded.pieces(*net)).add("ema", ema);
    const at::Tensor before = ema.averages()[0].second.clone();
    EXPECT_TRUE(with.restore());
    EXPECT_TRUE(ema.averages()[0].second.equal(before));
    EXPECT_EQ(ema.updates(), 0);
  });
}

TEST(ShardedCheckpoints, AnEmaMayBeginAnewOrBeLeftOut) {
  const test::TempFolder folder;
  run_ranks(2, [&](ProcessGroup& group) {
    UpDown net = up_down(1);
    FullySharded sharded(group);
    wrap_layers(sharded, net);
    const auto pieces = sharded.pieces(*net);
    Ema saved(pieces, 0.75);
    saved.update();
    Checkpoints(group, in_folder(folder.path())).add("model", pieces).add("ema", saved).save(1);
    for (const at::Tensor& part : sharded.parameters()) {
      const torch::NoGradGuard no_grad;
      part.add_(1);
    }
    Ema fresh(pieces, 0.75);
    const at::Tensor before = fresh.averages()[0].second.clone();
    CheckpointsOptions options = in_folder(folder.path());
    options.fresh = {"ema"};
    Checkpoints anew(group, options);
    anew.add("model", pieces).add("ema", fresh);
    EXPECT_TRUE(anew.restore());
    EXPECT_TRUE(fresh.averages()[0].second.equal(before));
    EXPECT_EQ(fresh.updates(), 0);
    fresh.update();
    anew.save_when_due(3);
    EXPECT_EQ(anew.go_back(1), 1) << "older than the new average";
    EXPECT_EQ(fresh.updates(), 1);
    options = in_folder(folder.path());
    options.leave_out = {"ema"};
    Checkpoints without(group, options);
    without.add("model", pieces);
    EXPECT_TRUE(without.restore());
  });
}

TEST(ShardedCheckpoints, AveragesThatDoNotFitAreRefused) {
  const test::TempFolder folder, other_folder;
  run_ranks(2, [&](ProcessGroup& group) {
    UpDown net = up_down(1);
    FullySharded sharded(group);
    wrap_layers(sharded, net);
    const auto pieces = sharded.pieces(*net);
    Ema some({pieces[0]}, 0.75), all(pieces, 0.75);
    Checkpoints saved(group, in_folder(folder.path())), resumed(group, in_folder(folder.path()));
    saved.add("model", pieces).add("ema", some).save(1);
    resumed.add("model", pieces).add("ema", all);
    EXPECT_THAT(test::message_of([&] { resumed.restore(); }),
                HasSubstr("got no tensor of that name"));
    const auto whole = sharded.whole_parameters();
    Checkpoints undivided(group, in_folder(other_folder.path()));
    undivided.add("model", net).add("ema", all);
    EXPECT_THAT(test::message_of([&] { undivided.save(2); }),
                HasSubstr("expected 'ema' to be whole, as the model is"));
  });
}

// Ranks that train alone for some steps: each gets its own averages back, other numbers of ranks
// their mean.
TEST(ShardedCheckpoints, AveragesOfRanksThatTrainAloneAreTheirOwn) {
  const test::TempFolder folder;
  const auto value_of = [](const Ema& ema) {
    return ema.averages()[0].second.flatten()[0].item<float>();
  };
  const auto pass_on = [&](int ranks, int64_t step, const auto& check) {
    run_ranks(ranks, [&](ProcessGroup& group) {
      UpDown net = up_down(9);
      Ema ema(*net, 0.75);
      Checkpoints checkpoints(group, in_folder(folder.path()));
      checkpoints.add("model", own_pieces(*net)).add("ema", ema);
      checkpoints.restore();
      if (step == 1) {
        const torch::NoGradGuard no_grad;
        for (auto& parameter : net->parameters())
          parameter.fill_(group.rank());
        ema.update();
      }
      check(value_of(ema), group.rank());
      checkpoints.save(step);
    });
  };
  const auto own = [](float value, int rank) {
    EXPECT_EQ(value, static_cast<float>(rank));
  };
  pass_on(3, 1, own);
  pass_on(3, 2, own);
  pass_on(2, 3, [](float value, int) { EXPECT_EQ(value, 1.0F); });
}

TEST(ShardedCheckpoints, EveryRankWritesAndNobodyWritesWhatAnotherHas) {
  const test::TempFolder folder;
  begin(folder.path());
  run_ranks(4, [&](ProcessGroup& group) { pass_on_divided_layers(group, folder.path(), 2); });
  uintmax_t bytes = 0;
  for (int rank = 0; rank < 4; ++rank) {
    const auto size = std::filesystem::file_size(
        folder / ("step-2/model-0000" + std::to_string(rank) + "-of-00004.safetensors"));
    EXPECT_GT(size, 0U);
    bytes += size;
  }
  EXPECT_LT(bytes, 5000U);  // 353 bytes of tensors, and four heads
  for (const auto& entry : std::filesystem::directory_iterator(folder / "step-2"))
    EXPECT_FALSE(entry.path().filename().string().starts_with("rank-"))
        << "a record of the writing stays";
}

TEST(ShardedCheckpoints, ADamagedOneIsPassedOverOnEveryRank) {
  const test::TempFolder folder;
  begin(folder.path());
  run_ranks(2, [&](ProcessGroup& group) { pass_on_fully_sharded(group, folder.path(), 2); });
  run_ranks(2, [&](ProcessGroup& group) { pass_on_fully_sharded(group, folder.path(), 3); });
  std::string bytes = test::get_file(folder / "step-3/optim-00001-of-00002.safetensors");
  bytes.back() ^= 1;
  test::put_file(folder / "step-3/optim-00001-of-00002.safetensors", bytes);
  run_ranks(3, [&](ProcessGroup& group) { pass_on_fully_sharded(group, folder.path(), 4); });
  std::filesystem::remove(folder / "step-4/model-00001-of-00003.safetensors");
  run_ranks(2, [&](ProcessGroup& group) {
    UpDown net = up_down(9);
    Adam optimizer(net->parameters(), 0.5);
    Checkpoints checkpoints(group, in_folder(folder.path()));
    checkpoints.add("model", net).add("optimizer", optimizer);
    EXPECT_TRUE(checkpoints.restore());
    EXPECT_EQ(checkpoints.step(), 2);
  });
}

TEST(ShardedCheckpoints, WhatDoesNotFitIsRefusedOnEveryRank) {
  const test::TempFolder folder;
  begin(folder.path());
  run_ranks(2, [&](ProcessGroup& group) { pass_on_fully_sharded(group, folder.path(), 2); });
  run_ranks(2, [&](ProcessGroup& group) {
    torch::nn::Linear other(6, 8);
    Checkpoints checkpoints(group, in_folder(folder.path()));
    checkpoints.add("model", whole_pieces(*other));
    EXPECT_THAT(test::message_of([&] { checkpoints.restore(); }), HasSubstr("parts"));
  });
  run_ranks(2, [&](ProcessGroup& group) {
    UpDown net = up_down(9);
    net->up->weight = net->up->register_parameter("extra", torch::zeros({2}));
    Adam optimizer(net->parameters(), 0.5);
    Checkpoints checkpoints(group, in_folder(folder.path()));
    checkpoints.add("model", whole_pieces(*net)).add("optimizer", optimizer, whole_pieces(*net));
    EXPECT_THAT(test::message_of([&] { checkpoints.restore(); }),
                AllOf(HasSubstr("'up.extra'"), HasSubstr("no tensor of that name")));
  });
}

TEST(ShardedCheckpoints, PiecesThatMakeNoWholeAreRefused) {
  const test::TempFolder folder;
  const auto save = [&](const std::function<TensorPiece(int rank)>& piece) {
    std::string message;
    run_ranks(2, [&](ProcessGroup& group) {
      Checkpoints checkpoints(group, in_folder(folder.path()));
      checkpoints.add("model", TensorPieces{piece(group.rank())});
      const std::string mine = test::message_of([&] { checkpoints.save(1); });
      if (group.rank() == 1)
        message = mine;
    });
    return message;
  };
  const auto two = torch::zeros(2), three = torch::zeros(3);
  EXPECT_THAT(
      save([&](int rank) { return slice_piece("x", {4}, 0, rank, two); }),
      HasSubstr("pieces that do not overlap for 'x', got [0, 2) on rank 0 and [1, 3) on rank 1"));
  EXPECT_THAT(save([&](int rank) { return slice_piece("x", {5}, 0, int64_t{2} * rank, two); }),
              HasSubstr("all of its 5 elements on the ranks together for 'x', got 4"));
  EXPECT_THAT(save([&](int rank) { return whole_piece("x", rank == 0 ? two : three); }),
              HasSubstr("F32[2] on rank 0 and F32[3] on rank 1"));
  EXPECT_THAT(
      test::message_of([&] { save([&](int) { return slice_piece("x", {1}, 0, 0, two); }); }),
      HasSubstr("element 2 of 1"));
  // As of two stages of a pipeline that name their layers alike.
  EXPECT_THAT(
      save([&](int rank) {
        TensorPiece piece = whole_piece("0.weight", two);
        piece.owner = "stage " + std::to_string(rank);
        return piece;
      }),
      HasSubstr("a unique name for each tensor for '0.weight', got it on stage 0 and on stage 1"));
  run_ranks(1, [&](ProcessGroup& group) {
    Checkpoints checkpoints(group, in_folder(folder.path()));
    EXPECT_THAT(test::message_of([&] {
                  checkpoints.add(
                      "model",
                      {slice_piece("x", {4}, 0, 0, two), slice_piece("x", {4}, 0, 2, two)});
                }),
                HasSubstr("expected one piece on a rank as 'x', got two"));
  });
  EXPECT_FALSE(std::filesystem::exists(folder / "step-1"));
}

// Pieces of before would save the old head, also on a rank that has no part of it.
TEST(ShardedCheckpoints, PiecesOfAReplacedModuleAreRefusedOnEveryRank) {
  const test::TempFolder folder;
  const auto refusal = [&](const std::function<void(UpDown&)>& change,
                           const std::function<TensorPieces(UpDown&, ProcessGroup&)>& pieces_of) {
    std::vector<std::string> texts(2);
    run_ranks(2, [&](ProcessGroup& group) {
      UpDown net = up_down(3);
      Checkpoints checkpoints(group, in_folder(folder.path()));
      checkpoints.add("model", pieces_of(net, group));
      change(net);
      texts[group.rank()] = test::message_of([&] { checkpoints.save(1); });
    });
    EXPECT_EQ(texts[0], texts[1]);
    return texts[0];
  };
  const auto replace = [](UpDown& net) {
    net->down = net->replace_module("down", torch::nn::Linear(8, 3));
  };
  const auto whole = [](UpDown& net, ProcessGroup&) {
    return whole_pieces(*net);
  };
  const auto divided = [](UpDown& net, ProcessGroup& group) {
    FullySharded sharded(group);
    wrap_layers(sharded, net);
    return sharded.pieces(*net);
  };
  for (const auto& pieces_of : {std::function<TensorPieces(UpDown&, ProcessGroup&)>(whole),
                                std::function<TensorPieces(UpDown&, ProcessGroup&)>(divided)})
    EXPECT_THAT(
        refusal(replace, pieces_of),
        HasSubstr("expected 'down.weight' of the model to stay the tensor that it was, got "
                  "another one; replace modules and parameters before the pieces are made"));
  const auto add = [](UpDown& net) {
    net->register_parameter("scale", torch::ones({1}));
  };
  EXPECT_THAT(refusal(add, whole), HasSubstr("got 'scale' too; register it before the pieces are"));
  EXPECT_FALSE(std::filesystem::exists(folder / "step-1"));
}

// The optimizer's parts are those of the old head, whatever the model is now.
TEST(ShardedCheckpoints, PartsOfAnOptimizerWhoseModelWasChangedAreRefused) {
  const test::TempFolder folder;
  run_ranks(2, [&](ProcessGroup& group) {
    UpDown net = up_down(3);
    ShardedOptimizer<Adam> optimizer(net->parameters(), AdamOptions(0.5), group);
    Checkpoints checkpoints(group, in_folder(folder.path()));
    checkpoints.add("model", net).add("optimizer", optimizer, optimizer.pieces(*net));
    net->down = net->replace_module("down", torch::nn::Linear(8, 3));
    EXPECT_THAT(test::message_of([&] { checkpoints.save(1); }),
                HasSubstr("expected 'down.weight' of the model to stay the tensor that it was"));
  });
}

// A part of a weight would be trained by the rate of one group, and the rest by another's.
TEST(ShardedCheckpoints, PartsOfAParameterInTwoGroupsAreRefused) {
  const test::TempFolder folder;
  const auto failures = failures_of_ranks(2, [&](ProcessGroup& group) {
    UpDown net = up_down(3);
    FullySharded sharded(group);
    sharded.wrap(net);
    const auto parts = sharded.parameters();
    const size_t first = group.rank() == 0 ? parts.size() : 0;
    Adam optimizer(std::vector<at::Tensor>(parts.begin(), parts.begin() + first), 0.5);
    optimizer.add_param_group(torch::optim::OptimizerParamGroup(
        std::vector<at::Tensor>(parts.begin() + first, parts.end())));
    Checkpoints checkpoints(group, in_folder(folder.path()));
    checkpoints.add("model", sharded.pieces(*net)).add("optimizer", optimizer).save(1);
  });
  for (const auto& failure : failures)
    EXPECT_THAT(message_of(failure), HasSubstr("in one parameter group on all ranks, got it in"));
}

// Ranks that train alone have whole parameters, each with rates of its own.
TEST(ShardedCheckpoints, ARankGroupsItsOwnParametersByItself) {
  const test::TempFolder folder;
  run_ranks(2, [&](ProcessGroup& group) {
    UpDown net = up_down(3);
    const auto parameters = net->parameters();
    const size_t first = group.rank() == 0 ? 1 : 2;
    Adam optimizer(std::vector<at::Tensor>(parameters.begin(), parameters.begin() + first), 0.5);
    optimizer.add_param_group(torch::optim::OptimizerParamGroup(
        std::vector<at::Tensor>(parameters.begin() + first, parameters.end())));
    net->parameters()[1].mutable_grad() = torch::full_like(parameters[1], group.rank());
    optimizer.step();
    Checkpoints checkpoints(group, in_folder(folder.path()));
    checkpoints.add("model", own_pieces(*net)).add("optimizer", optimizer).save(1);
    optimizer.state().clear();
    EXPECT_TRUE(checkpoints.restore());
    EXPECT_EQ(optimizer.state().size(), 1U);
  });
}

// As of a layer that was unfrozen after the first step.
TEST(ShardedCheckpoints, AGroupThatCameLaterIsMadeBeforeTheRestore) {
  const test::TempFolder folder;
  const auto train = [&](ProcessGroup& group, int64_t until, bool has_both) {
    UpDown net = up_down(3);
    FullySharded sharded(group);
    auto model = sharded.wrap(net);
    const auto groups =
        sharded.parameters({torch::optim::OptimizerParamGroup(net->down->parameters()),
                            torch::optim::OptimizerParamGroup(net->up->parameters())});
    Adam optimizer({groups[0]}, AdamOptions(0.5));
    if (has_both)
      optimizer.add_param_group(groups[1]);
    Checkpoints checkpoints(group, in_folder(folder.path()));
    checkpoints.add("model", sharded.pieces(*net)).add("optimizer", optimizer);
    checkpoints.restore();
    for (int64_t step = checkpoints.step(); step < until; ++step) {
      if (step == 1)
        optimizer.add_param_group(groups[1]);
      optimizer.zero_grad();
      model(torch::full({2, 6}, 1.0 + group.rank())).square().mean().backward();
      optimizer.step();
      if (step == 2)
        checkpoints.save(3);
    }
    const auto whole = sharded.whole_parameters();
    return std::pair(net->up->weight.clone(), net->down->weight.clone());
  };
  run_ranks(2, [&](ProcessGroup& group) {
    const auto [up, down] = train(group, 5, /*has_both=*/false);
    const auto [resumed_up, resumed_down] = train(group, 5, /*has_both=*/true);
    EXPECT_TRUE(resumed_up.equal(up));
    EXPECT_TRUE(resumed_down.equal(down));
    EXPECT_THAT(test::message_of([&] { train(group, 5, /*has_both=*/false); }),
                HasSubstr("expected 1 parameter group, got 2; make the same groups as when saving, "
                          "with those of add_param_group, before the state is loaded"));
  });
}

// As a table that a first forward makes.
TEST(ShardedCheckpoints, ABufferThatCameLaterDoesNotEndASave) {
  const test::TempFolder folder;
  run_ranks(2, [&](ProcessGroup& group) {
    UpDown net = up_down(3);
    Checkpoints checkpoints(group, in_folder(folder.path()));
    checkpoints.add("model", whole_pieces(*net));
    net->register_buffer("table", torch::ones({2}));
    checkpoints.save(1);
  });
  EXPECT_TRUE(std::filesystem::exists(folder / "step-1"));
}

// A stage of a pipeline is on one rank alone, so that rank tells of it.
TEST(ShardedCheckpoints, OneRankTellsOfABufferThatCameLater) {
  const auto warnings_of = [](bool is_first_rank, const std::string& owner) {
    UpDown net = up_down(3);
    TensorPieces pieces = whole_pieces(*net);
    for (TensorPiece& piece : pieces)
      piece.owner = owner;
    TrainedModels models;
    models.add("model", pieces);
    net->register_buffer("table", torch::ones({2}));
    ::testing::internal::CaptureStderr();
    for (int save = 0; save < 2; ++save)
      models.warn_of_other_buffers(is_first_rank);
    return ::testing::internal::GetCapturedStderr();
  };
  const std::string warning = warnings_of(true, "");
  EXPECT_THAT(warning, HasSubstr("got 'table' too, which is not saved"));
  EXPECT_EQ(std::ranges::count(warning, '\n'), 1);
  EXPECT_EQ(warnings_of(false, ""), "");
  EXPECT_EQ(warnings_of(false, "rank 1 of the pipeline"), warning);
}

// What DistributedDataParallel would spread at the next forward is what is saved.
TEST(ShardedCheckpoints, BuffersAreThoseOfTheFirstRank) {
  const test::TempFolder folder;
  run_ranks(3, [&](ProcessGroup& group) {
    torch::nn::BatchNorm1d norm(4);
    norm->running_mean.fill_(group.rank());
    norm->running_var.fill_(group.rank());
    Checkpoints checkpoints(group, in_folder(folder.path()));
    checkpoints.add("model", whole_pieces(*norm));
    checkpoints.save(1);
    checkpoints.restore();
    EXPECT_EQ(norm->running_mean.abs().max().item<double>() +
                  norm->running_var.abs().max().item<double>(),
              0);
  });
}

TEST(ShardedCheckpoints, PlainCallsSayWhatTheseAre) {
  const test::TempFolder folder;
  begin(folder.path());
  run_ranks(2, [&](ProcessGroup& group) { pass_on_fully_sharded(group, folder.path(), 2); });
  UpDown net = up_down(9);
  EXPECT_THAT(test::message_of([&] { load_latest_checkpoint(folder.path(), {*net}); }),
              HasSubstr("got the parts of several ranks; load it with muster::Checkpoints"));
}

TEST(ShardedCheckpoints, AParameterWithoutElementsAndATiedOne) {
  const test::TempFolder folder;
  const auto odd_model = [] {
    auto net = up_down(3);
    net->register_parameter("empty", torch::zeros({0, 3}));
    net->register_parameter("tied", net->up->weight);
    return net;
  };
  run_ranks(2, [&](ProcessGroup& group) {
    auto net = odd_model();
    FullySharded sharded(group);
    auto model = sharded.wrap(net);
    Adam optimizer(sharded.parameters(), 0.5);
    Checkpoints checkpoints(group, in_folder(folder.path()));
    checkpoints.add("model", sharded.pieces(*net))
        .add("optimizer", optimizer, sharded.pieces(*net));
    checkpoints.save(1);
  });
  run_ranks(1, [&](ProcessGroup& group) {
    auto net = odd_model();
    const auto expected = net->down->weight.detach().clone();
    {
      const torch::NoGradGuard no_grad;
      for (auto& parameter : net->parameters())
        parameter.zero_();
    }
    Checkpoints checkpoints(group, in_folder(folder.path()));
    checkpoints.add("model", net);
    EXPECT_THAT(test::message_of([&] { checkpoints.restore(); }),
                HasSubstr("optimizer"));  // a part is missing
    Checkpoints whole(group, in_folder(folder.path()));
    std::vector<torch::Tensor> with_elements;  // the others no optimizer of parts has
    for (const auto& parameter : distinct_parameters(*net))
      if (parameter.numel() > 0)
        with_elements.push_back(parameter);
    Adam optimizer(with_elements, 0.5);
    whole.add("model", net).add("optimizer", optimizer);
    EXPECT_TRUE(whole.restore());
    EXPECT_TRUE(torch::equal(net->down->weight, expected));
  });
}

TEST(ShardedCheckpoints, ARankThatCannotWriteFailsAllAndLeavesNothing) {
  const test::TempFolder folder;
  for (const bool background : {false, true}) {
    run_ranks(2, [&](ProcessGroup& group) {
      // A type that files of this format lack, on one rank alone.
      const auto type = group.rank() == 1 ? torch::kComplexDouble : torch::kFloat;
      CheckpointsOptions options = in_folder(folder.path());
      options.background = background;
      Checkpoints checkpoints(group, options);
      checkpoints.add(
          "model",
          TensorPieces{whole_piece("x" + std::to_string(group.rank()), torch::zeros(2, type))});
      const std::string message = test::message_of([&] {
        checkpoints.save(1);
        checkpoints.finish();
      });
      EXPECT_THAT(message, HasSubstr("a dense tensor of a common dtype as 'x1'"));
    });
    EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
  }
}

TEST(ShardedCheckpoints, InTheBackgroundTheMomentOfTheSaveIsWritten) {
  const test::TempFolder folder;
  run_ranks(3, [&](ProcessGroup& group) {
    const auto values = torch::full({1000}, 1.0);
    CheckpointsOptions options = in_folder(folder.path());
    options.background = true;
    {
      Checkpoints checkpoints(group, options);
      checkpoints.add(
          "model", TensorPieces{slice_piece("x", {3000}, 0, int64_t{1000} * group.rank(), values)});
      for (int64_t step = 1; step <= 5; ++step) {
        values.fill_(static_cast<double>(step));
        checkpoints.save(step);
        values.fill_(-1);
      }
      checkpoints.finish();
    }
    Checkpoints checkpoints(group, options);
    checkpoints.add(
        "model", TensorPieces{slice_piece("x", {3000}, 0, int64_t{1000} * group.rank(), values)});
    EXPECT_TRUE(checkpoints.restore());
    EXPECT_TRUE(values.eq(5).all().item<bool>());
  });
  for (int step = 1; step <= 5; ++step)
    EXPECT_TRUE(std::filesystem::exists(folder / ("step-" + std::to_string(step))));
}

}  // namespace
}  // namespace muster::testing
