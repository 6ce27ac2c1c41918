// The changes of images that policies choose among, and the published policies of AutoAugment: 25
// pairs of changes each. For auto_augment.cc.
//
// Source: Cubuk and others, "AutoAugment: Learning Augmentation Strategies from Data", as
// torchvision has its tables.
#pragma once

#include <array>
#include <cstdint>

#include "muster/data/auto_augment.h"

namespace muster::transform {

// In torchvision's order, by which RandAugment and TrivialAugmentWide draw one of the first
// kDrawnChanges. Their numbers are indices, so that the enumeration is a plain one.
namespace change {
enum Kind : int8_t {
  none,
  shear_x,
  shear_y,
  translate_x,
  translate_y,
  rotate,
  brightness,
  color,
  contrast,
  sharpness,
  posterize,
  solarize,
  auto_contrast,
  equalize,
  invert,
};
}  // namespace change
inline constexpr int64_t kDrawnChanges = 14;

// A change that is made with this probability. `bin`: which of kPolicyBins magnitudes; of a change
// without magnitudes it says nothing.
struct PolicyStep {
  change::Kind kind = change::none;
  double probability = 0;
  int64_t bin = 0;
};
inline constexpr int64_t kPolicyBins = 10;

using SubPolicy = std::array<PolicyStep, 2>;  // one after the other
using SubPolicies = std::array<SubPolicy, 25>;
const SubPolicies& sub_policies(AutoAugmentPolicy policy);

}  // namespace muster::transform
