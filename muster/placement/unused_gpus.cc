// What is left over follows from what the policy chose, whatever the reason: ranks of several GPUs
// that do not divide the GPUs, a mesh, a list or sizes of memory for fewer ranks than GPUs.
#include "muster/placement/unused_gpus.h"

#include <ranges>
#include <string>
#include <string_view>

#include "muster/base/mapped.h"
#include "muster/base/strings.h"
#include "muster/base/text_of.h"
#include "muster/placement/selection/gpu_facts.h"
#include "muster/placement/selection/selection.h"
#include "muster/placement/shared_gpus.h"

namespace muster {
namespace {

constexpr size_t kMostUnusedNamed = 8;

// GPUs that are named one by one are meant to be used; other selections are there to choose from.
bool are_named(const Policy& policy, const PolicyInput& input) {
  const SelectionPart* const part = part_for(input.request.gpus, input.host);
  return policy.name == std::string_view("sequential") && part != nullptr && names_each(*part);
}

Strings unused_gpus(const PolicyInput& input, const PolicyChoices& choices) {
  const Sharers used = sharers_of(choices);
  const auto is_unused = [&](const UsableGpu& gpu) {
    return !used.contains(device_key(gpu));
  };
  return mapped(input.gpus | std::views::filter(is_unused),
                [&](const UsableGpu& gpu) { return label_of(input.host, gpu); });
}

}  // namespace

void note_unused_gpus(const Policy& policy,
                      const PolicyInput& input,
                      const PolicyChoices& choices,
                      std::optional<int> nproc,
                      PlanNotes& notes) {
  const Request& request = input.request;
  const int each = request.gpus_per_rank;
  const bool named = are_named(policy, input);
  const bool as_asked = nproc && each == 1 && request.mesh.empty() && !named;
  const Strings left = unused_gpus(input, choices);
  if (left.empty() || as_asked)
    return;
  const size_t num_ranks = choices.size() / each;
  const auto text = cat(join_first(left, ", ", kMostUnusedNamed),
                        named ? cat(" of --gpus ", printable(request.gpus.text)) : "",
                        word_for(left.size(), " is", " are"),
                        " not used: ",
                        plural(num_ranks, "rank"),
                        word_for(num_ranks, "", ", each"),
                        " with ",
                        plural(each, "GPU"),
                        named && each == 1 ? "; --gpus-per-rank N gives each more" : "");
  notes.add(input.host, text, named);
}

}  // namespace muster
