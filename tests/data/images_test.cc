#include "muster/data/readers/images.h"

#include <gmock/gmock.h>
#include <torch/torch.h>

#include <numeric>

#include "muster/base/error.h"
#include "muster/data/loader.h"
#include "muster/data/transforms.h"
#include "tests/data/files.h"
#include "tests/data/pictures.h"
#include "tests/data/python.h"

namespace muster {
namespace {

using test::jpeg_of;
using test::message_of;
using test::noisy_picture;
using test::png_of;
using test::some_picture;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;

// [3, height, width], of 1 channel repeated.
at::Tensor tensor_of_picture(const test::Picture& picture) {
  auto pixels =
      torch::tensor(std::vector<int>(picture.bytes.begin(), picture.bytes.end()), torch::kByte)
          .view({picture.height, picture.width, picture.channels})
          .permute({2, 0, 1});
  if (picture.channels < 3)
    return pixels.narrow(0, 0, 1).expand({3, -1, -1}).contiguous();
  return pixels.narrow(0, 0, 3).contiguous();
}

std::string refusal_of_image(const std::string& bytes, const ImageOptions& options = {}) {
  return message_of([&] { decode_image(bytes, "x/y.img", options); });
}

double worst_difference(const at::Tensor& a, const at::Tensor& b) {
  return (a.to(torch::kInt) - b.to(torch::kInt)).abs().max().item<double>();
}

TEST(Images, ReadsEveryKindOfPng) {
  for (const int channels : {1, 2, 3, 4}) {
    const auto picture = some_picture(13, 29, channels);
    const auto expected = tensor_of_picture(picture);
    for (const int bits : {8, 16})
      for (const bool interlaced : {false, true})
        EXPECT_TRUE(torch::equal(
            decode_image(png_of(picture, bits, interlaced), "p", {.narrow_16_bits = true}),
            expected))
            << channels << " channels, " << bits << " bits";
    EXPECT_THAT(refusal_of_image(png_of(picture, 16)),
                HasSubstr("8 bits a channel in 'x/y.img', got a PNG of 16"));
  }
}

// A directory whose second entry is the orientation.
std::string tiff_of(int orientation, bool little) {
  const auto number = [&](int value, int bytes) {
    std::string text;
    for (int i = 0; i < bytes; ++i)
      text += static_cast<char>(value >> 8 * (little ? i : bytes - 1 - i));
    return text;
  };
  const auto entry = [&](int tag, int value) {
    return number(tag, 2) + number(3, 2) + number(1, 4) + number(value, 2) + number(0, 2);
  };
  return (little ? "II" : "MM") + number(42, 2) + number(8, 4) + number(2, 2) + entry(0x100, 7) +
         entry(0x112, orientation) + number(0, 4);
}

// With an APP1 marker behind the first two bytes.
std::string held(const std::string& jpeg, int orientation, bool little) {
  const std::string exif = std::string("Exif\0\0", 6) + tiff_of(orientation, little);
  const size_t size = exif.size() + 2;
  return jpeg.substr(0, 2) + "\xff\xe1" + static_cast<char>(size >> 8) + static_cast<char>(size) +
         exif + jpeg.substr(2);
}

at::Tensor turned_as_held(const at::Tensor& stored, int orientation) {
  switch (orientation) {
    case 2:
      return stored.flip({2});
    case 3:
      return stored.rot90(2, {1, 2});
    case 4:
      return stored.flip({1});
    case 5:
      return stored.transpose(1, 2);
    case 6:
      return stored.rot90(-1, {1, 2});
    case 7:
      return stored.transpose(1, 2).rot90(2, {1, 2});
    case 8:
      return stored.rot90(1, {1, 2});
    default:
      return stored;
  }
}

// The chunk eXIf may stand before or behind the pixels.
TEST(Images, PngsAreTurnedAsTheCameraWasHeld) {
  const auto picture = noisy_picture(40, 61);
  const auto stored = decode_image(png_of(picture), "p");
  for (const bool little : {false, true}) {
    for (int orientation = 0; orientation <= 9; ++orientation) {
      const std::string exif = tiff_of(orientation, little);
      const std::string file = png_of(picture, 8, orientation % 2 == 1, exif);
      const std::string chunk = file.substr(file.find("eXIf") - 4, exif.size() + 12);
      std::string behind = file;
      behind.erase(behind.find("eXIf") - 4, chunk.size()).insert(behind.size() - 12, chunk);
      for (const std::string& one : {file, behind}) {
        EXPECT_TRUE(torch::equal(decode_image(one, "p"), turned_as_held(stored, orientation)))
            << orientation;
        EXPECT_TRUE(torch::equal(decode_image(one, "p", {.upright = false}), stored));
      }
    }
  }
}

TEST(Images, AreTurnedAsTheCameraWasHeld) {
  const auto file = jpeg_of(noisy_picture(40, 61));
  const auto stored = decode_image(file, "p");
  for (const bool little : {false, true}) {
    for (int orientation = 0; orientation <= 9; ++orientation) {
      const std::string exif = held(file, orientation, little);
      EXPECT_TRUE(torch::equal(decode_image(exif, "p"), turned_as_held(stored, orientation)))
          << orientation;
      EXPECT_TRUE(torch::equal(decode_image(exif, "p", {.upright = false}), stored));
    }
  }
  for (size_t keep = 2; keep < 70; ++keep) {  // whatever is in the marker, the picture is read
    std::string cut = held(file, 6, true);
    cut[30] = static_cast<char>(keep);
    EXPECT_EQ(decode_image(cut, "p").numel(), stored.numel());
  }
}

TEST(Images, ReadsJpegs) {
  const auto picture = some_picture(40, 61);
  const auto expected = tensor_of_picture(picture);
  const auto image = decode_image(jpeg_of(picture), "p");
  EXPECT_EQ(image.sizes(), (std::vector<int64_t>{3, 40, 61}));
  EXPECT_LE((image.to(torch::kFloat) - expected.to(torch::kFloat)).abs().mean().item<double>(), 3);
  EXPECT_LE(worst_difference(decode_image(jpeg_of(picture, {.progressive = true}), "p"), image), 3);
  const auto grey = some_picture(40, 61, 1);
  EXPECT_LE(worst_difference(decode_image(jpeg_of(grey), "p"), tensor_of_picture(grey)), 8);
}

// Ink in place of light: no ink is white, full black is black.
TEST(Images, TurnsCmykIntoColours) {
  auto picture = some_picture(8, 8, 4);
  for (size_t i = 0; i < picture.bytes.size(); i += 4) {
    const std::vector<unsigned char> pixel =
        i < picture.bytes.size() / 2 ? std::vector<unsigned char>{255, 0, 255, 255}  // Adobe's way
                                     : std::vector<unsigned char>{255, 255, 255, 0};
    std::copy(pixel.begin(), pixel.end(), picture.bytes.begin() + static_cast<int64_t>(i));
  }
  const auto image = decode_image(jpeg_of(picture, {.cmyk = true}), "p").to(torch::kInt);
  EXPECT_GT(image[0][0][0].item<int>(), 240);
  EXPECT_LT(image[1][0][0].item<int>(), 40);
  EXPECT_LT(image[0][7][7].item<int>(), 40);
}

TEST(Images, DecodesLargeJpegsSmaller) {
  const auto file = jpeg_of(some_picture(160, 320));
  const auto size_at = [&](int64_t side) {
    return decode_image(file, "p", {.min_side = side}).sizes().vec();
  };
  EXPECT_EQ(size_at(0), (std::vector<int64_t>{3, 160, 320}));
  EXPECT_EQ(size_at(80), (std::vector<int64_t>{3, 80, 160}));
  EXPECT_EQ(size_at(81), (std::vector<int64_t>{3, 160, 320}));
  EXPECT_EQ(size_at(40), (std::vector<int64_t>{3, 40, 80}));
  EXPECT_EQ(size_at(1), (std::vector<int64_t>{3, 20, 40}));
  EXPECT_EQ(size_at(1000), (std::vector<int64_t>{3, 160, 320}));
}

TEST(Images, RefusesWhatIsCutOrDamaged) {
  const auto picture = some_picture(64, 64);
  const std::string files[] = {jpeg_of(picture),
                               jpeg_of(picture, {.progressive = true}),
                               png_of(picture),
                               png_of(picture, 8, true)};
  for (const std::string& file : files) {
    for (const size_t keep :
         {file.size() - 30, file.size() / 2, file.size() / 5, size_t{20}, size_t{4}})
      EXPECT_THAT(refusal_of_image(file.substr(0, keep)),
                  HasSubstr("expected a whole JPEG or PNG in 'x/y.img'"));
  }
  auto damaged = files[2];
  damaged[damaged.size() / 2] = static_cast<char>(damaged[damaged.size() / 2] ^ 0x55);
  EXPECT_THAT(refusal_of_image(damaged), HasSubstr("libpng says"));
  EXPECT_THAT(refusal_of_image(""), HasSubstr("an empty file"));
  EXPECT_THAT(refusal_of_image("<html>"), HasSubstr("'<html>'"));
}

TEST(Images, RefusesMorePixelsThanAllowed) {
  for (const auto& file : {jpeg_of(some_picture(100, 50)), png_of(some_picture(100, 50))})
    EXPECT_THAT(refusal_of_image(file, {.max_pixels = 4999}),
                HasSubstr("at most 4999 pixels in 'x/y.img', got 50x100"));
}

// At every edge of blocks (8 and 16 pixels), and at those of the picture.
void expect_parts_of_whole(const std::string& file,
                           const ImageOptions& options,
                           const std::string& what) {
  const EncodedImage image(file, "p", options);
  const auto whole = image.decode();
  ASSERT_EQ(whole.sizes(), (std::vector<int64_t>{3, image.height(), image.width()})) << what;
  Generator rng(1, 0, 0);
  for (int i = 0; i < 60; ++i) {
    ImagePart part{.height = 1 + rng.integer(image.height()),
                   .width = 1 + rng.integer(image.width())};
    part.top = rng.integer(image.height() - part.height + 1);
    part.left = rng.integer(image.width() - part.width + 1);
    const auto expected = transform::crop(whole, part.top, part.left, part.height, part.width);
    ASSERT_TRUE(torch::equal(image.decode(part), expected))
        << what << ": " << part.width << "x" << part.height << " from " << part.left << ", "
        << part.top;
  }
}

TEST(EncodedImages, HasThePixelsOfTheWholeHoweverTheCameraWasHeld) {
  for (const int orientation : {2, 3, 4, 5, 6, 7, 8})
    for (const bool progressive : {false, true})
      expect_parts_of_whole(
          held(jpeg_of(noisy_picture(41, 57), {.progressive = progressive}), orientation, true),
          {},
          "orientation " + std::to_string(orientation));
  for (const int orientation : {2, 3, 4, 5, 6, 7, 8})
    expect_parts_of_whole(png_of(noisy_picture(33, 47), 8, false, tiff_of(orientation, false)),
                          {},
                          "PNG of orientation " + std::to_string(orientation));
}

TEST(EncodedImages, HasThePixelsOfTheWholeInEveryPart) {
  for (const int64_t side : {0, 40, 20, 10})
    for (const bool progressive : {false, true})
      for (const auto& [across, down] :
           std::vector<std::pair<int, int>>{{1, 1}, {2, 1}, {1, 2}, {2, 2}, {4, 1}, {4, 2}, {2, 4}})
        expect_parts_of_whole(jpeg_of(noisy_picture(81, 107),
                                      {.progressive = progressive, .across = across, .down = down}),
                              {.min_side = side},
                              std::to_string(across) + "x" + std::to_string(down) +
                                  (progressive ? " progressive" : ""));
  expect_parts_of_whole(jpeg_of(noisy_picture(81, 107, 1)), {}, "grey");
  expect_parts_of_whole(jpeg_of(noisy_picture(81, 107, 4), {.cmyk = true}), {}, "CMYK");
  expect_parts_of_whole(png_of(noisy_picture(33, 47)), {}, "PNG");
  expect_parts_of_whole(png_of(noisy_picture(33, 47, 1), 8, true), {}, "interlaced PNG");
}

TEST(EncodedImages, RefusesWhatIsNotWithin) {
  for (const auto& file : {jpeg_of(some_picture(40, 61)), png_of(some_picture(40, 61))}) {
    const EncodedImage image(file, "x/y.img");
    for (const ImagePart& part : std::vector<ImagePart>{{.top = -1, .height = 2, .width = 2},
                                                        {.left = 60, .height = 2, .width = 2},
                                                        {.width = 5}})
      EXPECT_THAT(message_of([&] { image.decode(part); }),
                  HasSubstr("lies within 'x/y.img' (61x40)"));
    EXPECT_THAT(message_of([&] { EncodedImage(file, "p", {.max_pixels = 2439}); }),
                HasSubstr("61x40"));
    EXPECT_THAT(message_of([&] { EncodedImage(file.substr(0, 20), "p"); }),
                HasSubstr("a whole JPEG or PNG"));
  }
  EXPECT_THAT(message_of([&] { EncodedImage("<html>", "p"); }), HasSubstr("'<html>'"));
}

// A cut file's upper part is whole; its lower part is refused.
TEST(EncodedImages, SeesDamageInWhatItReads) {
  const auto file = jpeg_of(noisy_picture(160, 160));
  const auto whole = decode_image(file, "p");
  const auto half = file.substr(0, file.size() / 2);
  const EncodedImage image(half, "x/y.img");
  EXPECT_TRUE(torch::equal(image.decode({.height = 40, .width = 30}),
                           transform::crop(whole, 0, 0, 40, 30)));
  EXPECT_THAT(message_of([&] { image.decode({.top = 140, .left = 3, .height = 20, .width = 30}); }),
              HasSubstr("whole JPEG or PNG in 'x/y.img'"));
  EXPECT_THAT(message_of([&] { image.decode(); }), HasSubstr("whole JPEG or PNG in 'x/y.img'"));
}

TEST(EncodedImages, AreTransformedAsDecodedOnes) {
  const auto file = jpeg_of(noisy_picture(120, 90));
  const EncodedImage encoded(file, "p");
  const auto decoded = encoded.decode();
  EXPECT_TRUE(
      torch::equal(transform::crop(encoded, 3, 5, 70, 40), transform::crop(decoded, 3, 5, 70, 40)));
  EXPECT_TRUE(torch::equal(transform::center_crop(encoded, 31, 60),
                           transform::center_crop(decoded, 31, 60)));
  for (int64_t i = 0; i < 40; ++i) {
    Generator one(0, 0, i);
    Generator other(0, 0, i);
    EXPECT_TRUE(torch::equal(transform::random_resized_crop(encoded, 32, 24, one),
                             transform::random_resized_crop(decoded, 32, 24, other)));
    EXPECT_EQ(one(), other());
  }
  EXPECT_THAT(message_of([&] { transform::crop(encoded, 0, 60, 10, 31); }),
              HasSubstr("lie within the image"));
  EXPECT_THAT(message_of([&] { transform::center_crop(encoded, 121, 3); }),
              HasSubstr("at least 121x3"));
}

// Pixel for pixel, where that Python has Pillow.
TEST(Images, DecodesAsPillow) {
  const test::TempFolder folder;
  std::vector<std::string> names;
  const auto add = [&](const std::string& name, const std::string& bytes) {
    test::put_file(folder / name, bytes);
    names.push_back(name);
  };
  add("a.jpg", jpeg_of(some_picture(61, 83)));
  add("b.jpg", jpeg_of(some_picture(33, 47), {.progressive = true}));
  add("c.jpg", jpeg_of(some_picture(33, 47, 1)));
  add("d.jpg", jpeg_of(some_picture(33, 47, 4), {.cmyk = true}));
  add("e.png", png_of(some_picture(33, 47, 4)));
  add("f.png", png_of(some_picture(33, 47, 1), 8, true));
  const auto sums = test::run_python("tests/data/pillow_sums.py", folder.path());
  if (!sums)
    GTEST_SKIP() << "that Python has no Pillow";
  std::string ours;
  for (const std::string& name : names) {
    const auto pixels =
        read_image(folder / name).permute({1, 2, 0}).contiguous().to(torch::kLong).flatten();
    ours += name + " " +
            std::to_string((pixels * torch::arange(1, pixels.numel() + 1)).sum().item<int64_t>()) +
            "\n";
  }
  EXPECT_EQ(*sums, ours);
}

class ImageFolders : public ::testing::Test {
 protected:
  void put(const std::string& name, const std::string& bytes) {
    std::filesystem::create_directories(std::filesystem::path(folder_ / name).parent_path());
    test::put_file(folder_ / name, bytes);
  }
  test::TempFolder folder_;
  std::string small_ = png_of(some_picture(4, 6));
};

TEST_F(ImageFolders, SortsClassesAndPictures) {
  put("dog/b.png", small_);
  put("dog/a.JPG", jpeg_of(some_picture(4, 6)));
  put("dog/deep/0.png", small_);
  put("cat/x.jpeg", jpeg_of(some_picture(4, 6)));
  put("cat/notes.txt", "no picture");
  put("readme.txt", "no class");
  const ImageFolder images(folder_.path());
  EXPECT_THAT(images.classes(), ElementsAre("cat", "dog"));
  ASSERT_EQ(images.size(), 4);
  EXPECT_THAT(images.file(1), EndsWith("dog/a.JPG"));
  EXPECT_THAT(images.file(3), EndsWith("dog/deep/0.png"));
  EXPECT_TRUE(torch::equal(images.labels(), torch::tensor({0, 1, 1, 1}, torch::kLong)));
  DataLoader loader(images, {.batch_size = 4, .workers = 2});
  for (const auto& batch : loader) {
    EXPECT_EQ(batch.image.sizes(), (std::vector<int64_t>{4, 3, 4, 6}));
    EXPECT_TRUE(torch::equal(batch.label, images.labels()));
  }
}

TEST_F(ImageFolders, SaysWhatItLeavesOut) {
  put("cat/1.png", small_);
  put("cat/2.webp", "RIFF");
  put("dog/3.png", small_);
  put("dog/4.BMP", "BM");
  put("dog/5.heic", "ftyp");
  put("dog/6.avif", "ftyp");
  put("dog/7.jfif", jpeg_of(some_picture(4, 6)));
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(ImageFolder(folder_.path()).size(), 3);
  EXPECT_THAT(::testing::internal::GetCapturedStderr(),
              AllOf(HasSubstr("leaves out 4 pictures"), HasSubstr("cat/2.webp' first")));
}

TEST_F(ImageFolders, RefusesAHiddenFolderAsAClass) {
  put("cat/1.png", small_);
  put(".ipynb_checkpoints/1.png", small_);
  EXPECT_THAT(message_of([&] { ImageFolder(folder_.path()); }),
              HasSubstr("got the hidden folder '.ipynb_checkpoints'"));
}

TEST_F(ImageFolders, GivesTheTransformTheSamplesOwnChance) {
  put("a/1.png", small_);
  const ImageFolder images(folder_.path(),
                           {.transform = [](const at::Tensor& image, Generator& rng) {
                             return image.to(torch::kFloat) * rng.uniform();
                           }});
  Generator one(0, 0, 0);
  Generator same(0, 0, 0);
  Generator other(0, 1, 0);
  const auto image = images.get(0, one).image;
  EXPECT_TRUE(torch::equal(image, images.get(0, same).image));
  EXPECT_FALSE(torch::equal(image, images.get(0, other).image));
}

TEST_F(ImageFolders, GivesTheTransformTheEncodedPictureWhereItTakesThat) {
  put("a/1.jpg", jpeg_of(noisy_picture(60, 60)));
  const ImageFolder of_decoded(folder_.path(),
                               {.transform = [](const at::Tensor& image, Generator& rng) {
                                 return transform::random_resized_crop(image, 16, 16, rng);
                               }});
  const ImageFolder of_encoded(folder_.path(),
                               {.transform = [](const EncodedImage& image, Generator& rng) {
                                 return transform::random_resized_crop(image, 16, 16, rng);
                               }});
  Generator one(0, 0, 0);
  Generator same(0, 0, 0);
  EXPECT_TRUE(torch::equal(of_decoded.get(0, one).image, of_encoded.get(0, same).image));
}

TEST_F(ImageFolders, NamesWhatIsWrong) {
  EXPECT_THAT(message_of([&] { ImageFolder(folder_ / "nowhere"); }), HasSubstr("nowhere"));
  EXPECT_THAT(message_of([&] { ImageFolder(folder_.path()); }),
              HasSubstr("a sub-folder for each class"));
  put("a/1.png", small_);
  put("b/notes.txt", "");
  EXPECT_THAT(message_of([&] { ImageFolder(folder_.path()); }), HasSubstr("of the class 'b'"));
  put("b/2.jpg", jpeg_of(some_picture(40, 40)).substr(0, 700));
  DataLoader loader(ImageFolder(folder_.path()), {});
  EXPECT_THAT(message_of([&] {
                for (const auto& batch : loader)
                  (void)batch;
              }),
              AllOf(HasSubstr("sample 1"), HasSubstr("b/2.jpg"), HasSubstr("libjpeg says")));
}

}  // namespace
}  // namespace muster
