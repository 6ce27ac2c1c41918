#include "muster/run/nvtx_ranges.h"

#include <gmock/gmock.h>
#include <stdlib.h>
#include <torch/csrc/profiler/stubs/base.h>

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "muster/trace/activity.h"
#include "muster/trace/span.h"

namespace muster::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// What LibTorch's CUDA part registers when it is loaded, without a GPU.
struct RangesSeen : torch::profiler::impl::ProfilerStubs {
  void record(c10::DeviceIndex*,
              torch::profiler::impl::ProfilerVoidEventStub*,
              int64_t*) const override {}
  float elapsed(const torch::profiler::impl::ProfilerVoidEventStub*,
                const torch::profiler::impl::ProfilerVoidEventStub*) const override {
    return 0;
  }
  void mark(const char*) const override {}
  void rangePush(const char* name) const override { seen.emplace_back(name); }
  void rangePop() const override { seen.emplace_back("end"); }
  bool enabled() const override { return is_enabled; }
  void onEachDevice(std::function<void(int)>) const override {}
  void synchronize() const override {}

  mutable std::vector<std::string> seen;
  bool is_enabled = true;
};

class NvtxRanges : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string folder = ::testing::TempDir() + "muster-nvtx-XXXXXX";
    ASSERT_NE(::mkdtemp(folder.data()), nullptr);
    folder_ = folder;
    activity_.emplace(folder + "/activity", ActivityOwner{});
    Activity::set(&*activity_);
    torch::profiler::impl::registerCUDAMethods(&stubs_);
  }
  void TearDown() override {
    Activity::set_span_hooks(nullptr, nullptr);
    torch::profiler::impl::registerCUDAMethods(
        const_cast<torch::profiler::impl::ProfilerStubs*>(before_));
    activity_.reset();
    std::filesystem::remove_all(folder_);
  }

  const torch::profiler::impl::ProfilerStubs* const before_ = torch::profiler::impl::cudaStubs();
  std::string folder_;
  std::optional<Activity> activity_;
  RangesSeen stubs_;
};

TEST_F(NvtxRanges, SpansAreRangesWithinEachOther) {
  show_spans_in_nvtx();
  {
    const Span step("step", Category::compute);
    const Span tokenize("tokenize");
  }
  EXPECT_THAT(stubs_.seen, ElementsAre("step", "tokenize", "end", "end"));
}

TEST_F(NvtxRanges, WhatIsLeftWithAnotherEndsToo) {
  show_spans_in_nvtx();
  std::optional<Span> outer(std::in_place, "outer");
  std::optional<Span> inner(std::in_place, "inner");
  outer.reset();
  inner.reset();
  EXPECT_THAT(stubs_.seen, ElementsAre("outer", "inner", "end", "end"));
}

TEST_F(NvtxRanges, WithoutACudaPartThereAreNone) {
  stubs_.is_enabled = false;
  show_spans_in_nvtx();
  const Span step("step");
  EXPECT_THAT(stubs_.seen, IsEmpty());
}

}  // namespace
}  // namespace muster::testing
