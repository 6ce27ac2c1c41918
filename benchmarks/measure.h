// Running a command and timing it whole, from before it is started until it has ended. Used by the
// benchmarks.
#pragma once

#include <string>
#include <vector>

namespace muster::bench {

using Command = std::vector<std::string>;

struct Sample {
  std::vector<double> ms = {};

  double minimum() const;
  double median() const;
};

// Starts `count` processes of the command by fork and exec, then waits for them all; their output
// is thrown away. Units: milliseconds. Throws: Error when one cannot be started or does not return
// 0.
double time_processes(const Command& command, int count);

// What one process of the command wrote on standard output. Throws: as above.
std::string output_of(const Command& command);

// Whether the command can be started and returns 0.
bool works(const Command& command);

}  // namespace muster::bench
