// Reads the tensors that Python's torch.save has written, such as a state_dict (.pth, .pt, .bin),
// by their names. Nothing in the file is executed: its pickle is only looked at (files/pickle.h).
// Called by open_weights.
#pragma once

#include <memory>
#include <string>

#include "muster/checkpoint/weight_source.h"

namespace muster {

// Whether the file at `path` begins as torch.save's do, today's or those of before version 1.6.
bool is_torch_file(const std::string& path);

// Tensors in dictionaries within dictionaries have the keys on the way, joined by dots, as their
// names: "model.conv1.weight". Everything else in the file is left alone. Throws: io;
// invalid_argument if the file is damaged, of another byte order, or has no tensor by name, as
// those of C++'s torch::save and of whole pickled modules.
WeightSourcePtr open_torch_file(const std::string& path);

}  // namespace muster
