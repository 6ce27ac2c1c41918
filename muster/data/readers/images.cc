// Images as tensors, and a folder of them as a data set. A decoder writes rows of pixels, so the
// tensor is [height, width, 3] in memory, and shown as [3, height, width] by its strides: channels
// last.
#include "muster/data/readers/images.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/scalar_tensor.h>

#include <algorithm>
#include <array>
#include <filesystem>

#include "muster/base/contains.h"
#include "muster/base/error.h"
#include "muster/base/fd.h"
#include "muster/base/folders.h"
#include "muster/base/log.h"
#include "muster/base/refusal.h"
#include "muster/base/torch_names.h"

namespace muster {

namespace {

namespace fs = std::filesystem;

constexpr size_t kMostImageBytes = size_t{1} << 30;

// The ending selects files; their content is checked when they are decoded.
constexpr std::array kReadEndings = {".jpg", ".jpeg", ".jpe", ".jfif", ".png"};

// Of pictures that no decoder here reads.
constexpr std::array kOtherEndings = {".ppm",
                                      ".bmp",
                                      ".pgm",
                                      ".tif",
                                      ".tiff",
                                      ".webp",
                                      ".gif",
                                      ".heic",
                                      ".heif",
                                      ".avif",
                                      ".jxl",
                                      ".jp2"};

// Folder and name of each picture, sorted by folder first, which is torchvision's order.
std::vector<std::pair<std::string, std::string>> pictures_below(const fs::path& folder,
                                                                Strings* others) {
  std::vector<std::pair<std::string, std::string>> found;
  for (const auto& entry :
       fs::recursive_directory_iterator(folder, fs::directory_options::follow_directory_symlink)) {
    const std::string ending = lower_case(entry.path().extension().string());
    if (contains(kReadEndings, ending) && entry.is_regular_file())
      found.emplace_back(entry.path().parent_path().string(), file_name(entry.path()));
    else if (contains(kOtherEndings, ending))
      others->push_back(entry.path().string());
  }
  std::ranges::sort(found);
  return found;
}

// Classes are numbered by sorted names, as in torchvision.
Strings folders_in(const std::string& path) {
  Strings names;
  for (const auto& entry : fs::directory_iterator(path))
    if (entry.is_directory())
      names.push_back(file_name(entry.path()));
  std::ranges::sort(names);
  return names;
}

constexpr FileRefusal refuse_folder{"image folder",
                                    "give the folder whose sub-folders are the classes"};

// .ipynb_checkpoints, .Trash-1000: as a class it would move the numbers of all others.
void check_not_hidden(const std::string& path, const Strings& classes) {
  for (const auto& name : classes)
    if (name.starts_with('.'))
      refuse_folder(path, "classes alone", cat("the hidden folder '", name, "'"));
}

void tell_of_others(const std::string& path, const Strings& others) {
  if (!others.empty())
    log_warning("image folder: leaves out ",
                plural(others.size(), "picture"),
                " in '",
                path,
                "', by name neither JPEG nor PNG, '",
                others.front(),
                "' first; convert them to train on them");
}

// At most one byte more than allowed is read, so a huge file costs no memory.
std::string bytes_of_picture(const std::string& path) {
  std::string bytes = read_file(path, kMostImageBytes);
  if (bytes.size() <= kMostImageBytes)
    return bytes;
  throw invalid_argument(
      "image: expected at most ", kMostImageBytes, " bytes in '", path, "', got more");
}

}  // namespace

Tensor decode_image(std::string_view file, const std::string& name, const ImageOptions& options) {
  return detail::decoded(file, name, options, nullptr);
}

Tensor read_image(const std::string& path, const ImageOptions& options) {
  return decode_image(bytes_of_picture(path), path, options);
}

// The tree is walked once; a picture is read only when it is asked for.
ImageFolder::ImageFolder(const std::string& path, const ImageFolderOptions& options)
    : options_(options) {
  try {
    classes_ = folders_in(path);
    check_not_hidden(path, classes_);
    Strings others;
    int64_t label = 0;
    for (const auto& name_of_class : classes_) {
      const auto found = pictures_below(fs::path(path) / name_of_class, &others);
      if (found.empty())
        refuse_folder(
            path, cat("pictures (.jpg, .jpeg, .png) of the class '", name_of_class, "'"), "none");
      for (const auto& [folder, name] : found)
        files_.push_back({cat(folder, "/", name), label});
      ++label;
    }
    tell_of_others(path, others);
  } catch (const fs::filesystem_error& error) {
    throw Error(ErrorCode::io,
                "image folder: expected a folder at '",
                path,
                "' that can be read, got: ",
                error.code().message(),
                " ('",
                error.path1().string(),
                "'); correct the path");
  }
  if (classes_.empty())
    refuse_folder(path, "a sub-folder for each class", "none");
}

// Workers call this at once: each call opens the file anew, and the folder itself does not change.
ImageExample ImageFolder::get(int64_t index, Generator& rng) const {
  if (index < 0 || index >= size())
    throw invalid_argument("image folder: expected a picture from 0 to ",
                           size() - 1,
                           ", got ",
                           index,
                           "; ask for one that exists");
  const File& file = files_[index];
  const auto bytes = bytes_of_picture(file.path);
  return {.image = options_.transform(EncodedImage(bytes, file.path, options_.decode), rng),
          .label = at::scalar_tensor(file.label, kLong)};
}

Tensor ImageFolder::labels() const {
  auto all = at::empty({size()}, kLong);
  auto* to = all.mutable_data_ptr<int64_t>();
  for (const File& file : files_)
    *to++ = file.label;
  return all;
}

}  // namespace muster
