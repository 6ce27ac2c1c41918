#include "muster/data/collate.h"

#include <gmock/gmock.h>
#include <torch/torch.h>

#include "muster/data/batch.h"
#include "tests/data/files.h"

namespace muster {
namespace {

using test::message_of;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

struct Box {
  torch::Tensor corners;
};
struct Picture {
  torch::Tensor pixels, label;
  std::vector<Box> boxes;
  Padded words;
};
struct Text {
  std::string text;
  static std::vector<std::string> collate(const std::vector<Text>& examples) {
    std::vector<std::string> texts;
    for (const auto& example : examples)
      texts.push_back(example.text);
    return texts;
  }
};

Picture picture(int64_t label, int64_t boxes, int64_t words) {
  Picture made{.pixels = torch::full({3, 2}, label),
               .label = torch::tensor(label),
               .boxes = {},
               .words = {}};
  for (int64_t i = 0; i < boxes; ++i)
    made.boxes.push_back({torch::full({4}, i)});
  made.words.values = torch::arange(1, words + 1);
  return made;
}

TEST(Collate, StacksTensorsAndNumbers) {
  const auto stacked = collate(std::vector{torch::tensor({1, 2}), torch::tensor({3, 4})});
  EXPECT_TRUE(torch::equal(stacked, torch::tensor({{1, 2}, {3, 4}})));
  EXPECT_TRUE(torch::equal(collate(std::vector<int>{4, 5}), torch::tensor({4, 5})));
  EXPECT_EQ(collate(std::vector<float>{4, 5}).scalar_type(), torch::kFloat);
  EXPECT_EQ(collate(std::vector<double>{4, 5}).scalar_type(), torch::kDouble);
}

TEST(Collate, JoinsTuplesElementByElement) {
  using Example = std::tuple<torch::Tensor, int64_t>;
  const auto [x, y] = collate(std::vector<Example>{{torch::zeros(2), 7}, {torch::ones(2), 8}});
  EXPECT_EQ(x.sizes(), (std::vector<int64_t>{2, 2}));
  EXPECT_TRUE(torch::equal(y, torch::tensor({7, 8})));
}

TEST(Collate, JoinsStructsFieldByField) {
  const Picture batch = collate(std::vector{picture(1, 0, 2), picture(2, 3, 4)});
  EXPECT_EQ(batch.pixels.sizes(), (std::vector<int64_t>{2, 3, 2}));
  EXPECT_TRUE(torch::equal(batch.label, torch::tensor({1, 2})));
  EXPECT_EQ(batch.boxes.size(), 3);
  EXPECT_TRUE(torch::equal(batch.words.values, torch::tensor({{1, 2, 0, 0}, {1, 2, 3, 4}})));
  EXPECT_TRUE(torch::equal(batch.words.lengths, torch::tensor({2, 4})));
}

struct Tagged {
  Padded words;
  PaddedWith<-100> tags;
};

// Zeros would be the class 0, of which the loss would learn.
TEST(Collate, PadsWithWhatALossPassesOver) {
  const Tagged batch = collate(std::vector<Tagged>{
      {{torch::tensor({5, 6}), {}}, {torch::tensor({0, 1}), {}}},
      {{torch::tensor({7}), {}}, {torch::tensor({1}), {}}},
  });
  EXPECT_TRUE(torch::equal(batch.words.values, torch::tensor({{5, 6}, {7, 0}})));
  EXPECT_TRUE(torch::equal(batch.tags.values, torch::tensor({{0, 1}, {1, -100}})));
  EXPECT_TRUE(torch::equal(batch.tags.lengths, torch::tensor({2, 1})));
  const auto logits = torch::randn({2, 2, 2});
  const auto three = logits.flatten(0, 1).narrow(0, 0, 3);
  EXPECT_TRUE(torch::equal(
      torch::nn::functional::cross_entropy(logits.flatten(0, 1), batch.tags.values.flatten()),
      torch::nn::functional::cross_entropy(three, torch::tensor({0, 1, 1}))));
  const auto maybe = collate(std::vector<PaddedWith<7>>{{torch::zeros({1, 2}, torch::kHalf), {}},
                                                        {torch::zeros({2, 2}, torch::kHalf), {}}});
  EXPECT_EQ(maybe.values[0][1][1].item<float>(), 7);
  const auto bytes = torch::zeros({2}, torch::kByte);
  EXPECT_THAT(message_of([&] { collate(std::vector<PaddedWith<-100>>{{bytes, {}}}); }),
              HasSubstr("can be padded with -100, got Byte [2]"));
}

TEST(Collate, PacksEndToEnd) {
  const Packed batch = collate(
      std::vector<Packed>{{torch::arange(2), {}}, {torch::arange(0), {}}, {torch::arange(3), {}}});
  EXPECT_TRUE(torch::equal(batch.values, torch::tensor({0, 1, 0, 1, 2})));
  EXPECT_TRUE(torch::equal(batch.offsets, torch::tensor({0, 2, 2, 5})));
}

TEST(Collate, LetsATypeJoinItself) {
  EXPECT_THAT(collate(std::vector<Text>{{"a"}, {"b"}}), ElementsAre("a", "b"));
}

TEST(Collate, NamesTheExampleThatDiffers) {
  EXPECT_THAT(
      message_of([] {
        collate(std::vector{torch::zeros({2, 3}), torch::zeros({2, 3}), torch::zeros({2, 4})});
      }),
      HasSubstr("got Float [2, 3] in a batch's first example and Float [2, 4] in example 2; resize "
                "them"));
  EXPECT_THAT(message_of([] { collate(std::vector{torch::zeros(2), torch::Tensor()}); }),
              HasSubstr("an undefined tensor in example 1"));
  EXPECT_THAT(
      message_of([] {
        collate(std::vector<Padded>{{torch::zeros({2, 3}), {}}, {torch::zeros({5, 4}), {}}});
      }),
      HasSubstr("of one shape and type but for their length, got Float [2, 3]"));
}

TEST(Collate, FindsEveryTensorOfABatch) {
  Picture batch = collate(std::vector{picture(1, 1, 2), picture(2, 1, 4)});
  int tensors = 0;
  for_each_tensor(batch, [&](torch::Tensor& tensor) {
    tensor = tensor.to(torch::kDouble);
    ++tensors;
  });
  EXPECT_EQ(tensors, 6);  // pixels, label, two boxes, words and their lengths
  EXPECT_EQ(batch.boxes[1].corners.scalar_type(), torch::kDouble);
}

TEST(Batch, IsWhatItsDataIsAndKnowsWhetherItsWeightWasRead) {
  const Batch<std::tuple<torch::Tensor, int>> pair{{torch::ones(2), 3}, 0.5, true, 2};
  const auto& [x, y] = pair;
  EXPECT_EQ(y, 3);
  const std::vector copies(1, pair);
  EXPECT_FALSE(pair.weight.is_read());
  EXPECT_EQ((x * copies[0].weight).sum().item<double>(), 1);
  EXPECT_TRUE(pair.weight.is_read());
  const Batch<torch::Tensor> tensor{torch::ones({2, 5}), 1, true, 2};
  EXPECT_EQ(tensor.size(), 2);
  EXPECT_EQ(tensor.size(1), 5);
  EXPECT_EQ(torch::sum(tensor).item<double>(), 10);
}

}  // namespace
}  // namespace muster
