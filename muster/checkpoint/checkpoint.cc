// Rank 0 alone reads and writes files. To load, every rank first gets the heads, which say what
// there is, and compares them with what it has. Then the tensors go round, one at a time, so that
// no rank has the whole checkpoint in memory.
#include "muster/checkpoint/checkpoint.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <memory>
#include <utility>

#include "muster/base/error.h"
#include "muster/base/fd.h"
#include "muster/base/log.h"
#include "muster/base/lookup.h"
#include "muster/base/strings.h"
#include "muster/base/tensors.h"
#include "muster/base/torch_names.h"
#include "muster/checkpoint/files/lineage.h"
#include "muster/checkpoint/image.h"
#include "muster/checkpoint/optimizer_state.h"
#include "muster/checkpoint/safetensors.h"
#include "muster/checkpoint/sharded_checkpoint.h"
#include "muster/trace/span.h"

namespace muster {

namespace {

// One of a checkpoint's files, which is open on rank 0. The other ranks get the head before the
// tensors.
struct LoadedFile {
  SafetensorsHead head{};  // empty: there is none
  std::optional<SafetensorsFile> file{};
};

struct Loaded {
  std::string path;
  std::string manifest;
  LoadedFile model;
  LoadedFile optimizer;
  LoadedFile parts;

