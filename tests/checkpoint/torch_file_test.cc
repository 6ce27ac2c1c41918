#include "muster/checkpoint/torch_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <filesystem>
#include <memory>
#include <random>

#include "muster/base/error.h"
#include "muster/base/strings.h"
#include "muster/checkpoint/load_weights.h"
#include "muster/checkpoint/safetensors.h"
#include "tests/checkpoint/model.h"
#include "tests/checkpoint/read_safetensors.h"
#include "tests/data/files.h"
#include "tests/data/python.h"

namespace muster {
namespace {

using test::message_of;
using ::testing::HasSubstr;

// What tests/checkpoint/torch_save.py wrote. The tests skip where there is no such Python.
class TorchFile : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = std::make_unique<test::TempFolder>();
    is_written_ = test::run_python("tests/checkpoint/torch_save.py", folder_->path()).has_value();
  }
  static void TearDownTestSuite() { folder_.reset(); }
  void SetUp() override {
    if (!is_written_)
      GTEST_SKIP() << "no Python with torch in .deps";
  }
  static std::string file(const std::string& name) { return *folder_ / name; }

 private:
  static inline std::unique_ptr<test::TempFolder> folder_;
  static inline bool is_written_ = false;
};

void expect_same(const WeightSource& source, const NamedTensors& expected, const std::string& of) {
  EXPECT_EQ(source.tensors().size(), expected.size()) << of;
  for (const auto& [name, tensor] : expected) {
    ASSERT_TRUE(source.tensors().contains(name)) << of << ": " << name;
    const at::Tensor read = source.read(name);
    EXPECT_EQ(read.scalar_type(), tensor.scalar_type()) << of << ": " << name;
    EXPECT_TRUE(torch::equal(read, tensor)) << of << ": " << name;
  }
}

TEST_F(TorchFile, EveryFormOfTorchSaveIsReadAsItsTensors) {
  int files = 0;
  for (const char* name : {"state_dict", "kinds", "views", "training", "parameters"}) {
    const auto expected = read_safetensors(file(cat(name, ".safetensors"))).tensors;
    for (const char* form : {".pth", ".old.pth", ".protocol4.pth"}) {
      const std::string path = file(cat(name, form));
      ASSERT_TRUE(is_torch_file(path));
      expect_same(*open_torch_file(path), expected, path);
      ++files;
    }
  }
  EXPECT_EQ(files, 15);
}

TEST_F(TorchFile, LoadWeightsTakesIt) {
  torch::nn::Sequential net(torch::nn::Linear(3, 2), torch::nn::BatchNorm1d(2));
  EXPECT_EQ(load_weights(*net, file("state_dict.pth")).loaded.size(), 7U);
  const auto expected = read_safetensors(file("state_dict.safetensors")).tensors;
  EXPECT_TRUE(torch::equal(net->named_parameters()["0.weight"], expected.at("0.weight")));
  test::fill(*net, 0);
  load_weights(*net, file("training.pth"), {.names = {.prefix = "model."}, .partial = true});
  EXPECT_TRUE(torch::equal(net->named_parameters()["0.weight"], expected.at("0.weight")));
  std::filesystem::create_directory(file("hub"));
  std::filesystem::copy(file("state_dict.old.pth"), file("hub/pytorch_model.bin"));
  test::fill(*net, 0);
  load_weights(*net, file("hub"));
  EXPECT_TRUE(torch::equal(net->named_parameters()["0.weight"], expected.at("0.weight")));
}

TEST_F(TorchFile, OfFloat8AndComplexNumbers) {
  EXPECT_EQ(open_torch_file(file("fp8.pth"))->read("x").to(torch::kFloat).sum().item<float>(), 2);
  EXPECT_EQ(open_torch_file(file("complex.pth"))->read("z").scalar_type(), torch::kComplexFloat);
}

TEST_F(TorchFile, TensorsFromBeforeVersion04AreRead) {
  const std::string path = file("before04.old.pth");
  expect_same(*open_torch_file(path), read_safetensors(file("before04.safetensors")).tensors, path);
}

TEST_F(TorchFile, ViewsThatChangeValuesAreRefused) {
  for (const char* name : {"conj.pth", "neg.pth"})
    EXPECT_THAT(message_of([&] { open_torch_file(file(name)); }), HasSubstr("resolve_conj()"))
        << name;
}

TEST_F(TorchFile, UnsignedNumbersAreRead) {
  const std::string path = file("unsigned.pth");
  const auto expected = read_safetensors(file("unsigned.safetensors")).tensors;
  const auto source = open_torch_file(path);
  EXPECT_EQ(source->tensors().size(), 3U);
  for (const auto& [name, tensor] : expected) {
    EXPECT_EQ(source->read(name).scalar_type(), tensor.scalar_type()) << name;
    EXPECT_TRUE(torch::equal(source->read(name).to(torch::kLong), tensor.to(torch::kLong))) << name;
  }
}

