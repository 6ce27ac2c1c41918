// Ranks that trained alone have saved a set of tensors each. Another number of ranks cannot go on
// from one of them each, so all begin with the mean of all sets.
#include "muster/checkpoint/saved_tensors.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <cstdio>

#include "muster/base/mapped.h"
#include "muster/base/strings.h"
#include "muster/base/torch_names.h"
#include "muster/checkpoint/safetensors.h"
#include "muster/checkpoint/safetensors_dtype.h"

namespace muster {

namespace {

// Returns the files of the ranks' parts, or the one file of a plain checkpoint.
Strings files_of_kind(const std::string& path, const Manifest& manifest, const std::string& kind) {
  const auto is_of_kind = [&](const std::string& name) {
    return name == kind + ".safetensors" || name.starts_with(kind + "-");
  };
  return mapped(filtered(mapped(manifest.files, &WrittenFile::name), is_of_kind),
                [&](const auto& name) { return cat(path, "/", name); });
}

}  // namespace

// The name has no "-00001-of-00004": files with such numbers are one set of tensors together.
std::string own_file(int rank, const std::string& kind) {
  char number[16];
  std::snprintf(number, sizeof(number), "%05d", rank);
  return cat("own-", number, "-", kind, ".safetensors");
}

// Rank 0's tensors are in the shared files. Every other rank that trained alone has added files.
SavedTensors::SavedTensors(
    const std::string& path, const Manifest& manifest, const std::string& kind, int rank, int ranks)
    : path_(path), rank_(rank), ranks_(ranks), source_(files_of_kind(path, manifest, kind)) {
  for (int other = 1; other < manifest.world_size; ++other) {
    const auto file = own_file(other, kind);
    if (manifest.find(file) != nullptr)
      own_.emplace_back(std::vector{cat(path, "/", file)});
  }
}

// An optimizer's tensors have the parameter's name and a field behind it.
TensorEntries SavedTensors::entries(const TensorPieces& pieces) const {
  StringSet own_names;
  for (const TensorPiece& piece : pieces)
    if (reads_own(piece))
      own_names.insert(piece.name);
  // "fc.weight" of the model, and "fc.weight.exp_avg" of the optimizer.
  const auto is_own = [&](const std::string& name) {
    return own_names.contains(name) || own_names.contains(name.substr(0, name.rfind('.')));
  };
  TensorEntries entries;
  for (const auto& [name, tensor] : source_.tensors())
    if (!is_own(name))
      entries[name] = tensor.kind;
  if (own_names.empty())
    return entries;
  for (const auto& [name, tensor] : own().tensors())
    if (is_own(name))
      entries[name] = tensor.kind;
  return entries;
}

// The caller has made sure that `to` is a contiguous CPU tensor.
void SavedTensors::read(const TensorSource& from,
                        const TensorPiece& piece,
                        const Tensor& to) const {
  from.read(piece.name, piece.elements, to.mutable_data_ptr());
  check_bools(path_, piece.name, to);
}

// The sum is in double, so that the mean of equal values is that value.
void SavedTensors::read_mean(const TensorPiece& piece, const Tensor& to) const {
  read(source_, piece, to);
  Tensor sum = to.to(kDouble), one = at::empty_like(to);
  int count = 1;
  for (const TensorSource& own : own_) {
    if (!own.contains(piece.name))
      continue;
    read(own, piece, one);
    sum += one.to(kDouble);
    ++count;
  }
  to.copy_(sum / count);
}

// A tensor on a GPU, one with other strides, or one of another type, is filled by a copy.
void SavedTensors::fetch(const TensorPiece& piece) const {
  const TensorSource& from = reads_own(piece) ? own() : source_;
  const ScalarType type = scalar_type_of(from.tensors().at(piece.name).kind);
  const bool is_plain =
      piece.tensor.is_cpu() && piece.tensor.is_contiguous() && piece.tensor.scalar_type() == type;
  const Tensor here = is_plain ? piece.tensor : at::empty(piece.tensor.sizes(), type);
  const bool differs_by_rank = !own_.empty() && own_[0].contains(piece.name);
  if (reads_own(piece)) {
    read(own(), piece, here);
  } else if (differs_by_rank && here.is_floating_point()) {
    read_mean(piece, here);
  } else {
    read(source_, piece, here);
  }
  if (!is_plain)
    piece.tensor.copy_(here);
}

}  // namespace muster
