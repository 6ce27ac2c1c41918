// Checkpoints and safetensors files as a person who looks at them wants them: without LibTorch, and with
// whatever is wrong with them as a text. Called by `muster checkpoint`.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "muster/checkpoint/manifest.h"
#include "muster/checkpoint/tensor_source.h"

namespace muster {

// A message without the "checkpoint: " that it begins with, for a command that is called so itself.
std::string without_room(const std::string& message);

// A row of `muster checkpoint ls`.
struct ListedCheckpoint {
  int64_t step = 0;
  std::string path;
  int64_t written_seconds = 0;                           // since 1970; 0: not known
  uint64_t bytes = 0;                                    // on the disk
  int world_size = 0;                                    // 0: not known
  std::optional<int64_t> epoch = {}, samples_seen = {};  // where the program said them
  std::string problem;  // why it is not whole; empty: manifest and sizes are right
};

// The folder itself, or the one of that name in a run's folder. Throws: invalid_argument when there is none.
std::string checkpoints_folder(const std::string& folder);

// Newest first. Throws: io when the folder cannot be read.
std::vector<ListedCheckpoint> list_with_state(const std::string& directory);

// A file of a checkpoint, or a safetensors file that lies alone.
struct ViewedFile {
  std::string name;
  std::string path;
  uint64_t bytes = 0;
};

struct CheckpointView {
  std::string path;
  bool has_manifest = false;  // false: plain safetensors files
  Manifest manifest;
  std::vector<ViewedFile> files;
};

// What lies at `path`: a checkpoint's folder, a safetensors file, or a folder of them (weight_files.h). Reads
// the manifest and the sizes. Throws: io, invalid_argument.
CheckpointView view_checkpoint(const std::string& path);

// Tensors that belong together, in one file or in those of the ranks that wrote them.
struct TensorSet {
  std::string name;  // "model.safetensors", however many files
  std::vector<ViewedFile> files;

  // Throws: as TensorSource's constructor.
  TensorSource open() const;
};

// In the manifest's order.
std::vector<TensorSet> tensor_sets(const CheckpointView& view);

// The one that a person calls "model" or "model.safetensors". Throws: invalid_argument, which names those
// that are there.
TensorSet chosen_set(const CheckpointView& view, const std::string& name);

// The model's tensors. Throws: invalid_argument when there are none.
TensorSet model_set(const CheckpointView& view);

// "AdamW"; of several optimizers "net: AdamW, head: SGD"; empty: none was saved.
std::string optimizer_kinds(const CheckpointView& view);

// A row of `muster checkpoint verify`.
struct VerifiedFile {
  std::string checkpoint;
  std::string file;  // empty: the checkpoint itself
  uint64_t bytes = 0;
  bool has_checksum = false;
  std::string problem;  // empty: whole
};

// Told before each piece of the work: what is read, and how many bytes more of it have been.
using OnBytesRead = std::function<void(const std::string& path, size_t bytes)>;

// Compares every file at `path` with its checksum, and reads the heads of safetensors files. A file alone has
// no checksum: its head is compared with its size.
std::vector<VerifiedFile> verify_files(const std::string& path, const OnBytesRead& on_bytes = {});

}  // namespace muster