// Only what the model needs is refused: with its name, and what to save in its place.
TEST_F(TorchFile, WhatIsNoPlainTensorIsRefusedByName) {
  const std::string path = file("others.pth");
  const auto load = [&](const std::string& name) {
    torch::nn::Module net;
    net.register_buffer(name, torch::zeros({3, 3}));
    load_weights(net, path, {.partial = true});
  };
  const auto refusal = [&](const std::string& name) {
    return message_of([&] { load(name); });
  };
  load("plain");
  const std::string sparse = "torch file: expected plain numbers as 'sparse' in '" + path +
                             "', got a sparse tensor; save tensor.to_dense() in Python";
  EXPECT_EQ(refusal("sparse"), sparse);
  EXPECT_THAT(refusal("rows"), HasSubstr("'rows' in '" + path + "', got a sparse tensor"));
  EXPECT_THAT(refusal("quantized"), HasSubstr("got a quantized tensor; save tensor.dequantize()"));
  EXPECT_THAT(refusal("wide"),
              HasSubstr("got numbers of 'torch ComplexDoubleStorage'; save a copy"));
  EXPECT_EQ(message_of([&] { open_torch_file(path)->read("sparse"); }), sparse);
  const std::vector<int64_t> shape{3, 3};
  const auto source = open_torch_file(path);
  for (const auto& [name, entry] : source->tensors())
    EXPECT_EQ(entry.shape, shape) << name;
}

// They are no tensors of the file for whoever does not need them.
TEST_F(TorchFile, WhatIsNoPlainTensorIsInNobodysWay) {
  torch::nn::Module net;
  net.register_buffer("plain", torch::zeros({3, 3}));
  EXPECT_TRUE(load_weights(net, file("others.pth")).unexpected.empty());
  net.register_buffer("sparse", torch::zeros({3, 3}));
  const auto make = [](const std::string& name, const WeightReader& read) {
    return name == "sparse" ? read("plain") : at::Tensor();
  };
  EXPECT_THAT(load_weights(net, file("others.pth"), {.make = make}).loaded,
              ::testing::UnorderedElementsAre("plain", "sparse"));
}

// LibTorch itself compares no checksum.
TEST_F(TorchFile, AChangedByteIsRefusedByTheTensorsName) {
  std::string bytes = test::get_file(file("state_dict.pth"));
  const auto weight = read_safetensors(file("state_dict.safetensors")).tensors.at("0.weight");
  const size_t at = bytes.find(std::string(static_cast<const char*>(weight.const_data_ptr()), 24));
  ASSERT_NE(at, std::string::npos);
  bytes[at + 5] ^= 1;
  test::put_file(file("changed.pth"), bytes);
  torch::nn::Sequential net(torch::nn::Linear(3, 2), torch::nn::BatchNorm1d(2));
  EXPECT_EQ(message_of([&] { load_weights(*net, file("changed.pth")); }),
            "torch file: expected the saved bytes of '0.weight' in '" + file("changed.pth") +
                "', got others in 'data/0', by its checksum; the file is damaged: copy or download "
                "it again");
  bytes = test::get_file(file("state_dict.pth"));
  bytes[bytes.find("running_mean")] = 'R';
  test::put_file(file("changed.pth"), bytes);
  EXPECT_THAT(message_of([&] { open_torch_file(file("changed.pth")); }),
              HasSubstr("got others in 'data.pkl', by its checksum"));
}

// torch.serialization.set_crc32_options(False) leaves zeros.
TEST_F(TorchFile, AFileWithoutChecksumsIsRead) {
  if (!std::filesystem::exists(file("no_checksums.pth")))
    GTEST_SKIP() << "a PyTorch that always writes them";
  EXPECT_EQ(open_torch_file(file("no_checksums.pth"))->read("plain").sum().item<float>(), 3);
}

TEST_F(TorchFile, ABooleanIsZeroOrOne) {
  std::string bytes = test::get_file(file("flags.old.pth"));
  EXPECT_EQ(open_torch_file(file("flags.old.pth"))->read("flags").sum().item<int64_t>(), 2);
  bytes.back() = 2;
  test::put_file(file("wrong_flags.pth"), bytes);
  const auto source = open_torch_file(file("wrong_flags.pth"));
  EXPECT_THAT(message_of([&] { source->read("flags"); }), HasSubstr("flags"));
}

TEST_F(TorchFile, WhatWouldNeverEndIsRefused) {
  EXPECT_THAT(message_of([&] { open_torch_file(file("again.pth")); }),
              HasSubstr("expected at most 10000000 values in at most 32 dictionaries"));
}

TEST_F(TorchFile, WhatHasNoNamesIsRefused) {
  EXPECT_THAT(message_of([&] { open_torch_file(file("list.pth")); }),
              HasSubstr("expected a dictionary of tensors in"));
  torch::save(torch::nn::Linear(2, 2), file("cpp.pt"));
  EXPECT_THAT(message_of([&] { open_torch_file(file("cpp.pt")); }),
              HasSubstr("what C++'s torch::save wrote is for torch::load"));
}

// Reads all of it; an Error is fine, and anything else is not.
void read_damaged(const std::string& path) {
  try {
    const auto source = open_torch_file(path);
    for (const auto& [name, kind] : source->tensors())
      source->read(name);
  } catch (const Error&) {
  }
}

TEST_F(TorchFile, DamagedOnesEndInErrors) {
  std::mt19937 random(3);
  for (const char* name : {"views.old.pth", "training.old.pth", "views.pth", "training.pth"}) {
    const std::string whole = test::get_file(file(name));
    for (int i = 0; i < 40; ++i) {
      std::string bytes = whole;
      if (i % 3 == 0)
        bytes.resize(random() % whole.size());
      for (int n = 0; n < 1 + i % 4 && !bytes.empty(); ++n)
        bytes[random() % std::min<size_t>(bytes.size(), 1200)] = static_cast<char>(random());
      test::put_file(file("damaged.pth"), bytes);
      read_damaged(file("damaged.pth"));
    }
  }
}

}  // namespace
}  // namespace muster
