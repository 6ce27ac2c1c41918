// manifest.json: what a checkpoint is and which files belong to it, with their sizes and checksums. Written
// last; what is not as it says is not a checkpoint.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "muster/checkpoint/durable_file.h"

namespace muster {

// Where training stood.
struct TrainingPosition {
  int64_t step = 0;           // optimizer steps done: the checkpoint's name
  int64_t epoch = 0;          // the epoch under way (or the next, when batch is 0)
  int64_t batch = 0;          // batches that each rank has had of it; 0: the program did not say
  int64_t epoch_samples = 0;  // samples that all ranks together have had of it: DistributedSampler::set_epoch
  int64_t samples_seen = 0;   // since the beginning, by all ranks
  int64_t dataset_size = 0;   // samples of the data set; 0: the program did not say

  bool operator==(const TrainingPosition&) const = default;
};

// Serial numbers from after + 1 to until.
struct SerialRange {
  int64_t after = 0;
  int64_t until = 0;
  bool operator==(const SerialRange&) const = default;
};

// Whether one of the ranges has the serial number.
bool is_in(const std::vector<SerialRange>& ranges, int64_t serial);

struct Manifest {
  TrainingPosition position;
  // How many were saved before it in this folder: who goes back to an older step saves smaller steps later.
  int64_t serial = 0;
  std::string parent;  // "step-100": which one the training had gone on from, or saved last; empty: none
  // The serial numbers of branches that the training had abandoned when it went back: these are no ancestors
  // of this checkpoint, though they were saved before it.
  std::vector<SerialRange> abandoned;
  int world_size = 1;
  std::vector<WrittenFile> files;
  std::string optimizer;                    // OptimizerSnapshot::description, or empty
  std::map<std::string, std::string> user;  // whatever the program wants to find again

  const WrittenFile* find(const std::string& file) const;
};

constexpr const char* kManifestFile = "manifest.json";
constexpr const char* kModelFile = "model.safetensors";
constexpr const char* kOptimizerFile = "optim.safetensors";
constexpr const char* kPartsFile = "parts.safetensors";

// Throws: invalid_argument when a user text is not UTF-8.
std::string format_manifest(const Manifest& manifest);

// `name` is what messages call it. Throws: invalid_argument when it is no whole manifest of schema
// "muster.checkpoint/1", or was changed since it was written.
Manifest parse_manifest(const std::string& text, const std::string& name);

// Reads the manifest of a checkpoint and reads every file that it names to compare size and checksum.
// Throws: io, invalid_argument.
Manifest verify_checkpoint(const std::string& folder);

// As verify_checkpoint, but compares sizes only: cheap enough to judge many.
Manifest read_manifest(const std::string& folder);

// The manifest alone: of the files that it names nothing is looked at. Throws: io, invalid_argument.
Manifest read_manifest_alone(const std::string& folder);

// Compares one of the files with what the manifest says of it. Throws: io, invalid_argument.
void check_size(const std::string& folder, const WrittenFile& file);
void check_content(const std::string& folder, const WrittenFile& file,
                   const std::function<void(size_t)>& on_piece = {});

}  // namespace muster
