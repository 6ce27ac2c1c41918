// A checkpoint is written into a folder of another name, read back, and renamed. Older ones are
// removed only after that, so that at every moment one is whole.
#include "muster/checkpoint/image.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <cstdint>
#include <utility>

#include "muster/base/error.h"
#include "muster/base/log.h"
#include "muster/base/lookup.h"
#include "muster/base/strings.h"
#include "muster/base/tensors.h"
#include "muster/base/torch_names.h"
#include "muster/checkpoint/files/best.h"
#include "muster/checkpoint/files/directory.h"
#include "muster/checkpoint/files/lineage.h"
#include "muster/checkpoint/files/saving_lock.h"
#include "muster/checkpoint/model_state.h"
#include "muster/checkpoint/safetensors.h"

namespace muster {

namespace {

constexpr uint64_t kSpareBytes = 1 << 20;  // for the manifest and the file system's own

// The size of a file of these tensors.
uint64_t needed_bytes(const NamedTensors& tensors) {
  const auto head = make_safetensors_head(tensors);
  return head.json.size() + head.data_bytes;
}

// Starts to copy tensors to the host, in the memory of `before` where it fits.
NamedTensors copies_of(const NamedTensors& tensors,
                       const NamedTensors& before,
                       HostCopies& under_way) {
  NamedTensors copies;
  for (const auto& [name, tensor] : tensors)
    copies.emplace(name, under_way.start(tensor, find_or(before, name)));
  return copies;
}

}  // namespace

// The list begins with the current branch, so the first keep_last whole ones are those that stay.
// `saved` stays in any case: it may be of an abandoned branch. So does the best.
void remove_old(const SaveOptions& options, const std::string& saved) {
  if (options.keep_last <= 0)
    return;
  const OwnCheckpoints own(options.directory, options.is_own);
  int kept = 0;
  for (const auto& [path, damage] : own.rows()) {
    const bool is_enough = kept >= options.keep_last;
    const bool stays = path == saved || path == own.best() || path == options.best;
    if (!damage.empty() && !is_enough)
      log_warning("checkpoint: '", path, "' is damaged and not counted: ", damage);
    if (is_enough && !stays) {
      remove_checkpoint(path);
    } else if (damage.empty() && !is_enough) {
      ++kept;
    }
  }
}

Manifest new_manifest(const SaveOptions& options,
                      const TrainingPosition& position,
                      int world_size,
                      const std::string& optimizer) {
  return {.position = position,
          .parent = options.parent,
          .abandoned = options.abandoned,
          .world_size = world_size,
          .optimizer = optimizer,
          .user = options.user,
          .metric = options.metric};
}

LoadedCheckpoint loaded_from(const std::string& path, const Manifest& manifest) {
  return {.path = path,
          .serial = manifest.serial,
          .abandoned = manifest.abandoned,
          .position = manifest.position,
          .world_size = manifest.world_size,
          .user = manifest.user};
}

// The image shares the tensors, so it is made in no time and costs no memory.
CheckpointImage image_of(const TrainingState& state,
                         const TrainingPosition& position,
                         int world_size) {
  const NoGradGuard no_grad;
  CheckpointImage image{.parts = state.parts, .position = position, .world_size = world_size};
  for (auto& [name, tensor] : model_tensors(state.model))
    image.model.emplace(name, tensor);
  if (state.optimizer == nullptr)
    return image;
  if (!state.has_members)
    require_plain(*state.optimizer);
  image.optimizer = snapshot_optimizer(state.model, *state.optimizer);
  return image;
}

HostCopies copy_image(const CheckpointImage& image, CheckpointImage& copy) {
  const NoGradGuard no_grad;
  HostCopies under_way;
  copy.model = copies_of(image.model, copy.model, under_way);
  copy.parts = copies_of(image.parts, copy.parts, under_way);
  copy.position = image.position;
  copy.world_size = image.world_size;
  if (!image.optimizer) {
    copy.optimizer.reset();
    return under_way;
  }
  const NamedTensors before = copy.optimizer ? std::move(copy.optimizer->tensors) : NamedTensors{};
  copy.optimizer =
      OptimizerSnapshot{.description = image.optimizer->description,
                        .tensors = copies_of(image.optimizer->tensors, before, under_way)};
  return under_way;
}

// The space is checked before anything is written. A training that saves has the folder's lock
// already.
std::string write_image(const SaveOptions& options, const CheckpointImage& image) {
  const int64_t step = image.position.step;
  if (options.directory.empty() || step < 0) {
    throw invalid_argument("checkpoint: expected a directory and a step of 0 or more, got '",
                           options.directory,
                           "' and step ",
                           step,
                           "; set both");
  }
  const auto lock = lock_for_saving(options.directory);
  remove_leftovers(options.directory);
  const uint64_t of_optimizer = image.optimizer ? needed_bytes(image.optimizer->tensors) : 0;
  check_space(options.directory,
              needed_bytes(image.model) + of_optimizer + needed_bytes(image.parts) + kSpareBytes);

  // From here on the folder is removed again if anything fails.
  Staging staging(options.directory, step);
  const Metadata metadata = {{"format", "pt"}, {"step", cat(step)}};
  Manifest manifest = new_manifest(options,
                                   image.position,
                                   image.world_size,
                                   image.optimizer ? image.optimizer->description : "");
  manifest.serial = next_serial(options.directory, options.abandoned);
  const auto write = [&](const char* name, const NamedTensors& tensors) {
    manifest.files.push_back(write_safetensors(staging.path(), name, tensors, metadata));
  };
  write(kModelFile, image.model);
  if (image.optimizer)
    write(kOptimizerFile, image.optimizer->tensors);
  if (!image.parts.empty())
    write(kPartsFile, image.parts);
  write_manifest(staging.path(), manifest);
  // The file system may have lost what it said it wrote. Until this has been read back, older
  // checkpoints stay.
  verify_checkpoint(staging.path());

  auto path = staging.publish();
  remove_old(options, path);
  return path;
}

}  // namespace muster
