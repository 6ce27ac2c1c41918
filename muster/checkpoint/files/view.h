// Checkpoints and safetensors files as a person who looks at them wants them: without LibTorch, and
// with whatever is wrong with them as a text. Called by `muster checkpoint`.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "muster/checkpoint/files/manifest.h"
#include "muster/checkpoint/files/tensor_source.h"

namespace muster {

// A message without the "checkpoint: " that it begins with, for a command that is called so itself.
std::string without_room(const std::string& message);

// Runs `work` and returns its error as a row of a table has it; empty if it throws nothing.
std::string problem_of(const std::function<void()>& work);

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
  std::vector<std::string> promised = {};  // tensors that the index of a hub's folder names
};

// Looks at `path`: a checkpoint's folder, a safetensors file, or a folder of them (weight_files.h).
// Reads the manifest and the sizes. Throws: io, invalid_argument.
CheckpointView view_checkpoint(const std::string& path);

// Tensors that belong together, in one file or in those of the ranks that wrote them.
struct TensorSet {
  std::string name;  // "model.safetensors", however many files
  std::vector<ViewedFile> files;
  std::vector<std::string> promised = {};  // tensors that must be among them
  std::string part = {};                   // the part whose tensors alone are meant; empty: all

  // The tensors of a part have their own names. Throws: as TensorSource's constructor;
  // invalid_argument when a promised tensor is missing, and for a part without tensors, naming
  // those that have some.
  TensorSource open() const;
};

// The sets in the manifest's order. Files without a manifest hold one model together.
std::vector<TensorSet> tensor_sets(const CheckpointView& view);

// The one that a person calls "model" or "model.safetensors". Throws: invalid_argument, which names
// those that are there.
TensorSet chosen_set(const CheckpointView& view, const std::string& name);

// The model's tensors. Throws: invalid_argument when there are none.
TensorSet model_set(const CheckpointView& view);

// The tensors of one of the parts that Checkpoints::add has saved, such as an Ema's averages:
// "ema". Throws: invalid_argument for files that are no checkpoint's.
TensorSet part_set(const CheckpointView& view, const std::string& part);

// "AdamW"; of several optimizers "net: AdamW, head: SGD"; empty: none was saved.
std::string optimizer_kinds(const CheckpointView& view);

}  // namespace muster
