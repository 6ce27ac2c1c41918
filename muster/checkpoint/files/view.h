// Checkpoints and safetensors files as a person who looks at them wants them: without LibTorch, and
// with whatever is wrong with them as a text. Called by `muster checkpoint`.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "muster/base/functions.h"
#include "muster/base/strings.h"
#include "muster/checkpoint/files/manifest.h"
#include "muster/checkpoint/files/tensor_source.h"

namespace muster {

// Returns the message without the "checkpoint: " that it begins with, for the command of that name.
std::string without_command(const std::string& message);

// Runs `work` and returns its error as a row of a table has it, or "" where there is none.
std::string problem_of(const Callback& work);

// A file of a checkpoint, or a safetensors file that lies alone.
struct ViewedFile {
  std::string name;
  std::string path;
  uint64_t bytes = 0;
};

struct CheckpointView {
  std::string path;
  bool has_manifest = false;  // false: plain safetensors files
  Manifest manifest{};
  std::vector<ViewedFile> files{};
  Strings promised{};  // tensors that the index of a hub's folder names
};

// Looks at `path`: a checkpoint's folder, a safetensors file, or a folder of them (weight_files.h).
// Reads the manifest and the sizes. Throws: io, invalid_argument.
CheckpointView view_checkpoint(const std::string& path);

// Tensors that belong together, in one file or in those of the ranks that wrote them.
struct TensorSet {
  std::string name;  // "model.safetensors", however many files
  std::vector<ViewedFile> files{};
  Strings promised{};  // tensors that must be among them
  std::string part{};  // the part whose tensors alone are meant; empty: all

  // The tensors of a part have their own names. Throws: as TensorSource's constructor;
  // invalid_argument when a promised tensor is missing, and for a part without tensors, naming
  // those that have some.
  TensorSource open() const;
};

// Returns the sets in the manifest's order. Files without a manifest hold one model together.
std::vector<TensorSet> tensor_sets(const CheckpointView& view);

// Returns the set that a person calls "model" or "model.safetensors". Throws: invalid_argument,
// which names those that are there.
TensorSet chosen_set(const CheckpointView& view, const std::string& name);

// Returns the model's tensors. Throws: invalid_argument when there are none.
TensorSet model_set(const CheckpointView& view);

// Returns the tensors of one of the parts that Checkpoints::add has saved, such as an Ema's
// averages: "ema". Throws: invalid_argument for files that are no checkpoint's, and for a
// checkpoint without parts.
TensorSet part_set(const CheckpointView& view, const std::string& part);

// Returns "AdamW", of several optimizers "net: AdamW, head: SGD", and "" where none was saved.
std::string optimizer_kinds(const CheckpointView& view);

}  // namespace muster
