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
#include "muster/checkpoint/model_state.h"
#include "muster/checkpoint/optimizer_state.h"
#include "muster/checkpoint/safetensors.h"

namespace muster {

namespace {

constexpr const char* kModelFile = "model.safetensors";
constexpr const char* kOptimizerFile = "optim.safetensors";
constexpr uint64_t kSpareBytes = 1 << 20;  // for the manifest and the file system's own

// Keeps the newest `keep` that look whole (and what is newer), and `saved` in any case.
void remove_old(const std::string& directory, const std::string& saved, int keep) {
  if (keep <= 0) return;
  int kept = 0;
  for (const auto& [step, path] : list_checkpoints(directory)) {
    if (kept >= keep && path != saved) {
      remove_checkpoint(path);
      continue;
    }
    try {
      read_manifest(path);
      ++kept;
    } catch (const Error& error) {
      log(LogLevel::warn, cat("checkpoint: '", path, "' is damaged and not counted: ", error.message()));
    }
  }
}

uint64_t needed_bytes(const NamedTensors& tensors) {
  const auto head = make_safetensors_head(tensors);
  return head.json.size() + head.data_bytes;
}

std::string save_here(const CheckpointOptions& options, const TrainingState& state,
                      const TrainingPosition& position, int world_size) {
  if (options.directory.empty() || position.step < 0) {
    throw Error(ErrorCode::invalid_argument,
                cat("checkpoint: expected a directory and a step of 0 or more, got '", options.directory,
                    "' and step ", position.step, "; set both"));
  }
  const at::NoGradGuard no_grad;
  NamedTensors model;
  for (auto& [name, tensor] : model_tensors(state.model)) model.emplace(name, tensor);
  OptimizerSnapshot optimizer;
  if (state.optimizer != nullptr) optimizer = snapshot_optimizer(state.model, *state.optimizer);

  make_directory(options.directory);
  remove_leftovers(options.directory);
  check_space(options.directory, needed_bytes(model) + needed_bytes(optimizer.tensors) + kSpareBytes);

  Staging staging(options.directory, position.step);
  const Metadata metadata = {{"format", "pt"}, {"step", cat(position.step)}};
  Manifest manifest{.position = position,
                    .world_size = world_size,
                    .files = {},
                    .optimizer = optimizer.description,
                    .user = options.user};
  manifest.files.push_back(write_safetensors(staging.path(), kModelFile, model, metadata));
  if (state.optimizer != nullptr)
    manifest.files.push_back(write_safetensors(staging.path(), kOptimizerFile, optimizer.tensors, metadata));
  DurableFile file(staging.path(), kManifestFile);
  file.write(format_manifest(manifest));
  file.finish();
  verify_checkpoint(staging.path());

  auto path = staging.publish();
  remove_old(options.directory, path, options.keep_last);
  return path;
}

// What rank 0 has read, and the part of it that the others need before the tensors.
struct Loaded {
  std::string path;
  std::string manifest;
  std::string model_head;
  std::string optimizer_head;
  std::string data_bytes;  // "model optimizer"
  NamedTensors model;
  NamedTensors optimizer;

  bool found() const { return !path.empty(); }
};

// Reads a checkpoint that is whole. Throws when it is not.
Loaded read_checkpoint(const std::string& path, bool with_optimizer) {
  const auto manifest = verify_checkpoint(path);
  Loaded loaded;
  loaded.path = path;
  loaded.manifest = read_small_file(cat(path, "/", kManifestFile));
  if (manifest.find(kModelFile) == nullptr) {
    throw Error(ErrorCode::invalid_argument, cat("checkpoint: expected '", kModelFile, "' in '", path,
                                                 "', got a manifest without it; load another"));
  }
  const auto model_file = cat(path, "/", kModelFile);
  const auto model_head = read_safetensors_head(model_file);
  loaded.model_head = model_head.json;
  loaded.model = read_safetensors(model_file).tensors;
  uint64_t optimizer_bytes = 0;
  if (with_optimizer && manifest.find(kOptimizerFile) != nullptr) {
    const auto optimizer_file = cat(path, "/", kOptimizerFile);
    const auto head = read_safetensors_head(optimizer_file);
    loaded.optimizer_head = head.json;
    optimizer_bytes = head.data_bytes;
    loaded.optimizer = read_safetensors(optimizer_file).tensors;
  }
  loaded.data_bytes = cat(model_head.data_bytes, " ", optimizer_bytes);
  return loaded;
}

Loaded read_latest(const std::string& directory, bool with_optimizer) {
  std::string problems;
  for (const auto& [step, path] : list_checkpoints(directory)) {
    try {
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
    if (peers.rank() != 0) tensor = at::empty(entry.shape, entry.dtype);
    peers.share(tensor);
  }
}

std::optional<LoadedCheckpoint> load_with(const std::function<Loaded()>& read, const TrainingState& state,
                                          const Peers& peers) {
  Loaded loaded;
  peers.on_rank0([&] { loaded = read(); });
  for (auto* text :
       {&loaded.path, &loaded.manifest, &loaded.model_head, &loaded.optimizer_head, &loaded.data_bytes})
    peers.share(*text);
  if (!loaded.found()) return std::nullopt;

  Manifest manifest;
  SafetensorsHeader model;
  SafetensorsHeader optimizer;
  peers.together([&] {
    const auto bytes = split(loaded.data_bytes, ' ');
    manifest = parse_manifest(loaded.manifest, loaded.path);
    model = parse_safetensors_header(loaded.model_head, std::stoull(bytes.at(0)), loaded.path);
    check_model(state.model, model.tensors, loaded.path);
    if (state.optimizer == nullptr) return;
    if (!loaded.optimizer_head.empty())
      optimizer = parse_safetensors_header(loaded.optimizer_head, std::stoull(bytes.at(1)), loaded.path);
    check_optimizer(state.model, *state.optimizer, manifest.optimizer, optimizer.tensors);
  });

  share_tensors(loaded.model, model.tensors, peers);
  share_tensors(loaded.optimizer, optimizer.tensors, peers);
  // The optimizer first: it can still refuse, the model cannot.
  if (state.optimizer != nullptr)
    restore_optimizer(state.model, *state.optimizer, {manifest.optimizer, std::move(loaded.optimizer)});
  restore_model(state.model, loaded.model);
  return LoadedCheckpoint{.path = loaded.path,
                          .position = manifest.position,
                          .world_size = manifest.world_size,
                          .user = manifest.user};
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
  peers.on_rank0([&] { path = save_here(options, state, position, peers.size()); });
  peers.share(path);
  return path;
}

std::optional<LoadedCheckpoint> load_latest_checkpoint(const std::string& directory,
                                                       const TrainingState& state, const Peers& peers) {
  return load_with([&] { return read_latest(directory, state.optimizer != nullptr); }, state, peers);
}

LoadedCheckpoint load_checkpoint(const std::string& path, const TrainingState& state, const Peers& peers) {
  return load_with([&] { return read_checkpoint(path, state.optimizer != nullptr); }, state, peers).value();
}

}  // namespace muster
