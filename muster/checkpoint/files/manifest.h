// manifest.json: what a checkpoint is, and its files with their sizes and checksums. It is written
// last; a folder that does not match its manifest is not a checkpoint.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "muster/base/strings.h"
#include "muster/checkpoint/files/durable_file.h"
#include "muster/checkpoint/files/sha256.h"

namespace muster {

// The training position.
struct TrainingPosition {
  int64_t step = 0;   // optimizer steps done: the checkpoint's name
  int64_t epoch = 0;  // the current epoch (or the next, if batch is 0)
  int64_t batch = 0;  // batches of it that each rank has used; 0: not given by the program
  int64_t epoch_samples =
      0;  // samples of it used by all ranks together: for DistributedSampler::set_epoch
  int64_t samples_seen = 0;  // by all ranks since the start of training
  int64_t dataset_size = 0;  // samples of the dataset; 0: not given by the program

  bool operator==(const TrainingPosition&) const = default;
};

// The serial numbers from after + 1 to until.
struct SerialRange {
  int64_t after = 0;
  int64_t until = 0;
  bool operator==(const SerialRange&) const = default;
};

using SerialRanges = std::vector<SerialRange>;

// Whether one of the ranges contains the serial number.
bool is_in(const SerialRanges& ranges, int64_t serial);

// The number by which the checkpoints of a training are compared.
struct CheckpointMetric {
  std::string name{};
  bool larger_is_better = false;
  std::optional<double> value{};  // nothing: it was no finite number
};

struct Manifest {
  TrainingPosition position{};
  // How many were saved before it in this folder. (After going back, later saves may have smaller
  // steps.)
  int64_t serial = 0;
  std::string parent{};  // "step-100": the checkpoint resumed from or saved before; empty: none
  // The serial numbers of branches that the training abandoned by going back: they are not
  // ancestors of this checkpoint, though saved before it.
  SerialRanges abandoned{};
  int world_size = 1;
  std::vector<WrittenFile> files{};
  std::string optimizer{};                   // OptimizerSnapshot::description, or empty
  StringMap user{};                          // whatever the program wants to find again
  std::optional<CheckpointMetric> metric{};  // of the model as it is in the checkpoint

  const WrittenFile* find(const std::string& file) const;
};

constexpr auto kManifestFile = "manifest.json";
constexpr auto kModelFile = "model.safetensors";
constexpr auto kOptimizerFile = "optim.safetensors";
constexpr auto kPartsFile = "parts.safetensors";
constexpr auto kPartTensors = "tensors/";  // then the part's name, a '/', and the tensor's

// Throws: invalid_argument if a user text is not UTF-8.
std::string format_manifest(const Manifest& manifest);

// Writes the manifest into a checkpoint's folder, durably. Throws: io; as format_manifest.
void write_manifest(const std::string& folder, const Manifest& manifest);

// Throws: invalid_argument for a manifest of another step than the name of its folder says.
void check_step(const Manifest& manifest, const std::string& path);

// `name` appears in messages. Throws: invalid_argument if the text is not a complete manifest of
// schema "muster.checkpoint/1", or was changed after it was written.
Manifest parse_manifest(const std::string& text, const std::string& name);

// Reads a checkpoint's manifest, then reads every file that it names and compares size and
// checksum. Throws: io, invalid_argument.
Manifest verify_checkpoint(const std::string& folder);

// Does what verify_checkpoint does, but compares only sizes, which is cheap enough for many
// checkpoints.
Manifest read_manifest(const std::string& folder);

// Reads only the manifest, without looking at the files that it names. Throws: io,
// invalid_argument.
Manifest read_manifest_alone(const std::string& folder);
// The same; nothing where it cannot be read.
std::optional<Manifest> manifest_if_readable(const std::string& folder);

// Compares one file with the manifest. Throws: io, invalid_argument.
void check_size(const std::string& folder, const WrittenFile& file);
void check_content(const std::string& folder,
                   const WrittenFile& file,
                   const OnBytes& on_piece = {});

}  // namespace muster
