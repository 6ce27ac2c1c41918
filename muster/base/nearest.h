// The name that was probably meant, for errors about one that is not known. For the readers of
// command lines, of configuration files, specs and sweeps; pure.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace muster {

// The name that takes the fewest changed, added, left out or swapped letters. When all are further
// away than a slip of the hand: the only one with the same beginning ("retry" of "retries"), or
// nothing.
std::string_view nearest_name(std::string_view text, const std::vector<std::string_view>& names);

// "; did you mean 'lr'?", or nothing.
std::string did_you_mean(std::string_view text, const std::vector<std::string_view>& names);

}  // namespace muster
