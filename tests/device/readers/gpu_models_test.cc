#include "muster/device/readers/gpu_models.h"

#include <gtest/gtest.h>

#include <set>

namespace muster {
namespace {

TEST(GpuModels, NamesAndPciIdsAreDistinct) {
  std::set<std::string> names;
  std::set<uint32_t> ids;
  for (const GpuModel& model : gpu_models()) {
    EXPECT_TRUE(names.insert(model.name).second) << model.name;
    EXPECT_TRUE(model.pci_id == 0 || ids.insert(model.pci_id).second) << model.name;
    EXPECT_EQ(find_gpu_model(model.name), &model) << model.name;
    EXPECT_EQ(compute_capability_of(model.product), model.compute_capability) << model.name;
  }
}

TEST(GpuModels, ByName) {
  EXPECT_STREQ(find_gpu_model("h100-80gb")->product, "NVIDIA H100 80GB HBM3");
  EXPECT_STREQ(find_gpu_model("MI250X")->name, "MI250X-64GB") << "one size only";
  EXPECT_EQ(find_gpu_model("A100"), nullptr) << "of two sizes";
  EXPECT_EQ(find_gpu_model("A1000"), nullptr);
}

TEST(GpuModels, ByProduct) {
  EXPECT_STREQ(find_gpu_model_by_product("Tesla V100-SXM2-16GB")->name, "V100-16GB");
  EXPECT_STREQ(find_gpu_model_by_product("A100-SXM4-40GB")->name, "A100-40GB")
      << "as old drivers wrote it";
  EXPECT_EQ(find_gpu_model_by_product("NVIDIA A100 something"), nullptr) << "40 or 80 GB?";
  EXPECT_EQ(find_gpu_model_by_product("Quadro K2000"), nullptr);
}

// A GPU whose memory is guessed is given what it does not have.
TEST(GpuModels, AProductThatLooksLikeAnotherIsNotIt) {
  const auto gib = [](const char* product) {
    const GpuModel* const model = find_gpu_model_by_product(product);
    return model == nullptr ? 0 : model->memory_gib;
  };
  EXPECT_EQ(gib("NVIDIA GeForce RTX 3080 Ti"), 12);
  EXPECT_EQ(gib("NVIDIA GeForce RTX 3080"), 0) << "sold with 10 and 12 GB";
  EXPECT_EQ(gib("NVIDIA GeForce RTX 4090 Laptop GPU"), 16);
  EXPECT_EQ(gib("NVIDIA H100 NVL"), 94);
  EXPECT_EQ(gib("NVIDIA H100 80GB HBM2e"), 0);
  EXPECT_EQ(gib("NVIDIA GH200 480GB"), 96) << "the number is the CPU's memory";
  for (const char* const other : {"NVIDIA A40-12Q",
                                  "GRID A100D-40C",
                                  "NVIDIA A100-SXM4-80GB MIG 1g.10gb",
                                  "NVIDIA L40G",
                                  "NVIDIA A100X",
                                  "Tesla V100-SXM3-32GB-H",
                                  "NVIDIA GeForce RTX 3090 Laptop GPU",
                                  "NVIDIA RTX A6000-24Q",
                                  "NVIDIA "}) {
    EXPECT_EQ(gib(other), 0) << other;
  }
  EXPECT_STREQ(find_gpu_model_by_pci_id(kPciVendorNvidia, 0x2321)->product, "NVIDIA H100 NVL");
}

TEST(GpuModels, CapabilityOfProductsThatLookAlike) {
  EXPECT_EQ(compute_capability_of("NVIDIA A100-SXM4-80GB"), "8.0");
  EXPECT_EQ(compute_capability_of("NVIDIA A10"), "8.6");
  EXPECT_EQ(compute_capability_of("NVIDIA GB200"), "10.0");
  EXPECT_EQ(compute_capability_of("NVIDIA GeForce RTX 3080 Ti"), "8.6");
  EXPECT_EQ(compute_capability_of("NVIDIA L40S"), "8.9");
  EXPECT_EQ(compute_capability_of("NVIDIA RTX A1000"), "");
  EXPECT_EQ(compute_capability_of(""), "");
}

}  // namespace
}  // namespace muster
