#include "muster/checkpoint/checkpoint.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <filesystem>
#include <utility>

#include "muster/base/error.h"
#include "muster/base/fd.h"
#include "muster/base/log.h"
#include "muster/base/strings.h"
#include "muster/checkpoint/directory.h"
#include "muster/checkpoint/image.h"
#include "muster/checkpoint/model_state.h"
#include "muster/checkpoint/optimizer_state.h"
#include "muster/checkpoint/safetensors.h"

namespace muster {

namespace {

// One of a checkpoint's files as rank 0 has read it; the others get the head before the tensors.
struct LoadedFile {
  std::string head;        // empty: there is none
  std::string data_bytes;  // a number
  NamedTensors tensors;
};

struct Loaded {
  std::string path;
  std::string manifest;
  LoadedFile model;
  LoadedFile optimizer;
  LoadedFile parts;

  bool found() const { return !path.empty(); }
};

LoadedFile read_file(const std::string& folder, const Manifest& manifest, const char* name) {
  if (manifest.find(name) == nullptr) return {};
  const auto path = cat(folder, "/", name);
  auto head = read_safetensors_head(path);
  return {.head = std::move(head.json),
          .data_bytes = cat(head.data_bytes),
          .tensors = read_safetensors(path).tensors};
}

SafetensorsHeader header_of(const LoadedFile& file, const std::string& name) {
  if (file.head.empty()) return {};
  return parse_safetensors_header(file.head, std::stoull(file.data_bytes), name);
}

// Reads a checkpoint that is whole. Throws when it is not.
Loaded read_checkpoint(const std::string& path, bool with_optimizer) {
  const auto manifest = verify_checkpoint(path);
  if (manifest.find(kModelFile) == nullptr) {
    throw Error(ErrorCode::invalid_argument, cat("checkpoint: expected '", kModelFile, "' in '", path,
                                                 "', got a manifest without it; load another"));
  }
  return {.path = path,
          .manifest = read_small_file(cat(path, "/", kManifestFile)),
          .model = read_file(path, manifest, kModelFile),
          .optimizer = with_optimizer ? read_file(path, manifest, kOptimizerFile) : LoadedFile{},
          .parts = read_file(path, manifest, kPartsFile)};
}

Loaded read_latest(const std::string& directory, bool with_optimizer, const LoadOptions& options) {
  std::string problems;
  for (const auto& [step, path] : list_checkpoints(directory)) {
    try {
      if (options.accept && !options.accept(read_manifest(path))) continue;
      auto loaded = read_checkpoint(path, with_optimizer);
      if (const auto said = parse_manifest(loaded.manifest, path).position.step; said != step) {
        throw Error(ErrorCode::invalid_argument,
                    cat("checkpoint: expected step ", step, " in '", path, "', got a manifest of step ", said,
                        "; it was renamed or mixed"));
      }
      return loaded;
    } catch (const Error& error) {
      log(LogLevel::warn, cat("checkpoint: '", path, "' is passed over: ", error.message()));
      problems += cat("\n  ", path, ": ", error.message());
    }
  }
  if (problems.empty()) return {};
  throw Error(ErrorCode::io, cat("checkpoint: expected a whole one in '", directory,
                                 "', got only damaged ones; remove them to start anew:", problems));
}

// Every rank ends with rank 0's tensors. The heads, which all have, say what is to come.
void share_tensors(NamedTensors& tensors, const TensorEntries& entries, const Peers& peers) {
  for (const auto& [name, entry] : entries) {
    auto& tensor = tensors[name];
    if (peers.rank() != 0) tensor = at::empty(entry.shape, scalar_type_of(entry));
    peers.share(tensor);
  }
}

std::optional<LoadedCheckpoint> load_with(const std::function<Loaded()>& read, const TrainingState& state,
                                          const Peers& peers, const LoadOptions& options) {
  Loaded loaded;
  peers.on_rank0([&] { loaded = read(); });
  for (auto* text : {&loaded.path, &loaded.manifest}) peers.share(*text);
  for (auto* file : {&loaded.model, &loaded.optimizer, &loaded.parts}) {
    peers.share(file->head);
    peers.share(file->data_bytes);
  }
  if (!loaded.found()) return std::nullopt;

  Manifest manifest;
  SafetensorsHeader model, optimizer, parts;
  peers.together([&] {
    manifest = parse_manifest(loaded.manifest, loaded.path);
    model = header_of(loaded.model, loaded.path);
    parts = header_of(loaded.parts, loaded.path);
    check_model(state.model, model.tensors, loaded.path);
    if (options.check_parts) options.check_parts(parts.tensors);
    if (state.optimizer == nullptr) return;
    optimizer = header_of(loaded.optimizer, loaded.path);
    check_optimizer(state.model, *state.optimizer, manifest.optimizer, optimizer.tensors);
  });

  share_tensors(loaded.model.tensors, model.tensors, peers);
  share_tensors(loaded.optimizer.tensors, optimizer.tensors, peers);
  share_tensors(loaded.parts.tensors, parts.tensors, peers);
  // The optimizer first: it can still refuse, the model cannot.
  if (state.optimizer != nullptr)
    restore_optimizer(state.model, *state.optimizer,
                      {manifest.optimizer, std::move(loaded.optimizer.tensors)});
  restore_model(state.model, loaded.model.tensors);
  return LoadedCheckpoint{.path = loaded.path,
                          .position = manifest.position,
                          .world_size = manifest.world_size,
                          .user = manifest.user,
                          .parts = std::move(loaded.parts.tensors)};
}

}  // namespace

std::string describe_other_data(const LoadedCheckpoint& loaded, int64_t dataset_size) {
  const int64_t before = loaded.position.dataset_size;
  if (before == 0 || before == dataset_size) return "";
  return cat(loaded.path, " was saved in training on ", before, " samples, and the data set has ",
             dataset_size);
}

std::string save_checkpoint(const CheckpointOptions& options, const TrainingState& state,
                            const TrainingPosition& position, const Peers& peers) {
  std::string path;
  peers.on_rank0([&] { path = write_image(options, image_of(state, position, peers.size())); });
  peers.share(path);
  return path;
}

std::optional<LoadedCheckpoint> load_latest_checkpoint(const std::string& directory,
                                                       const TrainingState& state, const Peers& peers,
                                                       const LoadOptions& options) {
  return load_with([&] { return read_latest(directory, state.optimizer != nullptr, options); }, state, peers,
                   options);
}

LoadedCheckpoint load_checkpoint(const std::string& path, const TrainingState& state, const Peers& peers) {
  return load_with([&] { return read_checkpoint(path, state.optimizer != nullptr); }, state, peers, {})
      .value();
}

}  // namespace muster