  bool found() const { return !path.empty(); }
};

// Reads a file's head. Returns an empty one if the checkpoint has no such file.
LoadedFile read_file(const std::string& folder, const Manifest& manifest, const char* name) {
  if (manifest.find(name) == nullptr)
    return {};
  LoadedFile loaded{.file = SafetensorsFile(cat(folder, "/", name))};
  loaded.file->header();  // refused here, so that an older checkpoint can be tried
  loaded.head = loaded.file->head();
  return loaded;
}

// Returns no tensors for a file that the checkpoint does not have.
SafetensorsHeader header_of(const LoadedFile& file, const std::string& name) {
  if (file.head.json.empty())
    return {};
  return parse_safetensors_header(file.head.json, file.head.data_bytes, name);
}

// Reads the heads of a checkpoint that is whole. Throws: io or invalid_argument if it is not;
// failed_precondition if it is whole and sharded.
Loaded read_checkpoint(const std::string& path, bool with_optimizer) {
  const auto manifest = verify_checkpoint(path);
  if (is_sharded(manifest)) {
    throw failed_precondition(
        "checkpoint: expected '",
        kModelFile,
        "' in '",
        path,
        "', got the parts of several ranks; load "
        "it with muster::Checkpoints, or write one file with `muster checkpoint export`");
  }
  if (manifest.find(kModelFile) == nullptr) {
    throw invalid_argument("checkpoint: expected '",
                           kModelFile,
                           "' in '",
                           path,
                           "', got a manifest without it; load another");
  }
  return {.path = path,
          .manifest = read_small_file(cat(path, "/", kManifestFile)),
          .model = read_file(path, manifest, kModelFile),
          .optimizer = with_optimizer ? read_file(path, manifest, kOptimizerFile) : LoadedFile{},
          .parts = read_file(path, manifest, kPartsFile)};
}

// Reads the newest checkpoint that is whole, and warns of those that are not.
Loaded read_latest(const std::string& directory, bool with_optimizer, const LoadOptions& options) {
  SkippedCheckpoints skipped;
  for (const auto& [step, path, is_abandoned] :
       list_by_saving(directory, options.only, options.accept)) {
    if (!is_accepted(path, options.accept))
      continue;
    try {
      auto loaded = read_checkpoint(path, with_optimizer);
      check_step(parse_manifest(loaded.manifest, path), path);
      if (is_abandoned)
        warn_of_abandoned(path);
      return loaded;
    } catch (const Error& error) {
      if (error.code() == ErrorCode::failed_precondition)
        throw;  // whole, but not for this call
      skipped.add(path, error);
    }
  }
  skipped.refuse_if_any(directory);
  return {};
}

// Gives every rank rank 0's tensor, in the memory of `old` where it fits.
Tensor shared_tensor(const LoadedFile& file,
                     const std::string& name,
                     const TensorEntry& entry,
                     const Peers& peers,
                     const Tensor& old = {}) {
  const Tensor tensor = room_for(entry, old);
  peers.on_rank0([&] { read_tensor_into(tensor, *file.file, name, entry); });
  peers.share(tensor);
  return tensor;
}

// Returns what LoadedCheckpoint::read_parts is. The file stays open for it.
ReadParts parts_reader(std::shared_ptr<const LoadedFile> file, TensorEntries entries, Peers peers) {
  return [file = std::move(file), entries = std::move(entries), peers = std::move(peers)](
             const std::string& prefix, const NamedTensors& into) {
    return read_below(prefix, entries, into, [&](const auto& name, const auto& entry, auto& old) {
      return shared_tensor(*file, name, entry, peers, old);
    });
  };
}

// Loads the checkpoint that `read` reads on rank 0, if it reads one.
std::optional<LoadedCheckpoint> load_with(const std::function<Loaded()>& read,
                                          const TrainingState& state,
                                          const Peers& peers,
                                          const LoadOptions& options) {
  // Rank 0 reads the heads, and every rank gets them before anything is compared.
  Loaded loaded;
  peers.on_rank0([&] { loaded = read(); });
  for (auto* text : {&loaded.path, &loaded.manifest})
    peers.share(*text);
  for (auto* file : {&loaded.model, &loaded.optimizer, &loaded.parts})
    share_head(file->head, peers);
  if (!loaded.found())
    return std::nullopt;

  // Every rank compares by itself: ranks may have made different models, and all of them must
  // refuse then.
  Manifest manifest;
  SafetensorsHeader model, optimizer, parts;
  peers.together([&] {
    manifest = parse_manifest(loaded.manifest, loaded.path);
    model = header_of(loaded.model, loaded.path);
    parts = header_of(loaded.parts, loaded.path);
    check_model(state.model, model.tensors, loaded.path);
    if (options.check_parts)
      options.check_parts(parts.tensors);
    if (state.optimizer == nullptr)
      return;
    if (!state.has_members)
      require_plain(*state.optimizer);
    optimizer = header_of(loaded.optimizer, loaded.path);
    check_optimizer(state.model, *state.optimizer, manifest.optimizer, optimizer.tensors);
  });

  LoadedCheckpoint result = loaded_from(loaded.path, manifest);
  // The optimizer first: it can still refuse, the model cannot.
  if (state.optimizer != nullptr) {
    // On a device a tensor is copied there at once: the host holds one of the file at a time,
    // however large the file is.
    const auto fill = [&](const TensorPiece& piece) {
      const Tensor tensor = shared_tensor(
          loaded.optimizer, piece.name, optimizer.tensors.at(piece.name), peers, piece.tensor);
      if (!tensor.is_same(piece.tensor))
        piece.tensor.copy_(tensor);
    };
    restore_optimizer(state.model, *state.optimizer, manifest.optimizer, optimizer.tensors, fill);
  }
  const NoGradGuard no_grad;
  const NamedTensorList tensors = model_tensors(state.model);
  const NamedTensors by_name(tensors.begin(), tensors.end());
  for (const auto& [name, entry] : model.tensors)
    by_name.at(name).copy_(shared_tensor(loaded.model, name, entry, peers));
  // The parts are read later, one after the other, as the caller asks for them.
  result.read_parts = parts_reader(
      std::make_shared<LoadedFile>(std::move(loaded.parts)), std::move(parts.tensors), peers);
  return result;
}

}  // namespace

std::string save_checkpoint(const SaveOptions& options,
                            const TrainingState& state,
                            const TrainingPosition& position,
                            const Peers& peers) {
  const Span span("write checkpoint", Category::checkpoint);
  std::string path;
  peers.on_rank0([&] { path = write_image(options, image_of(state, position, peers.size())); });
  peers.share(path);
  return path;
}

// An optimizer that is not asked for is not read, since its file is the largest.
std::optional<LoadedCheckpoint> load_latest_checkpoint(const std::string& directory,
                                                       const TrainingState& state,
                                                       const Peers& peers,
                                                       const LoadOptions& options) {
  return load_with([&] { return read_latest(directory, state.optimizer != nullptr, options); },
                   state,
                   peers,
                   options);
}

LoadedCheckpoint load_checkpoint(const std::string& path,
                                 const TrainingState& state,
                                 const Peers& peers) {
  return load_with(
             [&] { return read_checkpoint(path, state.optimizer != nullptr); }, state, peers, {})
      .value();
}

}  // namespace muster
