// Checkpoints as tables for a terminal and as JSON: what `muster checkpoint` prints. Values and
// text.
#pragma once

#include <string>
#include <vector>

#include "muster/checkpoint/files/list.h"
#include "muster/checkpoint/files/verify.h"
#include "muster/checkpoint/files/view.h"

namespace muster {

std::string listed_text(const ListedCheckpoints& listed, const std::string& directory);
std::string listed_json(const ListedCheckpoints& listed, const std::string& directory);

// Tensors that belong together, with their files' heads read already.
struct ShownTensors {
  TensorSet set;
  TensorSource source;
};

std::string view_text(const CheckpointView& view, const std::vector<ShownTensors>& shown);
std::string view_json(const CheckpointView& view, const std::vector<ShownTensors>& shown);

std::string verified_text(const VerifiedFiles& rows);
std::string verified_json(const VerifiedFiles& rows);

}  // namespace muster
