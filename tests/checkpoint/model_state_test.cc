#include "muster/checkpoint/model_state.h"

#include <gmock/gmock.h>

#include "muster/base/error.h"
#include "tests/checkpoint/model.h"
#include "tests/data/files.h"

namespace muster {
namespace {

using test::message_of;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TensorEntries entries_of(const torch::nn::Module& model) {
  TensorEntries entries;
  for (const auto& [name, tensor] : model_tensors(model))
    entries[name] = tensor_entry(tensor.scalar_type(), tensor.sizes().vec());
  return entries;
}

TEST(ModelState, NamesParametersThenBuffersAsPyTorchDoes) {
  std::vector<std::string> names;
  for (const auto& [name, tensor] : model_tensors(*test::SmallModel()))
    names.push_back(name);
  EXPECT_THAT(names,
              ElementsAre("unused",
                          "first.weight",
                          "first.bias",
                          "norm.weight",
                          "norm.bias",
                          "last.weight",
                          "last.bias",
                          "norm.running_mean",
                          "norm.running_var",
                          "norm.num_batches_tracked"));
}

TEST(ModelState, NamesTheFirstDifference) {
  const test::SmallModel model(8);
  const auto good = entries_of(*model);
  EXPECT_NO_THROW(check_model(*model, good, "x"));
  const auto refusal = [&](const TensorEntries& entries) {
    return message_of([&] { check_model(*model, entries, "step-3"); });
  };

  EXPECT_THAT(
      refusal(entries_of(*test::SmallModel(16))),
      AllOf(
          HasSubstr("F32[8, 4] 'first.weight'"), HasSubstr("got F32[16, 4]"), HasSubstr("step-3")));
  auto entries = good;
  entries.erase("norm.bias");
  entries.erase("last.bias");
  EXPECT_THAT(refusal(entries),
              AllOf(HasSubstr("'norm.bias'"), HasSubstr("no tensor of that name")));
  entries = good;
  entries["more.weight"] = {};
  EXPECT_THAT(refusal(entries), HasSubstr("'more.weight' as well"));
  entries = good;
  entries["first.bias"].dtype = "BF16";
  EXPECT_THAT(refusal(entries), AllOf(HasSubstr("F32[8] 'first.bias'"), HasSubstr("BF16[8]")));
}

}  // namespace
}  // namespace muster
