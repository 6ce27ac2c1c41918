// The tables as published: some have a change of probability 0, or a pair twice. A line is a pair
// of changes, each with its probability and its magnitude.
#include "muster/data/auto_augment_policies.h"

#include <string_view>

#include "muster/base/lookup.h"
#include "muster/base/strings.h"

namespace muster::transform {

namespace {

constexpr std::string_view kImageNet =
    "posterize 0.4 8 rotate 0.6 9 "
    "solarize 0.6 5 auto_contrast 0.6 0 "
    "equalize 0.8 0 equalize 0.6 0 "
    "posterize 0.6 7 posterize 0.6 6 "
    "equalize 0.4 0 solarize 0.2 4 "
    "equalize 0.4 0 rotate 0.8 8 "
    "solarize 0.6 3 equalize 0.6 0 "
    "posterize 0.8 5 equalize 1 0 "
    "rotate 0.2 3 solarize 0.6 8 "
    "equalize 0.6 0 posterize 0.4 6 "
    "rotate 0.8 8 color 0.4 0 "
    "rotate 0.4 9 equalize 0.6 0 "
    "equalize 0 0 equalize 0.8 0 "
    "invert 0.6 0 equalize 1 0 "
    "color 0.6 4 contrast 1 8 "
    "rotate 0.8 8 color 1 2 "
    "color 0.8 8 solarize 0.8 7 "
    "sharpness 0.4 7 invert 0.6 0 "
    "shear_x 0.6 5 equalize 1 0 "
    "color 0.4 0 equalize 0.6 0 "
    "equalize 0.4 0 solarize 0.2 4 "
    "solarize 0.6 5 auto_contrast 0.6 0 "
    "invert 0.6 0 equalize 1 0 "
    "color 0.6 4 contrast 1 8 "
    "equalize 0.8 0 equalize 0.6 0";

constexpr std::string_view kCifar10 =
    "invert 0.1 0 contrast 0.2 6 "
    "rotate 0.7 2 translate_x 0.3 9 "
    "sharpness 0.8 1 sharpness 0.9 3 "
    "shear_y 0.5 8 translate_y 0.7 9 "
    "auto_contrast 0.5 0 equalize 0.9 0 "
    "shear_y 0.2 7 posterize 0.3 7 "
    "color 0.4 3 brightness 0.6 7 "
    "sharpness 0.3 9 brightness 0.7 9 "
    "equalize 0.6 0 equalize 0.5 0 "
    "contrast 0.6 7 sharpness 0.6 5 "
    "color 0.7 7 translate_x 0.5 8 "
    "equalize 0.3 0 auto_contrast 0.4 0 "
    "translate_y 0.4 3 sharpness 0.2 6 "
    "brightness 0.9 6 color 0.2 8 "
    "solarize 0.5 2 invert 0 0 "
    "equalize 0.2 0 auto_contrast 0.6 0 "
    "equalize 0.2 0 equalize 0.6 0 "
    "color 0.9 9 equalize 0.6 0 "
    "auto_contrast 0.8 0 solarize 0.2 8 "
    "brightness 0.1 3 color 0.7 0 "
    "solarize 0.4 5 auto_contrast 0.9 0 "
    "translate_y 0.9 9 translate_y 0.7 9 "
    "auto_contrast 0.9 0 solarize 0.8 3 "
    "equalize 0.8 0 invert 0.1 0 "
    "translate_y 0.7 9 auto_contrast 0.9 0";

constexpr std::string_view kSvhn =
    "shear_x 0.9 4 invert 0.2 0 "
    "shear_y 0.9 8 invert 0.7 0 "
    "equalize 0.6 0 solarize 0.6 6 "
    "invert 0.9 0 equalize 0.6 0 "
    "equalize 0.6 0 rotate 0.9 3 "
    "shear_x 0.9 4 auto_contrast 0.8 0 "
    "shear_y 0.9 8 invert 0.4 0 "
    "shear_y 0.9 5 solarize 0.2 6 "
    "invert 0.9 0 auto_contrast 0.8 0 "
    "equalize 0.6 0 rotate 0.9 3 "
    "shear_x 0.9 4 solarize 0.3 3 "
    "shear_y 0.8 8 invert 0.7 0 "
    "equalize 0.9 0 translate_y 0.6 6 "
    "invert 0.9 0 equalize 0.6 0 "
    "contrast 0.3 3 rotate 0.8 4 "
    "invert 0.8 0 translate_y 0 2 "
    "shear_y 0.7 6 solarize 0.4 8 "
    "invert 0.6 0 rotate 0.8 4 "
    "shear_y 0.3 7 translate_x 0.9 3 "
    "shear_x 0.1 6 invert 0.6 0 "
    "solarize 0.7 2 translate_y 0.6 7 "
    "shear_y 0.8 4 invert 0.8 0 "
    "shear_x 0.7 9 translate_y 0.8 3 "
    "shear_y 0.8 5 auto_contrast 0.7 0 "
    "shear_x 0.7 2 invert 0.1 0";

// By the numbers of change::Kind.
constexpr std::string_view kKinds[] = {"none",
                                       "shear_x",
                                       "shear_y",
                                       "translate_x",
                                       "translate_y",
                                       "rotate",
                                       "brightness",
                                       "color",
                                       "contrast",
                                       "sharpness",
                                       "posterize",
                                       "solarize",
                                       "auto_contrast",
                                       "equalize",
                                       "invert"};

SubPolicies policies_of(std::string_view table) {
  const Strings words = split(table, ' ');
  auto word = words.begin();
  SubPolicies policies;
  for (SubPolicy& pair : policies) {
    for (PolicyStep& step : pair) {
      step.kind = static_cast<change::Kind>(*index_with(kKinds, *word++));
      step.probability = *parse_as<double>(*word++);
      step.bin = *parse_int(*word++);
    }
  }
  return policies;
}

}  // namespace

const SubPolicies& sub_policies(AutoAugmentPolicy policy) {
  static const SubPolicies image_net = policies_of(kImageNet);
  static const SubPolicies cifar10 = policies_of(kCifar10);
  static const SubPolicies svhn = policies_of(kSvhn);
  switch (policy) {
    case AutoAugmentPolicy::cifar10:
      return cifar10;
    case AutoAugmentPolicy::svhn:
      return svhn;
    case AutoAugmentPolicy::imagenet:
      break;
  }
  return image_net;
}

}  // namespace muster::transform
