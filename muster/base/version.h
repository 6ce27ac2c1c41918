// The version of muster that a program runs: for --version, and for hosts of a job to compare.
#pragma once

namespace muster {

const char* version();  // as the newest heading of CHANGELOG.md, such as "0.2.0"

}  // namespace muster
