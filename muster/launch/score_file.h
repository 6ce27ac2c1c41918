// Speeds of GPUs from a file, as `muster run --scores` takes them: for the command line, and for
// RunOptions::scores.
#pragma once

#include <map>
#include <string>

namespace muster {

// Reads a JSON object of speeds by GPU: {"0": 100, "NVIDIA A100-SXM4-40GB": 90}. Throws: io;
// invalid_argument for a file that is no such object.
std::map<std::string, double> read_scores(const std::string& path);

}  // namespace muster
