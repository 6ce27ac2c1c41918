// Checkpoints as tables for a terminal and as JSON: what `muster checkpoint` prints. Values and text.
#pragma once

#include <string>
#include <vector>

#include "muster/checkpoint/checkpoint_view.h"

namespace muster {

std::string listed_text(const std::vector<ListedCheckpoint>& listed, const std::string& directory);
std::string listed_json(const std::vector<ListedCheckpoint>& listed, const std::string& directory);

// The tensors of one file, with its head read already.
struct FileTensors {
  ViewedFile file;
  SafetensorsHeader header;
};

std::string view_text(const CheckpointView& view, const std::vector<FileTensors>& files);
std::string view_json(const CheckpointView& view, const std::vector<FileTensors>& files);

std::string verified_text(const std::vector<VerifiedFile>& rows);
std::string verified_json(const std::vector<VerifiedFile>& rows);

}  // namespace muster
