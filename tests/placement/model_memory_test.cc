// Memory of a GPT's training by each way; benchmarks/memory_bench.cc has the measured peaks.
#include "muster/placement/model_memory.h"

#include <gmock/gmock.h>

#include "muster/base/error.h"
#include "muster/base/strings.h"

namespace muster {
namespace {

using testing::HasSubstr;

constexpr const char* kGpt2 =
    "layers=12,width=768,heads=12,context=1024,vocabulary=50257,batch=8,tied=1";

std::string refusal_of_model(const std::string& text) {
  try {
    parse_model(text);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
    return error.what();
  }
  return "accepted";
}

ModelDivision division_named(const std::string& name, int ranks, const MeshShape& mesh = {}) {
  for (const ModelDivision& division : model_divisions(ranks, mesh))
    if (division.name == name)
      return division;
  throw Error(ErrorCode::invalid_argument, "no way " + name);
}

TEST(ModelMemory, ReadsTheSizes) {
  EXPECT_EQ(parse_model("layers=2,width=64,heads=4,context=8,vocabulary=65,batch=6,precision=bf16,"
                        "tied=1,micro_batches=3"),
            (ModelSizes{.layers = 2,
                        .width = 64,
                        .heads = 4,
                        .context = 8,
                        .vocabulary = 65,
                        .batch = 6,
                        .tied = true,
                        .bf16 = true,
                        .micro_batches = 3}));
}

TEST(ModelMemory, RefusesWhatIsNoModel) {
  for (const auto& [text, says] :
       {std::pair<std::string, std::string>{"", "NAME=VALUE, got ''"},
        {cat(kGpt2, ",depth=3"), "got 'depth'"},
        {cat(kGpt2, ",layers=3"), "layers once"},
        {"layers=0", "a number from 1 to 100000000 for layers, got '0'"},
        {"layers=1e3", "got '1e3'"},
        {"layers=2,width=64,heads=4,context=8,vocabulary=65", "expected batch, got none"},
        {"layers=2,width=64,heads=5,context=8,vocabulary=65,batch=1", "64 and 5 heads"},
        {cat(kGpt2, ",micro_batches=3"), "batch 8 and 3 micro-batches"},
        {cat(kGpt2, ",precision=fp8"), "got 'fp8'"},
        {"tied=2", "0 or 1 for tied"},
        {"layers=99999999,width=99999999,heads=1,context=8,vocabulary=65,batch=1", "1 PB"}})
    EXPECT_THAT(refusal_of_model(text), HasSubstr(says)) << text;
}

TEST(ModelMemory, CountsGpt2sParameters) {
  ModelSizes model = parse_model(kGpt2);
  EXPECT_EQ(num_parameters(model), 124439808);  // as published
  model.tied = false;
  EXPECT_EQ(num_parameters(model), 124439808 + 50257 * 768);
}

TEST(ModelMemory, ShardingDividesWhatItsNameSays) {
  const ModelSizes model = parse_model(kGpt2);
  const int64_t p = 4 * num_parameters(model);
  const RankBytes ddp = rank_bytes(model, division_named("DDP", 4));
  EXPECT_EQ(ddp.parameters, p);
  EXPECT_EQ(ddp.gradients, p);
  EXPECT_EQ(ddp.optimizer, 2 * p);
  EXPECT_EQ(rank_bytes(model, division_named("ZeRO-1", 4)).optimizer, p / 2);
  EXPECT_EQ(rank_bytes(model, division_named("ZeRO-1", 4)).gradients, p);
  EXPECT_EQ(rank_bytes(model, division_named("ZeRO-2", 4)).gradients, p / 4);
  EXPECT_EQ(rank_bytes(model, division_named("ZeRO-2", 4)).parameters, p);
  EXPECT_EQ(rank_bytes(model, division_named("fully sharded", 4)).parameters, p / 4);
  for (const ModelDivision& division : model_divisions(1, {}))
    EXPECT_EQ(rank_bytes(model, division).parameters, p) << division.name;
}

TEST(ModelMemory, TheFirstStageHoldsMostMicroBatches) {
  const ModelSizes model =
      parse_model("layers=8,width=64,heads=4,context=256,vocabulary=65,batch=16");
  const auto activations = [&](int64_t micro_batches) {
    ModelSizes changed = model;
    changed.micro_batches = micro_batches;
    return rank_bytes(changed, division_named("pipeline 1F1B", 4)).activations;
  };
  const int64_t whole = rank_bytes(model, division_named("DDP", 4)).activations;
  EXPECT_LT(activations(16), whole / 3);  // 4 of 16 micro-batches of a quarter of the layers
  EXPECT_GT(activations(4), whole / 5);   // all 4 of 4
  EXPECT_EQ(activations(0), activations(16));
}

TEST(ModelMemory, AMeshCombinesThem) {
  const ModelSizes model = parse_model(kGpt2);
  const MeshShape mesh = parse_mesh("dp=2,pp=2,tp=2");
  EXPECT_EQ(model_divisions(8, mesh).size(), 4U);
  const RankBytes some = rank_bytes(model, division_named("DDP", 8, mesh));
  EXPECT_LT(some.parameters, 4 * num_parameters(model) / 3);
  EXPECT_EQ(rank_bytes(model, division_named("ZeRO-1", 8, mesh)).optimizer, some.optimizer / 2);
  EXPECT_THROW(model_divisions(4, parse_mesh("dp=2,ep=2")), Error);
}

TEST(ModelMemory, ABareModelsGradientsComeAsActivationsGo) {
  const ModelSizes model = parse_model(kGpt2);
  const RankBytes bare = rank_bytes(model, division_named("tensor parallel", 4));
  EXPECT_EQ(bare.apart, bare.gradients);
  EXPECT_EQ(bare.total(), bare.parameters + bare.optimizer + bare.activations + bare.other);
  EXPECT_EQ(rank_bytes(model, division_named("DDP", 4)).apart, 0);
}

TEST(ModelMemory, SaysWhatCannotBeDivided) {
  const ModelSizes model = parse_model(kGpt2);
  EXPECT_EQ(obstacle(model, division_named("tensor parallel", 5)), "12 heads over 5 ranks");
  EXPECT_EQ(obstacle(model, division_named("pipeline 1F1B", 13)), "12 layers over 13 stages");
  EXPECT_EQ(obstacle(model, division_named("DDP", 13)), "");
}

TEST(ModelMemory, TheMostLayersFitAndOneMoreDoesNot) {
  ModelSizes model = parse_model(kGpt2);
  constexpr int64_t kBytes = int64_t{80} << 30;
  for (const ModelDivision& division : model_divisions(4, {})) {
    model.layers = most_layers(model, division, kBytes);
    EXPECT_GT(model.layers, 0) << division.name;
    EXPECT_LE(rank_bytes(model, division).total(), kBytes) << division.name;
    ++model.layers;
    EXPECT_GT(rank_bytes(model, division).total(), kBytes) << division.name;
  }
  EXPECT_EQ(most_layers(model, division_named("DDP", 4), 1000), 0);
}

}  // namespace
}  // namespace muster
